"""Sums over the last panes of each key: each window costs a few merges, however many panes it has. Pure.

Each key has two stacks. New panes are added up in the *back* sum. When all panes before it have left the window, the back is
turned into the *front*, which has for each of its panes the sum from there to its end. A window's sum is one of the front
plus the back. Each pane is merged three times in its life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["PaneSums"]

_Entry = list[Any]
"""[front: (pane, sum) with the earliest last; the back's panes with their contents; the back's sum]"""


class PaneSums:
    """The sums of a window that slides over panes.

    >>> sums = PaneSums(lambda a, b: a + b)
    >>> sums.add(0, [("k", 1)]); sums.add(10, [("k", 2)]); sums.add(20, [("k", 4), ("other", 8)])
    >>> list(sums.of(0)), list(sums.of(10))
    ([('k', 7), ('other', 8)], [('k', 6), ('other', 8)])
    """

    def __init__(self, merge: Callable[[Any, Any], Any]) -> None:
        """``merge`` must leave both arguments unchanged."""
        self._merge = merge
        self._entries: dict[Any, _Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()

    def forget(self, key: Any) -> None:
        """Forget a key."""
        self._entries.pop(key, None)

    def add(self, pane: int, contents: Iterable[tuple[Any, Any]]) -> None:
        """Add a pane's contents, by key; the pane must begin after all panes that were added for these keys."""
        entries, merge = self._entries, self._merge
        for key, content in contents:
            entry = entries.get(key)
            if entry is None:
                entries[key] = [[], [(pane, content)], content]
            else:
                back = entry[1]
                entry[2] = merge(entry[2], content) if back else content
                back.append((pane, content))

    def of(self, start: int) -> Iterator[tuple[Any, Any]]:
        """The sums of all panes from ``start`` on, by key. Forgets earlier panes. The sums must not be changed."""
        merge = self._merge
        gone = []
        for key, entry in self._entries.items():
            front, back, total = entry
            while front and front[-1][0] < start:
                front.pop()
            if not front and back and back[0][0] < start:
                self._turn(entry, start)
                front, back, total = entry
            if front:
                yield key, merge(front[-1][1], total) if back else front[-1][1]
            elif back:
                yield key, total
            else:
                gone.append(key)
        for key in gone:
            del self._entries[key]

    def _turn(self, entry: _Entry, start: int) -> None:
        """Turn the back into the front."""
        front: list[tuple[int, Any]] = []
        total = None
        for pane, content in reversed(entry[1]):
            if pane < start:
                break
            total = content if not front else self._merge(content, total)
            front.append((pane, total))
        entry[:] = [front, [], None]
