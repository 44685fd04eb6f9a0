"""Large values that functions rarely use: they leave their key's row, or stay on the disk when it is loaded.

The states of one key share a row, so a function that reads a small state also reads a large one beside it, and a change of
the small one stores both again. Flink has a column family per state instead, which costs a read for each state. Here the
values of a column leave their rows while they are large and few accesses to the row use them, and return when most accesses
do. Overwriting a value without reading it counts as a use, because in its row it is written with the rest. But the old value
need not be read then: the row is loaded without it, and it stays on the disk (`holdfast.state.rows.lazy_columns`).
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["ColumnUses", "HasKey", "LargeValue", "ValueUses"]

_ENOUGH = 4096
"""Row accesses after which a value's uses are judged."""
_RARELY, _MOSTLY = 0.25, 0.5
"""Uses of a value per row access: at the first or below, it leaves the row; at the second or above, it returns."""


class HasKey(Protocol):
    """The space whose rows the values have left."""

    key: Any


class ValueRows(Protocol):
    """The rows of large values, with one cell each."""

    def load_one(self, key: Any) -> list[Any]:
        """Load the row of a key into memory."""

    def overwrite(self, key: Any, value: Any) -> None:
        """Set the value of a key without reading it; None deletes it."""


class LargeValue:
    """Stands in a row for a value stored elsewhere, and reads it on demand. All rows of a column share one."""

    __slots__ = ("_rows", "_space")

    marker = 0
    """Its stored form."""

    def __init__(self, space: HasKey, rows: ValueRows) -> None:
        self._space = space
        self._rows = rows

    def of(self, key: Any) -> Any:
        """The value of a key."""
        return self._rows.load_one(key)[1]

    def get(self) -> Any:
        """The value of the current key."""
        return self.of(self._space.key)

    def drop(self) -> None:
        """Remove the value of the current key; the caller gives the cell other content."""
        self._rows.overwrite(self._space.key, None)


class ValueUses:
    """How often a column's value is used, or read, per row access that does not add a value.

    >>> uses = ValueUses()
    >>> uses.judge(4000, 10), uses.judge(4000, 10), uses.judge(5000, 2000), uses.judge(5000, 5000)
    (None, True, None, False)
    """

    def __init__(self) -> None:
        self._rows = 0
        self._uses = 0

    def judge(self, rows: int, uses: int) -> bool | None:
        """Count row accesses and uses of the value; returns True if uses are rare, so that the value should leave its row.

        None: it makes no difference, or too little is known.
        """
        self._rows += rows
        self._uses += uses
        if self._rows < _ENOUGH:
            return None
        share = self._uses / self._rows
        self._rows = self._uses = 0
        return True if share <= _RARELY else False if share >= _MOSTLY else None


class CountsUses(Protocol):
    """The handle of a column: counts since the numbers were last taken."""

    reads: int
    replaced: int
    added: int


class ColumnUses:
    """How often functions use and read the values of a column.

    Args:
        handle: Counts reads, overwrites, and writes of new values; `judge` takes the numbers.
    """

    def __init__(self, handle: CountsUses) -> None:
        self._handle = handle
        self._uses = ValueUses()
        self._reads = ValueUses()

    def judge(self, rows: int) -> tuple[bool | None, bool | None]:
        """Count row accesses; returns whether uses of the value are rare, and whether reads are (`ValueUses.judge`)."""
        handle = self._handle
        rows = max(rows - handle.added, 0)  # a new value is written once, inside the row or outside
        judged = self._uses.judge(rows, handle.reads + handle.replaced), self._reads.judge(rows, handle.reads)
        handle.reads = handle.replaced = handle.added = 0
        return judged
