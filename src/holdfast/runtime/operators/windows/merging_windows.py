"""Merging windows, such as sessions: each key has a set of windows.

The set maps each window to its *state window*, whose row holds the content and the trigger's state. A merge keeps one state
window and empties the rows of the others, so that a growing session moves no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.typeinfo import Types
from holdfast.common.windows import Bounds, TimeWindow
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.operators.windows.triggered_windows import Owner, TriggeredWindows, namespace_of, window_of
from holdfast.runtime.operators.windows.window_base import WindowSpec
from holdfast.runtime.records.records import RecordBatch
from holdfast.state.cells.column import Column
from holdfast.state.cells.entries import LARGE
from holdfast.state.cells.row import DIRTY, Row
from holdfast.state.rows.space import StateSpace
from holdfast.windowing.assigners import MergingWindowAssigner
from holdfast.windowing.sessions import SessionWindows

__all__ = ["MergingWindows"]


_SET = "merging-window-set"
"""The name of the state with a key's set of windows, as in Flink."""


class _Merges(MergingWindowAssigner.MergeCallback[TimeWindow]):
    """The merges that an assigner chooses."""

    def __init__(self) -> None:
        self.found: list[tuple[list[Bounds], Bounds]] = []

    def merge(self, to_be_merged: Iterable[TimeWindow], merge_result: TimeWindow) -> None:
        self.found.append(([namespace_of(each) for each in to_be_merged], namespace_of(merge_result)))


