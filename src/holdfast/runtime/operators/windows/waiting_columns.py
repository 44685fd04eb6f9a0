"""WaitingColumns: columns that wait, by namespace, to be added to the rows of their keys in a window operator's state.

Most keys in a frame occur only once in it. Columns that wait until a window fires or the barrier comes are grouped together,
and give the same rows as records that are added one by one.
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
"""The most records that wait; more are added to their keys' rows."""
FAR = 1 << 62
"""Limit of timestamps that are cut into windows as columns; beyond it, records are cut one by one in integers of any size.
"""

AddRows = Callable[[list[Row], Any, Any], None]
"""Adds values to the rows of their keys, one by one."""


class WaitingColumns:
    """The waiting columns, all with the same schema.

    Args:
        aggregates: The aggregates to compute.
        space: The state space of the windows.
        cell: The accumulator's cell in the rows.
        add_rows: Adds records that cannot be grouped.
    """

    def __init__(self, aggregates: Aggregates, space: StateSpace, cell: int, add_rows: AddRows) -> None:
        self._aggregates = aggregates
        self._space = space
        self._cell = cell
        self._add_rows = add_rows
        self._waiting: dict[int, list[ColumnKeys]] = {}
        self._count = 0
        """The number of waiting records."""
        self._form: Any = None
        self._grouped: GroupedColumns | None = None
        """Groups columns of this schema; None if they cannot be grouped."""

    def __contains__(self, namespace: int) -> bool:
        return namespace in self._waiting

    def takes(self, keys: Any) -> bool:
        """Whether these keys belong to columns that can wait.

        If not, or if the waiting columns have another schema, the waiting columns are added to their rows.
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
        """Add waiting columns of a namespace; its table then exists, although it has no rows yet."""
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
        """Take a namespace's waiting columns: returns the columns of its keys and of their results, including its rows.

        None if they must become rows; they stay waiting.
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
        offset: The start of any of them.
        over_before: The time before which elements belong to windows that are over: these come first, in their order.
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
    assert joined is not None  # all have the same schema
    return joined
