"""LazyColumns: columns whose large values stay on the disk when their rows are loaded.

If a row's large value lies in a blob file, the store may hold a stub beside the row: the row without the values of some
columns. While functions rarely read these values, loads read only the stub and put a `LargeValue` in each gap. It reads the
value on demand from the row in the store. That row is still the one that was loaded, because the store gets only whole rows
of completed epochs: missing values of changed rows are read before the rows are encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.state.cells.large_values import HasKey, LargeValue
from holdfast.state.cells.row import Row, filled

__all__ = ["LazyColumns"]


class Table(Protocol):
    """The table whose rows are loaded."""

    rows: dict[Any, Row]
    """Rows in memory, by key."""

    def look_up(self, keys: list[Any]) -> list[Row]:
        """The store's rows of these keys, with all values."""


class _OnDemand:
    """Reads the values of one column from the store, for a `LargeValue`."""

    def __init__(self, table: Table, cell: int) -> None:
        self._table = table
        self._cell = cell

    def load_one(self, key: Any) -> list[Any]:
        """Read the value of a key into its row."""
        value = _whole(self._table, [key])[0][self._cell]
        self._table.rows[key][self._cell] = value
        return [0, value.of(key) if type(value) is LargeValue else value]

    def overwrite(self, key: Any, value: Any) -> None:
        """Do nothing: the whole row will be written again."""


class LazyColumns:
    """Columns that loads leave on the disk until they are read.

    Args:
        space: Has the current key.
        table: The table of the rows.
    """

    def __init__(self, space: HasKey, table: Table) -> None:
        self._space = space
        self._table = table
        self._cells: list[int] = []
        self.kind = b""
        """The kind of stubs that are loaded and written (`OrderedStore.get_stubs`); empty: rows are loaded whole."""
        self._placeholders: dict[int, LargeValue] = {}
        """The stand-in for missing values, by cell. Rows in memory keep it even after loads read the column again."""

    def __contains__(self, column: int) -> bool:
        return column + 1 in self._cells

    def add(self, column: int) -> None:
        """Load rows without the values of this column from now on."""
        cell = column + 1
        self._placeholders.setdefault(cell, LargeValue(self._space, _OnDemand(self._table, cell)))
        self._choose({*self._cells, cell})

    def discard(self, column: int) -> None:
        """Load rows with the values of this column again."""
        self._choose([cell for cell in self._cells if cell != column + 1])

    def _choose(self, cells: Iterable[int]) -> None:
        self._cells = sorted(cells)
        self.kind = msgspec.msgpack.encode(self._cells) if self._cells else b""

    def stub(self, row: Row, encode: Callable[[Row], bytes]) -> bytes:
        """The kind and the stored form of the row's stub; empty if one of the columns has no value in the row."""
        stub = [*row]
        for cell in self._cells:
            if stub[cell] is None:
                return b""
            stub[cell] = None
        return self.kind + encode(stub)

    def fill_in(self, loaded: Sequence[Row], stubs: Sequence[bool]) -> list[Row]:
        """Put placeholders into the rows that are stubs; returns the other rows."""
        placeholders = [(cell, self._placeholders[cell]) for cell in self._cells]
        whole = []
        for row, is_stub in zip(loaded, stubs):
            if is_stub:
                for cell, value in placeholders:
                    row[cell] = value
            else:
                whole.append(row)
        return whole

    def complete(self, keys: Sequence[Any], rows: Sequence[Row]) -> None:
        """Read the missing values of these rows in memory.

        Raises:
            OSError: the store cannot be read, or has lost a row.
        """
        for cell, placeholder in self._placeholders.items():
            if missing := [at for at, row in enumerate(rows) if row[cell] is placeholder]:
                for at, whole in zip(missing, _whole(self._table, [keys[at] for at in missing])):
                    rows[at][cell] = whole[cell]


def _whole(table: Table, keys: list[Any]) -> list[Row]:
    """The store's rows of these keys; the store must have all of them."""
    rows = table.look_up(keys)
    for key, row in zip(keys, rows):
        if not filled(row):
            raise OSError(f"the local store has lost the row of key {key!r:.200}")
    return rows
