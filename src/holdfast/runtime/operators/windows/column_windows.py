"""Aligned windows of the built-in aggregates, over columns.

Columns wait, by window or by pane, until a window fires or the barrier comes. A tumbling window that opens and closes within
an epoch never becomes rows: its results are columns. At the barrier, waiting columns are added to the rows of their keys.
The rows are those of `AlignedWindows` and `PanedWindows`, so a checkpoint is the same for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.columns import ColumnKeys, Columns, numpy, packed_stamps, stamp_array
from holdfast.common.types import Row
from holdfast.common.windows import TimeWindow
from holdfast.functions.aggregates import Aggregates
from holdfast.functions.window_functions import WindowFunction
from holdfast.runtime.operators.windows.aligned_windows import AlignedWindows
from holdfast.runtime.operators.windows.paned_windows import PanedWindows
from holdfast.runtime.operators.windows.waiting_columns import FAR, WaitingColumns, cut_columns
from holdfast.runtime.operators.windows.window_base import CHUNK, WindowSpec
from holdfast.runtime.records.records import RecordBatch
from holdfast.windowing.assigners import PeriodicWindows, TumblingWindows

__all__ = ["ColumnPanes", "ColumnWindows", "Summary", "takes_columns"]


class Summary(WindowFunction[Any, Row, Any, TimeWindow]):
    """Creates the Row of a window: the key, the window's start and end, and the results of its aggregates.

    Args:
        keys: The names of the key's fields.
        single: Whether the key is the value of one field, not a tuple.
        results: The names of the results.
    """

    def __init__(self, keys: Sequence[str], single: bool, results: Sequence[str]) -> None:
        self._single = single
        self.names = [*keys, "window_start", "window_end", *results]

    def apply(self, key: Any, window: TimeWindow, inputs: Any) -> list[Row]:
        """The row."""
        (results,) = inputs
        keys = [key] if self._single else list(key)
        return [Row.of_values([*keys, window.start, window.end, *results], self.names)]


def takes_columns(spec: WindowSpec) -> tuple[Aggregates, Summary] | None:
    """The aggregates and the window function, if they are the built-in ones."""
    function, window_function = spec.content.function, spec.window_function
    if isinstance(function, Aggregates) and window_function is not None and isinstance(window_function[1], Summary):
        return function, window_function[1]
    return None


class ColumnWindows(AlignedWindows):
    """Aligned windows whose columns wait until they are needed as rows or as results."""

    def __init__(self, spec: WindowSpec, assigner: TumblingWindows[Any], function: Aggregates, summary: Summary) -> None:
        super().__init__(spec, assigner)
        self._aggregates = function
        self._names = summary.names

    def open(self) -> None:
        super().open()
        self._waiting = WaitingColumns(self._aggregates, self.window_space, self._cell, self._add_rows)

    # adding elements

    def process(self, batch: RecordBatch) -> None:
        keys: Any = batch.keys
        if not self._waiting.takes(keys):
            super().process(batch)
            return
        if self._event_time:
            stamps = stamp_array(batch.stamps())
        else:
            stamps = numpy().full(len(batch.values), self.context.clock.processing_time, dtype="int64")
        if not max(self._least, -FAR) <= stamps.min() or stamps.max() > FAR:
            self._waiting.all_to_rows()
            super().process(batch)
            return
        for start, part, times in cut_columns(keys, stamps, self._size, self._assigner.offset, self._over_before()):
            self._add_columns(start, part, times)
        self._waiting.shrink()

    def _add_columns(self, start: int, keys: ColumnKeys, stamps: Any) -> None:
        last = self._last(start)
        if self._event_time and last <= self.context.clock.passed:  # late, or possibly late
            self._waiting.to_rows(start)
            self._add_to(start, list(keys), list(keys.columns), stamps.tolist())
            return
        self._waiting.add(start, keys)

    def finish_pending(self) -> None:
        self._waiting.all_to_rows()

    def end_epoch(self) -> None:
        self._waiting.all_to_rows()

    # firing

    def _fire(self, start: int) -> None:
        table = self.window_space.table(start)
        # Rows that stay or are not in memory fire as rows; so do keys whose type must be restored.
        gathered = not (table.in_store or self._lateness or self._restore_key or self.context.clock.ahead)
        if gathered and (start in self._waiting or table.rows) and self._fire_columns(start):
            return
        self._waiting.to_rows(start)
        super()._fire(start)

    def _fire_columns(self, start: int) -> bool:
        """Emit the results of a window as columns; False if its columns must become rows."""
        found = self._waiting.results(start)
        if found is None:
            return False
        keys, results = found
        count, library = len(keys[0]), pyarrow()
        bounds = [library.array(numpy().full(count, at, dtype="int64")) for at in (start, start + self._size)]
        batch = library.RecordBatch.from_arrays([*keys, *bounds, *results], names=self._names)
        last = self._last(start)
        for first in range(0, count, CHUNK):
            part = Columns(batch.slice(first, CHUNK))
            self.context.emit(RecordBatch(part.as_list(), packed_stamps(numpy().full(len(part), last))))
        return True


class ColumnPanes(PanedWindows):
    """Windows over panes, whose columns wait until a window that reads their pane fires."""

    def __init__(self, spec: WindowSpec, assigner: PeriodicWindows[Any], function: Aggregates) -> None:
        super().__init__(spec, assigner)
        self._aggregates = function

    def open(self) -> None:
        """Declare the state and open the functions."""
        super().open()
        self._columns = WaitingColumns(self._aggregates, self._space, self._cell, self._add_rows)

    def process(self, batch: RecordBatch) -> None:
        """Add elements to their panes."""
        keys: Any = batch.keys
        if not self._columns.takes(keys):
            super().process(batch)
            return
        stamps = stamp_array(batch.stamps())
        if not max(self._least, -FAR) <= stamps.min() or stamps.max() > FAR:
            self._columns.all_to_rows()
            super().process(batch)
            return
        pane, offset = self._assigner.pane, self._assigner.offset
        for start, part, times in cut_columns(keys, stamps, pane, offset, self._over_before()):
            self._add_columns(start, part, times)
        self._columns.shrink()

    def _add_columns(self, pane: int, keys: ColumnKeys, stamps: Any) -> None:
        alive, after = self._alive(pane)
        namespace = self._namespace(pane, after)
        if not alive or self._last(alive[0]) <= self.context.clock.watermark or not -FAR <= namespace <= FAR:
            self._columns.to_rows(namespace)
            self._add_to(pane, list(keys), list(keys.columns), stamps.tolist())
            return
        self._note_added(namespace, pane, keys)
        self._columns.add(namespace, keys)

    def _of_window(self, window: tuple[int, int]) -> list[int]:
        """The namespaces that a window reads; their waiting columns become rows."""
        namespaces = super()._of_window(window)
        for namespace in namespaces:
            self._columns.to_rows(namespace)
        return namespaces

    def finish_pending(self) -> None:
        """Add the waiting columns to their rows."""
        self._columns.all_to_rows()

    def end_epoch(self) -> None:
        """Add the waiting columns to their rows."""
        self._columns.all_to_rows()
