"""Aligned windows of the built-in aggregates, over columns.

The columns of an epoch wait, by window, until the window fires or the barrier comes, and are then grouped by key at once. A
window that opens and closes within an epoch never becomes rows: its results are columns. At the barrier the waiting columns
are added to the rows of their keys, which are those of `AlignedWindows`, so that a checkpoint does not tell the two apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.common.arrow import pyarrow
from holdfast.common.columns import ColumnKeys, Columns, numpy, packed_stamps, stamp_array
from holdfast.common.types import Row
from holdfast.common.windows import TimeWindow
from holdfast.functions.aggregates import Aggregates
from holdfast.functions.window_functions import WindowFunction
from holdfast.runtime.column_routes import members
from holdfast.runtime.operators.aligned_windows import AlignedWindows
from holdfast.runtime.operators.grouped_columns import GroupedColumns, Unfit
from holdfast.runtime.operators.window_base import CHUNK, WindowSpec
from holdfast.runtime.records import RecordBatch
from holdfast.state.row import DIRTY
from holdfast.windowing.assigners import TumblingWindows

__all__ = ["ColumnWindows", "Summary", "takes_columns"]

_MOST_WAITING = 1 << 18
"""Records that wait at most; more are added to their keys' rows."""
_FAR = 1 << 62
"""Timestamps beyond this one are cut into windows one by one, in integers of any size."""


class Summary(WindowFunction[Any, Row, Any, TimeWindow]):
    """Makes a Row of a window: the key, the start and the end of the window, and the results of its aggregates.

    Args:
        keys: The names of the key's fields.
        single: Whether the key is the value of one field, and not a tuple.
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
    """Aligned windows whose columns wait until they are needed as rows, or as results."""

    def __init__(self, spec: WindowSpec, assigner: TumblingWindows[Any], function: Aggregates, summary: Summary) -> None:
        super().__init__(spec, assigner)
        self._aggregates = function
        self._names = summary.names
        self._waiting: dict[int, list[ColumnKeys]] = {}
        self._count = 0
        """The records that wait."""
        self._form: Any = None
        """That of the columns that wait."""
        self._grouped: GroupedColumns | None = None
        """Groups columns of this form; None: they cannot be grouped."""

    # adding elements

    def process(self, batch: RecordBatch) -> None:
        keys: Any = batch.keys
        if not isinstance(keys, ColumnKeys) or not self._groups(keys):
            self._settle_rows()
            super().process(batch)
            return
        stamps = self._stamps(batch)
        low, high = int(stamps.min()), int(stamps.max())
        if low < max(self._least, -_FAR) or high > _FAR:
            self._settle_rows()
            super().process(batch)
            return
        self._late_by = max(self._time, self.context.clock.late_by)
        first = low - (low - self._offset) % self._size
        if high < first + self._size:
            self._add_columns(first, keys, stamps)
        else:
            for start, positions in members(stamps - (stamps - self._offset) % self._size):
                self._add_columns(start, ColumnKeys(keys.columns.take(positions), keys.fields), stamps[positions])
        if self._count > _MOST_WAITING:
            self._settle_rows()

    def _stamps(self, batch: RecordBatch) -> Any:
        """The time of each record in the operator's time domain, as an array."""
        if not self._event_time:
            return numpy().full(len(batch.values), self.context.clock.processing_time, dtype="int64")
        return stamp_array(batch.stamps())

    def _groups(self, keys: ColumnKeys) -> bool:
        """Whether these columns can be grouped; adds those that wait to their rows if they are of another form."""
        form = keys.columns.form
        if form != self._form:
            self._settle_rows()
            grouped = GroupedColumns(keys.fields, self._aggregates)
            self._form, self._grouped = form, grouped if grouped.takes(form[0]) else None
        return self._grouped is not None and not any(array.null_count for array in keys.arrays)

    def _add_columns(self, start: int, keys: ColumnKeys, stamps: Any) -> None:
        last = self._last(start)
        late = self._event_time and last + self._lateness <= self._late_by
        if late or last <= self._time:  # late, or within the allowed lateness of a window that has fired
            self._to_rows(start)
            self._add_to(start, list(keys), list(keys.columns), stamps.tolist())
            return
        self.window_space.table(start)  # the window is there, although none of its rows is
        self._waiting.setdefault(start, []).append(keys)
        self._count += len(keys)

    # from columns to rows

    def _settle_rows(self) -> None:
        for start in list(self._waiting):
            self._to_rows(start)

    def _to_rows(self, start: int) -> None:
        """Add the columns that wait for a window to the rows of their keys."""
        waiting = self._taken(start)
        if not waiting:
            return
        columns, table, grouped, slot = _joined(waiting), self.window_space.table(start), self._grouped, self._slot
        assert grouped is not None
        unique = grouped.unique(columns.batch)
        rows = table.load(unique)
        try:
            accumulators = grouped.accumulated(columns.batch, unique, [row[slot] for row in rows])
        except Unfit:
            keys = list(ColumnKeys(columns, waiting[0].fields))
            self._add_rows(table.load(keys), list(columns), keys)
            return
        for row, accumulator in zip(rows, accumulators, strict=True):
            row[slot] = accumulator
            row[0] |= DIRTY

    def _taken(self, start: int) -> list[ColumnKeys]:
        waiting = self._waiting.pop(start, [])
        self._count -= sum(map(len, waiting))
        return waiting

    def settle(self) -> None:
        self._settle_rows()

    def end_epoch(self) -> None:
        self._settle_rows()

    # firing

    def _fire(self, start: int) -> None:
        table = self.window_space.table(start)
        alone = start in self._waiting and not (table.rows or table.in_store or self._lateness)
        if alone and self._fire_columns(start):
            return
        self._to_rows(start)
        super()._fire(start)

    def _fire_columns(self, start: int) -> bool:
        """Emit the results of a window that has no rows; False if its columns must become rows."""
        grouped = self._grouped
        assert grouped is not None
        try:
            keys, results = grouped.results(_joined(self._waiting[start]).batch)
        except Unfit:
            return False
        self._taken(start)
        count, library = len(keys[0]), pyarrow()
        bounds = [library.array(numpy().full(count, at, dtype="int64")) for at in (start, start + self._size)]
        batch = library.RecordBatch.from_arrays([*keys, *bounds, *results], names=self._names)
        last = self._last(start)
        for first in range(0, count, CHUNK):
            part = Columns(batch.slice(first, CHUNK))
            self.context.emit(RecordBatch(part.as_list(), packed_stamps(numpy().full(len(part), last))))
        return True


def _joined(waiting: list[ColumnKeys]) -> Columns:
    """The columns of one window."""
    first, *others = [keys.columns for keys in waiting]
    joined = first.joined(others) if others else first
    assert joined is not None  # all are of one form
    return joined
