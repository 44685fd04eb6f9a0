"""BroadcastMap: a map that every subtask holds and changes identically."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from holdfast.state.api.descriptors import MapStateDescriptor
from holdfast.state.api.interfaces import BroadcastState, ReadOnlyBroadcastState
from holdfast.state.cells.typed import checker, plain_class
from holdfast.state.stored.elements import ElementForm

__all__ = ["BroadcastMap", "ReadOnlyBroadcastMap"]

_FIXED = frozenset({bool, int, float, str, bytes, type(None)})
"""Classes of values that cannot change."""


class BroadcastMap(BroadcastState[Any, Any]):
    """Keeps the entries in memory, each with its stored form as of its last `put`."""

    def __init__(self, descriptor: MapStateDescriptor, form: ElementForm, entries: Iterable[Any], changed: bool) -> None:
        """Start with the entries of a checkpoint.

        Args:
            descriptor: The declaration.
            form: The stored form of the entries, from `form_of`.
            entries: The entries as the form decodes them.
            changed: Whether they must be stored again.
        """
        self._form = form
        self._typed = form.snapshot is not None
        self._read = form.reader(form.snapshot, f"broadcast state {descriptor.name!r}")
        self._key = checker(descriptor.key_type_info, descriptor.name)
        self._key_class = plain_class(descriptor.key_type_info)
        self._value = checker(descriptor.value_type_info, descriptor.name)
        self._entries: dict[Any, Any] = {}
        self._stored: dict[Any, bytes] = {}
        self._changed = changed
        for entry in entries:
            for key, value in entry.items() if isinstance(entry, dict) else (entry,):
                self._entries[key] = value
                self._stored[key] = self._encoded(key, value)

    @staticmethod
    def form_of(descriptor: MapStateDescriptor) -> ElementForm:
        """The stored form of the map's entries."""
        return ElementForm.of_entries(descriptor.key_type_info, descriptor.value_type_info)

    def _encoded(self, key: Any, value: Any) -> bytes:
        return self._form.encode({key: value} if self._typed else (key, value))

    def _value_of(self, stored: bytes) -> Any:
        """Decode a stored entry's value: a copy that the function does not hold, equal to the value after a restore."""
        entry = self._read(stored)
        return next(iter(entry.values())) if self._typed else entry[1]

    def drain(self) -> list[bytes] | None:
        """All entries in stored form; None if nothing has changed since the last call."""
        if not self._changed:
            return None
        self._changed = False
        return list(self._stored.values())

    def get(self, key: Any) -> Any:
        """The entry's value; None if there is no such entry."""
        if type(key) is self._key_class:  # the usual case: the key was checked when it was put
            try:
                return self._entries[key]
            except KeyError:
                pass
        return self._entries.get(self._key(key))

    def contains(self, key: Any) -> bool:
        """Whether the map has this entry."""
        return self._key(key) in self._entries

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The entries, in order of their first put."""
        return iter(list(self._entries.items()))

    def keys(self) -> Iterator[Any]:
        """The entries' keys, in the order of `items`."""
        return iter(list(self._entries))

    def values(self) -> Iterator[Any]:
        """The entries' values, in the order of `items`."""
        return iter(list(self._entries.values()))

    def is_empty(self) -> bool:
        """Whether the map is empty."""
        return not self._entries

    def put(self, key: Any, value: Any) -> None:
        """Set an entry.

        Raises:
            TypeError: the key or the value does not have the declared type, or cannot be pickled.
        """
        key, value = self._key(key), None if value is None else self._value(value)
        self._stored[key] = stored = self._encoded(key, value)
        self._entries[key] = value if type(value) in _FIXED else self._value_of(stored)
        self._changed = True

    def put_all(self, dict_value: Any) -> None:
        """Set entries, from a dict or from pairs."""
        for key, value in dict(dict_value).items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove an entry, if it exists."""
        key = self._key(key)
        if key in self._entries:
            del self._entries[key], self._stored[key]
            self._changed = True

    def clear(self) -> None:
        """Remove all entries."""
        self._changed = self._changed or bool(self._entries)
        self._entries.clear()
        self._stored.clear()


class ReadOnlyBroadcastMap(ReadOnlyBroadcastState[Any, Any]):
    """A BroadcastMap as seen by elements of the other stream."""

    def __init__(self, state: BroadcastMap, name: str) -> None:
        self._state = state
        self._name = name
        self.get = state.get  # type: ignore[method-assign]  # for each element: one call less

    def get(self, key: Any) -> Any:
        """The entry's value; None if there is no such entry."""
        return self._state.get(key)

    def contains(self, key: Any) -> bool:
        """Whether the map has this entry."""
        return self._state.contains(key)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """The entries, in order of their first put."""
        return self._state.items()

    def keys(self) -> Iterator[Any]:
        """The entries' keys, in the order of `items`."""
        return self._state.keys()

    def values(self) -> Iterator[Any]:
        """The entries' values, in the order of `items`."""
        return self._state.values()

    def is_empty(self) -> bool:
        """Whether the map is empty."""
        return self._state.is_empty()

    def _refuse(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            f"broadcast state {self._name!r} can be changed only in process_broadcast_element: an element of the other "
            "stream reaches only one subtask, so the subtasks' states would diverge"
        )

    put = put_all = remove = clear = __setitem__ = __delitem__ = _refuse
