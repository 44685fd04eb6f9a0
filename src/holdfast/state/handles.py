"""The five state types as user functions hold them; each reads and writes one slot of the current key's row.

A handle returns the stored object itself. A change to it in place is visible until the row leaves memory, and may or may
not be kept: call `update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import holdfast.state.packed as packed
from holdfast.state.entries import LARGE, LargeList, LargeMap
from holdfast.state.large_values import LargeValue
from holdfast.state.row import CHANGED, Row

__all__ = [
    "HANDLES",
    "NO_ACCUMULATOR",
    "NO_REDUCED",
    "AggregatingHandle",
    "CurrentRow",
    "Handle",
    "ListHandle",
    "MapHandle",
    "PackedListHandle",
    "ReducingHandle",
    "ValueHandle",
]

NO_ACCUMULATOR = "add() returned None; it must return the accumulator"
NO_REDUCED = "the reduce function returned None; it must return the reduced value"


class CurrentRow:
    """The current key and its row; operators set both."""

    __slots__ = ("key", "row")

    row: Row
    key: Any


class Handle:
    """One state, for the current key."""

    __slots__ = ("_i", "_space")

    def __init__(self, space: CurrentRow, position: int, descriptor: Any) -> None:
        self._space = space
        self._i = position + 1

    def clear(self) -> None:
        """Empty the state of the current key."""
        row = self._space.row
        before = row[self._i]
        if before is not None:
            if type(before) in LARGE:
                before.drop()
            row[self._i] = None
            row[0] = CHANGED[row[0]]

    def _set(self, row: Row, slot: Any) -> None:
        """Replace the content of the slot."""
        before = row[self._i]
        if type(before) in LARGE:
            before.drop()
        row[self._i] = slot
        row[0] = CHANGED[row[0]]

    def _remove(self, row: Row, entries: dict[Any, Any] | LargeMap, key: Any) -> None:
        """Remove an existing entry from the map in the slot."""
        if isinstance(entries, LargeMap):
            left = entries.remove(key)
        else:
            del entries[key]
            left = bool(entries)
        if left:
            row[0] = CHANGED[row[0]]
        else:
            self._set(row, None)


class ValueHandle(Handle):
    """One value per key."""

    __slots__ = ("added", "reads", "replaced")

    def __init__(self, space: CurrentRow, position: int, descriptor: Any) -> None:
        super().__init__(space, position, descriptor)
        self.reads = 0
        """Reads, until the space takes the number."""
        self.replaced = 0
        """Writes of a value in place of another one, until then."""
        self.added = 0
        """Writes of a value where there was none, until then."""

    def value(self) -> Any:
        """The value; None when empty."""
        self.reads += 1
        value = self._space.row[self._i]
        return value.get() if type(value) is LargeValue else value

    def update(self, value: Any) -> None:
        """Replace the value; None clears the state."""
        row = self._space.row
        before = row[self._i]
        if before is None:
            self.added += 1
        else:
            self.replaced += 1
            if type(before) is LargeValue:
                before.drop()
        row[self._i] = value
        row[0] = CHANGED[row[0]]


class ListHandle(Handle):
    """A list per key."""

    __slots__ = ()

    def get(self) -> Iterator[Any]:
        """The elements in order; nothing when empty. Elements added during the iteration are not included."""
        elements = self._space.row[self._i]
        if type(elements) is list:
            return islice(elements, len(elements))
        return iter(()) if elements is None else iter(elements)

    def __iter__(self) -> Iterator[Any]:
        return self.get()

    def add(self, value: Any) -> None:
        """Append an element."""
        row = self._space.row
        elements = row[self._i]
        if elements is None:
            row[self._i] = [value]
        else:
            elements.append(value)
        row[0] = CHANGED[row[0]]

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        added = [*values]  # before the list changes, which may be among the values
        row = self._space.row
        elements = row[self._i]
        if elements is None:
            row[self._i] = added or None
        else:
            elements.extend(added)
        row[0] = CHANGED[row[0]]

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty list clears the state."""
        elements = [*values]  # before the large list is dropped, which may be among the values
        row = self._space.row
        if type(row[self._i]) is LargeList:
            row[self._i].drop()
        row[self._i] = elements or None
        row[0] = CHANGED[row[0]]

    def hold(self, elements: list[Any]) -> None:
        """Replace the list by this one, which becomes the state's own: `update` without the copy."""
        row = self._space.row
        if type(row[self._i]) is LargeList:
            row[self._i].drop()
        row[self._i] = elements or None
        row[0] = CHANGED[row[0]]


