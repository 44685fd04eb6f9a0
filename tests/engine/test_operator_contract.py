"""What the runtime provides for operators that the public API does not make yet: several inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import DataStream, StreamExecutionEnvironment, ValueStateDescriptor
from holdfast.runtime.operators.base import Operator, OperatorFactory, StateKind
from holdfast.runtime.plan import InputKind
from holdfast.runtime.records import RecordBatch

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
