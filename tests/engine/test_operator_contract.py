"""What the runtime provides for operators that the public API does not make yet: several inputs, state anywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from holdfast.checkpoint.metadata import BROADCAST, SPLIT, UNION
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import DataStream, KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.runtime.operators.function_factory import FunctionFactory
from holdfast.runtime.operators.keyed import KeyedProcess
from holdfast.runtime.plan.operator import Operator, OperatorFactory, StateKind
from holdfast.runtime.plan.plan import InputKind, JobPlan
from holdfast.runtime.records.records import RecordBatch

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource


class _Totals(Operator):
    """Adds up the first input's numbers by key; tells for each record which input it came from."""

    def open(self) -> None:
        assert self.context.state is not None
        self.space = self.context.state.space("keyed")
        self.total = self.space.get_state(ValueStateDescriptor("total", Types.LONG()))

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        return (self.process_number, self.process_announcement)

    def process_number(self, batch: RecordBatch) -> None:
        assert batch.keys is not None
        results = []
        for key, value, row in zip(batch.keys, batch.values, self.space.table().load(batch.keys)):
            self.space.row = row
            self.total.update((self.total.value() or 0) + value)
            results.append(("total", key, self.total.value()))
        self.context.emit(RecordBatch(results, batch.timestamps))

    def process_announcement(self, batch: RecordBatch) -> None:
        assert batch.keys is None
        told = [("announced", self.context.subtask, value) for value in batch.values]
        self.context.emit(RecordBatch(told, batch.timestamps))


class Totals(OperatorFactory):
    state = StateKind.KEYED

    def create(self) -> Operator:
        return _Totals()


def stream(env: StreamExecutionEnvironment, values: list[Any], uid: str) -> Any:
    return env.from_source(SplitSource({uid: values}), WatermarkStrategy.no_watermarks(), uid).uid(uid)


def two_inputs(env: StreamExecutionEnvironment) -> None:
    numbers = stream(env, list(range(60)), "numbers").key_by(lambda n: n % 3)
    announcements = stream(env, ["a", "b", "c"], "announcements").broadcast()
    node = env._add_operator(
        inputs=(numbers._transformation, announcements._transformation),
        kind="Totals",
        name="Totals",
        factory=Totals(),
        functions=(),
    )
    DataStream(env, node).sink_to(LedgerSink("out"))


@pytest.mark.parametrize("crashes", [[], [("after complete", 2), ("before commit", 2)]], ids=["one driver", "three drivers"])
def an_operator_with_two_inputs_takes_each_by_its_index(tmp_path, crashes):
    LEDGERS["out"].committed.clear()
    job = Lab(two_inputs, tmp_path, parallelism=2, budget=10)
    (vertex,) = [vertex for vertex in job.plan().vertices if vertex.name.startswith("Totals")]
    assert vertex.inputs == (InputKind.KEYED, InputKind.BROADCAST)
    job.run(crashes)
    told = LEDGERS["out"].values
    announced = sorted(each[1:] for each in told if each[0] == "announced")
    assert announced == [(subtask, value) for subtask in (0, 1) for value in "abc"]
    totals = {key: [total for kind, k, total in told if kind == "total" and k == key] for key in range(3)}
    assert totals == {key: [sum(range(key, n + 1, 3)) for n in range(key, 60, 3)] for key in range(3)}


# ---- keyed state and timers behind the first operator of a chain -------------------------------------------------------


