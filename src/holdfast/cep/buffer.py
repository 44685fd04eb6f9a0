"""SharedBuffer: the events of all partial matches of a key, each stored once, and their paths as a tree.

A *node* is an event accepted for a pattern, with the node accepted before it. A path from a node to the root is a partial
match; matches that begin alike share their beginning. Where Flink merges nodes and tells their paths apart by versions
(Dewey numbers), a node here has one predecessor: the path needs no version. Nodes and events count their references, and
leave the buffer with the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

__all__ = ["ROOT", "Entries", "Node", "SharedBuffer"]

ROOT = 0
"""The predecessor of a first node."""

Node = tuple[int, int, int, int]
"""Pattern, number of the event, predecessor, and references: partial matches at the node, and nodes behind it."""

V = TypeVar("V")


class Entries(Protocol[V]):
    """What the buffer needs of a map: a dict and a MapState have it."""

    def get(self, key: int, /) -> V | None:
        """The entry's value; None if there is no such entry."""

    def __setitem__(self, key: int, value: V, /) -> None: ...

    def __delitem__(self, key: int, /) -> None: ...


class SharedBuffer:
    """The nodes and events of one key."""

    __slots__ = ("_events", "_nodes")

    def __init__(self, nodes: Entries[Node], events: Entries[tuple[Any, int]]) -> None:
        """Create a buffer over its content: nodes by number, and events with their references by number."""
        self._nodes = nodes
        self._events = events

    def hold(self, number: int, event: Any, references: int) -> None:
        """Store a new event that so many new nodes refer to."""
        self._events[number] = (event, references)

    def add(self, number: int, pattern: int, event: int, predecessor: int, references: int) -> None:
        """Add a node with so many references. The reference that it holds on its predecessor must be counted already."""
        self._nodes[number] = (pattern, event, predecessor, references)

    def refer(self, number: int) -> None:
        """Count one more reference to a node; the root counts none."""
        if number != ROOT:
            pattern, event, predecessor, references = self._node(number)
            self._nodes[number] = (pattern, event, predecessor, references + 1)

    def release(self, number: int) -> None:
        """Count one reference to a node less; without any it leaves the buffer, and releases its predecessor."""
        while number != ROOT:
            pattern, event, predecessor, references = self._node(number)
            if references > 1:
                self._nodes[number] = (pattern, event, predecessor, references - 1)
                return
            del self._nodes[number]
            self._release_event(event)
            number = predecessor

    def _release_event(self, number: int) -> None:
        found = self._events.get(number)
        assert found is not None, number
        event, references = found
        if references > 1:
            self._events[number] = (event, references - 1)
        else:
            del self._events[number]

    def _node(self, number: int) -> Node:
        node = self._nodes.get(number)
        assert node is not None, number
        return node

    def path(self, number: int) -> list[tuple[int, int]]:
        """The patterns and numbers of the events on the path to a node, in order."""
        return list(self._back(number))[::-1]

    def _back(self, number: int) -> Iterator[tuple[int, int]]:
        while number != ROOT:
            pattern, event, number, _ = self._node(number)
            yield pattern, event

    def event(self, number: int) -> Any:
        """A stored event."""
        found = self._events.get(number)
        assert found is not None, number
        return found[0]
