"""A bounded cache of the last entries of a map that were looked up."""

from __future__ import annotations

from typing import Any

__all__ = ["RecentEntries"]


class RecentEntries:
    """The last entries: at least ``most`` of them, at most twice as many.

    >>> recent = RecentEntries()
    >>> for key in range(5):
    ...     recent.put(key, key, most=2)
    >>> [recent.get(key, None) for key in range(5)], len(recent)
    ([None, None, 2, 3, 4], 3)
    """

    __slots__ = ("_before", "_last")

    def __init__(self) -> None:
        self._last: dict[Any, Any] = {}
        self._before: dict[Any, Any] = {}
        """The entries before those."""

    def __len__(self) -> int:
        return len(self._last) + len(self._before)

    def get(self, key: Any, default: Any) -> Any:
        """The entry's value, or the default."""
        value = self._last.get(key, self)
        return self._before.get(key, default) if value is self else value

    def put(self, key: Any, value: Any, most: int) -> None:
        """Add an entry, or replace it."""
        if len(self._last) >= most:
            self._before, self._last = self._last, {}
        self._last[key] = value
