"""What is wrong with connected streams is told at the call that is wrong, before anything runs."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.common import Time, Types
from holdfast.datastream import (
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    MapFunction,
    MapStateDescriptor,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.datastream.data_stream import BroadcastConnectedStream, BroadcastStream, ConnectedStreams, DataStream
from holdfast.errors import ConfigurationError

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


@pytest.fixture
def streams() -> tuple[DataStream, DataStream]:
    env = StreamExecutionEnvironment.get_execution_environment(spark=object()).set_parallelism(2)  # type: ignore[arg-type]
    return env.from_collection([1, 2]), env.from_collection(["a"])


class Each(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self, value: Any) -> Any:
        return value


class AddOne(MapFunction):
    def map(self, value: Any) -> Any:
        return value + 1


class Short(CoMapFunction):
    def map1(self, value: Any) -> Any:
        return value

    def map2(self) -> Any:  # type: ignore[override]
        return 1


class Generates(CoMapFunction):
    def map1(self, value: Any) -> Any:
        yield value

    def map2(self, value: Any) -> Any:
        return value


class Keyed(KeyedCoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield value


class Plain(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield value


class Broadcast(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        yield value


class KeyedBroadcast(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        yield value


def a_connection_is_made_of_streams_of_one_environment(streams):
    numbers, texts = streams
    other = StreamExecutionEnvironment.get_execution_environment(spark=object()).from_collection([1])  # type: ignore[arg-type]
    assert isinstance(numbers.connect(texts), ConnectedStreams)
    with pytest.raises(TypeError, match="connect\\(\\) takes a stream"):
        numbers.connect([1, 2])
    with pytest.raises(ConfigurationError, match="same environment"):
        numbers.connect(other)
    with pytest.raises(ConfigurationError, match="same environment"):
        numbers.connect(other.broadcast(RULES))


def a_function_of_another_class_is_refused(streams):
    numbers, texts = streams
    both = numbers.connect(texts)
    for call, wrong, wanted in (
        (both.map, AddOne(), "CoMapFunction"),
        (both.map, lambda value: value, "CoMapFunction"),
        (both.flat_map, Each(), "CoFlatMapFunction"),
        (both.process, Each(), "CoProcessFunction"),
    ):
        with pytest.raises(TypeError, match=wanted):
            call(wrong)


def a_function_with_other_arguments_is_refused(streams):
    numbers, texts = streams
    with pytest.raises(ConfigurationError, match=r"called with \(value\), but .*map2"):
        numbers.connect(texts).map(Short())
    with pytest.raises(ConfigurationError, match="map1 is a generator function, but map1\\(\\) gives one result"):
        numbers.connect(texts).map(Generates())


def a_keyed_function_needs_keys_on_both_sides(streams):
    numbers, texts = streams
    for both in (numbers.connect(texts), numbers.key_by(len).connect(texts), numbers.connect(texts.key_by(len))):
        with pytest.raises(TypeError, match=r"without keys got the KeyedCoProcessFunction Keyed.*key_by\("):
            both.process(Keyed())
    numbers.key_by(len).connect(texts.key_by(len)).process(Keyed())
    numbers.connect(texts).key_by(len, len).process(Keyed())
    numbers.connect(texts).process(Plain())


def the_keys_of_both_streams_have_one_type(streams):
    numbers, texts = streams
    keyed = numbers.key_by(lambda n: n, Types.LONG()).connect(texts.key_by(lambda t: t, Types.STRING()))
    keyed.process(Keyed()).print()
    with pytest.raises(ConfigurationError, match="share its state, but their keys are declared with different types"):
        numbers.get_execution_environment()._plan("job")


def a_broadcast_takes_descriptors_of_maps(streams):
    numbers, texts = streams
    assert isinstance(texts.broadcast(), DataStream)
    assert isinstance(texts.broadcast(RULES), BroadcastStream)
    assert isinstance(numbers.connect(texts.broadcast(RULES)), BroadcastConnectedStream)
    with pytest.raises(TypeError, match="broadcast\\(\\) takes MapStateDescriptors, not ValueStateDescriptor"):
        texts.broadcast(ValueStateDescriptor("v", Types.LONG()))
    with pytest.raises(ConfigurationError, match="two descriptors named 'rules'"):
        texts.broadcast(RULES, MapStateDescriptor("rules"))
    expiring = MapStateDescriptor("rules")
    expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    with pytest.raises(ConfigurationError, match="only keyed state expires"):
        texts.broadcast(expiring)


def a_broadcast_function_is_of_the_class_for_its_stream(streams):
    numbers, texts = streams
    rules = texts.broadcast(RULES)
    numbers.connect(rules).process(Broadcast())
    numbers.key_by(lambda n: n).connect(rules).process(KeyedBroadcast())
    with pytest.raises(TypeError, match=r"takes a BroadcastProcessFunction, not a KeyedBroadcast.*[Cc]all key_by"):
        numbers.connect(rules).process(KeyedBroadcast())
    with pytest.raises(TypeError, match="takes a KeyedBroadcastProcessFunction, not a Broadcast"):
        numbers.key_by(lambda n: n).connect(rules).process(Broadcast())


def a_flat_map_of_two_streams_may_be_a_generator(streams):
    class Both(CoFlatMapFunction):
        def flat_map1(self, value: Any) -> Any:
            yield value

        def flat_map2(self, value: Any) -> Any:
            return [value]

    numbers, texts = streams
    numbers.connect(texts).flat_map(Both())
