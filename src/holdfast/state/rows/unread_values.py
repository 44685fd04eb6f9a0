"""UnreadValues: large values of a table that stay on the disk when their rows are loaded.

In the store, a row whose large value lies in a blob file may have a stub: the row without the values of some columns. If
functions rarely read these, the stub is loaded in place of the row, and a `LargeValue` stands for each missing value. It is
read from the row in the store, which is the one that was loaded: only rows of completed epochs go there, whole ones: before
changed rows are encoded, what they lack is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from holdfast.state.cells.large_values import HasKey, LargeValue
from holdfast.state.cells.row import Row, filled

__all__ = ["UnreadValues"]


class Table(Protocol):
    """The rows."""

    rows: dict[Any, Row]
    """In memory, by key."""

    def look_up(self, keys: list[Any]) -> list[Row]:
        """The store's rows of these keys, with all values."""


class _OnDemand:
    """Reads the values of a cell from the store, for a `LargeValue`."""

    def __init__(self, table: Table, cell: int) -> None:
        self._table = table
        self._cell = cell

    def load_one(self, key: Any) -> list[Any]:
        """Read the value of a key into its row."""
        value = _whole(self._table, [key])[0][self._cell]
        self._table.rows[key][self._cell] = value
        return [0, value.of(key) if type(value) is LargeValue else value]

    def overwrite(self, key: Any, value: Any) -> None:
        """Nothing to remove: the whole row will be written again."""


class UnreadValues:
    """The columns without whose values a table's rows are loaded.

    Args:
        space: Has the current key.
        table: The rows.
    """

    def __init__(self, space: HasKey, table: Table) -> None:
        self._space = space
        self._table = table
        self._cells: list[int] = []
        self.kind = b""
        """The kind of the stubs that are loaded and written (`OrderedStore.get_stubs`); empty: rows are loaded whole."""
        self._unread: dict[int, LargeValue] = {}
        """By cell: what stands in rows for unread values. Rows in memory may have it after rows are loaded whole again."""

    def __contains__(self, column: int) -> bool:
        return column + 1 in self._cells

    def add(self, column: int) -> None:
        """Load rows without the values of this column from now on."""
        cell = column + 1
        self._unread.setdefault(cell, LargeValue(self._space, _OnDemand(self._table, cell)))
        self._choose({*self._cells, cell})

    def discard(self, column: int) -> None:
        """Load rows with the values of this column again."""
        self._choose([cell for cell in self._cells if cell != column + 1])

    def _choose(self, cells: Iterable[int]) -> None:
        self._cells = sorted(cells)
        self.kind = msgspec.msgpack.encode(self._cells) if self._cells else b""

    def stub(self, row: Row, encode: Callable[[Row], bytes]) -> bytes:
        """The stub of a row after its kind, in stored form; empty if the row lacks one of the values itself."""
        stub = [*row]
        for cell in self._cells:
            if stub[cell] is None:
                return b""
            stub[cell] = None
        return self.kind + encode(stub)

    def leave(self, loaded: Sequence[Row], stubs: Sequence[bool]) -> list[Row]:
        """Put what stands for unread values into rows, those that are stubs; returns the other rows."""
        unread = [(cell, self._unread[cell]) for cell in self._cells]
        whole = []
        for row, stub in zip(loaded, stubs):
            if stub:
                for cell, value in unread:
                    row[cell] = value
            else:
                whole.append(row)
        return whole

    def complete(self, keys: Sequence[Any], rows: Sequence[Row]) -> None:
        """Read what these rows in memory lack.

        Raises:
            OSError: the store cannot be read, or has lost a row.
        """
        for cell, unread in self._unread.items():
            if left := [at for at, row in enumerate(rows) if row[cell] is unread]:
                for at, whole in zip(left, _whole(self._table, [keys[at] for at in left])):
                    rows[at][cell] = whole[cell]


def _whole(table: Table, keys: list[Any]) -> list[Row]:
    """The store's rows of these keys, which are there."""
    rows = table.look_up(keys)
    for key, row in zip(keys, rows):
        if not filled(row):
            raise OSError(f"the local store has lost the row of key {key!r:.200}")
    return rows
