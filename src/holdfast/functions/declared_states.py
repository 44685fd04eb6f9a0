"""States that the class of a function declares: ``count = ValueState("count", int)``."""

from __future__ import annotations

from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.state.api.descriptors import StateDescriptor
from holdfast.state.api.interfaces import KeyedStateStore, State

__all__ = ["declared_states", "open_declared_states"]


def declared_states(function: object) -> dict[str, StateDescriptor]:
    """The descriptors of the states that a function's class, a class above it or the object itself declares, by attribute.

    Raises:
        ConfigurationError: two of them have the same name.
    """
    attributes: dict[str, Any] = {}
    for each in reversed(type(function).__mro__):
        attributes.update(vars(each))
    attributes.update(getattr(function, "__dict__", {}))
    found: dict[str, StateDescriptor] = {}
    by_name: dict[str, str] = {}
    for attribute, value in attributes.items():
        descriptor = value._descriptor if isinstance(value, State) else None
        if descriptor is not None:
            found[attribute] = descriptor
            other = by_name.setdefault(descriptor.name, attribute)
            if other != attribute:
                raise ConfigurationError(
                    f"{type(function).__name__} declares the state {descriptor.name!r} twice, as {other} and as "
                    f"{attribute}: a name is unique within an operator"
                )
    return found


def open_declared_states(function: object, store: KeyedStateStore) -> None:
    """Give a function the handles of the states that it declares, as attributes of the object."""
    for attribute, descriptor in declared_states(function).items():
        get: Any = getattr(store, _GETTERS[descriptor.kind])
        object.__setattr__(function, attribute, get(descriptor))  # also of a frozen dataclass


_GETTERS = {
    "value": "get_state",
    "list": "get_list_state",
    "map": "get_map_state",
    "reducing": "get_reducing_state",
    "aggregating": "get_aggregating_state",
}
