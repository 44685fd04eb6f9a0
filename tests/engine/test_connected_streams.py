"""Two streams in one function: inputs, shared state and timers, watermarks, the order of the inputs."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Types, WatermarkStrategy
from holdfast.common.time import Duration
from holdfast.datastream import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    ListStateDescriptor,
    OutputTag,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.runtime.plan.plan import InputKind

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

FIRST = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(50)).with_timestamp_assigner(lambda v, _: v[1])


def stream(
    env: StreamExecutionEnvironment, splits: dict[str, list[Any]], name: str, strategy: Any = None, **how: Any
) -> Any:
    source = SplitSource({f"{name}-{split}": values for split, values in splits.items()}, **how)
    return env.from_source(source, strategy or WatermarkStrategy.no_watermarks(), name).uid(name)


def results(job: Lab, crashes: Any = ()) -> list[Any]:
    LEDGERS["out"].committed.clear()
    job.run(crashes)
    return LEDGERS["out"].values


class Join(KeyedCoProcessFunction):
    """Emits every pair of a left and a right element of a key once; an hour after its last element, what it had."""

    def open(self, runtime_context: Any) -> None:
        self.left = runtime_context.get_list_state(ListStateDescriptor("left", Types.PICKLED_BYTE_ARRAY()))
        self.right = runtime_context.get_list_state(ListStateDescriptor("right", Types.PICKLED_BYTE_ARRAY()))
        self.timer = runtime_context.get_state(ValueStateDescriptor("timer", Types.LONG()))

    def _note(self, ctx: Any) -> None:
        before = self.timer.value()
        if before is None or before < ctx.timestamp():
            if before is not None:
                ctx.timer_service().delete_event_time_timer(before + 3_600_000)
            self.timer.update(ctx.timestamp())
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + 3_600_000)

    def process_element1(self, value: Any, ctx: Any) -> Any:
        self._note(ctx)
        self.left.add(value)
        for other in self.right.get():
            yield "pair", ctx.get_current_key(), value, other

    def process_element2(self, value: Any, ctx: Any) -> Any:
        self._note(ctx)
        self.right.add(value)
        for other in self.left.get():
            yield "pair", ctx.get_current_key(), other, value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "end", ctx.get_current_key(), timestamp, len(list(self.left.get())), len(list(self.right.get()))


ELEMENTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1000)), max_size=25)
SPLITS = st.dictionaries(st.sampled_from("ab"), ELEMENTS, min_size=1)
CRASHES = st.lists(
    st.tuples(st.sampled_from(["run", "before complete", "after complete", "before commit"]), st.integers(1, 3)), max_size=2
)


def numbered(splits: dict[str, list[Any]], side: str) -> dict[str, list[Any]]:
    return {
        name: [(key, time, f"{side}{name}{i}") for i, (key, time) in enumerate(elements)]
        for name, elements in splits.items()
    }


@settings(max_examples=examples(8), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    left=SPLITS,
    right=SPLITS,
    parallelism=st.integers(1, 3),
    cut=st.integers(1, 12),
    backend=st.sampled_from(["hashmap", "rocksdb"]),
    crashes=CRASHES,
    seed=st.integers(0, 100),
)
def the_keyed_streams_of_a_connection_share_state_and_timers_of_a_key(left, right, parallelism, cut, backend, crashes, seed):
    left, right = numbered(left, "l"), numbered(right, "r")

    def build(env: StreamExecutionEnvironment) -> None:
        first = stream(env, left, "left", FIRST, cut=cut, seed=seed).key_by(lambda v: v[0], Types.LONG())
        second = stream(env, right, "right", FIRST, cut=cut, seed=seed + 1).key_by(lambda v: v[0], Types.LONG())
        first.connect(second).process(Join()).uid("join").sink_to(LedgerSink("out"))

    directory = Path(mkdtemp())
    try:
        told = results(Lab(build, directory, parallelism, config={"state.backend.type": backend}), crashes)
    finally:
        shutil.rmtree(directory)
    lefts, rights = ([each for elements in side.values() for each in elements] for side in (left, right))
    pairs = Counter((one[0], one, other) for one in lefts for other in rights if one[0] == other[0])
    assert Counter(each[1:] for each in told if each[0] == "pair") == pairs
    latest: dict[int, int] = {}
    for key, time, _ in lefts + rights:
        latest[key] = max(latest.get(key, 0), time)
    ends = [
        (key, time + 3_600_000, sum(e[0] == key for e in lefts), sum(e[0] == key for e in rights))
        for key, time in latest.items()
    ]
    assert sorted(each[1:] for each in told if each[0] == "end") == sorted(ends)


class Tell(CoMapFunction):
    def open(self, runtime_context: Any) -> None:
        self.name = runtime_context.get_task_name()

    def map1(self, value: Any) -> Any:
        return self.name, 1, value

    def map2(self, value: Any) -> Any:
        return self.name, 2, value


ODD = OutputTag("odd", Types.LONG())


class Some(CoFlatMapFunction):
    def flat_map1(self, value: Any) -> Any:
        return [value] * value

    def flat_map2(self, value: Any) -> Any:
        if value % 2:
            yield ODD, value


class Stamps(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        yield 1, value, ctx.timestamp()

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return None if value[1] < 3 else [(2, value, ctx.timestamp())]


def a_co_map_takes_each_stream_in_a_method_of_its_own(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        first = stream(env, {"a": [1, 2]}, "first").union(stream(env, {"a": [3]}, "third"))
        first.connect(stream(env, {"a": ["x"]}, "second")).map(Tell()).name("both").sink_to(LedgerSink("out"))

    assert sorted(results(Lab(build, tmp_path)), key=str) == sorted(
        [("both", 1, 1), ("both", 1, 2), ("both", 1, 3), ("both", 2, "x")], key=str
    )


def a_co_flat_map_emits_any_number_and_to_side_outputs(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        both = stream(env, {"a": [0, 1, 2]}, "first").connect(stream(env, {"a": [4, 5]}, "second")).flat_map(Some())
        both.union(both.get_side_output(ODD).map(lambda n: f"odd {n}")).sink_to(LedgerSink("out"))

    assert sorted(results(Lab(build, tmp_path)), key=str) == [1, 2, 2, "odd 5"]


def a_co_process_function_sees_timestamps(tmp_path):
    values = {"a": [("v", n) for n in range(5)]}

    def build(env: StreamExecutionEnvironment) -> None:
        first, second = stream(env, values, "first", FIRST), stream(env, values, "second", FIRST)
        first.connect(second).process(Stamps()).sink_to(LedgerSink("out"))

    expected = [(1, ("v", n), n) for n in range(5)] + [(2, ("v", n), n) for n in range(3, 5)]
    assert sorted(results(Lab(build, tmp_path))) == expected


class Counted(CoMapFunction):
    """Counts the elements of a key, whichever stream they come from."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def map1(self, value: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        return value % 3, self.count.value()

    map2 = map1