class MergingWindows(TriggeredWindows):
    """Windows of a merging assigner."""

    def __init__(self, spec: WindowSpec) -> None:
        super().__init__(spec)
        assert isinstance(spec.assigner, MergingWindowAssigner)
        self._assigner = spec.assigner

    def open(self) -> None:
        """Declare the state and open the functions."""
        super().open()
        assert self.context.state is not None
        self._sets = self.context.state.space("merging")
        span = Types.TUPLE([Types.LONG(), Types.LONG()])
        self._set_cell = 1 + self._sets.register(Column.declared(_SET, "map", [span, span]))
        self._set_table = self._sets.table()

    def window_state(self) -> StateSpace:
        """The window function's state of the current key and window."""
        raise RuntimeError(
            f"window_state() does not exist for windows that merge, in {self.context.where}: a merge could not tell what "
            "becomes of it. Use global_state(), or a trigger's state"
        )

    # elements

    def process(self, batch: RecordBatch) -> None:
        """Add elements to their windows."""
        keys, values = batch.keys, batch.values
        assert keys is not None
        stamps = self._timestamps(batch, MIN_TIMESTAMP + 1) if self._event_time else batch.stamps()
        self._passed = self.context.clock.passed
        out = Collector(self.context.copied)
        late: tuple[list[Any], list[int]] = ([], [])
        key = value = None
        try:
            sets = self._load_sets(keys)
            assigned = self._assign_all(keys, values, stamps)
            for key, value, stamp, set_row, windows in zip(keys, values, stamps, sets, assigned):
                if not self._add_to_set(out, key, value, stamp, set_row, windows):
                    late[0].append(value)
                    late[1].append(stamp)
        except (Exception, SystemExit) as error:
            raise self._failure(error, self._bare(value), key) from error
        self._emit(out, late)

    def _emit(self, out: Collector, late: tuple[list[Any], list[int]]) -> None:
        if late[0]:
            self._emit_late(*late)
        out.emit(self.context)

    def _add_to_set(self, out: Collector, key: Any, value: Any, stamp: int, set_row: Row, windows: list[Bounds]) -> bool:
        """Add an element to its windows in the key's set; returns whether it is in time."""
        cell = self._set_cell
        taken = False
        left = len(windows)
        for window in windows:
            left -= 1
            before = set_row[cell]
            new = not before or not (window in before or window in before.values())
            actual = self._join_set(key, set_row, window)
            if actual is not None:
                taken = True
                state = (key, set_row[cell][actual])
                row = self._table.load_new(state) if new and actual is window else self._table.load_one(state)
                # Each window gets a copy of the element, because functions may change it.
                given = self.context.copied(value) if left else value
                self._add_element(out, given, stamp, (key, actual), state, row)
        return taken or not self._event_time or stamp + self._lateness > self._passed

    def _is_late(self, namespace: Any) -> bool:
        return False  # its window may merge with one that is not over: `_join_set` decides

    def _load_sets(self, keys: list[Any]) -> list[Row]:
        """Load the window sets of these keys."""
        sets, cell = self._set_table.load(keys), self._set_cell
        rows = self._table.rows
        states = [(k, state) for k, row in zip(keys, sets) if row[cell] is not None for state in row[cell].values()]
        if any(state not in rows for state in states):
            self._table.load(states)
        return sets

    def _join_set(self, key: Any, set_row: Row, window: Bounds) -> Bounds | None:
        """Add a new window to the key's set and merge it with others; returns the merged window, or None if it is late.

        Expired windows do not merge, even if they have not fired yet because another split's watermark is lower.
        """
        windows: dict[Bounds, Bounds] = set_row[self._set_cell] or {}
        open_ones = [each for each in windows if not self._is_over(each)]
        merges = self._merges(open_ones, window)
        actual = window
        for merged, result in merges:
            if window in merged:
                actual = result
                if window not in windows:
                    merged.remove(window)
            if merged and merged != [result]:
                self._merge(key, set_row, merged, result)
        if actual is window:
            if self._is_over(window):  # even if the set has an equal window that is over and not yet removed
                return None
            if window in windows:
                return window
            windows[window] = window
            set_row[self._set_cell] = windows
            set_row[0] |= DIRTY
        return actual

    def _merges(self, open_ones: list[Bounds], window: Bounds) -> list[tuple[list[Bounds], Bounds]]:
        """Choose the windows to merge."""
        if isinstance(self._assigner, SessionWindows):
            start, end = window
            touched = [each for each in open_ones if each[0] <= end and each[1] >= start]
            if not touched or touched == [window]:
                return []
            touched.sort()
            cover = min(start, touched[0][0]), max(end, *(each[1] for each in touched))
            return [([*touched, window] if window not in touched else touched, cover)]
        chosen = self._chosen(open_ones, window)
        if any(len(merged) > 2 for merged, _ in chosen):
            # Two windows stay separate if one was over for the element that began the other, although they would merge.
            chosen = self._chosen([each for each in open_ones if each == window or self._chosen([each], window)], window)
        return [each for each in chosen if window in each[0]]

    def _chosen(self, open_ones: list[Bounds], window: Bounds) -> list[tuple[list[Bounds], Bounds]]:
        """Ask the user's assigner which of these windows merge."""
        merges = _Merges()
        self._assigner.merge_windows([TimeWindow(*each) for each in dict.fromkeys([*open_ones, window])], merges)
        return merges.found

    def _merge(self, key: Any, set_row: Row, merged: list[Bounds], result: Bounds) -> None:
        """Merge some windows of the key's set into one."""
        if self._cleanup_time(result) <= (self._passed if self._event_time else self.context.clock.processing_time - 1):
            raise RuntimeError(f"the assigner merges windows to {TimeWindow(*result)!r}, whose time is over")
        windows: dict[Bounds, Bounds] = set_row[self._set_cell]
        states = [(key, windows[each]) for each in merged]
        rows = self._table.load(states)
        kept, row = states[0], rows[0]
        own = [self._ctx.take_out(each) for each in rows]
        self._ctx.merging(own)
        self._ctx.enter((key, result), kept, row)
        self._trigger.on_merge(window_of(result), self._ctx)
        self._ctx.merging(None)
        for each, held in zip(merged, own):
            del windows[each]
            if each != result:
                self._ctx.enter((key, each), kept, held)
                self._trigger.clear(window_of(each), self._ctx)
                self._delete_cleanup((key, each))
        cell = self._cell
        for other in rows[1:]:
            content = other[cell]
            if type(content) in LARGE:
                content = list(content)  # a copy: the stored elements belong to the other window, and are removed with it
            if content is not None:
                if type(row[cell]) in LARGE:
                    row[cell].extend(content)
                else:
                    row[cell] = content if row[cell] is None else self._held.merged(row[cell], content)
            self._empty(other)
        row[0] |= DIRTY
        windows[result] = kept[1]
        set_row[0] |= DIRTY

    # time

    def _prefetch(self, owners: list[Owner]) -> None:
        self._load_sets(list(dict.fromkeys(key for key, _ in owners)))

    def _row_of(self, owner: Owner) -> tuple[Any, Row] | None:
        key, namespace = owner
        windows = self._set_table.load_one(key)[self._set_cell]
        if windows is None or namespace not in windows:
            return None
        state = key, windows[namespace]
        return state, self._table.load_one(state)

    def _remove(self, owner: Owner, key: Any, window: Any, row: Row) -> None:
        super()._remove(owner, key, window, row)
        set_row = self._set_table.load_one(owner[0])
        windows = set_row[self._set_cell]
        del windows[owner[1]]
        set_row[self._set_cell] = windows or None
        set_row[0] |= DIRTY
