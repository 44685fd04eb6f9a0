"""Event-time sessions that fire when they are complete; most elements only extend a session.

`MergingWindows` merges two windows with their timers for each element; here that is done once per session and batch. The
stored form is the same.
"""

from __future__ import annotations

from typing import Any

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.operators.windows.merging_windows import MergingWindows
from holdfast.runtime.operators.windows.session_loop import OpenSession, extend_each
from holdfast.runtime.records.records import RecordBatch
from holdfast.state.cells.row import DIRTY, Row
from holdfast.windowing.sessions import EventTimeSessionWindows

__all__ = ["EventTimeSessions"]

_FAR = 1 << 62
"""Limit of times, before and after 1970, that a compiled loop compares as C integers."""


class EventTimeSessions(MergingWindows):
    """Sessions in event time with the `EventTimeTrigger` and without an evictor."""

    def process(self, batch: RecordBatch) -> None:
        """Add elements to their sessions."""
        assert batch.keys is not None
        keys, values = list(batch.keys), list(batch.values)
        stamps = list(self._timestamps(batch, MIN_TIMESTAMP + 1))
        self._passed = self.context.clock.passed
        ends = self._ends(keys, values, stamps)
        if min(stamps) < -_FAR or max(ends) > _FAR:
            super().process(batch)
            return
        self._add_all(keys, values, stamps, ends)

    def _ends(self, keys: list[Any], values: list[Any], stamps: list[int]) -> list[int]:
        """For each element, when its session ends if no other element comes."""
        if type(self._assigner) is EventTimeSessionWindows:
            gap = self._assigner.gap_ms
            return [stamp + gap for stamp in stamps]
        return [end for ((_, end),) in self._assign_all(keys, values, stamps)]

    def _add_all(self, keys: list[Any], values: list[Any], stamps: list[int], ends: list[int]) -> None:
        out = Collector(self.context.copied)
        late: tuple[list[Any], list[int]] = ([], [])
        sets = self._load_sets(keys)
        opened: dict[int, OpenSession] = {}
        load_one, load_new = self._table.load_one, self._table.load_new
        fired, over = self._passed, max(self._passed - self._lateness, MIN_TIMESTAMP)
        at = 0
        while True:
            begin, rows, added = at, list[Row](), list[Any]()
            at = extend_each(
                at, keys, values, stamps, ends, sets, self._set_cell,
                fired, over, load_one, load_new, opened, rows, added,
            )  # fmt: skip
            if rows:
                self._add_rows(rows, added, keys[begin:at])
            if at == len(keys):
                break
            key, set_row = keys[at], sets[at]
            self._update_window(opened.pop(id(set_row), None))
            try:
                if not self._add_to_set(out, key, values[at], stamps[at], set_row, [(stamps[at], ends[at])]):
                    late[0].append(values[at])
                    late[1].append(stamps[at])
            except (Exception, SystemExit) as error:
                raise self._failure(error, self._bare(values[at]), key) from error
            at += 1
        for session in opened.values():
            self._update_window(session)
        self._emit(out, late)

    def _update_window(self, session: OpenSession | None) -> None:
        """Store the session's window and timers."""
        if session is None:
            return
        key, before = session.key, session.span
        after = session.start, session.end
        if after != before:
            windows = session.set_row[self._set_cell]
            del windows[before]
            windows[after] = session.state
            session.set_row[0] |= DIRTY
            if session.known:
                self._event_timers.delete(before[1] - 1, (key, before))
                if self._lateness:
                    self._delete_cleanup((key, before))
        elif session.known:
            return
        self._event_timers.register(after[1] - 1, (key, after))
        if self._lateness:
            self._register_cleanup((key, after))
