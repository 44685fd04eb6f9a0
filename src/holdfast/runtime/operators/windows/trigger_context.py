"""The context of triggers and evictors: the clocks, and the timers and state of the current key and window."""

from __future__ import annotations

import copy
from typing import Any

from holdfast.metrics.user import MetricGroup
from holdfast.runtime.plan.context import OperatorContext
from holdfast.state.api.descriptors import StateDescriptor
from holdfast.state.cells.column import Column
from holdfast.state.cells.row import DIRTY, Row
from holdfast.state.rows.space import StateSpace
from holdfast.state.timers.timers import TimerQueue
from holdfast.windowing.evictors import Evictor
from holdfast.windowing.triggers import Trigger

__all__ = ["TriggerContext"]

_OWN = "trigger."
"""Prefix of the names of triggers' states, so that window functions may use the same names."""


class TriggerContext(Trigger.OnMergeContext, Evictor.EvictorContext):
    """The context of the current key and window, which the operator sets with `enter`."""

    __slots__ = ("_context", "_event", "_handles", "_merged", "_owner", "_processing", "_cells", "_space", "_stored_cells")

    def __init__(self, context: OperatorContext, space: StateSpace, event: TimerQueue, processing: TimerQueue) -> None:
        """``space``: the rows of windows; ``event`` and ``processing``: the timers of windows."""
        assert context.state is not None
        columns = context.state.schema.states[space.name].columns
        self._context = context
        self._space = space
        self._event = event
        self._processing = processing
        self._owner: Any = None
        self._handles: dict[tuple[str, str], Any] = {}
        self._merged: list[Row] | None = None
        self._cells: set[int] = set()
        """The positions of the trigger's states in the rows of windows."""
        self._stored_cells = {
            column.name: 1 + position for position, column in enumerate(columns) if column.name.startswith(_OWN)
        }
        """States in the checkpoint that the trigger has not used yet."""

    def enter(self, owner: tuple[Any, Any], key: Any, row: Row) -> None:
        """Set the current window.

        Args:
            owner: Key and namespace of the window, which own its timers.
            key: The key of the row.
            row: The window's row.
        """
        self._owner = owner
        space = self._space
        space.row, space.key, space.namespace = row, key, None

    def get_current_processing_time(self) -> int:
        """The machine's time, in ms since 1970."""
        return self._context.clock.processing_time

    def get_current_watermark(self) -> int:
        """The watermark."""
        return self._context.clock.watermark

    def get_metric_group(self) -> MetricGroup:
        """The operator's metrics."""
        return self._context.metrics

    def register_processing_time_timer(self, time: int) -> None:
        """Register a timer of the current window."""
        self._processing.register(time, self._owner)

    def register_event_time_timer(self, time: int) -> None:
        """Register a timer of the current window."""
        self._event.register(time, self._owner)

    def delete_processing_time_timer(self, time: int) -> None:
        """Delete a timer of the current window."""
        self._processing.delete(time, self._owner)

    def delete_event_time_timer(self, time: int) -> None:
        """Delete a timer of the current window."""
        self._event.delete(time, self._owner)

    def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
        """The trigger's state of the current window."""
        known = self._handles.get((state_descriptor.name, state_descriptor.kind))
        if known is None:
            known = self._declare(state_descriptor)
        return known

    def _declare(self, descriptor: StateDescriptor) -> Any:
        own = _named(descriptor)
        column, space = Column.of(own), self._space
        stored = self._stored_cells.pop(own.name, None)
        before = None if stored is None else space.stored_column(stored - 1)
        position = space.register(column)
        self._cells.add(1 + position)
        if stored is not None and before is not None:
            # Rows taken out before the state was declared still have its stored form.
            reading = column.reading(space.stored_column(position).since_types(before))
            for row in self._merged or ():
                if row[stored] is not None:
                    row[stored] = reading.restored(row[stored])
        get = space.get_state if own.kind == "value" else getattr(space, f"get_{own.kind}_state")
        known = self._handles[descriptor.name, descriptor.kind] = get(own)
        return known

    # merging

    def take_out(self, row: Row) -> Row:
        """Move the trigger's state out of a row, into a row of its own."""
        own: Row = [row[0], *[None] * (len(row) - 1)]
        for cell in self._cells.union(self._stored_cells.values()):
            own[cell], row[cell] = row[cell], None
        return own

    def merging(self, merged: list[Row] | None) -> None:
        """Set the rows with the state of the windows that merge into the current one; None: no windows merge."""
        self._merged = merged

    def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None:
        """Merge the state of the merging windows into that of the current window."""
        kind, name = state_descriptor.kind, state_descriptor.name
        if kind not in ("list", "reducing", "aggregating"):
            raise TypeError(
                f"merge_partitioned_state() merges list, reducing and aggregating states, and {name!r} is a {kind}"
            )
        if self._merged is None:
            raise RuntimeError("merge_partitioned_state() is for on_merge() only")
        state = self.get_partitioned_state(state_descriptor)
        for row in self._merged:
            self._merge(state, row, state_descriptor)

    def _merge(self, state: Any, other: Row, descriptor: Any) -> None:
        """Merge the state in another row into that in the current row."""
        space = self._space
        row = space.row
        other += [None] * (len(row) - len(other))
        if descriptor.kind == "aggregating":
            cell = 1 + space.register(Column.of(_named(descriptor)))
            held, accumulator = other[cell], row[cell]
            if held is not None:
                row[cell] = held if accumulator is None else descriptor.agg_function.merge(accumulator, held)
                row[0] |= DIRTY
            return
        space.row = other
        held = list(state.get()) if descriptor.kind == "list" else state.get()
        space.row = row
        if descriptor.kind == "list":
            state.add_all(held)
        elif held is not None:
            state.add(held)


def _named(descriptor: Any) -> Any:
    own = copy.copy(descriptor)
    own.name = _OWN + descriptor.name
    return own