def a_co_map_of_keyed_streams_has_keyed_state(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        first, second = stream(env, {"a": range(0, 30)}, "first"), stream(env, {"a": range(30, 60)}, "second")
        both = first.connect(second).key_by(lambda n: n % 3, lambda n: n % 3, Types.LONG())
        both.map(Counted(), Types.TUPLE([Types.LONG(), Types.LONG()])).sink_to(LedgerSink("out"))

    told = results(Lab(build, tmp_path, budget=10), [("after complete", 2)])
    assert sorted(told) == [(key, count) for key in range(3) for count in range(1, 21)]


class Watermarks(KeyedCoProcessFunction):
    """Tells at which watermarks the other stream's timers fire."""

    def process_element1(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(value[1])

    def process_element2(self, value: Any, ctx: Any) -> Any:
        yield "second", value[1], ctx.timer_service().current_watermark()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield "timer", timestamp, ctx.timer_service().current_watermark()


def the_watermark_is_the_lower_one_of_the_two_streams(tmp_path):
    """The first stream is at its end in the first epoch; its timers wait for the second stream."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[1])

    def build(env: StreamExecutionEnvironment) -> None:
        first = stream(env, {"a": [("k", 10), ("k", 20), ("k", 30)]}, "first", strategy)
        second = stream(env, {"a": [("k", 15), ("k", 25), ("k", 26)]}, "second", strategy, cut=1, seed=5)
        first.connect(second).key_by(lambda v: v[0], lambda v: v[0]).process(Watermarks()).sink_to(LedgerSink("out"))

    told = results(Lab(build, tmp_path, parallelism=1, config={"holdfast.batch.records": "1"}))
    fired = {time: watermark for kind, time, watermark in told if kind == "timer"}
    assert fired == {10: 14, 20: 24, 30: 2**63 - 1}
    order = [each[:2] for each in told]
    assert order.index(("timer", 10)) > order.index(("second", 15))
    assert order.index(("timer", 20)) > order.index(("second", 25))


def the_elements_of_the_first_stream_come_first_when_no_watermark_says_otherwise(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        second = stream(env, {"a": list("cd")}, "second").rebalance()  # the source that is read first
        first = stream(env, {"a": list("ab")}, "first").rebalance()
        first.connect(second).map(Tell()).name("t").sink_to(LedgerSink("out"))

    told = results(Lab(build, tmp_path, parallelism=1))
    assert [value for _, _, value in told] == ["a", "b", "c", "d"]


def the_elements_of_the_stream_that_is_behind_come_first(tmp_path):
    early, late = [("early", n) for n in range(100)], [("late", n) for n in range(1000, 1100)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v, _: v[1])
    config = {"holdfast.frame.records": "10", "holdfast.batch.records": "10"}

    def build(env: StreamExecutionEnvironment) -> None:
        first = stream(env, {"a": late}, "first", strategy).rebalance()
        second = stream(env, {"a": early}, "second", strategy).rebalance()
        first.connect(second).process(Stamps()).map(lambda told: told[1]).sink_to(LedgerSink("out"))

    told = results(Lab(build, tmp_path, parallelism=1, config=config))
    # A frame carries the watermark behind the frame before it: that of the second one tells how far the stream is.
    assert told == late[:20] + early[3:] + late[20:]


def a_plan_has_two_inputs_that_are_keyed(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        one = stream(env, {"a": [1]}, "one")
        one.connect(one.map(lambda n: n)).key_by(lambda n: n, lambda n: n).process(Watermarks()).print()

    (vertex,) = [vertex for vertex in Lab(build, tmp_path).plan().vertices if vertex.inputs]
    assert vertex.inputs == (InputKind.KEYED, InputKind.KEYED)


def an_error_in_one_of_the_methods_names_its_record(tmp_path):
    class Fails(CoMapFunction):
        def map1(self, value: Any) -> Any:
            return value

        def map2(self, value: Any) -> Any:
            return 1 // value

    def build(env: StreamExecutionEnvironment) -> None:
        first, second = stream(env, {"a": [1]}, "first").rebalance(), stream(env, {"a": [3, 0]}, "second").rebalance()
        first.connect(second).map(Fails()).uid("fails").sink_to(LedgerSink("out"))

    with pytest.raises(Exception, match=r"(?s)ZeroDivisionError.*uid 'fails'.*element: 0.*split second-a, record 1"):
        results(Lab(build, tmp_path))