class Numbered(KeyedProcessFunction):
    """Numbers the elements of a key; at the end of the input tells how many there were."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(10**15)
        yield ctx.get_current_key(), self.count.value(), value

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), self.count.value(), "end"


class KeyedInMidChain(Lab):
    """Makes the map of the plan a keyed operator that stays in its chain."""

    def plan(self) -> JobPlan:
        plan = super().plan()
        vertices = []
        for vertex in plan.vertices:
            chain = list(vertex.chain)
            for at, chained in enumerate(chain):
                if chained.name == "Map":
                    chain[at] = replace(chained, factory=FunctionFactory(KeyedProcess, Numbered()))
                    edges = tuple(replace(edge, key_selector=lambda v: v[1] % 2) for edge in chain[at - 1].edges)
                    chain[at - 1] = replace(chain[at - 1], edges=edges)
            vertices.append(replace(vertex, chain=tuple(chain)))
        return replace(plan, vertices=tuple(vertices))


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("keep_disk", [True, False])
def a_keyed_operator_keeps_its_state_and_timers_behind_another_in_a_chain(tmp_path, backend, keep_disk):
    def build(env: StreamExecutionEnvironment) -> None:
        keyed = stream(env, list(range(60)), "numbers").key_by(lambda n: n % 3)
        first = keyed.process(Numbered()).uid("first").start_new_chain()
        first.map(lambda value: value).uid("second").sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    config = {"state.backend.type": backend}
    job = KeyedInMidChain(build, tmp_path, parallelism=1, budget=7, config=config, keep_disk=keep_disk)
    (vertex,) = [vertex for vertex in job.plan().vertices if vertex.inputs]
    assert [StateKind.KEYED in chained.factory.state for chained in vertex.chain] == [True, True, False]
    job.run([("after complete", 3), ("run", 2), ("before commit", 2)])
    told = LEDGERS["out"].values
    first = [(n % 3, n // 3 + 1, n) for n in range(60)] + [(key, 20, "end") for key in range(3)]
    for key in (0, 1):
        taken = [(count, value) for k, count, value in told if k == key and value != "end"]
        expected = [each for each in first if each[1] % 2 == key]
        assert sorted(map(repr, (value for _, value in taken))) == sorted(map(repr, expected))
        assert [count for count, _ in taken] == list(range(1, len(expected) + 1))
    assert sorted((key, count) for key, count, value in told if value == "end") == [(0, 33), (1, 30)]


# ---- lists that belong to no key ---------------------------------------------------------------------------------------


class _Remembers(Operator):
    """Keeps all values in a list of its own, and tells the lists that it knows at the end of the input."""

    def __init__(self, mode: str) -> None:
        self._mode = mode

    def open(self) -> None:
        assert self.context.lists is not None
        self.seen = self.context.lists.get("seen", self._mode)
        self.start = list(self.seen)

    def process(self, batch: RecordBatch) -> None:
        self.seen += batch.values

    def advance_watermark(self, watermark: int) -> None:
        told = ("list", self.context.subtask, self.start, list(self.seen))
        self.context.emit(RecordBatch([told]))


@dataclass(frozen=True)
class Remembers(OperatorFactory):
    mode: str
    state = StateKind.LISTED

    def create(self) -> Operator:
        return _Remembers(self.mode)


@pytest.mark.parametrize("size", [2, 1000], ids=["small", "large"])
@pytest.mark.parametrize("mode", [SPLIT, UNION, BROADCAST])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def a_list_is_dealt_out_to_the_subtasks_of_another_parallelism(tmp_path, mode, size, parallelism):
    values = [f"{n:0{size}}" for n in range(40)]

    def build(env: StreamExecutionEnvironment) -> None:
        numbers = stream(env, values, "numbers").rebalance().map(lambda n: n)
        node = env._add_operator(
            inputs=(numbers._transformation,), kind="Remembers", name="Remembers", factory=Remembers(mode), functions=()
        )
        node.uid = "remembers"
        DataStream(env, node).sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    job = Lab(build, tmp_path, parallelism=2, budget=10)
    assert not job._run_until("after complete", 2)
    job.parallelism = parallelism
    assert job._run_until("", 0)
    told = [(start, seen) for kind, _, start, seen in LEDGERS["out"].values if kind == "list"]
    assert len(told) == parallelism
    if mode == SPLIT:
        assert sorted(value for start, _ in told for value in start) == values[:20]
        assert sorted(value for _, seen in told for value in seen) == values
    elif mode == UNION:
        assert [sorted(start) for start, _ in told] == [values[:20]] * parallelism
    else:
        assert all(len(start) == 10 for start, _ in told)
