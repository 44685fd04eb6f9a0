"""Grouped streams with windows, whose aggregates are windowed tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from holdfast.common.values.type_variables import R
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.operations.function_checks import check_function
from holdfast.table.changes import Reduced, key_of, nothing, one_more
from holdfast.table.sliding import AggregateSliding
from holdfast.table.tables import KTable
from holdfast.table.variables import K, V
from holdfast.table.windowed import AggregateSessions, AggregateWindows, WindowAggregate, WindowedFactory
from holdfast.table.windows import SessionWindows, SlidingWindows, TimeWindows, Windowed

__all__ = [
    "SessionWindowedCogroupedKStream",
    "SessionWindowedKStream",
    "TimeWindowedCogroupedKStream",
    "TimeWindowedKStream",
]


class _WindowedStream(Generic[K, V]):
    """Base of the streams with windows.

    Args:
        groups: Tuples of key and value to add.
        windows: The windows.
    """

    def __init__(self, groups: DataStream[Any], windows: Any) -> None:
        self._groups = groups
        self._windows = windows

    def _aggregated(self, function: WindowAggregate, how: str) -> KTable[Windowed, Any]:
        factory = WindowedFactory.of(function)
        changes = self._groups.key_by(key_of)._then("WindowedAggregate", factory, function, None)
        return KTable(changes.name(f"{type(self).__name__}.{how}"), self._windows.closes_after)


def _of_time(windows: TimeWindows | SlidingWindows, initializer: Any, adder: Any) -> WindowAggregate:
    if isinstance(windows, SlidingWindows):
        return AggregateSliding(windows, initializer, adder)
    return AggregateWindows(windows, initializer, adder)


def _check(initializer: Any, aggregator: Any, merger: Any, owner: str) -> None:
    where = f"aggregate() of a {owner}"
    check_function(initializer, "apply", (), where)
    if aggregator is not None:
        check_function(aggregator, "apply", ("key", "value", "aggregate"), where)
    if merger is not None:
        check_function(merger, "apply", ("key", "aggregate", "other"), where)


class TimeWindowedKStream(_WindowedStream[K, V]):
    """Grouped pairs with time or sliding windows, as returned by ``KGroupedStream.windowed_by``.

    The aggregates are tables with a row for each key and window, whose key is a `Windowed`. Each element changes the rows of
    its windows at once. A closed window takes no further elements, but it stays in the table.
    """

    def aggregate(self, initializer: Callable[[], R], aggregator: Callable[[K, V, R], R]) -> KTable[Windowed, R]:
        """Aggregate the values of each key and window.

        Args:
            initializer: A callable that returns the aggregate of no value.
            aggregator: A callable ``(key, value, aggregate) -> aggregate``.
        """
        _check(initializer, aggregator, None, "TimeWindowedKStream")
        return self._aggregated(_of_time(self._windows, initializer, aggregator), "aggregate")

    def count(self) -> KTable[Windowed, int]:
        """Count the values of each key and window."""
        return self._aggregated(_of_time(self._windows, int, one_more), "count")

    def reduce(self, reducer: Callable[[V, V], V]) -> KTable[Windowed, V]:
        """Combine the values of each key and window by a callable ``(aggregate, value) -> aggregate``."""
        check_function(reducer, "apply", ("aggregate", "value"), "reduce() of a TimeWindowedKStream")
        return self._aggregated(_of_time(self._windows, nothing, Reduced(reducer)), "reduce")


class SessionWindowedKStream(_WindowedStream[K, V]):
    """Grouped pairs with session windows, as returned by ``KGroupedStream.windowed_by``.

    The aggregates are tables with a row for each key and session, whose key is a `Windowed`. An element that joins sessions
    deletes their rows, and adds that of the session of all of them.
    """

    def aggregate(
        self,
        initializer: Callable[[], R],
        aggregator: Callable[[K, V, R], R],
        session_merger: Callable[[K, R, R], R],
    ) -> KTable[Windowed, R]:
        """Aggregate the values of each key and session.

        The aggregate of no value is merged with those of the sessions that an element joins; then its value is added.

        Args:
            initializer: A callable that returns the aggregate of no value.
            aggregator: A callable ``(key, value, aggregate) -> aggregate``.
            session_merger: A callable ``(key, aggregate, other aggregate) -> aggregate`` of two sessions.
        """
        _check(initializer, aggregator, session_merger, "SessionWindowedKStream")
        return self._aggregated(AggregateSessions(self._windows, initializer, aggregator, session_merger), "aggregate")

    def count(self) -> KTable[Windowed, int]:
        """Count the values of each key and session."""
        return self._aggregated(AggregateSessions(self._windows, int, one_more, _sum), "count")

    def reduce(self, reducer: Callable[[V, V], V]) -> KTable[Windowed, V]:
        """Combine the values of each key and session by a callable ``(aggregate, value) -> aggregate``."""
        check_function(reducer, "apply", ("aggregate", "value"), "reduce() of a SessionWindowedKStream")
        combine = Reduced(reducer)
        return self._aggregated(AggregateSessions(self._windows, nothing, combine, _Merged(combine)), "reduce")


class TimeWindowedCogroupedKStream(_WindowedStream[K, V]):
    """Several grouped streams with time or sliding windows, as returned by ``CogroupedKStream.windowed_by``."""

    def __init__(
        self, groups: DataStream[Any], windows: TimeWindows | SlidingWindows, adder: Callable[[Any, Any, Any], Any]
    ) -> None:
        super().__init__(groups, windows)
        self._adder = adder

    def aggregate(self, initializer: Callable[[], V]) -> KTable[Windowed, V]:
        """Aggregate the values of each key and window.

        Args:
            initializer: A callable that returns the aggregate of no value.
        """
        _check(initializer, None, None, "TimeWindowedCogroupedKStream")
        return self._aggregated(_of_time(self._windows, initializer, self._adder), "aggregate")


class SessionWindowedCogroupedKStream(_WindowedStream[K, V]):
    """Several grouped streams with session windows, as returned by ``CogroupedKStream.windowed_by``."""

    def __init__(self, groups: DataStream[Any], windows: SessionWindows, adder: Callable[[Any, Any, Any], Any]) -> None:
        super().__init__(groups, windows)
        self._adder = adder

    def aggregate(self, initializer: Callable[[], V], session_merger: Callable[[K, V, V], V]) -> KTable[Windowed, V]:
        """Aggregate the values of each key and session.

        Args:
            initializer: A callable that returns the aggregate of no value.
            session_merger: A callable ``(key, aggregate, other aggregate) -> aggregate`` of two sessions.
        """
        _check(initializer, None, session_merger, "SessionWindowedCogroupedKStream")
        return self._aggregated(AggregateSessions(self._windows, initializer, self._adder, session_merger), "aggregate")


def _sum(key: Any, count: int, other: int) -> int:
    return count + other


class _Merged:
    """Merges the reduced values of two sessions."""

    def __init__(self, combine: Reduced) -> None:
        self._combine = combine

    def __call__(self, key: Any, aggregate: Any, other: Any) -> Any:
        return self._combine(key, other, aggregate)
