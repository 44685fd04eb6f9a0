"""Operator state: lists of a subtask that survive crashes and are shared out to another parallelism."""

from __future__ import annotations

import shutil
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import (
    CheckpointedFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    ReduceFunction,
    StreamExecutionEnvironment,
    TumblingProcessingTimeWindows,
    ValueStateDescriptor,
    WindowFunction,
)
from holdfast.errors import ConfigurationError, JobFailed, UserCodeError

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

NONE = WatermarkStrategy.no_watermarks()


def stream(env: StreamExecutionEnvironment, splits: dict[str, Any], name: str, **how: Any) -> Any:
    source = SplitSource({f"{name}-{split}": values for split, values in splits.items()}, **how)
    return env.from_source(source, NONE, name).uid(name)


def results(job: Lab, crashes: Any = ()) -> list[Any]:
    LEDGERS["out"].committed.clear()
    job.run(crashes)
    return LEDGERS["out"].values


class Buffered(FlatMapFunction, CheckpointedFunction):
    """Emits its elements four at a time; those that wait are its state."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("waiting", Types.LONG()))
        self.waiting = list(self.state.get())

    def snapshot_state(self, context: Any) -> None:
        self.state.update(self.waiting)

    def flat_map(self, value: Any) -> Any:
        if value is not None:
            self.waiting.append(value)
        if len(self.waiting) >= 4 or value is None:
            ready, self.waiting = self.waiting, []
            yield from ready


CRASHES = st.lists(
    st.tuples(st.sampled_from(["run", "before complete", "after complete", "before commit"]), st.integers(1, 3)), max_size=3
)


@settings(max_examples=examples(4), deadline=None, suppress_health_check=list(HealthCheck))
@given(
    values=st.lists(st.integers(-(2**40), 2**40), max_size=60),
    parallelisms=st.lists(st.integers(1, 4), min_size=4, max_size=4),
    cut=st.integers(1, 9),
    crashes=CRASHES,
    seed=st.integers(0, 100),
)
def the_elements_of_a_list_are_shared_out_without_loss(values, parallelisms, cut, crashes, seed):
    """Whatever crashes, and at whatever parallelism the next driver starts: each element comes out once."""

    def build(env: StreamExecutionEnvironment) -> None:
        numbers = stream(env, {"a": values}, "numbers", cut=cut, seed=seed)
        ends = stream(env, {"a": [None] * 12}, "ends", cut=1, seed=seed)  # twelve for up to four subtasks, in turn
        numbers.union(ends).rebalance().flat_map(Buffered()).uid("buffered").sink_to(LedgerSink("out"))

    directory = Path(mkdtemp())
    LEDGERS["out"].committed.clear()
    job = Lab(build, directory, budget=10)
    try:
        for parallelism, crash in zip(parallelisms, [*crashes, ("", 0)]):
            job.parallelism = parallelism
            if job._run_until(*crash):
                break
        left = waiting(job)
    finally:
        shutil.rmtree(directory)
    assert sorted(LEDGERS["out"].values + left) == sorted(values)


def waiting(job: Lab) -> list[int]:
    """What is left in the lists of the last checkpoint."""
    from holdfast.checkpoint.log import CheckpointLog
    from holdfast.checkpoint.paths import JobPaths
    from holdfast.runtime.plan.listed_states import ListedStates
    from holdfast.runtime.plan.redistribution import assigned
    from holdfast.state.stored.elements import ElementForm

    taken = CheckpointLog(job.storage, JobPaths.of("job"), 3).take_over(lambda checkpoint: None, None)
    operator = taken.restored.operators["buffered"]
    form = ElementForm(Types.LONG())
    elements, before = ListedStates(job.storage, assigned(operator, 1, 0)).typed("waiting", "split", form)
    return list(map(form.reader(before, "waiting"), elements))


class Counts(MapFunction, CheckpointedFunction):
    """Numbers its elements; tells what the lists of all subtasks were when it started."""

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        self.all = store.get_union_list_state(ListStateDescriptor("counts"))
        self.names = store.get_broadcast_state(MapStateDescriptor("names", Types.STRING(), Types.LONG()))
        self.start = sorted(self.all.get()), self.names.get("who"), context.is_restored()
        self.count = 0
        self.snapshots: list[int] = []

    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()

    def snapshot_state(self, context: Any) -> None:
        assert context.get_checkpoint_timestamp() > 0
        self.snapshots.append(context.get_checkpoint_id())
        assert self.snapshots == sorted(set(self.snapshots))
        self.all.clear()
        self.all.add((self.subtask, self.count))
        self.names.put("who", 7)

    def map(self, value: Any) -> Any:
        self.count += 1
        return value, self.start


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def a_union_list_is_given_whole_to_each_subtask(tmp_path, parallelism):
    def build(env: StreamExecutionEnvironment) -> None:
        stream(env, {"a": range(60)}, "numbers").rebalance().map(Counts()).uid("counts").sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    job = Lab(build, tmp_path, parallelism=2, budget=20)
    assert not job._run_until("after complete", 1)
    job.parallelism = parallelism
    assert job._run_until("", 0)
    told = dict(LEDGERS["out"].values)
    assert sorted(told) == list(range(60))
    assert {repr(told[n]) for n in range(20)} == {repr(([], None, False))}
    assert {repr(told[n]) for n in range(20, 60)} == {repr(([(0, 10), (1, 10)], 7, True))}


class Everywhere(CheckpointedFunction):
    """Counts what it sees, in a list of one element."""

    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.seen = sum(self.state.get())

    def snapshot_state(self, context: Any) -> None:
        self.state.update([self.seen])

    def saw(self, value: Any) -> Any:
        self.seen += 1
        return value, self.seen


class Mapped(Everywhere, MapFunction):
    map = Everywhere.saw


class CoMapped(Everywhere, CoMapFunction):
    map1 = map2 = Everywhere.saw


class Processed(Everywhere, ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield self.saw(value)


class KeyProcessed(Everywhere, KeyedProcessFunction):
    def initialize_state(self, context: Any) -> None:
        super().initialize_state(context)
        self.of_key = context.get_keyed_state_store().get_state(ValueStateDescriptor("of key", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.of_key.update((self.of_key.value() or 0) + 1)
        assert self.of_key.value() <= self.seen + 1
        yield self.saw(value)


class Ruled(Everywhere, KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield self.saw(value)

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put("rule", value)


class Kept(Everywhere, FilterFunction):
    def filter(self, value: Any) -> Any:
        return self.saw(value)[1] % 2


RULES = MapStateDescriptor("rules")


@pytest.mark.parametrize(
    "apply",
    [
        lambda numbers, more: numbers.map(Mapped()),
        lambda numbers, more: numbers.process(Processed()),
        lambda numbers, more: numbers.key_by(lambda n: n % 3).map(Mapped()),
        lambda numbers, more: numbers.key_by(lambda n: n % 3).process(KeyProcessed()),
        lambda numbers, more: numbers.connect(more.filter(lambda n: False)).map(CoMapped()),
        lambda numbers, more: numbers.connect(more.filter(lambda n: False)).key_by(abs, abs).map(CoMapped()),
        lambda numbers, more: numbers.key_by(lambda n: n % 3).connect(more.broadcast(RULES)).process(Ruled()),
    ],
    ids=["map", "process", "keyed map", "keyed process", "co-map", "keyed co-map", "keyed broadcast"],
)
def a_function_of_any_kind_has_operator_state(tmp_path, apply):
    def build(env: StreamExecutionEnvironment) -> None:
        numbers = stream(env, {"a": range(30)}, "numbers", cut=6, seed=1)
        apply(numbers, stream(env, {"a": range(5)}, "more", cut=2)).uid("state").sink_to(LedgerSink("out"))

    told = results(Lab(build, tmp_path, parallelism=1), [("after complete", 2), ("run", 1), ("before commit", 2)])
    assert sorted(told, key=lambda each: each[1]) == sorted(told)
    assert sorted(told) == [(n, n + 1) for n in range(30)]


def a_filter_has_operator_state(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        stream(env, {"a": range(30)}, "numbers", cut=7, seed=3).filter(Kept()).uid("kept").sink_to(LedgerSink("out"))

    told = results(Lab(build, tmp_path, parallelism=1), [("after complete", 2), ("run", 1)])
    assert told == list(range(0, 30, 2))


def started(tmp_path: Path, ask: Any) -> Any:
    class Asks(MapFunction, CheckpointedFunction):
        def initialize_state(self, context: Any) -> None:
            ask(context)

        def snapshot_state(self, context: Any) -> None:
            pass

        def map(self, value: Any) -> Any:
            return value

    def build(env: StreamExecutionEnvironment) -> None:
        stream(env, {"a": [1]}, "numbers").map(Asks()).uid("asks").sink_to(LedgerSink("out"))

    return results(Lab(build, tmp_path, parallelism=1))


def _two_modes(context: Any) -> None:
    context.get_operator_state_store().get_list_state(ListStateDescriptor("a"))
    context.get_operator_state_store().get_union_list_state(ListStateDescriptor("a"))


def _expires(context: Any) -> None:
    from holdfast.datastream import StateTtlConfig

    descriptor = ListStateDescriptor("a")
    descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    context.get_operator_state_store().get_list_state(descriptor)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (_two_modes, "'a' has mode 'split' already, and cannot have 'union'"),
        (_expires, "only keyed state expires"),
        (lambda c: c.get_operator_state_store().get_list_state("a"), "needs a ListStateDescriptor here, not 'a'"),
        (
            lambda c: c.get_keyed_state_store().get_state(ValueStateDescriptor("v")),
            "keyed state is available only after key_by",
        ),
        (
            lambda c: c.get_operator_state_store().get_list_state(ListStateDescriptor("a", Types.LONG())).add("x"),
            "does not fit state 'a'",
        ),
    ],
)
def a_mistake_in_initialize_state_names_the_operator(tmp_path, ask, told):
    with pytest.raises((JobFailed, UserCodeError), match=rf"(?s){told}.*uid 'asks'"):
        started(tmp_path, ask)


def an_element_that_cannot_be_stored_is_told_with_its_operator(tmp_path):
    class Lock(MapFunction, CheckpointedFunction):
        def initialize_state(self, context: Any) -> None:
            self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("locks"))

        def snapshot_state(self, context: Any) -> None:
            import threading

            self.state.update([threading.Lock()])

        def map(self, value: Any) -> Any:
            return value

    def build(env: StreamExecutionEnvironment) -> None:
        stream(env, {"a": [1]}, "numbers").map(Lock()).uid("locks").sink_to(LedgerSink("out"))

    with pytest.raises((JobFailed, UserCodeError), match=r"(?s)lock.*cannot be pickled.*uid 'locks'"):
        results(Lab(build, tmp_path, parallelism=1))


def a_function_where_operator_state_is_not_given_is_refused_with_its_line(tmp_path):
    class Window(Everywhere, WindowFunction):
        def apply(self, key: Any, window: Any, inputs: Any) -> Any:
            return []

    def build(env: StreamExecutionEnvironment) -> None:
        windows = stream(env, {"a": [1]}, "n").key_by(abs).window(TumblingProcessingTimeWindows.of(Time.seconds(1)))
        windows.apply(Window()).print()

    with pytest.raises(ConfigurationError, match=r"test_operator_state.py:\d+\) is the CheckpointedFunction Window"):
        Lab(build, tmp_path).plan()


def a_reduce_function_has_operator_state(tmp_path):
    class Sum(Everywhere, ReduceFunction):
        def reduce(self, value1: Any, value2: Any) -> Any:
            self.saw(value2)
            return value1 + value2

    def build(env: StreamExecutionEnvironment) -> None:
        stream(env, {"a": [1] * 10}, "numbers", cut=3).key_by(abs).reduce(Sum()).uid("sum").sink_to(LedgerSink("out"))

    assert results(Lab(build, tmp_path, parallelism=1), [("after complete", 2)]) == list(range(1, 11))
