"""PySpark's ``StatefulProcessorHandle`` and its states, over keyed state and timers.

The classes have the methods of PySpark's, and do not derive from them: a method that a release adds must not be inherited,
as it would look for Spark's state server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.common.state_ttl import StateTtlConfig
from holdfast.common.time import Time
from holdfast.common.typeinfo import Types
from holdfast.errors import ConfigurationError
from holdfast.functions.function import RuntimeContext
from holdfast.functions.timer_service import TimerService
from holdfast.spark.state_schemas import Schema, check_fields, parse_schema, tuples
from holdfast.state.api.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from holdfast.state.api.interfaces import ListState, MapState, ValueState

__all__ = ["EVENT_TIME", "NONE", "PROCESSING_TIME", "DeclaredState", "DeclaringHandle", "KeyTimers", "ProcessorHandle"]

NONE, PROCESSING_TIME, EVENT_TIME = "none", "processingtime", "eventtime"
_TIMERS = "$timers"
"""The name of the state with a key's timers; Spark's own columns of state begin like this, too."""


class ValueStateOfKey:
    """A value of the current key."""

    def __init__(self, state: ValueState[Any], name: str, fields: int) -> None:
        self._state, self._fields, self._name = state, fields, name

    def exists(self) -> bool:
        """Whether the key has a value."""
        return self._state.value() is not None

    def get(self) -> tuple[Any, ...] | None:
        """The value; None without one."""
        value: tuple[Any, ...] | None = self._state.value()
        return value

    def update(self, newValue: tuple[Any, ...]) -> None:
        """Set the value."""
        self._state.update(check_fields(newValue, self._fields, f"update() of the state {self._name!r}"))

    def clear(self) -> None:
        """Remove the value."""
        self._state.clear()


class ListStateOfKey:
    """A list of the current key."""

    def __init__(self, state: ListState[Any], name: str, fields: int) -> None:
        self._state, self._fields, self._name = state, fields, name

    def exists(self) -> bool:
        """Whether the list has a value."""
        return next(iter(self._state.get()), None) is not None

    def get(self) -> Iterator[tuple[Any, ...]]:
        """The values, as they are now."""
        return iter(list(self._state.get()))

    def put(self, newState: Sequence[tuple[Any, ...]]) -> None:
        """Replace the values."""
        self._state.update(tuples(newState, self._fields, f"put() of the state {self._name!r}"))

    def appendValue(self, newState: tuple[Any, ...]) -> None:
        """Append a value."""
        self._state.add(check_fields(newState, self._fields, f"appendValue() of the state {self._name!r}"))

    def appendList(self, newState: Sequence[tuple[Any, ...]]) -> None:
        """Append values."""
        self._state.add_all(tuples(newState, self._fields, f"appendList() of the state {self._name!r}"))

    def clear(self) -> None:
        """Remove all values."""
        self._state.clear()


class MapStateOfKey:
    """A map of the current key."""

    def __init__(self, state: MapState[Any, Any], name: str, keys: int, fields: int) -> None:
        self._state, self._keys, self._fields, self._name = state, keys, fields, name

    def _key(self, key: Any) -> tuple[Any, ...]:
        return check_fields(key, self._keys, f"the map state {self._name!r}")

    def exists(self) -> bool:
        """Whether the map has an entry."""
        return not self._state.is_empty()

    def getValue(self, key: tuple[Any, ...]) -> tuple[Any, ...] | None:
        """The value of a key of the map; None without one."""
        value: tuple[Any, ...] | None = self._state.get(self._key(key))
        return value

    def containsKey(self, key: tuple[Any, ...]) -> bool:
        """Whether the map has this key."""
        return self._state.contains(self._key(key))

    def updateValue(self, key: tuple[Any, ...], value: tuple[Any, ...]) -> None:
        """Set the value of a key of the map."""
        self._state.put(self._key(key), check_fields(value, self._fields, f"updateValue() of the state {self._name!r}"))

    def iterator(self) -> Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]:
        """The entries, as they are now."""
        return iter(list(self._state.items()))

    def keys(self) -> Iterator[tuple[Any, ...]]:
        """The keys, as they are now."""
        return iter(list(self._state.keys()))

    def values(self) -> Iterator[tuple[Any, ...]]:
        """The values, as they are now."""
        return iter(list(self._state.values()))

    def removeKey(self, key: tuple[Any, ...]) -> None:
        """Remove a key of the map."""
        self._state.remove(self._key(key))

    def clear(self) -> None:
        """Remove all entries."""
        self._state.clear()


class KeyTimers:
    """The timers of the current key, which are also listed in a state.

    A watermark of Spark is the highest timestamp less the delay, and it fires timers at or before it: one millisecond later
    than a watermark of Flink, which says that all timestamps up to it have come.
    """

    def __init__(self, time_mode: str, listed: MapState[int, bool]) -> None:
        self._event_time = time_mode == EVENT_TIME
        self._listed = listed
        self.service: TimerService
        """That of the current call."""

    def register(self, time: int) -> None:
        """Register a timer."""
        if self._event_time:
            self.service.register_event_time_timer(time - 1)
        else:
            self.service.register_processing_time_timer(time)
        self._listed.put(time, True)

    def delete(self, time: int) -> None:
        """Delete a timer, if it exists."""
        if self._event_time:
            self.service.delete_event_time_timer(time - 1)
        else:
            self.service.delete_processing_time_timer(time)
        self._listed.remove(time)

    def all(self) -> Iterator[int]:
        """The times of all timers, in order."""
        return iter(sorted(self._listed.keys()))


@dataclass(frozen=True)
class DeclaredState:
    """A state that ``init`` declares."""

    kind: str
    """``Value``, ``List`` or ``Map``."""
    descriptor: StateDescriptor
    schemas: tuple[Schema, ...]
    """Those of the keys of a map, and of the values."""

    @property
    def fields(self) -> tuple[int, ...]:
        """The number of fields of each schema."""
        return tuple(len(schema.names) for schema in self.schemas)


class DeclaringHandle:
    """The handle of a call of ``init`` that only checks what it declares."""

    def __init__(self, time_mode: str) -> None:
        self.time_mode = time_mode
        self.declared: dict[str, DeclaredState] = {}
        self.left_out: set[str] = set()
        """States of an earlier form of the program."""
        self.in_init = True

    def _declare(self, kind: str, name: str, schemas: Sequence[Schema], ttl: int | None, descriptor: StateDescriptor) -> Any:
        what = f"get{kind}State({name!r})"
        if not self.in_init:
            raise ConfigurationError(f"{what} was called outside of init(); get all states there")
        if not isinstance(name, str) or not name or name.startswith("$"):
            raise ConfigurationError(f"{what}: a state needs a name, which does not begin with $")
        if name in self.declared:
            raise ConfigurationError(f"{what}: init() has declared a state of this name before")
        if ttl is not None:
            if self.time_mode != PROCESSING_TIME:
                raise ConfigurationError(f"{what}: ttlDurationMs needs the time mode ProcessingTime, as in Spark")
            if isinstance(ttl, bool) or not isinstance(ttl, int) or ttl <= 0:
                raise ConfigurationError(f"{what}: ttlDurationMs is a positive number of milliseconds, not {ttl!r}")
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.milliseconds(ttl)).build())
        declared = self.declared[name] = DeclaredState(kind, descriptor, tuple(schemas))
        return self.state_of(declared)

    def state_of(self, declared: DeclaredState) -> Any:
        """The state's object for a processor; None where there is no state."""
        return None

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """Declare a state of one value."""
        parsed = parse_schema(schema, f"getValueState({stateName!r})")
        descriptor = ValueStateDescriptor(stateName, parsed.as_tuple)
        return self._declare("Value", stateName, [parsed], ttlDurationMs, descriptor)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> Any:
        """Declare a state of a list."""
        parsed = parse_schema(schema, f"getListState({stateName!r})")
        descriptor = ListStateDescriptor(stateName, parsed.as_tuple)
        return self._declare("List", stateName, [parsed], ttlDurationMs, descriptor)

    def getMapState(self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None) -> Any:
        """Declare a state of a map."""
        schemas = [parse_schema(each, f"getMapState({stateName!r})") for each in (userKeySchema, valueSchema)]
        descriptor = MapStateDescriptor(stateName, schemas[0].as_tuple, schemas[1].as_tuple)
        return self._declare("Map", stateName, schemas, ttlDurationMs, descriptor)

    def _timers_for(self, what: str) -> KeyTimers:
        if self.time_mode == NONE:
            raise ConfigurationError(
                f"{what} needs the time mode ProcessingTime or EventTime; that of this operator is None"
            )
        raise ConfigurationError(f"{what} was called in init(), where there is no key; call it with rows or timers")

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Register a timer of the current key."""
        self._timers_for("registerTimer()").register(expiryTimestampMs)

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        """Delete a timer of the current key."""
        self._timers_for("deleteTimer()").delete(expiryTimestampMs)

    def listTimers(self) -> Iterator[int]:
        """The times of the current key's timers, in order."""
        return self._timers_for("listTimers()").all()

    def deleteIfExists(self, stateName: str) -> None:
        """Leave out a state that an earlier form of the program had; it is not read again."""
        if stateName in self.declared:
            raise ConfigurationError(f"deleteIfExists({stateName!r}): init() declares this state; leave out one of the two")
        self.left_out.add(stateName)


class ProcessorHandle(DeclaringHandle):
    """The handle of a processor in a task."""

    timers: KeyTimers

    def __init__(self, time_mode: str, context: RuntimeContext) -> None:
        super().__init__(time_mode)
        self._context = context
        if time_mode != NONE:
            listed = context.get_map_state(MapStateDescriptor(_TIMERS, Types.LONG(), Types.BOOLEAN()))
            self.timers = KeyTimers(time_mode, listed)

    def state_of(self, declared: DeclaredState) -> Any:
        """The state's object for a processor."""
        descriptor, name = declared.descriptor, declared.descriptor.get_name()
        if isinstance(descriptor, ValueStateDescriptor):
            return ValueStateOfKey(self._context.get_state(descriptor), name, *declared.fields)
        if isinstance(descriptor, ListStateDescriptor):
            return ListStateOfKey(self._context.get_list_state(descriptor), name, *declared.fields)
        assert isinstance(descriptor, MapStateDescriptor)
        return MapStateOfKey(self._context.get_map_state(descriptor), name, *declared.fields)

    def _timers_for(self, what: str) -> KeyTimers:
        return super()._timers_for(what) if self.in_init or self.time_mode == NONE else self.timers
