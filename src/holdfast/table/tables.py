"""KStream and KTable: streams of pairs of key and value, and tables, with Kafka Streams' operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, cast

from holdfast.common.serialization import SerializationSchema
from holdfast.common.type_variables import R, S, T
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.types import Row
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.data_stream_sink import DataStreamSink
from holdfast.datastream.function_checks import check_function
from holdfast.errors import ConfigurationError
from holdfast.table.best import Best
from holdfast.table.changes import (
    Aggregate,
    Change,
    JoinForeignKey,
    JoinTable,
    JoinTables,
    Kept,
    LatestVersion,
    Mapped,
    Materialize,
    Reduced,
    Regroup,
    Subscribe,
    changelog,
    key_of,
    nothing,
    one_less,
    one_more,
    owner_of,
)
from holdfast.table.cluster import cluster_of
from holdfast.table.variables import K, V

__all__ = ["KGroupedStream", "KGroupedTable", "KStream", "KTable"]


class KStream(Generic[K, V]):
    """A stream of pairs of key and value. ``KStream.of(stream, key)`` makes one."""

    def __init__(self, pairs: DataStream[Any]) -> None:
        """Create a stream of pairs of key and value."""
        self._pairs = pairs

    @classmethod
    def of(
        cls,
        stream: DataStream[T],
        key_selector: Callable[[T], Any],
        value_mapper: Callable[[T], Any] | None = None,
    ) -> KStream[Any, Any]:
        """A stream's elements with their keys.

        Args:
            stream: The stream.
            key_selector: A callable ``element -> key``.
            value_mapper: A callable ``element -> value``; without it, the element is the value.
        """
        if not isinstance(stream, DataStream):
            raise TypeError(f"KStream.of() takes a stream, not {stream!r}.")
        check_function(key_selector, "get_key", ("element",), "KStream.of()")
        if value_mapper is not None:
            check_function(value_mapper, "apply", ("element",), "KStream.of()")
        return KStream(stream.map(_Pair(key_selector, value_mapper)).name("KStream.of"))

    def to_data_stream(self) -> DataStream[tuple[K, V]]:
        """The pairs of key and value."""
        return cast("DataStream[tuple[K, V]]", self._pairs)

    def to(
        self,
        topic: str,
        key_serializer: SerializationSchema | Callable[[K], Any] | None = None,
        value_serializer: SerializationSchema | Callable[[V], Any] | None = None,
    ) -> DataStreamSink:
        """Write the pairs to a topic of the environment's `StreamsBuilder`, exactly once.

        The value None is written as a tombstone: ``table.to_stream().to(topic)`` keeps a compacted topic equal to a table.

        Args:
            topic: The topic.
            key_serializer: A SerializationSchema or a callable to bytes or str for the keys; None: they are bytes or str.
            value_serializer: The same for the values.
        """
        for name, given in (("key_serializer", key_serializer), ("value_serializer", value_serializer)):
            if given is not None:
                check_function(given, "serialize", ("value",), f"{name} of KStream.to()")
        sink = cluster_of(self._pairs.get_execution_environment()).sink(topic, key_serializer, value_serializer)
        return self._pairs.sink_to(sink).name(f"KStream.to {topic}")

    def to_table(self, value_type: TypeInformation | None = None) -> KTable[K, V]:
        """Make a table of the newest value of each key; the value None deletes the key.

        Args:
            value_type: The declared type of the values.
        """
        return KTable(self._pairs.key_by(key_of).process(Materialize(value_type)).name("KStream.to_table"))

    def group_by_key(self) -> KGroupedStream[K, V]:
        """Group the pairs by their keys."""
        return KGroupedStream(self._pairs)

    def join(self, table: KTable[K, R], joiner: Callable[[V, R], S]) -> KStream[K, S]:
        """Join each pair with the value that a table has for its key when the pair comes; pairs without one are dropped.

        Args:
            table: The table. Its changes give no results by themselves.
            joiner: A callable ``(value, table value) -> value``.
        """
        return self._join(table, joiner, "join", False)

    def left_join(self, table: KTable[K, R], joiner: Callable[[V, R | None], S]) -> KStream[K, S]:
        """Join as `join` does, and keep pairs whose key the table does not have: the joiner gets None."""
        return self._join(table, joiner, "left_join", True)

    def _join(self, table: Any, joiner: Any, how: str, keeps_left: bool) -> KStream[K, Any]:
        if not isinstance(table, KTable):
            raise TypeError(f"{how}() of a KStream takes a KTable, not {table!r}; make one with to_table().")
        if table._changes.get_execution_environment() is not self._pairs.get_execution_environment():
            raise ConfigurationError(f"{how}() takes a stream and a table of one environment; these belong to two.")
        check_function(joiner, "apply", ("value", "table_value"), f"{how}() of a KStream")
        connected = self._pairs.key_by(key_of).connect(table._changes.key_by(key_of))
        return KStream(connected.process(JoinTable(joiner, keeps_left)).name(f"KStream.{how}"))


class _Pair:
    """Makes a pair of an element."""

    def __init__(self, key: Callable[[Any], Any], value: Callable[[Any], Any] | None) -> None:
        self._key = key
        self._value = value

    def __call__(self, element: Any) -> tuple[Any, Any]:
        return self._key(element), element if self._value is None else self._value(element)


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

    def _aggregated(self, function: Aggregate, how: str) -> KTable[K, Any]:
        added = self._pairs.flat_map(_added).name("KStream.group_by_key")
        return KTable(added.key_by(key_of).process(function).name(f"KGroupedStream.{how}"))


def _added(pair: tuple[Any, Any]) -> tuple[tuple[Any, Any, None], ...]:
    return () if pair[1] is None else ((pair[0], pair[1], None),)


class KTable(Generic[K, V]):
    """A table: for each key its newest value. ``KStream.to_table()`` makes one.

    It is kept where an operation needs it (joins, aggregations). ``to_stream()`` emits its changes.
    """

    def __init__(self, changes: DataStream[Any]) -> None:
        """Create a table of its changes: triples of key, new value and old value."""
        self._changes = changes

    def filter(self, predicate: Callable[[K, V], Any]) -> KTable[K, V]:
        """Keep the rows for which the predicate ``(key, value) -> bool`` holds. A row that no longer does is deleted."""
        check_function(predicate, "test", ("key", "value"), "filter() of a KTable")
        return KTable(self._changes.flat_map(Kept(predicate, True)).name("KTable.filter"))

    def filter_not(self, predicate: Callable[[K, V], Any]) -> KTable[K, V]:
        """Keep the rows for which the predicate ``(key, value) -> bool`` does not hold."""
        check_function(predicate, "test", ("key", "value"), "filter_not() of a KTable")
        return KTable(self._changes.flat_map(Kept(predicate, False)).name("KTable.filter_not"))

    def map_values(self, mapper: Callable[[V], R]) -> KTable[K, R]:
        """Convert the values. The mapper must give equal values for equal ones: old values are converted again."""
        check_function(mapper, "apply", ("value",), "map_values() of a KTable")
        return KTable(self._changes.map(Mapped(mapper)).name("KTable.map_values"))

    def to_stream(self) -> KStream[K, V]:
        """Emit the changes: pairs of key and new value; the value None says that the key was deleted."""
        return KStream(self._changes.map(_newest).name("KTable.to_stream"))

    def to_changes(self) -> DataStream[Change]:
        """Emit the changes with the old values: triples of key, new value and old value; None is no value."""
        return cast("DataStream[Change]", self._changes)

    def to_changelog(self) -> DataStream[Row]:
        """Emit the changes as Rows of key and value with a kind: INSERT, UPDATE_BEFORE with UPDATE_AFTER, DELETE."""
        return self._changes.flat_map(changelog).name("KTable.to_changelog")

    def group_by(self, selector: Callable[[K, V], tuple[S, R]]) -> KGroupedTable[S, R]:
        """Group the rows.

        Args:
            selector: A callable ``(key, value) -> (group, value to aggregate)``, which gives the same for the same row.
        """
        check_function(selector, "apply", ("key", "value"), "group_by() of a KTable")
        return KGroupedTable(self._changes.flat_map(Regroup(selector)).name("KTable.group_by"))

    # ---- joins ------------------------------------------------------------------------------------------------------

    def join(
        self,
        other: KTable[Any, R],
        joiner: Callable[[V, R], S],
        *,
        foreign_key_extractor: Callable[[V], Any] | None = None,
    ) -> KTable[K, S]:
        """Join with the rows of another table that have the same key. A row is deleted when either of its rows is.

        Args:
            other: The other table.
            joiner: A callable ``(value, other value) -> value``.
            foreign_key_extractor: A callable ``value -> key`` of the other table, for a join by foreign key.
        """
        if foreign_key_extractor is not None:
            return self._join_foreign_key(other, joiner, foreign_key_extractor, False)
        return self._join(other, joiner, "join", False, False)

    def left_join(
        self,
        other: KTable[Any, R],
        joiner: Callable[[V, R | None], S],
        *,
        foreign_key_extractor: Callable[[V], Any] | None = None,
    ) -> KTable[K, S]:
        """Join as `join` does, and keep rows without a partner: the joiner gets None as the other value."""
        if foreign_key_extractor is not None:
            return self._join_foreign_key(other, joiner, foreign_key_extractor, True)
        return self._join(other, joiner, "left_join", True, False)

    def outer_join(self, other: KTable[Any, R], joiner: Callable[[V | None, R | None], S]) -> KTable[K, S]:
        """Join as `join` does, and keep the rows of both tables without a partner: the joiner gets None in its place."""
        return self._join(other, joiner, "outer_join", True, True)

    def _join(self, other: Any, joiner: Any, how: str, keeps_left: bool, keeps_right: bool) -> KTable[K, Any]:
        right = self._checked(other, joiner, how)
        joined = self._changes.key_by(key_of).connect(right.key_by(key_of))
        return KTable(joined.process(JoinTables(joiner, keeps_left, keeps_right)).name(f"KTable.{how}"))

    def _join_foreign_key(self, other: Any, joiner: Any, extractor: Any, keeps_left: bool) -> KTable[K, Any]:
        how = "left_join" if keeps_left else "join"
        right = self._checked(other, joiner, how)
        check_function(extractor, "apply", ("value",), f"{how}() by foreign key")
        referring = self._changes.key_by(key_of).process(Subscribe(extractor)).name(f"KTable.{how}: foreign keys")
        met = referring.key_by(key_of).connect(right.key_by(owner_of)).process(JoinForeignKey(joiner, keeps_left))
        results = met.name(f"KTable.{how} by foreign key").key_by(key_of)
        return KTable(results.process(LatestVersion()).name(f"KTable.{how}: newest"))

    def _checked(self, other: Any, joiner: Any, how: str) -> DataStream[Any]:
        if not isinstance(other, KTable):
            raise TypeError(f"{how}() of a KTable takes a KTable, not {other!r}; make one with to_table().")
        if other._changes.get_execution_environment() is not self._changes.get_execution_environment():
            raise ConfigurationError(f"{how}() takes tables of one environment; these belong to two.")
        check_function(joiner, "apply", ("value", "other_value"), f"{how}() of a KTable")
        return other._changes


def _newest(change: Change) -> tuple[Any, Any]:
    return change[0], change[1]


class KGroupedTable(Generic[K, V]):
    """The grouped rows of a table, as returned by ``KTable.group_by``."""

    def __init__(self, groups: DataStream[Any]) -> None:
        self._groups = groups

    def aggregate(
        self,
        initializer: Callable[[], R],
        adder: Callable[[K, V, R], R],
        subtractor: Callable[[K, V, R], R],
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
        self, adder: Callable[[V, V], V], subtractor: Callable[[V, V], V], value_type: TypeInformation | None = None
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

    def top_n(self, n: int, order_by: Callable[[V], Any], *, descending: bool = True) -> KTable[K, list[V]]:
        """Keep the ``n`` best values of each group as a list, the best first; of equal ones, those that came first.

        All rows are kept: when one of the best gets worse or is deleted, the next one takes its place.

        Args:
            n: The number of values.
            order_by: A callable ``value -> value to order by``.
            descending: Whether larger is better.
        """
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ConfigurationError(f"top_n() keeps a positive number of values, not {n!r}.")
        check_function(order_by, "apply", ("value",), "order_by of top_n()")
        return self._aggregated(Best(n, order_by, descending), "top_n")

    def _aggregated(self, function: Aggregate | Best, how: str) -> KTable[K, Any]:
        return KTable(self._groups.key_by(key_of).process(function).name(f"KGroupedTable.{how}"))
