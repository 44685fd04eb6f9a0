"""KGroupedStream, CogroupedKStream and KGroupedTable: grouped pairs and rows, to aggregate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, overload

from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.values.type_variables import R, W
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.operations.function_checks import check_function
from holdfast.datastream.operations.ranking import check_offset
from holdfast.errors import ConfigurationError
from holdfast.table.best import Best
from holdfast.table.changes import Aggregate, Cogrouped, Reduced, added, key_of, nothing, one_less, one_more
from holdfast.table.tables import KTable
from holdfast.table.variables import K, V
from holdfast.table.windowed_streams import (
    SessionWindowedCogroupedKStream,
    SessionWindowedKStream,
    TimeWindowedCogroupedKStream,
    TimeWindowedKStream,
)
from holdfast.table.windows import SessionWindows, SlidingWindows, TimeWindows

__all__ = ["CogroupedKStream", "KGroupedStream", "KGroupedTable"]


class KGroupedStream(Generic[K, V]):
    """The grouped pairs of a stream, as returned by ``KStream.group_by_key``. Pairs with the value None are left out."""

    def __init__(self, pairs: DataStream[Any]) -> None:
        self._pairs = pairs

    def aggregate(
        self, initializer: Callable[[], R], aggregator: Callable[[K, V, R], R], value_type: TypeInformation | None = None
    ) -> KTable[K, R]:
        """Aggregate the values of each key.

        Args:
            initializer: A callable that returns the aggregate of no value.
            aggregator: A callable ``(key, value, aggregate) -> aggregate``.
            value_type: The declared type of the aggregates.
        """
        check_function(initializer, "apply", (), "aggregate() of a KGroupedStream")
        check_function(aggregator, "apply", ("key", "value", "aggregate"), "aggregate() of a KGroupedStream")
        return self._aggregated(Aggregate(initializer, aggregator, None, value_type), "aggregate")

    def count(self) -> KTable[K, int]:
        """Count the values of each key."""
        return self._aggregated(Aggregate(int, one_more, None, Types.LONG()), "count")

    def reduce(self, reducer: Callable[[V, V], V], value_type: TypeInformation | None = None) -> KTable[K, V]:
        """Combine the values of each key by a callable ``(aggregate, value) -> aggregate``, e.g. for running totals."""
        check_function(reducer, "apply", ("aggregate", "value"), "reduce() of a KGroupedStream")
        return self._aggregated(Aggregate(nothing, Reduced(reducer), None, value_type), "reduce")

    @overload
    def windowed_by(self, windows: TimeWindows | SlidingWindows) -> TimeWindowedKStream[K, V]: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedKStream[K, V]: ...

    def windowed_by(self, windows: TimeWindows | SlidingWindows | SessionWindows) -> Any:
        """Group the pairs by their windows, too. They need timestamps and watermarks.

        Args:
            windows: ``TimeWindows``, ``SlidingWindows`` or ``SessionWindows``.
        """
        kind = _kind(windows, TimeWindowedKStream, SessionWindowedKStream)
        return kind(self._pairs.flat_map(added).name("KStream.group_by_key"), windows)

    def cogroup(self, aggregator: Callable[[K, V, R], R]) -> CogroupedKStream[K, R]:
        """Begin an aggregate of several grouped streams, which ``CogroupedKStream.cogroup`` adds.

        Args:
            aggregator: A callable ``(key, value, aggregate) -> aggregate`` for the values of this stream.
        """
        return CogroupedKStream([(self, _aggregator(aggregator, "KGroupedStream"))])

    def _aggregated(self, function: Aggregate, how: str) -> KTable[K, Any]:
        pairs = self._pairs.flat_map(added).name("KStream.group_by_key")
        return KTable(pairs.key_by(key_of).process(function).name(f"KGroupedStream.{how}"))


class CogroupedKStream(Generic[K, V]):
    """Several grouped streams with one aggregate for each key, as returned by ``KGroupedStream.cogroup``.

    Each has an aggregator of its own. A program that goes on from a checkpoint must name them in the same order.
    """

    def __init__(self, groups: list[tuple[KGroupedStream[Any, Any], Callable[[Any, Any, Any], Any]]]) -> None:
        self._groups = groups

    def cogroup(self, grouped_stream: KGroupedStream[K, W], aggregator: Callable[[K, W, V], V]) -> CogroupedKStream[K, V]:
        """Add a grouped stream.

        Args:
            grouped_stream: The grouped stream, whose values may have another type.
            aggregator: A callable ``(key, value, aggregate) -> aggregate`` for its values.
        """
        if not isinstance(grouped_stream, KGroupedStream):
            raise TypeError(f"cogroup() takes a KGroupedStream, not {grouped_stream!r}; make one with group_by_key().")
        first = self._groups[0][0]
        if grouped_stream._pairs.get_execution_environment() is not first._pairs.get_execution_environment():
            raise ConfigurationError("cogroup() takes streams of one environment; these belong to two.")
        return CogroupedKStream([*self._groups, (grouped_stream, _aggregator(aggregator, "CogroupedKStream"))])

    def aggregate(self, initializer: Callable[[], V], value_type: TypeInformation | None = None) -> KTable[K, V]:
        """Aggregate the values of each key. Between elements of different streams there is no order.

        Args:
            initializer: A callable that returns the aggregate of no value.
            value_type: The declared type of the aggregates.
        """
        check_function(initializer, "apply", (), "aggregate() of a CogroupedKStream")
        function = Aggregate(initializer, self._adder(), None, value_type)
        return KTable(self._together().key_by(key_of).process(function).name("CogroupedKStream.aggregate"))

    @overload
    def windowed_by(self, windows: TimeWindows | SlidingWindows) -> TimeWindowedCogroupedKStream[K, V]: ...

    @overload
    def windowed_by(self, windows: SessionWindows) -> SessionWindowedCogroupedKStream[K, V]: ...

    def windowed_by(self, windows: TimeWindows | SlidingWindows | SessionWindows) -> Any:
        """Group the elements by their windows, too. They need timestamps and watermarks.

        Args:
            windows: ``TimeWindows``, ``SlidingWindows`` or ``SessionWindows``.
        """
        kind = _kind(windows, TimeWindowedCogroupedKStream, SessionWindowedCogroupedKStream)
        return kind(self._together(), windows, self._adder())

    def _adder(self) -> Cogrouped:
        return Cogrouped([aggregator for _, aggregator in self._groups])

    def _together(self) -> DataStream[Any]:
        numbered = [
            group._pairs.flat_map(Cogrouped.numbered(number)).name("KGroupedStream.cogroup")
            for number, (group, _) in enumerate(self._groups)
        ]
        return numbered[0].union(*numbered[1:]) if numbered[1:] else numbered[0]


def _aggregator(aggregator: Any, owner: str) -> Any:
    check_function(aggregator, "apply", ("key", "value", "aggregate"), f"cogroup() of a {owner}")
    return aggregator


def _kind(windows: Any, of_time: type[Any], of_sessions: type[Any]) -> type[Any]:
    if isinstance(windows, (TimeWindows, SlidingWindows)):
        return of_time
    if isinstance(windows, SessionWindows):
        return of_sessions
    raise TypeError(f"windowed_by() takes TimeWindows, SlidingWindows or SessionWindows, not {windows!r}.")


class KGroupedTable(Generic[K, V]):
    """The grouped rows of a table, as returned by ``KTable.group_by``."""

    def __init__(self, groups: DataStream[Any]) -> None:
        self._groups = groups

    def aggregate(
        self,
        initializer: Callable[[], R],
        adder: Callable[[K, V, R], R],
        subtractor: Callable[[K, V, R], R | None],
        value_type: TypeInformation | None = None,
    ) -> KTable[K, R]:
        """Aggregate the values of each group. Every change of the table changes the aggregates of its groups.

        Args:
            initializer: A callable that returns the aggregate of no value.
            adder: A callable ``(group, value, aggregate) -> aggregate`` that adds a value.
            subtractor: A callable ``(group, value, aggregate) -> aggregate`` that takes a value back; None deletes the
                group.
            value_type: The declared type of the aggregates.
        """
        where = "aggregate() of a KGroupedTable"
        check_function(initializer, "apply", (), where)
        check_function(adder, "apply", ("group", "value", "aggregate"), where)
        check_function(subtractor, "apply", ("group", "value", "aggregate"), where)
        return self._aggregated(Aggregate(initializer, adder, subtractor, value_type), "aggregate")

    def count(self) -> KTable[K, int]:
        """Count the rows of each group."""
        return self._aggregated(Aggregate(int, one_more, one_less, Types.LONG()), "count")

    def reduce(
        self, adder: Callable[[V, V], V], subtractor: Callable[[V, V], V | None], value_type: TypeInformation | None = None
    ) -> KTable[K, V]:
        """Combine the values of each group.

        Args:
            adder: A callable ``(aggregate, value) -> aggregate`` that adds a value; the first one is the aggregate.
            subtractor: A callable ``(aggregate, value) -> aggregate`` that takes a value back. None deletes the group.
            value_type: The declared type of the values.
        """
        check_function(adder, "apply", ("aggregate", "value"), "reduce() of a KGroupedTable")
        check_function(subtractor, "apply", ("aggregate", "value"), "reduce() of a KGroupedTable")
        return self._aggregated(Aggregate(nothing, Reduced(adder), Reduced(subtractor), value_type), "reduce")

    def top_n(self, n: int, order_by: Callable[[V], Any], *, descending: bool = True, offset: int = 0) -> KTable[K, list[V]]:
        """Keep the ``n`` best values of each group as a list, the best first; of equal ones, those that came first.

        All rows are kept: when one of the best gets worse or is deleted, the next one takes its place.

        Args:
            n: The number of values.
            order_by: A callable ``value -> value to order by``.
            descending: Whether larger is better.
            offset: How many of the best are left out: the list has the ranks ``offset + 1`` to ``offset + n``.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigurationError(f"top_n() keeps a positive number of values, not {n!r}.")
        check_offset(offset, "values")
        check_function(order_by, "apply", ("value",), "order_by of top_n()")
        return self._aggregated(Best(n, order_by, descending, offset), "top_n")

    def _aggregated(self, function: Aggregate | Best, how: str) -> KTable[K, Any]:
        return KTable(self._groups.key_by(key_of).process(function).name(f"KGroupedTable.{how}"))
