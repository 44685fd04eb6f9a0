"""WaitingColumns: columns that wait, by namespace of a window operator's state, to be added to the rows of their keys.

Most keys of one frame occur once in it. Columns that wait until a window fires or the barrier comes are grouped at once, and
become the rows that the same records would have become one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.columns import ColumnKeys, Columns, numpy
from holdfast.common.time import MAX_TIMESTAMP
from holdfast.functions.aggregates import Aggregates
from holdfast.runtime.operators.windows.grouped_columns import GroupedColumns, Unfit
from holdfast.runtime.records.column_routes import members
from holdfast.state.cells.row import DIRTY, Row
from holdfast.state.rows.space import StateSpace

__all__ = ["FAR", "WaitingColumns", "cut_columns"]

_MOST_WAITING = 1 << 18
"""Records that wait at most; more are added to their keys' rows."""
FAR = 1 << 62
"""Timestamps beyond this one are cut into windows one by one, in integers of any size."""

AddRows = Callable[[list[Row], Any, Any], None]
"""Adds values to the rows of their keys, one by one."""


class WaitingColumns:
    """The columns that wait, all of one form.

    Args:
        aggregates: What is computed of them.
        space: The state of the windows.
        cell: That of the accumulator in its rows.
        add_rows: Adds records that cannot be grouped.
    """

    def __init__(self, aggregates: Aggregates, space: StateSpace, cell: int, add_rows: AddRows) -> None:
        self._aggregates = aggregates
        self._space = space
        self._cell = cell
        self._add_rows = add_rows
        self._waiting: dict[int, list[ColumnKeys]] = {}
        self._count = 0
        """The records that wait."""
        self._form: Any = None
        self._grouped: GroupedColumns | None = None
        """Groups columns of this form; None: they cannot be grouped."""

    def __contains__(self, namespace: int) -> bool:
        return namespace in self._waiting

    def takes(self, keys: Any) -> bool:
        """Whether these keys are those of columns that can wait.

        If not, or if those that wait have another form, the latter are added to their rows.
        """
        if not isinstance(keys, ColumnKeys):
            self.all_to_rows()
            return False
        form = keys.columns.form
        if form != self._form:
            self.all_to_rows()
            grouped = GroupedColumns(keys.fields, self._aggregates)
            self._form, self._grouped = form, grouped if grouped.takes(form[0]) else None
        if self._grouped is None or any(array.null_count for array in keys.arrays):
            self.all_to_rows()
            return False
        return True

    def add(self, namespace: int, keys: ColumnKeys) -> None:
        """Let columns wait for a namespace, whose table there is from now on, although none of its rows is."""
        self._space.table(namespace)
        self._waiting.setdefault(namespace, []).append(keys)
        self._count += len(keys)

    def shrink(self) -> None:
        """Add all columns to their rows if too many wait."""
        if self._count > _MOST_WAITING:
            self.all_to_rows()

    def all_to_rows(self) -> None:
        """Add all columns to the rows of their keys."""
        for namespace in list(self._waiting):
            self.to_rows(namespace)

    def to_rows(self, namespace: int) -> None:
        """Add the columns that wait for a namespace to the rows of their keys."""
        waiting = self._taken(namespace)
        if not waiting:
            return
        columns, table, grouped, cell = _joined(waiting), self._space.table(namespace), self._grouped, self._cell
        assert grouped is not None
        unique = grouped.unique(columns.batch)
        rows = table.load(unique)
        try:
            accumulators = grouped.accumulated(columns.batch, unique, [row[cell] for row in rows])
        except Unfit:
            keys = list(ColumnKeys(columns, waiting[0].fields))
            self._add_rows(table.load(keys), list(columns), keys)
            return
        for row, accumulator in zip(rows, accumulators, strict=True):
            row[cell] = accumulator
            row[0] |= DIRTY

    def results(self, namespace: int) -> tuple[list[Any], list[Any]] | None:
        """Take the columns that wait for a namespace: those of its keys, and those of their results, its rows included.

        None if they must become rows; then they wait on.
        """
        grouped, cell = self._grouped, self._cell
        if grouped is None:
            return None
        waiting, rows = self._waiting.get(namespace), self._space.table(namespace).rows
        batch = _joined(waiting).batch if waiting else pyarrow().RecordBatch.from_pylist([], self._form[0])
        before = {key: row[cell] for key, row in rows.items() if row[cell] is not None}
        try:
            results = grouped.results(batch, before)
        except Unfit:
            return None
        self._taken(namespace)
        return results

    def _taken(self, namespace: int) -> list[ColumnKeys]:
        waiting = self._waiting.pop(namespace, [])
        self._count -= sum(map(len, waiting))
        return waiting


def cut_columns(
    keys: ColumnKeys, stamps: Any, size: int, offset: int, over_before: int
) -> Iterator[tuple[int, ColumnKeys, Any]]:
    """Cut columns along windows or panes of this size: the start of each with its keys and timestamps.

    Args:
        keys: The keys.
        stamps: The timestamps, an array.
        size: The length of a window or pane, in ms.
        offset: The start of one of them.
        over_before: The time before which elements belong to a window that is over: these come first, in their order.
    """

    def picked(positions: Any) -> tuple[ColumnKeys, Any]:
        return ColumnKeys(keys.columns.take(positions), keys.fields), stamps[positions]

    low, high = int(stamps.min()), int(stamps.max())
    first = low - (low - offset) % size
    if high < first + size:
        yield first, keys, stamps
        return
    numbers = (stamps - first) // size
    if low < over_before:
        library = numpy()
        over = stamps < min(over_before, MAX_TIMESTAMP)
        positions = library.flatnonzero(over)
        for run in library.split(positions, library.flatnonzero(library.diff(numbers[positions])) + 1):
            yield first + int(numbers[run[0]]) * size, *picked(run)
        rest = library.flatnonzero(~over)
        for number, positions in members(numbers[rest]) if len(rest) else ():
            yield first + number * size, *picked(rest[positions])
        return
    for number, positions in members(numbers):
        yield first + number * size, *picked(positions)


def _joined(waiting: list[ColumnKeys]) -> Columns:
    """The columns of one namespace."""
    first, *others = [keys.columns for keys in waiting]
    joined = first.joined(others) if others else first
    assert joined is not None  # all are of one form
    return joined
