"""An epoch costs nothing for keys, windows, timers and operators that nothing touched: the work is counted, not timed."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.connectors.base import EpochInput, JobInfo, ReaderContext, SplitRange
from holdfast.datastream import (
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    KeyedProcessFunction,
    MapStateDescriptor,
    ProcessJoinFunction,
    ProcessWindowFunction,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)

from .inprocess import InProcessExecutor, Lab, LedgerSink, SplitReader

Record = tuple[str, int]
"""Key and timestamp."""
MEASURED = 8
"""Epochs."""


@dataclass(frozen=True)
class Epochs:
    """A bounded source that is told what each epoch reads."""

    epochs: list[list[Record]]

    @property
    def bounded(self) -> bool:
        return True

    def create_enumerator(self, job: JobInfo, uid: str) -> Enumerator:
        return Enumerator(self.epochs)

    def create_reader(self, context: ReaderContext) -> SplitReader:
        return SplitReader({"all": [record for epoch in self.epochs for record in epoch]})


class Enumerator:
    def __init__(self, epochs: list[list[Record]]) -> None:
        self._sizes = list(map(len, epochs))
        self._next = 0

    def start(self, state: Any | None) -> None:
        assert state is None

    def plan(self, max_records: int) -> EpochInput:
        start = sum(self._sizes[: self._next])
        end = start + self._sizes[self._next]
        self._next += 1
        last = self._next == len(self._sizes)
        return EpochInput((SplitRange("all", start, end, end - start, last=last),), int(not last), last)

    def snapshot(self) -> Any:
        return self._next

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        pass

    def wait(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


class Visits(KeyedProcessFunction):
    """State of two kinds, and timers that are not due."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.times = runtime_context.get_map_state(MapStateDescriptor("times", Types.LONG(), Types.LONG()))

    def process_element(self, value: Record, ctx: Any) -> Iterator[Any]:
        self.count.update((self.count.value() or 0) + 1)
        self.times.put(value[1], value[1])
        ctx.timer_service().register_event_time_timer(10**12)
        ctx.timer_service().register_processing_time_timer(10**14)
        yield value[0], self.count.value()


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Iterator[Any]:
        yield left, right


class Size(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield key, len(list(elements))


def first(a: Record, b: Record) -> Record:
    return a


HOUR = Time.hours(1)
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "process": lambda keyed: keyed.process(Visits()),
    "tumbling": lambda keyed: keyed.window(TumblingEventTimeWindows.of(HOUR)).reduce(first),
    "sliding": lambda keyed: keyed.window(SlidingEventTimeWindows.of(HOUR, Time.minutes(10))).reduce(first),
    "elements": lambda keyed: keyed.window(TumblingEventTimeWindows.of(HOUR)).process(Size()),
    "sessions": lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(HOUR)).reduce(first),
    "triggers": lambda keyed: keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(10**6)).reduce(first),
    "join": lambda keyed: keyed.interval_join(keyed).between(Time.hours(-1), Time.hours(1)).process(Pairs()),
    "dedup": lambda keyed: keyed.dedup(HOUR),
}


@dataclass
class Work:
    """What an epoch takes."""

    lines: int
    """Lines of Python that the tasks run. A look at each key would run at least one for each."""
    written: int
    """Bytes of state."""
    changed: set[str]
    """The uids of the operators whose state has changed."""


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Work]]:
    """Count the work of each epoch that runs in this process."""
    found: list[Work] = []
    run = InProcessExecutor.run

    def running(self: Any, assignment: Any) -> Any:
        lines = 0

        def trace(frame: Any, event: str, argument: Any) -> Any:
            nonlocal lines
            lines += 1
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            reports = run(self, assignment)
        finally:
            sys.settrace(before)
        changed = {uid for report in reports for uid, state in report.state.items() if state.change is not None}
        found.append(Work(lines, sum(report.delta_bytes for report in reports), changed))
        return reports

    with monkeypatch.context() as patch:
        patch.setattr(InProcessExecutor, "run", running)
        yield found


def small_epochs(epochs: list[list[Record]], backend: str, build: Any, monkeypatch: pytest.MonkeyPatch) -> list[Work]:
    """The work of the `MEASURED` epochs before the last one."""

    def program(env: Any) -> None:
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda record, _: record[1])
        build(env.from_source(Epochs(epochs), times, "source"))

    with counted(monkeypatch) as found, tempfile.TemporaryDirectory() as directory:
        Lab(program, Path(directory), parallelism=1, config={"state.backend.type": backend}).run()
    assert len(found) == len(epochs)
    return found[-1 - MEASURED : -1]


def epochs_beside(keys: int) -> list[list[Record]]:
    """All keys, then epochs that touch one of them, then the end of all windows."""
    every = [(f"k{n}", n % 1000) for n in range(keys)]
    return [every, [("k0", 1000)], *([("k0", 1001 + n)] for n in range(MEASURED)), [("end", 10**13)]]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("operator", sorted(OPERATORS))
def an_epoch_costs_the_same_however_many_keys_and_windows_it_does_not_touch(operator, backend, monkeypatch):
    def build(stream: Any) -> None:
        OPERATORS[operator](stream.key_by(lambda record: record[0])).uid("operator").sink_to(LedgerSink("out"))

    alone, beside_many = (small_epochs(epochs_beside(keys), backend, build, monkeypatch) for keys in (20, 3000))
    for one, another in zip(alone, beside_many, strict=True):
        assert (another.written, another.changed) == (one.written, one.changed)
    # Uploads in the background may add some lines to some epochs; each key would add at least one to all.
    assert abs(min(each.lines for each in beside_many) - min(each.lines for each in alone)) < 1000


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def an_operator_that_gets_no_records_writes_no_state(backend, monkeypatch):
    def build(stream: Any) -> None:
        for name, operator in OPERATORS.items():
            others = stream.filter(lambda record: record[0] != "k0").key_by(lambda record: record[0])
            operator(others).uid(name).sink_to(LedgerSink("out"))
        stream.key_by(lambda record: record[0]).process(Visits()).uid("touched").sink_to(LedgerSink("out"))

    for work in small_epochs(epochs_beside(50), backend, build, monkeypatch):
        assert work.changed == {"touched"}
