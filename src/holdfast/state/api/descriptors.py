"""State descriptors: the name, kind and types of a state."""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable
from typing import Any, ClassVar, Generic, Protocol, overload

from holdfast.common.state_ttl import StateTtlConfig
from holdfast.common.typeinfo import RowTypeInfo, TypeInformation
from holdfast.common.values.type_variables import IN, OUT, R, S, V
from holdfast.errors import ConfigurationError

__all__ = [
    "Aggregates",
    "AggregatingStateDescriptor",
    "ListStateDescriptor",
    "MapStateDescriptor",
    "ReducingStateDescriptor",
    "StateDescriptor",
    "ValueStateDescriptor",
]


def _type(type_info: Any, what: str) -> TypeInformation | None:
    if type_info is None or isinstance(type_info, TypeInformation):
        return type_info
    if isinstance(type_info, list):
        return RowTypeInfo(type_info)
    name = getattr(type_info, "__name__", "LONG")
    raise TypeError(f"{what} must be a type like Types.{name if name.isupper() else 'LONG'}(), got {type_info!r}")


class StateDescriptor(ABC):
    """The declaration of a state: its name, unique within the operator, and its type.

    Without a type (None), values are pickled: the state takes any value, but only a program with the values' classes can
    read it back.

    Raises:
        ConfigurationError: the name is empty.
        TypeError: the name is not a string, or the type is not a TypeInformation.
    """

    kind: ClassVar[str]
    """``value``, ``list``, ``map``, ``reducing`` or ``aggregating``."""

    def __init__(self, name: str, type_info: TypeInformation | None = None) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a state's name must be a string, got {name!r}")
        if not name:
            raise ConfigurationError("a state's name must not be empty")
        self.name = name
        self.type_info = _type(type_info, f"the type of state {name!r}")
        self.ttl_config: StateTtlConfig | None = None

    def get_name(self) -> str:
        """The state's name."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Let the state's content expire (see `StateTtlConfig`).

        Raises:
            TypeError: the argument is not a StateTtlConfig.
        """
        if not isinstance(ttl_config, StateTtlConfig):
            raise TypeError(f"enable_time_to_live takes StateTtlConfig.new_builder(...).build(), got {ttl_config!r}")
        self.ttl_config = ttl_config

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.type_info!r})"


class ValueStateDescriptor(StateDescriptor, Generic[V]):
    """Declares a state of one value per key."""

    kind = "value"

    @overload
    def __init__(self: ValueStateDescriptor[Any], name: str, value_type_info: None = None) -> None: ...

    @overload
    def __init__(self, name: str, value_type_info: TypeInformation[V]) -> None: ...

    def __init__(self, name: str, value_type_info: TypeInformation | None = None) -> None:
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor, Generic[V]):
    """Declares a state of a list per key."""

    kind = "list"

    @overload
    def __init__(self: ListStateDescriptor[Any], name: str, elem_type_info: None = None) -> None: ...

    @overload
    def __init__(self, name: str, elem_type_info: TypeInformation[V]) -> None: ...

    def __init__(self, name: str, elem_type_info: TypeInformation | None = None) -> None:
        super().__init__(name, elem_type_info)

    @property
    def element_type_info(self) -> TypeInformation | None:
        """The elements' type."""
        return self.type_info


class MapStateDescriptor(StateDescriptor, Generic[S, V]):
    """Declares a state of a map per key, or a broadcast state."""

    kind = "map"

    @overload
    def __init__(
        self: MapStateDescriptor[Any, Any], name: str, key_type_info: None = None, value_type_info: None = None
    ) -> None: ...

    @overload
    def __init__(
        self, name: str, key_type_info: TypeInformation[S] | None, value_type_info: TypeInformation[V] | None = None
    ) -> None: ...

    def __init__(
        self,
        name: str,
        key_type_info: TypeInformation | None = None,
        value_type_info: TypeInformation | None = None,
    ) -> None:
        super().__init__(name)
        self.key_type_info = _type(key_type_info, f"the key type of state {name!r}")
        self.value_type_info = _type(value_type_info, f"the value type of state {name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.key_type_info!r}, {self.value_type_info!r})"


class ReducingStateDescriptor(StateDescriptor, Generic[V]):
    """Declares a state of one value per key; each added value is reduced into it.

    Args:
        name: the state's name.
        reduce_function: a callable ``(accumulated, value) -> accumulated`` or a ReduceFunction.
        type_info: the values' type.
    """

    kind = "reducing"

    def __init__(self, name: str, reduce_function: Any, type_info: TypeInformation[V] | None = None) -> None:
        super().__init__(name, type_info)
        target = getattr(reduce_function, "reduce", reduce_function)
        if isinstance(reduce_function, type) or not callable(target):
            raise TypeError(f"state {name!r} needs a ReduceFunction or a function of two values: {reduce_function!r}")
        self.reduce_function: Callable[[Any, Any], Any] = target

    def get_reduce_function(self) -> Callable[[Any, Any], Any]:
        """The function that reduces two values into one."""
        return self.reduce_function


class Aggregates(Protocol[IN, OUT]):
    """An AggregateFunction, as far as its types go."""

    def add(self, value: IN, accumulator: Any, /) -> Any:
        """Add a value to an accumulator."""

    def get_result(self, accumulator: Any, /) -> OUT:
        """The result of an accumulator."""


class AggregatingStateDescriptor(StateDescriptor, Generic[V, R]):
    """Declares a state of one accumulator per key; each added value is aggregated into it.

    Args:
        name: the state's name.
        agg_function: the AggregateFunction.
        state_type_info: the accumulators' type.
    """

    kind = "aggregating"

    def __init__(self, name: str, agg_function: Aggregates[V, R], state_type_info: TypeInformation | None = None) -> None:
        super().__init__(name, state_type_info)
        methods = [getattr(agg_function, method, None) for method in ("create_accumulator", "add", "get_result")]
        if isinstance(agg_function, type) or not all(map(callable, methods)):
            raise TypeError(f"state {name!r} needs an AggregateFunction object, got {agg_function!r}")
        self.agg_function: Any = agg_function

    def get_agg_function(self) -> Any:
        """The AggregateFunction."""
        return self.agg_function
