"""The five state types as user functions hold them. Each reads and writes one slot of the current key's row.

A value returned by a handle is the stored object itself. Changing it in place without `update` is visible until the row
leaves memory and may or may not be kept: call `update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.state.row import DIRTY

if TYPE_CHECKING:
    from holdfast.state.space import StateSpace

__all__ = [
    "HANDLES",
    "NO_ACCUMULATOR",
    "NO_REDUCED",
    "AggregatingHandle",
    "Handle",
    "ListHandle",
    "MapHandle",
    "ReducingHandle",
    "ValueHandle",
]

NO_ACCUMULATOR = "add() returned None; it must return the accumulator"
NO_REDUCED = "the reduce function returned None; it must return the reduced value"


class Handle:
    """One state, of whichever key is current."""

    __slots__ = ("_i", "_space")

    def __init__(self, space: StateSpace, position: int, descriptor: Any) -> None:
        self._space = space
        self._i = position + 1

    def clear(self) -> None:
        """Empty the state of the current key."""
        row = self._space.row
        if row[self._i] is not None:
            row[self._i] = None
            row[0] |= DIRTY


class ValueHandle(Handle):
    """One value per key."""

    __slots__ = ()

    def value(self) -> Any:
        """The value; None when empty."""
        return self._space.row[self._i]

    def update(self, value: Any) -> None:
        """Replace the value; None empties it."""
        row = self._space.row
        row[self._i] = value
        row[0] |= DIRTY


class ListHandle(Handle):
    """A list per key."""

    __slots__ = ()

    def get(self) -> Iterator[Any]:
        """The elements in order; nothing when empty. Those that are added meanwhile are not among them."""
        elements = self._space.row[self._i]
        return islice(elements, len(elements)) if elements else iter(())

    __iter__ = get

    def add(self, value: Any) -> None:
        """Append an element."""
        row = self._space.row
        elements = row[self._i]
        if elements is None:
            row[self._i] = [value]
        else:
            elements.append(value)
        row[0] |= DIRTY

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        row = self._space.row
        row[self._i] = [*(row[self._i] or ()), *values] or None
        row[0] |= DIRTY

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty one empties the state."""
        row = self._space.row
        row[self._i] = list(values) or None
        row[0] |= DIRTY


class MapHandle(Handle):
    """A map per key."""

    __slots__ = ()

    def get(self, key: Any) -> Any:
        """The entry's value; None when missing."""
        entries = self._space.row[self._i]
        return None if entries is None else entries.get(key)

    __getitem__ = get

    def put(self, key: Any, value: Any) -> None:
        """Set an entry."""
        row = self._space.row
        entries = row[self._i]
        if entries is None:
            row[self._i] = {key: value}
        else:
            entries[key] = value
        row[0] |= DIRTY

    __setitem__ = put

    def put_all(self, entries: Any) -> None:
        """Set several entries, from a mapping or pairs."""
        row = self._space.row
        row[self._i] = {**(row[self._i] or {}), **dict(entries)} or None
        row[0] |= DIRTY

    def remove(self, key: Any) -> None:
        """Remove an entry; no error when it is missing."""
        row = self._space.row
        entries = row[self._i]
        if entries is not None and key in entries:
            del entries[key]
            if not entries:
                row[self._i] = None
            row[0] |= DIRTY

    __delitem__ = remove

    def contains(self, key: Any) -> bool:
        """Whether the map has the entry."""
        entries = self._space.row[self._i]
        return entries is not None and key in entries

    __contains__ = contains

    def _entries(self) -> dict[Any, Any]:
        return self._space.row[self._i] or {}

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The entries as pairs."""
        return iter(list(self._entries().items()))

    def keys(self) -> Iterator[Any]:
        """The keys."""
        return iter(list(self._entries()))

    __iter__ = keys

    def values(self) -> Iterator[Any]:
        """The values."""
        return iter(list(self._entries().values()))

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return self._space.row[self._i] is None


class ReducingHandle(Handle):
    """One value per key, to which each added value is reduced."""

    __slots__ = ("_reduce",)

    def __init__(self, space: StateSpace, position: int, descriptor: Any) -> None:
        super().__init__(space, position, descriptor)
        function = descriptor.reduce_function
        self._reduce: Callable[[Any, Any], Any] = getattr(function, "reduce", function)

    def get(self) -> Any:
        """The reduced value; None when empty."""
        return self._space.row[self._i]

    def add(self, value: Any) -> None:
        """Reduce a value into the state; the first is stored as it is."""
        row = self._space.row
        current = row[self._i]
        if current is not None:
            value = self._reduce(current, value)
            if value is None:
                raise TypeError(NO_REDUCED)
        row[self._i] = value
        row[0] |= DIRTY


class AggregatingHandle(Handle):
    """An accumulator per key; reading gives the aggregate's result."""

    __slots__ = ("_aggregate",)

    def __init__(self, space: StateSpace, position: int, descriptor: Any) -> None:
        super().__init__(space, position, descriptor)
        self._aggregate = descriptor.agg_function

    def get(self) -> Any:
        """The aggregate's result; None when empty."""
        accumulator = self._space.row[self._i]
        return None if accumulator is None else self._aggregate.get_result(accumulator)

    def add(self, value: Any) -> None:
        """Add a value to the accumulator."""
        row = self._space.row
        accumulator = row[self._i]
        if accumulator is None:
            accumulator = self._aggregate.create_accumulator()
        accumulator = self._aggregate.add(value, accumulator)
        if accumulator is None:
            raise TypeError(NO_ACCUMULATOR)
        row[self._i] = accumulator
        row[0] |= DIRTY


HANDLES: dict[str, type[Handle]] = {
    "value": ValueHandle,
    "list": ListHandle,
    "map": MapHandle,
    "reducing": ReducingHandle,
    "aggregating": AggregatingHandle,
}
"""Handle class by the descriptor's kind."""
