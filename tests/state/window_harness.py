"""One subtask of a window operator, made of a program with the public API: elements, times, checkpoints, restarts."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.base import JobInfo
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.plan.operator import OperatorFactory
from holdfast.runtime.records.records import RecordBatch

from .backend import Backend

Build = Callable[[Any], Any]
"""From a keyed stream of triples (key, value, timestamp) to the stream of the results."""


def key_of(element: Any) -> Any:
    return element[0]


def factory_of(build: Build) -> OperatorFactory:
    """The operator that a program adds."""
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(1)
    made = build(env.from_collection([("a", 0, 0)]).key_by(key_of))
    factory: OperatorFactory = made._transformation.factory
    return factory


class WindowBackend(Backend):
    """A backend whose state is that of a window operator."""

    out: list[Any]
    late: list[Any]

    def operate(self, factory: OperatorFactory) -> None:
        """Open an operator, which gives its results to ``out`` and late elements to ``late``."""
        self.operator = factory.create()
        self.operator.context = OperatorContext(
            job=JobInfo("j", "job", 1, ""),
            uid="op",
            name="window",
            subtask=0,
            parallelism=1,
            max_parallelism=128,
            clock=self.clock,
            state=self.state,
            metrics=MetricGroup(),
            emit=lambda batch: self.out.extend(zip(batch.values, batch.stamps(), strict=True)),
            side_outputs={"late": lambda batch: self.late.extend(zip(batch.values, batch.stamps(), strict=True))},
        )
        self.operator.open()


class Operated(WindowBackend):
    """An operator with its state, restarted from its checkpoints."""

    def __init__(self, build: Build, kind: str = "hashmap", **config: str) -> None:
        self.factory = factory_of(build)
        self.out: list[Any] = []
        self.late: list[Any] = []
        self.side: dict[str, list[Any]] = {"late": self.late}
        super().__init__(kind, (), **config)

    def declare(self) -> None:
        self.operate(self.factory)

    def frame(self, elements: list[Any], late_by: int = MIN_TIMESTAMP) -> list[Any]:
        """Process some elements at once; returns the results."""
        self.clock.passing.late_by = late_by
        keys = [key_of(element) for element in elements]
        self.operator.process(RecordBatch(elements, [element[2] for element in elements], keys))
        self.clock.passing.late_by = MIN_TIMESTAMP
        return self.taken()

    def watermark(self, time: int) -> list[Any]:
        self.clock.advance(time, self.operator.advance_watermark)
        return self.taken()

    def processing_time(self, time: int) -> list[Any]:
        self.clock.processing_time = time
        self.operator.advance_processing_time(time)
        return self.taken()

    def taken(self) -> list[Any]:
        out = list(self.out)
        self.out.clear()
        return out

    def rows(self) -> int:
        """The rows of the last checkpoint's state, and of what came after it."""
        return sum(
            sum(any(cell is not None for cell in row[1:]) for row in table.rows.values())
            for name, space in self.state.spaces.items()
            if name not in ("assigner", "global")
            for table in space.tables.values()
        )

    def timers(self) -> int:
        return sum(sum(1 for _ in queue.all()) for queue in self.state.timers.values())


@contextmanager
def operated(build: Build, kind: str = "hashmap", **config: str) -> Iterator[Operated]:
    harness = Operated(build, kind, **config)
    try:
        yield harness
    finally:
        harness.close()
        shutil.rmtree(harness.root)
