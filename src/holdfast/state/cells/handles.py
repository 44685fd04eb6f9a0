"""The five state types as user functions hold them; each reads and writes one cell of the current key's row.

A handle returns the stored object itself. Changing it in place is visible until the row leaves memory, and may be lost: call
`update`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import holdfast.state.cells.packed as packed
from holdfast.state.cells.entries import LARGE, LargeList, LargeMap
from holdfast.state.cells.large_values import LargeValue
from holdfast.state.cells.row import CHANGED, Row
from holdfast.state.cells.typed import content_type, fit_of

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

    __slots__ = ("_find", "_fit", "_i", "_key_fit", "_key_kind", "_kind", "_space")

    def __init__(self, space: CurrentRow, position: int, descriptor: Any) -> None:
        self._space = space
        self._i = position + 1
        self._kind: type | None
        """The class of values that need no conversion."""
        self._fit: Callable[[Any], Any] | None
        """Converts other values to the declared type; None: no conversion."""
        self._kind, self._fit = fit_of(content_type(descriptor), descriptor.name)
        declared = descriptor.key_type_info if descriptor.kind == "map" else None
        self._key_kind: type | None
        self._key_fit: Callable[[Any], Any] | None
        self._key_kind, self._key_fit = fit_of(declared, descriptor.name)
        """The same for the keys of a map."""
        equal = declared is None or (declared.is_plain and self._key_kind is not float)
        self._find = None if equal else self._key_fit
        """The same for a key to look up; None: an equal key finds the entry."""

    def _fitted(self, value: Any) -> Any:
        """The value as a later read returns it; None stays None."""
        return value if type(value) is self._kind or self._fit is None or value is None else self._fit(value)

    def _all_fitted(self, values: Iterable[Any]) -> list[Any]:
        """A list of the values as a later read returns them; none may be None."""
        elements = [*values]
        fit, kind = self._fit, self._kind
        if fit is not None:
            for element in elements:  # a call for each element would cost more than this check
                if type(element) is not kind:
                    return list(map(fit, elements))
        return elements

    def _entries_fitted(self, entries: Any) -> dict[Any, Any]:
        """A dict of the entries as a later read returns them."""
        added, to_key, key_kind = dict(entries), self._key_fit, self._key_kind
        if to_key is not None:
            added = {key if type(key) is key_kind else to_key(key): value for key, value in added.items()}
        if self._fit is not None:
            added = {key: self._fitted(value) for key, value in added.items()}
        return added

    def _found(self, key: Any) -> Any:
        """The key with which an entry is looked up."""
        return key if self._find is None or type(key) is self._key_kind else self._find(key)

    def clear(self) -> None:
        """Empty the state of the current key."""
        row = self._space.row
        before = row[self._i]
        if before is not None:
            if type(before) in LARGE:
                before.drop()
            row[self._i] = None
            row[0] = CHANGED[row[0]]

    def _set(self, row: Row, cell: Any) -> None:
        """Replace the content of the cell."""
        before = row[self._i]
        if type(before) in LARGE:
            before.drop()
        row[self._i] = cell
        row[0] = CHANGED[row[0]]

    def _put_in(self, row: Row, entries: dict[Any, Any] | LargeMap, added: Mapping[Any, Any]) -> None:
        """Set entries of the map in the cell."""
        try:
            entries.update(added)
        except TypeError:  # a key has no canonical form, so it cannot be in a large map: move the map back into its row
            if not isinstance(entries, LargeMap):
                raise
            whole = {**dict(entries.items()), **added}
            entries.drop()
            row[self._i] = whole

    def _remove(self, row: Row, entries: dict[Any, Any] | LargeMap, key: Any) -> None:
        """Remove an existing entry from the map in the cell."""
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
        """Reads since the space last took this count."""
        self.replaced = 0
        """Replacements of a value since then."""
        self.added = 0
        """Writes of a first value since then."""

    def value(self) -> Any:
        """The value; None when empty."""
        self.reads += 1
        value = self._space.row[self._i]
        return value.get() if type(value) is LargeValue else value

    def update(self, value: Any) -> None:
        """Replace the value; None clears the state."""
        if type(value) is not self._kind and self._fit is not None and value is not None:
            value = self._fit(value)
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
        if type(value) is not self._kind and self._fit is not None:
            value = self._fit(value)
        row = self._space.row
        elements = row[self._i]
        if elements is None:
            row[self._i] = [value]
        else:
            elements.append(value)
        row[0] = CHANGED[row[0]]

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        added = self._all_fitted(values)  # before the list changes: ``values`` may be that list
        row = self._space.row
        elements = row[self._i]
        if elements is None:
            row[self._i] = added or None
        else:
            elements.extend(added)
        row[0] = CHANGED[row[0]]

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty list clears the state."""
        self.hold(self._all_fitted(values))  # before the large list is dropped: ``values`` may be that list

    def hold(self, elements: list[Any]) -> None:
        """Replace the list by this one, which the state then owns: `update` without the copy."""
        row = self._space.row
        if type(row[self._i]) is LargeList:
            row[self._i].drop()
        row[self._i] = elements or None
        row[0] = CHANGED[row[0]]