class PackedListHandle(ListHandle):
    """A list of numbers per key, which `update` packs (`holdfast.state.packed`); whoever appends to it unpacks it."""

    __slots__ = ("_fit", "_kind", "_whole")

    def __init__(self, space: CurrentRow, position: int, descriptor: Any, kind: type, fit: Callable[[Any], Any]) -> None:
        """Create the handle.

        Args:
            space: Holds the current row.
            position: The position of the state.
            descriptor: The state's descriptor.
            kind: The class of the elements: float or int.
            fit: Converts an element to the declared type.
        """
        super().__init__(space, position, descriptor)
        self._fit = fit
        self._kind = kind
        self._whole = kind is int

    def get(self) -> Iterator[Any]:
        """The elements in order; nothing when empty. Elements added during the iteration are not included."""
        elements = self._space.row[self._i]
        if type(elements) is bytes:
            return iter(packed.unpack_numbers(elements, self._whole))
        return ListHandle.get(self)

    def _unpack(self) -> None:
        row = self._space.row
        elements = row[self._i]
        if type(elements) is bytes:
            row[self._i] = packed.unpack_numbers(elements, self._whole)

    def add(self, value: Any) -> None:
        """Append an element."""
        value = self._fit(value)
        self._unpack()
        ListHandle.add(self, value)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        added = list(map(self._fit, values))
        self._unpack()
        ListHandle.add_all(self, added)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty list clears the state."""
        elements = values if type(values) is list else [*values]
        numbers = packed.pack_numbers(elements, self._whole)
        if numbers is None:
            self._hold_objects(elements)
            return
        row = self._space.row  # as `hold` does, whose call would take 4 to 7 % of a function with such a list
        if type(row[self._i]) is LargeList:
            row[self._i].drop()
        row[self._i] = numbers
        row[0] = CHANGED[row[0]]

    def _hold_objects(self, elements: list[Any]) -> None:
        kind = self._kind
        for element in elements:  # no call for each in the usual case
            if type(element) is not kind:
                self.hold(list(map(self._fit, elements)))
                return
        self.hold([*elements])


class MapHandle(Handle):
    """A map per key."""

    __slots__ = ()

    def get(self, key: Any) -> Any:
        """The entry's value; None when missing."""
        entries = self._space.row[self._i]
        return None if entries is None else entries.get(key)

    def __getitem__(self, key: Any) -> Any:
        return self.get(key)

    def put(self, key: Any, value: Any) -> None:
        """Set an entry."""
        row = self._space.row
        entries = row[self._i]
        if entries is None:
            row[self._i] = {key: value}
        else:
            entries[key] = value
        row[0] = CHANGED[row[0]]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def put_all(self, entries: Any) -> None:
        """Set several entries, from a mapping or pairs."""
        added = dict(entries)
        row = self._space.row
        held = row[self._i]
        if held is None:
            row[self._i] = added or None
        else:
            held.update(added)
        row[0] = CHANGED[row[0]]

    def remove(self, key: Any) -> None:
        """Remove an entry; no error when it is missing."""
        row = self._space.row
        entries = row[self._i]
        if entries is not None and key in entries:
            self._remove(row, entries, key)

    def __delitem__(self, key: Any) -> None:
        self.remove(key)

    def contains(self, key: Any) -> bool:
        """Whether the map has the entry."""
        entries = self._space.row[self._i]
        return entries is not None and key in entries

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def _entries(self) -> dict[Any, Any] | LargeMap:
        """A snapshot of the entries: an iteration does not see later puts."""
        entries = self._space.row[self._i]
        return entries if type(entries) is LargeMap else dict(entries or ())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The entries as pairs, in no defined order."""
        return iter(self._entries().items())

    def keys(self) -> Iterator[Any]:
        """The keys, in the order of `items`."""
        return iter(self._entries())

    def __iter__(self) -> Iterator[Any]:
        return self.keys()

    def values(self) -> Iterator[Any]:
        """The values, in the order of `items`."""
        return iter(self._entries().values())

    def is_empty(self) -> bool:
        """Whether there is no entry."""
        return self._space.row[self._i] is None


class ReducingHandle(Handle):
    """One value per key; each added value is reduced into it."""

    __slots__ = ("_reduce",)

    def __init__(self, space: CurrentRow, position: int, descriptor: Any) -> None:
        super().__init__(space, position, descriptor)
        function = descriptor.reduce_function
        self._reduce: Callable[[Any, Any], Any] = getattr(function, "reduce", function)

    def get(self) -> Any:
        """The reduced value; None when empty."""
        return self._space.row[self._i]

    def add(self, value: Any) -> None:
        """Reduce a value into the state; the first value is stored unchanged."""
        row = self._space.row
        current = row[self._i]
        if current is not None:
            value = self._reduce(current, value)
            if value is None:
                raise TypeError(NO_REDUCED)
        row[self._i] = value
        row[0] = CHANGED[row[0]]


class AggregatingHandle(Handle):
    """One accumulator per key; reading returns the aggregate's result."""

    __slots__ = ("_aggregate",)

    def __init__(self, space: CurrentRow, position: int, descriptor: Any) -> None:
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
        row[0] = CHANGED[row[0]]


HANDLES: dict[str, type[Handle]] = {
    "value": ValueHandle,
    "list": ListHandle,
    "packed list": PackedListHandle,
    "map": MapHandle,
    "reducing": ReducingHandle,
    "aggregating": AggregatingHandle,
}
"""Handle class by the descriptor's kind; for lists of numbers there is another one."""
