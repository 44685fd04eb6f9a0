"""The window operator, with and without RocksDB, against plain dictionaries: late elements, checkpoints, restarts."""

from __future__ import annotations

import copy
import random
import shutil
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

import compactions
from effort import examples
from holdfast.common import Types
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.datastream import (
    EventTimeTrigger,
    ListStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
    WindowFunction,
)
from holdfast.runtime.operators.windows import aligned_windows, window
from holdfast.runtime.operators.windows.window_content import Elements, Reduced
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.time.clock import EventTime
from holdfast.state.backends import upkeep
from holdfast.state.cells import entries, row_pieces
from holdfast.state.rows import table
from holdfast.state.stored.layout import END, FIRST

from .window_harness import WindowBackend

SIZE, OFFSET = 60, 7
CLEARED: list[Any] = []


class Remembers(ProcessWindowFunction):
    """Keeps what it was called with: of the key and window, and of the key in all its windows."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        sums = context.window_state().get_list_state(ListStateDescriptor("sums"))
        sums.add(sum(elements))
        fired = context.global_state().get_state(ValueStateDescriptor("fired", Types.LONG()))
        fired.update((fired.value() or 0) + 1)
        yield key, context.window().start, list(sums), fired.value()

    def clear(self, context: Any) -> None:
        sums = context.window_state().get_list_state(ListStateDescriptor("sums"))
        CLEARED.append((context.window().start, list(sums)))


class Operated(WindowBackend):
    """The operator of the test at hand."""

    spec: window.WindowOperator

    def declare(self) -> None:
        self.out: list[Any] = []
        self.late: list[Any] = []
        self.operate(self.spec)


class WindowMachine(RuleBasedStateMachine):
    kind = "rocksdb"

    def __init__(self) -> None:
        super().__init__()
        self.backend: Operated | None = None

    @initialize(
        lateness=st.sampled_from([0, 15, 500, 500]),
        reduces=st.booleans(),
        cache=st.sampled_from(["1kb", "256mb"]),
        in_row=st.sampled_from([0, 3, 256]),
    )
    def begin(self, lateness: int, reduces: bool, cache: str, in_row: int) -> None:
        self.limits = pytest.MonkeyPatch()
        self.limits.setattr(entries, "MOST_IN_ROW", in_row)
        self.limits.setattr(entries, "_CHUNK", 2)
        self.lateness, self.reduces = lateness, reduces
        content = Reduced(lambda a, b: a + b) if reduces else Elements()
        Operated.spec = window.WindowOperator(
            TumblingEventTimeWindows(SIZE, OFFSET),
            EventTimeTrigger(),
            content,
            ("process", Remembers()),
            lateness,
            OutputTag("late"),
            True,
        )
        self.backend = Operated(self.kind, (), **{"state.backend.cache.size": cache})
        self.windows: dict[int, dict[Any, Any]] = {}
        self.fired: dict[Any, int] = {}
        self.time = MIN_TIMESTAMP
        self.committed = [self._image()]

    def teardown(self) -> None:
        if self.backend is not None:
            self.limits.undo()
            self.backend.close()
            shutil.rmtree(self.backend.root)

    def _image(self) -> Any:
        return copy.deepcopy((self.windows, self.fired, self.time))

    def _fire(self, start: int, key: Any) -> Any:
        elements, sums = self.windows[start][key]
        sums.append(sum(elements))
        self.fired[key] = self.fired.get(key, 0) + 1
        return (key, start, list(sums), self.fired[key]), start + SIZE - 1

    @rule(frame=st.lists(st.tuples(st.integers(0, 2), st.integers(-90, 90)), min_size=1, max_size=8))
    def process_a_frame(self, frame: list[tuple[int, int]]) -> None:
        now = max(self.time, 0)
        keys, times = [key for key, _ in frame], [now + distance for _, distance in frame]
        values = list(range(1, len(frame) + 1))
        results, late = [], []
        # Those of windows that are over are late, or fire them again, in the order of their arrival.
        for value, key, time in zip(values, keys, times):
            start = time - (time - OFFSET) % SIZE
            if start + SIZE - 1 + self.lateness <= self.time:
                late.append((value, time))
                continue
            self.windows.setdefault(start, {}).setdefault(key, ([], []))[0].append(value)
            if start + SIZE - 1 <= self.time:
                results.append(self._fire(start, key))
        self.backend.out.clear()
        self.backend.late.clear()
        self.backend.operator.process(RecordBatch(values, times, keys))
        assert self.backend.out == results
        assert self.backend.late == late

    @rule(by=st.sampled_from([1, 60]))
    def advance_time(self, by: int) -> None:
        before, self.time = self.time, max(self.time, 0) + by
        results, cleared = [], []
        for start in sorted(start for start in self.windows if start + SIZE - 1 <= self.time):
            if start + SIZE - 1 > before:
                results += [self._fire(start, key) for key in self.windows[start]]
            if start + SIZE - 1 + self.lateness <= self.time:
                cleared += [(start, sums) for _, sums in self.windows.pop(start).values()]
        self.backend.out.clear()
        CLEARED.clear()
        self.backend.clock.advance(self.time, self.backend.operator.advance_watermark)
        assert [end for _, end in self.backend.out] == [end for _, end in results]
        assert sorted(self.backend.out) == sorted(results)
        assert sorted(CLEARED) == sorted(cleared)

    @rule()
    def free_memory(self) -> None:
        self.backend.backend.bound()

    @rule()
    def complete_a_checkpoint(self) -> None:
        self.backend.checkpoint()
        self.committed.append(self._image())

    @rule(back=st.sampled_from([0, 0, 1]), elsewhere=st.booleans())
    def fail_and_restart(self, back: int, elsewhere: bool) -> None:
        number = max(0, len(self.committed) - 1 - back)
        del self.committed[number + 1 :]
        self.windows, self.fired, self.time = copy.deepcopy(self.committed[-1])
        self.backend.clock.restore(EventTime(self.time), 128)
        self.backend.restart(number, elsewhere=elsewhere)

    @rule()
    def fail_right_after_a_checkpoint(self) -> None:
        self.backend.checkpoint(commit=False)
        self.committed.append(self._image())
        self.fail_and_restart(0, False)


class HeapMachine(WindowMachine):
    kind = "hashmap"


LIMITS = settings(
    deadline=None,
    max_examples=examples(40),
    stateful_step_count=40,
    phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes longer than to look at it
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
WindowMachine.TestCase.settings = settings(LIMITS, max_examples=examples(5))
HeapMachine.TestCase.settings = LIMITS


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(upkeep, "due", compactions.anything(1))
    monkeypatch.setattr(table, "_PART", 3)
    monkeypatch.setattr(row_pieces, "_BLOCK", 5)
    monkeypatch.setattr(row_pieces, "_LEAST", 1)
    monkeypatch.setattr(aligned_windows, "CHUNK", 3)


class TestRocksDB(WindowMachine.TestCase):
    pass


class TestHeap(HeapMachine.TestCase):
    pass


@pytest.mark.parametrize("declared", [None, Types.LONG()])
@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
def an_epoch_of_a_long_window_stores_what_it_added(tmp_path: Any, kind: str, declared: Any):
    Operated.spec = window.WindowOperator(
        TumblingEventTimeWindows(1 << 40, 0), EventTimeTrigger(), Elements(declared), ("apply", Sums())
    )
    state = Operated(kind, (), tmp_path)
    written, values = [], []
    pick = random.Random(1)
    for epoch in range(20):
        added = [pick.getrandbits(60) for _ in range(500)]
        values += added
        state.operator.process(RecordBatch(added, [epoch] * 500, ["key"] * 500))
        state.checkpoint()
        written.append(state.backend.written)
    assert max(written[1:]) < 2 * written[0]
    state.restart(elsewhere=True)
    state.operator.advance_watermark(1 << 41)
    assert [value for value, _ in state.out] == [("key", len(values), sum(values))]
    state.checkpoint()
    state.checkpoint()
    state.restart(elsewhere=True)
    assert not state.operator.window_space.tables
    assert next(state.state.store.scan(FIRST, END), None) is None
    state.close()


class Sums(WindowFunction):
    def apply(self, key: Any, window: Any, elements: list[int]) -> Any:
        yield key, len(elements), sum(elements)
