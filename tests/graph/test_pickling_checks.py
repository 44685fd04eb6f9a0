"""Functions that cannot be sent to the workers are found before the job starts, with the part that is to blame."""

from __future__ import annotations

import threading

import pytest

from holdfast.datastream import MapFunction, StreamExecutionEnvironment
from holdfast.errors import ConfigurationError

LOCK = threading.Lock()


class Holder:
    def __init__(self) -> None:
        self.inner = {"lock": threading.Lock()}

    def call(self, value):
        return value


class Locked(MapFunction):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    def map(self, value):
        return value


class Shared(MapFunction):
    def map(self, value):
        return value


@pytest.fixture
def env() -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment().set_parallelism(1)


def told(env: StreamExecutionEnvironment) -> str:
    with pytest.raises(ConfigurationError) as caught:
        env._plan("test")
    return str(caught.value)


def test_an_attribute_of_a_function_object_is_named(env):
    env.from_collection([1]).map(Locked()).name("locked").print()
    text = told(env)
    assert "function of operator 'locked' (Map, test_pickling_checks.py:" in text
    assert "the attribute 'lock', a _thread.lock" in text
    assert "open()" in text


def test_a_captured_variable_is_named(env):
    lock = threading.Lock()
    env.from_collection([1]).map(lambda x: (x, lock)).print()
    assert "the variable 'lock', a _thread.lock" in told(env)


def test_the_part_inside_of_a_captured_object_is_named(env):
    holder = Holder()
    env.from_collection([1]).filter(holder.call).print()
    assert "the entry 'lock' of the attribute 'inner' of its object" in told(env)


def test_a_key_selector_is_checked_too(env):
    lock = threading.Lock()
    env.from_collection([1]).key_by(lambda x: lock and x).print()
    text = told(env)
    assert "key selector before the input of operator 'Print to Std. Out'" in text
    assert "the variable 'lock'" in text


def test_using_a_stream_or_the_environment_in_a_function_is_explained(env):
    stream = env.from_collection([1])
    stream.map(lambda x: stream.get_name()).print()
    assert "a DataStream cannot be used inside a function" in told(env)

    other = StreamExecutionEnvironment().set_parallelism(1)
    other.from_collection([1]).map(lambda x: other.get_parallelism()).print()
    assert "the StreamExecutionEnvironment cannot be used inside a function" in told(other)


def test_an_object_that_cannot_be_unpickled_is_reported(env):
    class OneWay(MapFunction):
        def __reduce__(self):
            return int, ("no number",)

        def map(self, value):
            return value

    env.from_collection([1]).map(OneWay()).print()
    assert "can be pickled but not unpickled" in told(env)


def test_operators_given_the_same_function_object_do_not_share_it(env):
    shared = Shared()
    env.from_collection([1]).map(shared).map(shared).print()
    (vertex,) = env._plan("test").vertices
    functions = [chained.factory.functions()[0] for chained in vertex.chain]
    assert functions[0] is not functions[1]
    assert shared not in functions


def test_functions_with_a_cell_that_is_still_empty_do_not_confuse_the_search(env):
    lock = threading.Lock()

    def outer():
        def function(value):
            return later, lock, value

        env.from_collection([1]).map(function).print()
        text = told(env)
        later = None
        return text, later

    assert "the variable 'lock'" in outer()[0]
