"""The uids by which state is found again."""

from __future__ import annotations

import pytest

from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from holdfast.errors import ConfigurationError
from holdfast.runtime.plan.plan import InputKind


class Count(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Other(Count):
    pass


def environment(parallelism: int = 2) -> StreamExecutionEnvironment:
    return StreamExecutionEnvironment().set_parallelism(parallelism)


def uids(env: StreamExecutionEnvironment) -> dict[str, str]:
    """Name -> uid, for all operators and sources."""
    found = {}
    for vertex in env._plan("test").vertices:
        if vertex.source is not None:
            found[vertex.source.name] = vertex.source.uid
        found.update({c.name: c.uid for c in vertex.chain if not c.uid.endswith("-records")})
    return found


def program(env: StreamExecutionEnvironment) -> None:
    env.from_collection([1]).map(lambda x: x).key_by(lambda x: x).process(Count()).name("count").print().name("out")


def test_the_same_program_has_the_same_uids():
    first, second = environment(), environment()
    program(first)
    program(second)
    assert uids(first) == uids(second)
    assert len(set(uids(first).values())) == 4


def test_uids_do_not_depend_on_the_parallelism():
    first, second = environment(1), environment(7)
    program(first)
    program(second)
    assert uids(first) == uids(second)


def test_unrelated_branches_change_no_uid():
    plain, extended = environment(), environment()
    program(plain)

    source = extended.from_collection([1])
    source.filter(lambda x: x > 1).print().name("before")
    extended.from_collection([5]).name("another source").print().name("more")
    mapped = source.map(lambda x: x)
    mapped.key_by(lambda x: x).process(Other()).name("count too").print()
    counted = mapped.key_by(lambda x: x).process(Count()).name("count")
    counted.map(lambda x: x).name("side")
    counted.print().name("out")

    before, after = uids(plain), uids(extended)
    assert {name: after[name] for name in before} == before


def test_equal_operators_are_distinguished_by_their_order():
    env = environment()
    keyed = env.from_collection([1]).key_by(lambda x: x)
    keyed.process(Count()).print()
    keyed.process(Count()).print()
    found = [c.uid for v in env._plan("test").vertices for c in v.chain]
    assert len(set(found)) == len(found)


def test_exchanged_functions_do_not_exchange_their_state():
    def branches(env, first, second):
        keyed = env.from_collection([1]).key_by(lambda x: x)
        made = [keyed.process(f).print()._transformation.inputs[0] for f in (first, second)]
        plan = env._plan("test")
        named = {type(c.factory.functions()[0]).__name__: c.uid for v in plan.vertices if v.inputs for c in v.chain[:1]}
        assert len(made) == 2
        return named

    assert branches(environment(), Count(), Other()) == branches(environment(), Other(), Count())


def test_a_given_uid_is_kept_and_shields_what_follows_from_changes_before():
    first, second = environment(), environment()
    first.from_collection([1]).key_by(lambda x: x).process(Count()).uid("mine").name("c").print().name("out")
    second.from_collection([1]).map(str).key_by(lambda x: x).process(Count()).uid("mine").name("c").print().name("out")
    assert uids(first)["c"] == "mine"
    assert uids(first)["out"] == uids(second)["out"]
    given = [c.uid_given for v in first._plan("test").vertices if InputKind.KEYED in v.inputs for c in v.chain]
    assert given == [True, False]


def test_sources_and_sinks_take_uids():
    env = environment()
    env.from_collection([1]).uid("in").print().uid("out")
    plan = env._plan("test")
    assert plan.vertices[0].source is not None
    assert (plan.vertices[0].source.uid, plan.vertices[0].source.uid_given) == ("in", True)
    assert plan.vertices[-1].chain[-1].uid == "out"


def test_a_uid_given_twice_is_an_error_that_names_both_operators():
    env = environment()
    env.from_collection([1]).uid("same").map(lambda x: x).name("second").uid("same").print()
    with pytest.raises(ConfigurationError, match=r"'same'.*'Collection Source' \(Source, test_uids.py:\d+\).*'second'"):
        env._plan("test")


def test_a_uid_is_a_text_that_is_not_empty():
    stream = environment().from_collection([1])
    for bad in ("", " ", None, 3):
        with pytest.raises(ConfigurationError, match="uid must be a text"):
            stream.uid(bad)


def test_uids_can_be_made_compulsory():
    env = environment()
    env.get_config().disable_auto_generated_uids()
    env.from_collection([1]).uid("in").map(lambda x: x).name("nameless").print().uid("out")
    with pytest.raises(ConfigurationError, match=r"needs a uid.*'nameless'"):
        env._plan("test")


@pytest.mark.parametrize("given", [False, True])
def test_operators_with_state_that_only_their_order_distinguishes_are_told_once(given, caplog):
    class Alike(KeyedProcessFunction):
        def process_element(self, value, ctx):
            yield value

    env = environment()
    source = env.from_collection([1])
    for number in range(3):
        counted = source.key_by(lambda x: x).process(Alike()).name(f"alike, {given}")
        if given:
            counted.uid(f"alike {number}")
        counted.print()
    for _ in range(2):
        env._plan("test")
    assert [record.levelname for record in caplog.records if "are alike" in record.message] == ["WARNING"] * (not given)
