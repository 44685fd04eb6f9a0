"""Versioned tables: rows whose versions are ordered by timestamp, as in Kafka Streams (KIP-889, KIP-914).

The versions of a table are pairs of key and value, whose timestamp tells from when on they are valid; the value None ends
the version before it. The table's history retention is how late a version may come, and how long a replaced one is kept.
Both are judged by the watermark.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.datastream.functions import KeyedCoProcessFunction, KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.errors import IncompatibleState
from holdfast.functions.defined_state import DefinedState
from holdfast.runtime.operators.co import KeyedCoProcess
from holdfast.runtime.operators.function_factory import FunctionFactory
from holdfast.runtime.operators.joins.versions import Versions
from holdfast.runtime.records.copies import copied
from holdfast.table.changes import Change, changed
from holdfast.table.lateness import Lateness, TimedProcess

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["JoinVersions", "KeptVersion", "MappedVersion", "NewestVersion", "VersionedFactory"]


class KeptVersion:
    """Keeps the versions for which a predicate holds; one that does not ends the version before it."""

    def __init__(self, predicate: Callable[[Any, Any], Any], wanted: bool) -> None:
        self._predicate = predicate
        self._wanted = wanted

    def __call__(self, version: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the version, or its deletion."""
        key, value = version
        return key, value if value is not None and bool(self._predicate(key, value)) is self._wanted else None


class MappedVersion:
    """Converts the values of versions."""

    def __init__(self, mapper: Callable[[Any], Any]) -> None:
        self._mapper = mapper

    def __call__(self, version: tuple[Any, Any]) -> tuple[Any, Any]:
        """Return the converted version."""
        key, value = version
        return key, None if value is None else self._mapper(value)


class _Retaining(DefinedState):
    """Base of the functions that forget versions after the history retention."""

    _retention: int

    def definition(self) -> dict[str, Any]:
        """How long versions are kept."""
        return {"of": "a versioned table", "retention": self._retention}

    def continuing(self, stored: Mapping[str, Any]) -> Self:
        """Go on with a retention that is not longer: versions and deletions that it would keep have been forgotten.

        Raises:
            IncompatibleState: it is longer.
        """
        if self._retention > stored["retention"]:
            raise IncompatibleState(
                f"it has versions of the last {stored['retention']} ms, and the program's history_retention is "
                f"{self._retention} ms: a late version could bring back a row whose deletion has been forgotten"
            )
        return self


