"""WindowOperator: chooses the operator for windows by their assigner, trigger and content."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from holdfast.runtime.operators.windows.aligned_windows import AlignedWindows
from holdfast.runtime.operators.windows.column_windows import ColumnPanes, ColumnWindows, takes_columns
from holdfast.runtime.operators.windows.event_time_sessions import EventTimeSessions
from holdfast.runtime.operators.windows.merging_windows import MergingWindows
from holdfast.runtime.operators.windows.paned_windows import PanedWindows
from holdfast.runtime.operators.windows.triggered_windows import TriggeredWindows
from holdfast.runtime.operators.windows.window_base import WindowSpec
from holdfast.runtime.operators.windows.window_definition import (
    ALIGNED,
    MERGING,
    PANES,
    ROWS,
    TIMED,
    KeepsAll,
    check_continues,
    described,
    former_windows,
)
from holdfast.runtime.plan.operator import Operator, OperatorFactory, StateKind
from holdfast.windowing.assigners import MergingWindowAssigner, PeriodicWindows, TumblingWindows
from holdfast.windowing.sessions import DynamicEventTimeSessionWindows, EventTimeSessionWindows
from holdfast.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger

__all__ = ["WindowOperator"]

_EVENT_TIME_SESSIONS = (EventTimeSessionWindows, DynamicEventTimeSessionWindows)


@dataclass(frozen=True)
class WindowOperator(WindowSpec, OperatorFactory):
    """Windows of a keyed stream. Their assigner, trigger and evictor decide how they are stored and fired."""

    state = StateKind.KEYED

    def create(self) -> Operator:
        """Create the operator."""
        default = EventTimeTrigger if self.assigner.is_event_time() else ProcessingTimeTrigger
        if isinstance(self.assigner, MergingWindowAssigner):
            usual = self.evictor is None and type(self.trigger) is default
            return EventTimeSessions(self) if usual and type(self.assigner) in _EVENT_TIME_SESSIONS else MergingWindows(self)
        columnar, form = takes_columns(self), self._form()
        if form == ALIGNED and isinstance(self.assigner, TumblingWindows):
            return AlignedWindows(self, self.assigner) if columnar is None else ColumnWindows(self, self.assigner, *columnar)
        if form == PANES and isinstance(self.assigner, PeriodicWindows):
            return PanedWindows(self, self.assigner) if columnar is None else ColumnPanes(self, self.assigner, columnar[0])
        return TriggeredWindows(self)

    def _form(self) -> str:
        """The form in which the windows are stored."""
        if isinstance(self.assigner, MergingWindowAssigner):
            return MERGING
        default = EventTimeTrigger if self.assigner.is_event_time() else ProcessingTimeTrigger
        if self.by_rows or not isinstance(self.assigner, PeriodicWindows) or type(self.trigger) is not default:
            return ROWS
        if isinstance(self.assigner, TumblingWindows) and self.evictor is None:
            return ALIGNED
        return PANES if self._by_panes() else ROWS

    def definition(self) -> dict[str, Any]:
        """The assigner, and how the windows are stored."""
        return described(self, self._form())

    def continuing(self, stored: Mapping[str, Any]) -> WindowOperator:
        """The windows that continue those of another definition; by rows, if the form or the assigner differs."""
        own = self.definition()
        check_continues(own, stored, self.content.merges())
        evictor = KeepsAll() if stored["content"] == TIMED and self.evictor is None else self.evictor
        if own["form"] == MERGING or stored["form"] == ROWS:
            return replace(self, evictor=evictor, by_rows=True)
        if all(stored[each] == own[each] for each in ("form", "assigner", "arguments")):
            return self
        return replace(self, by_rows=True, former=former_windows(stored))

    def _by_panes(self) -> bool:
        """Whether overlapping windows can be composed of panes."""
        if self.evictor is not None or not self.content.merges():
            return False
        if not self.assigner.is_event_time():  # a checkpoint does not record which windows have fired in processing time
            return False
        # A window function that keeps state from one firing of a window to the next needs a row per window.
        keeps = self.window_function is not None and self.window_function[0] == "process" and self.allowed_lateness_ms > 0
        return not self.clears and not keeps

    @property
    def needs_timestamps(self) -> bool:  # type: ignore[override]
        """Whether the windows are of event time."""
        return self.assigner.is_event_time()

    def deadline(self) -> Callable[[int], int] | None:
        """An element is late when its first window is gone, or a window that only the operator can determine may be gone.

        A session ends with its last element, and a user's assigner may end windows anywhere after the element.
        """
        assigner, lateness = self.assigner, self.allowed_lateness_ms
        if not assigner.is_event_time():
            return None
        if not isinstance(assigner, PeriodicWindows):
            return _its_time
        every, phase = assigner.ends
        if assigner.size < every:  # an element between two windows belongs to none, and is late by its own time
            return lambda timestamp: timestamp + lateness
        kept = every - 1 + lateness
        return lambda timestamp: timestamp - (timestamp - phase) % every + kept


def _its_time(timestamp: int) -> int:
    """A session that ends where the element begins may be over: whether the two touch depends on the watermark."""
    return timestamp - 1
