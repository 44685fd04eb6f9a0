"""Handles of states whose declared type changes values: they convert at the write.

A tuple becomes the Row that it stands for; a FLOAT is rounded to 32 bits. Converting at the barrier instead would make a
function's reads depend on the epochs' ends. Types that keep plain values unchanged (numbers, strings, tuples of them)
are checked at the barrier only, which costs less.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.composite import SequenceTypeInfo
from holdfast.state.packed import UNPACKED

__all__ = ["checker", "container_of", "fitter", "plain_class", "typed"]

_Fit = Callable[[Any], Any]


def typed(handles: Mapping[str, type[Any]], descriptor: Any) -> Callable[..., Any]:
    """The class of the descriptor's handle, which may be a subclass that converts written values to the descriptor's types.

    Args:
        handles: The classes by kind.
        descriptor: The state's descriptor.
    """
    kind, name = descriptor.kind, descriptor.name
    handle: type[Any] = handles[kind]
    if kind == "map":
        to_key, to_value = fitter(descriptor.key_type_info, name), fitter(descriptor.value_type_info, name)
        if to_key is not None:
            handle = _map_by(handle, to_key)
        return handle if to_value is None else _map_of(handle, to_value)
    declared = descriptor.element_type_info if kind == "list" else descriptor.type_info
    fit = fitter(declared, name)
    if kind == "list":
        elements = None if declared is None else container_of(declared)
        if elements in UNPACKED and "packed list" in handles:
            packed: Callable[..., Any] = handles["packed list"]
            return partial(packed, kind=elements, fit=_unchanged if fit is None else fit)
        return handle if fit is None else _list(handle, fit, elements)
    return handle if fit is None else _TYPED[kind](handle, fit)


def fitter(declared: TypeInformation | None, name: str) -> _Fit | None:
    """A function that converts values for a state of this type and name at the write; None: values stay unchanged."""
    if declared is None or declared.is_pickled:
        return None
    if declared.is_plain and declared.annotation is not float and not isinstance(declared, SequenceTypeInfo):
        return None
    container, check = container_of(declared), checker(declared, name)
    if container is None:
        return check
    return lambda value: value if type(value) is container else check(value)


def checker(declared: TypeInformation | None, name: str) -> _Fit:
    """A function that converts values for a state of this type and name at the write, or refuses them."""
    if declared is None or declared.is_pickled:
        return lambda value: value
    conform = declared.conform

    def check(value: Any) -> Any:
        try:
            return conform(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise TypeError(f"the value {value!r:.200} does not fit state {name!r} of {declared!r}: {error}") from None

    return check


def plain_class(declared: TypeInformation | None) -> type | None:
    """The class of this type's values if two of them that are equal are the same value: int, str or bytes; else None."""
    found = None if declared is None or declared.is_pickled else container_of(declared)
    return found if found in (int, str, bytes) else None


def _unchanged(value: Any) -> Any:
    return value


def container_of(declared: TypeInformation) -> type | None:
    """The class whose objects are written unchanged. Their elements are, too: a write does not traverse a long list."""
    return getattr(declared.annotation, "__origin__", declared.annotation) if declared.is_plain else None


def _value(base: type[Any], fit: _Fit) -> type[Any]:
    class TypedValue(base):  # type: ignore[misc]
        def update(self, value: Any) -> None:
            base.update(self, None if value is None else fit(value))

    return TypedValue


def _list(base: type[Any], fit: _Fit, container: type | None) -> type[Any]:
    hold = base.hold

    class TypedList(base):  # type: ignore[misc]
        def add(self, value: Any) -> None:
            base.add(self, fit(value))

        def add_all(self, values: Iterable[Any]) -> None:
            base.add_all(self, list(map(fit, values)))

        def update(self, values: Iterable[Any]) -> None:
            elements = [*values]
            for element in elements:  # no call for each in the usual case
                if type(element) is not container:
                    elements = list(map(fit, elements))
                    break
            hold(self, elements)

    return TypedList


def _map_of(base: type[Any], fit: _Fit) -> type[Any]:
    class TypedMap(base):  # type: ignore[misc]
        def put(self, key: Any, value: Any) -> None:
            base.put(self, key, None if value is None else fit(value))

        def put_all(self, entries: Any) -> None:
            base.put_all(self, {k: None if v is None else fit(v) for k, v in dict(entries).items()})

    return TypedMap


def _map_by(base: type[Any], fit: _Fit) -> type[Any]:
    class KeyTypedMap(base):  # type: ignore[misc]
        def get(self, key: Any) -> Any:
            return base.get(self, fit(key))

        def put(self, key: Any, value: Any) -> None:
            base.put(self, fit(key), value)

        def put_all(self, entries: Any) -> None:
            base.put_all(self, {fit(k): v for k, v in dict(entries).items()})

        def remove(self, key: Any) -> None:
            base.remove(self, fit(key))

        def contains(self, key: Any) -> bool:
            return bool(base.contains(self, fit(key)))

    return KeyTypedMap


def _reducing(base: type[Any], fit: _Fit) -> type[Any]:
    class TypedReducing(base):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            reduce = self._reduce  # type: ignore[has-type]

            def reduce_and_fit(accumulated: Any, value: Any) -> Any:
                reduced = reduce(accumulated, value)
                return None if reduced is None else fit(reduced)

            self._reduce = reduce_and_fit

        def add(self, value: Any) -> None:
            base.add(self, fit(value))

    return TypedReducing


class _FittingAggregate:
    """An aggregate function that converts its accumulators to their declared type."""

    def __init__(self, function: Any, fit: _Fit) -> None:
        self._add, self._fit = function.add, fit
        self.create_accumulator = function.create_accumulator
        self.get_result = function.get_result

    def add(self, value: Any, accumulator: Any) -> Any:
        added = self._add(value, accumulator)
        return None if added is None else self._fit(added)


def _aggregating(base: type[Any], fit: _Fit) -> type[Any]:
    class TypedAggregating(base):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self._aggregate = _FittingAggregate(self._aggregate, fit)  # type: ignore[has-type]

    return TypedAggregating


_TYPED: dict[str, Callable[[type[Any], _Fit], type[Any]]] = {
    "value": _value,
    "reducing": _reducing,
    "aggregating": _aggregating,
}
"""Creates the typed subclass of a handle, by the descriptor's kind. Lists and maps take more and are handled apart."""
