"""Large values that functions rarely use, stored outside of their key's row as rows of their own.

The states of one key share a row, so that a function that reads a small state also reads a large one beside it, and a
change of the small one stores both again. Flink has a column family for each state instead, which costs a read for each.
Here the values of a column leave their rows while they are large and few accesses to the row use them, and come back when
most do. To write a value without reading it is a use, too: in its row it is written with the rest.
"""

from __future__ import annotations

from typing import Any, Protocol

__all__ = ["OUTSIDE", "LargeValue", "ValueUses"]

_ENOUGH = 4096
"""Accesses to rows after which the uses of a value are judged."""
_RARELY, _MOSTLY = 0.25, 0.5
"""Uses of a value per access to its row: up to which it is better outside of the row, and from which it is better in it."""


class ValueRows(Protocol):
    """The rows of large values, with one slot each."""

    def load_one(self, key: Any) -> list[Any]:
        """Load the row of a key into memory."""

    def overwrite(self, key: Any, value: Any) -> None:
        """Set the value of a key without reading it; None deletes it."""


class LargeValue:
    """A value with a row of its own; replaces the value in its slot. It is read on demand."""

    __slots__ = ("_key", "_rows")

    marker = 0
    """The row's placeholder for the value."""

    def __init__(self, rows: ValueRows, key: Any) -> None:
        self._rows = rows
        self._key = key

    def get(self) -> Any:
        """The value."""
        return self._rows.load_one(self._key)[1]

    def drop(self) -> None:
        """Remove the value, because the slot gets other content."""
        self._rows.overwrite(self._key, None)


OUTSIDE = LargeValue(None, None)  # type: ignore[arg-type]
"""Stands for any large value in a row that has been decoded, until the space puts the one of the row's key there."""


class ValueUses:
    """How often the value of a column is read or written, for each access to its row.

    >>> uses = ValueUses()
    >>> uses.judge(4000, 10), uses.judge(4000, 10), uses.judge(5000, 2000), uses.judge(5000, 5000)
    (None, True, None, False)
    """

    def __init__(self) -> None:
        self._rows = 0
        self._uses = 0

    def judge(self, rows: int, uses: int) -> bool | None:
        """Count accesses to rows and uses of the value; returns whether it is better outside of its row.

        None: it makes no difference, or too little is known.
        """
        self._rows += rows
        self._uses += uses
        if self._rows < _ENOUGH:
            return None
        share = self._uses / self._rows
        self._rows = self._uses = 0
        return True if share <= _RARELY else False if share >= _MOSTLY else None