class PackedListHandle(ListHandle):
    """A list of numbers per key, which `update` packs (`holdfast.state.cells.packed`); appending unpacks it."""

    __slots__ = ("_whole",)

    def __init__(self, space: CurrentRow, position: int, descriptor: Any) -> None:
        super().__init__(space, position, descriptor)
        self._whole = self._kind is int

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
        value = self._fitted_number(value)
        self._unpack()
        ListHandle.add(self, value)

    def _fitted_number(self, value: Any) -> Any:
        assert self._fit is not None
        return value if type(value) is self._kind else self._fit(value)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        added = self._all_fitted(values)
        self._unpack()
        ListHandle.add_all(self, added)

    def update(self, values: Iterable[Any]) -> None:
        """Replace the list; an empty list clears the state."""
        elements = values if type(values) is list else [*values]
        numbers = packed.pack_numbers(elements, self._whole)
        if numbers is None:
            self.hold(self._all_fitted(elements))
            return
        row = self._space.row  # inlined `hold`; the call would cost 4 to 7 % of a function with such a list
        if type(row[self._i]) is LargeList:
            row[self._i].drop()
        row[self._i] = numbers
        row[0] = CHANGED[row[0]]


class MapHandle(Handle):
    """A map per key."""

    __slots__ = ()

    def get(self, key: Any) -> Any:
        """The entry's value; None when missing."""
        if self._find is not None and type(key) is not self._key_kind:
            key = self._find(key)
        entries = self._space.row[self._i]
        return None if entries is None else entries.get(key)

    def __getitem__(self, key: Any) -> Any:
        return self.get(key)

    def put(self, key: Any, value: Any) -> None:
        """Set an entry."""
        if type(key) is not self._key_kind and self._key_fit is not None:
            key = self._key_fit(key)
        if type(value) is not self._kind and self._fit is not None and value is not None:
            value = self._fit(value)
        row = self._space.row
        entries = row[self._i]
        if entries is None:
            row[self._i] = {key: value}
        else:
            try:
                entries[key] = value
            except TypeError:
                self._put_in(row, entries, {key: value})
        row[0] = CHANGED[row[0]]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.put(key, value)

    def put_all(self, entries: Any) -> None:
        """Set several entries, from a mapping or pairs."""
        added = self._entries_fitted(entries)
        row = self._space.row
        held = row[self._i]
        if held is None:
            row[self._i] = added or None
        else:
            self._put_in(row, held, added)
        row[0] = CHANGED[row[0]]

    def remove(self, key: Any) -> None:
        """Remove an entry; no error when it is missing."""
        if self._find is not None and type(key) is not self._key_kind:
            key = self._find(key)
        row = self._space.row
        entries = row[self._i]
        if entries is not None and key in entries:
            self._remove(row, entries, key)

    def __delitem__(self, key: Any) -> None:
        self.remove(key)

    def contains(self, key: Any) -> bool:
        """Whether the map has the entry."""
        if self._find is not None and type(key) is not self._key_kind:
            key = self._find(key)
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
        """Reduce a value into the state; the first value is stored as it is."""
        if type(value) is not self._kind and self._fit is not None:
            value = self._fit(value)
        row = self._space.row
        current = row[self._i]
        if current is not None:
            value = self._reduce(current, value)
            if value is None:
                raise TypeError(NO_REDUCED)
            if type(value) is not self._kind and self._fit is not None:
                value = self._fit(value)
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
        if type(accumulator) is not self._kind and self._fit is not None:
            accumulator = self._fit(accumulator)
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
"""Handle classes by the descriptor's kind; `handle_class` picks ``packed list`` for lists of numbers."""