class NewestVersion(_Retaining, KeyedProcessFunction[Any, Any, Change]):
    """Makes the changes of a versioned table: those of each key's newest version."""

    def __init__(self, value_type: TypeInformation | None, retention: int) -> None:
        self._type = value_type
        self._retention = retention

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of the newest version and of its timestamp."""
        self.lateness = Lateness()
        self._value = runtime_context.get_state(ValueStateDescriptor("value", self._type))
        self._since = runtime_context.get_state(ValueStateDescriptor("since", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Change]:
        """Replace the newest version, if the new one is not older."""
        stamp, since = ctx.timestamp(), self._since.value()
        if self.lateness.drops(value, stamp, self._retention) or (since is not None and stamp < since):
            return ()
        new, old = value[1], self._value.value()
        self._value.update(new)
        self._since.update(stamp)
        if new is None:
            ctx.timer_service().register_event_time_timer(stamp + self._retention)
        return changed(ctx.get_current_key(), new, old)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Change]:
        """Forget a deletion: an older version can no longer come."""
        since = self._since.value()
        if self._value.value() is None and since is not None:
            if since + self._retention <= timestamp:
                self._since.clear()
            else:  # it is a later deletion, or the table has another retention now
                ctx.timer_service().register_event_time_timer(since + self._retention)
        return ()


class JoinVersions(_Retaining, KeyedCoProcessFunction[Any, Any, Any, Any]):
    """Joins each pair of a stream with the version of a table that is valid at the pair's timestamp.

    With a grace period, the operator's event time is behind by that, and pairs wait until it has reached them.
    """

    def __init__(
        self,
        joiner: Callable[[Any, Any], Any],
        keeps_left: bool,
        value_type: TypeInformation | None,
        retention: int,
        grace: int | None,
    ) -> None:
        self._joiner = joiner
        self._keeps_left = keeps_left
        self._type = value_type
        self._retention = retention
        self._grace = grace
        self._kept = retention - (grace or 0)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of the versions and of the pairs that wait."""
        self.lateness = Lateness()
        self._versions = Versions(runtime_context, self._type)
        self._waiting = runtime_context.get_map_state(MapStateDescriptor("waiting", Types.LONG()))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """Join a pair of the stream, or let it wait."""
        stamp = ctx.timestamp()
        if value[1] is None:
            return ()
        if self._grace is None or self.lateness.passed(stamp, self._grace):
            expired = self.lateness.passed(stamp, self._retention)
            return self._joined(value[0], [value[1]], self._versions.valid_at(stamp, newest_only=expired))
        self._waiting.put(stamp, [*(self._waiting.get(stamp) or ()), value[1]])
        ctx.timer_service().register_event_time_timer(stamp)
        return ()

    def process_element2(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """Add a version."""
        stamp = ctx.timestamp()
        if not self.lateness.drops(value, stamp, self._retention):
            if value[1] is None:
                self._versions.delete(stamp)
            else:
                self._versions.put(stamp, value[1])
            ctx.timer_service().register_event_time_timer(stamp + self._kept)
        return ()

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext) -> Iterable[Any]:
        """Join the pairs of a time, and forget the versions that no later pair can meet."""
        results: Iterable[Any] = ()
        values = self._waiting.get(timestamp)
        if values is not None:
            self._waiting.remove(timestamp)
            results = self._joined(ctx.get_current_key(), values, self._versions.valid_at(timestamp))
        self._versions.forget_before(self._versions.stamps(), timestamp - self._kept)
        return results

    def _joined(self, key: Any, values: Iterable[Any], row: Any) -> Iterable[Any]:
        return () if row is None and not self._keeps_left else [(key, self._joiner(value, copied(row))) for value in values]


class _VersionedJoin(TimedProcess, KeyedCoProcess):
    """An operator whose event time, and that of its results, is behind by the grace period."""

    def __init__(self, function: Any, grace: int) -> None:
        super().__init__(function)
        self._grace = grace
        self._emitted = MIN_TIMESTAMP

    def advance_watermark(self, watermark: int) -> None:
        behind = watermark if watermark == MAX_TIMESTAMP else max(watermark - self._grace, MIN_TIMESTAMP)
        super().advance_watermark(behind)
        if self._grace and behind > self._emitted:
            self._emitted = behind
            self.context.forward_watermark(behind)

    def take_idle(self, idle: bool, held: bool) -> None:
        self.context.forward_idle(idle, held)

    def snapshot_generator(self) -> Any:
        return {"emitted": self._emitted} if self._grace else None

    def restore_generator(self, stored: Any) -> None:
        self._emitted = stored["emitted"]


@dataclass(frozen=True)
class VersionedFactory(FunctionFactory):
    """Makes operators of versioned tables.

    Examples:
        >>> VersionedFactory.newest(None, 60_000).deadline()(5_000)
        65000
    """

    needs_timestamps = True

    allowed: int = 0
    """How far the watermark may have passed an element that is not late, in ms."""

    @staticmethod
    def newest(value_type: TypeInformation | None, retention: int) -> VersionedFactory:
        """The changes of the newest versions."""
        return VersionedFactory(TimedProcess, NewestVersion(value_type, retention), allowed=retention)

    @staticmethod
    def join(function: JoinVersions, retention: int, grace: int | None) -> VersionedFactory:
        """The join of a stream with the versions."""
        return VersionedFactory(_VersionedJoin, function, (grace or 0,), retention if grace is None else grace)

    @property
    def holds_watermarks(self) -> bool:  # type: ignore[override]
        """Whether event time behind the operator is later than before it."""
        return any(self.options)

    def deadline(self) -> Callable[[int], int]:
        """An element is late when the watermark has passed it by more than is allowed."""
        return partial(operator.add, self.allowed)
