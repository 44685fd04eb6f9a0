"""KStream and KTable: streams of pairs of key and value, and tables, with Kafka Streams' operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, cast, overload

from holdfast.common.serialization import SerializationSchema
from holdfast.common.time import Span
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.types import Row
from holdfast.common.values.type_variables import R, S, T, W
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.data_stream_sink import DataStreamSink
from holdfast.datastream.operations.function_checks import check_function, check_type
from holdfast.datastream.operations.two_inputs import two_inputs
from holdfast.errors import ConfigurationError
from holdfast.table.changes import (
    Change,
    JoinForeignKey,
    JoinTable,
    JoinTables,
    Kept,
    LatestVersion,
    Mapped,
    Materialize,
    Regroup,
    Subscribe,
    changelog,
    key_of,
    owner_of,
)
from holdfast.table.cluster import cluster_of
from holdfast.table.global_tables import GlobalKTable, JoinGlobal
from holdfast.table.suppress import SuppressFactory
from holdfast.table.suppressed import Suppressed
from holdfast.table.variables import K, V
from holdfast.table.versions import JoinVersions, KeptVersion, MappedVersion, VersionedFactory
from holdfast.table.windows import milliseconds

__all__ = ["KStream", "KTable"]


class KStream(Generic[K, V]):
    """A stream of pairs of key and value. ``KStream.of(stream, key)`` makes one."""

    def __init__(self, pairs: DataStream[Any]) -> None:
        """Create a stream of pairs of key and value."""
        self._pairs = pairs

    @overload
    @classmethod
    def of(cls, stream: DataStream[V], key_selector: Callable[[V], K], value_mapper: None = None) -> KStream[K, V]: ...

    @overload
    @classmethod
    def of(cls, stream: DataStream[T], key_selector: Callable[[T], K], value_mapper: Callable[[T], V]) -> KStream[K, V]: ...

    @classmethod
    def of(
        cls,
        stream: DataStream[Any],
        key_selector: Callable[[Any], Any],
        value_mapper: Callable[[Any], Any] | None = None,
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

    def to_table(self, value_type: TypeInformation | None = None, *, history_retention: Span | None = None) -> KTable[K, V]:
        """Make a table of the newest value of each key; the value None deletes the key.

        Args:
            value_type: The declared type of the values.
            history_retention: Makes the table *versioned*, as a versioned state store does in Kafka Streams: the newest
                value of a key is the one with the latest timestamp, and a stream is joined with the value that was valid
                at the timestamp of its pair. A value that another one has replaced is kept for so long; one that the
                watermark has passed by more is dropped.
        """
        if history_retention is not None:
            retention = milliseconds(history_retention, "history_retention", "to_table()")
            return _VersionedTable(self._pairs, retention, check_type(value_type, "the value_type of to_table()"))
        return KTable(self._pairs.key_by(key_of).process(Materialize(value_type)).name("KStream.to_table"))

    def to_global_table(self) -> GlobalKTable[K, V]:
        """Make a table of the newest value of each key that every subtask has as a whole; the value None deletes the key.

        The pairs of a key must come in one split; those without a key are left out.
        """
        return GlobalKTable(self._pairs)

    def group_by_key(self) -> KGroupedStream[K, V]:
        """Group the pairs by their keys."""
        return KGroupedStream(self._pairs)

    @overload
    def join(
        self, table: KTable[K, R], joiner: Callable[[V, R], S], *, grace_period: Span | None = None
    ) -> KStream[K, S]: ...

    @overload
    def join(
        self, table: GlobalKTable[W, R], key_selector: Callable[[K, V], W | None], joiner: Callable[[V, R], S]
    ) -> KStream[K, S]: ...

    def join(self, table: Any, *functions: Any, grace_period: Span | None = None, **named: Any) -> KStream[K, Any]:
        """Join each pair with the value that a table has for its key when the pair comes; pairs without one are dropped.

        With a versioned table it is the value that is valid at the pair's timestamp. With a global table it is the value of
        the key that a selector names: ``join(table, key_selector, joiner)``.

        Args:
            table: The table. Its changes give no results by themselves.
            functions: ``joiner``, a callable ``(value, table value) -> value``; for a global table before it
                ``key_selector``, a callable ``(key, value) -> key`` of the table. A pair for which that is None is dropped.
            grace_period: For a versioned table: how long a pair waits in event time for values that come out of order. Both
                inputs need watermarks. The event time of the results is behind by the grace period; a pair that is later
                than that is joined at once.
            named: The functions by their names.
        """
        return self._join(table, functions, named, "join", False, grace_period)

    @overload
    def left_join(
        self, table: KTable[K, R], joiner: Callable[[V, R | None], S], *, grace_period: Span | None = None
    ) -> KStream[K, S]: ...

    @overload
    def left_join(
        self, table: GlobalKTable[W, R], key_selector: Callable[[K, V], W | None], joiner: Callable[[V, R | None], S]
    ) -> KStream[K, S]: ...

    def left_join(self, table: Any, *functions: Any, grace_period: Span | None = None, **named: Any) -> KStream[K, Any]:
        """Join as `join` does, and keep pairs whose key the table does not have: the joiner gets None.

        As in Kafka Streams, a pair for which the selector of a global table returns None is dropped, unless its own key is
        None.

        Args:
            table: The table.
            functions: As of `join`.
            grace_period: As of `join`.
            named: The functions by their names.
        """
        return self._join(table, functions, named, "left_join", True, grace_period)

    def _join(
        self,
        table: Any,
        functions: tuple[Any, ...],
        named: dict[str, Any],
        how: str,
        keeps_left: bool,
        grace: Span | None,
    ) -> KStream[K, Any]:
        if isinstance(table, GlobalKTable):
            return self._join_global(table, functions, named, how, keeps_left, grace)
        if not isinstance(table, KTable):
            raise TypeError(
                f"{how}() of a KStream takes a KTable or a GlobalKTable, not {table!r}; make one with to_table()."
            )
        (joiner,) = _functions(f"{how}() of a KStream with a KTable", ("joiner",), functions, named)
        if table._stream.get_execution_environment() is not self._pairs.get_execution_environment():
            raise ConfigurationError(f"{how}() takes a stream and a table of one environment; these belong to two.")
        check_function(joiner, "apply", ("value", "table_value"), f"{how}() of a KStream")
        if isinstance(table, _VersionedTable):
            return KStream(table._joined(self._pairs, joiner, how, keeps_left, grace))
        if grace is not None:
            raise ConfigurationError(
                f"{how}() of a KStream with a grace_period needs a versioned table: make it with a history_retention."
            )
        connected = self._pairs.key_by(key_of).connect(table._changes.key_by(key_of))
        return KStream(connected.process(JoinTable(joiner, keeps_left)).name(f"KStream.{how}"))

    def _join_global(
        self,
        table: GlobalKTable[Any, Any],
        functions: tuple[Any, ...],
        named: dict[str, Any],
        how: str,
        keeps_left: bool,
        grace: Span | None,
    ) -> KStream[K, Any]:
        where = f"{how}() of a KStream with a GlobalKTable"
        if grace is not None:
            raise ConfigurationError(f"{where} takes no grace_period: only a versioned table has one.")
        selector, joiner = _functions(where, ("key_selector", "joiner"), functions, named)
        if table._pairs.get_execution_environment() is not self._pairs.get_execution_environment():
            raise ConfigurationError(f"{how}() takes a stream and a table of one environment; these belong to two.")
        check_function(selector, "apply", ("key", "value"), where)
        check_function(joiner, "apply", ("value", "table_value"), where)
        return KStream(table._joined(self._pairs, JoinGlobal(selector, joiner, keeps_left)).name(f"KStream.{how}"))


def _functions(where: str, names: tuple[str, ...], given: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
    """The functions of a call, given by position or by name."""
    found = dict(zip(names, given)) | named
    if len(given) + len(named) != len(names) or set(found) != set(names):
        told = [*map(repr, given), *(f"{name}={value!r}" for name, value in named.items())]
        raise TypeError(f"{where} takes {' and '.join(names)}, not ({', '.join(told)}).")
    return [found[name] for name in names]


class _Pair:
    """Makes a pair of an element."""

    def __init__(self, key: Callable[[Any], Any], value: Callable[[Any], Any] | None) -> None:
        self._key = key
        self._value = value

    def __call__(self, element: Any) -> tuple[Any, Any]:
        return self._key(element), element if self._value is None else self._value(element)


class KTable(Generic[K, V]):
    """A table: for each key its newest value. ``KStream.to_table()`` makes one.

    It is kept where an operation needs it (joins, aggregations). ``to_stream()`` emits its changes.
    """

    def __init__(self, changes: DataStream[Any], closes_after: int | None = None) -> None:
        """Create a table of its changes: triples of key, new value and old value.

        Args:
            changes: The changes.
            closes_after: Of a windowed table: how far from its end the watermark closes a window, in ms.
        """
        self._stream = changes
        self._closes_after = closes_after

    @property
    def _changes(self) -> DataStream[Any]:
        return self._stream

    def filter(self, predicate: Callable[[K, V], Any]) -> KTable[K, V]:
        """Keep the rows for which the predicate ``(key, value) -> bool`` holds. A row that no longer does is deleted."""
        check_function(predicate, "test", ("key", "value"), "filter() of a KTable")
        return KTable(self._changes.flat_map(Kept(predicate, True)).name("KTable.filter"), self._closes_after)

    def filter_not(self, predicate: Callable[[K, V], Any]) -> KTable[K, V]:
        """Keep the rows for which the predicate ``(key, value) -> bool`` does not hold."""
        check_function(predicate, "test", ("key", "value"), "filter_not() of a KTable")
        return KTable(self._changes.flat_map(Kept(predicate, False)).name("KTable.filter_not"), self._closes_after)

    def map_values(self, mapper: Callable[[V], R]) -> KTable[K, R]:
        """Convert the values; a row whose value becomes None is deleted.

        The mapper must give equal values for equal ones: old values are converted again.
        """
        check_function(mapper, "apply", ("value",), "map_values() of a KTable")
        return KTable(self._changes.flat_map(Mapped(mapper)).name("KTable.map_values"), self._closes_after)

    def suppress(self, suppressed: Suppressed) -> KTable[K, V]:
        """Emit fewer changes: the newest one of each row, when event time has come far enough.

        Changes need timestamps and watermarks. A row that comes and goes while it is held gives no change.

        Args:
            suppressed: ``Suppressed.until_time_limit(...)``, or of a windowed table ``Suppressed.until_window_closes(...)``.

        Raises:
            ConfigurationError: rows are to be held until their window closes, but the table has no windows.
        """
        if not isinstance(suppressed, Suppressed):
            raise TypeError(f"suppress() takes a Suppressed, not {suppressed!r}.")
        if suppressed.limit is None and self._closes_after is None:
            raise ConfigurationError(
                "suppress(until_window_closes) needs a windowed table: an aggregate behind windowed_by(), or filter() or "
                "map_values() of one. Other tables have until_time_limit()."
            )
        factory = SuppressFactory.of(suppressed, self._closes_after)
        changes = self._changes.key_by(key_of)._then("Suppress", factory, factory.func, None)
        return KTable(changes.name("KTable.suppress"), self._closes_after)

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
        if other._stream.get_execution_environment() is not self._stream.get_execution_environment():
            raise ConfigurationError(f"{how}() takes tables of one environment; these belong to two.")
        check_function(joiner, "apply", ("value", "other_value"), f"{how}() of a KTable")
        return other._changes


class _VersionedTable(KTable[K, V]):
    """A table that knows the versions of its rows. Its changes are those of the newest versions.

    Args:
        versions: Pairs of key and value.
        retention: The history retention in ms.
        value_type: The declared type of the values.
    """

    def __init__(self, versions: DataStream[Any], retention: int, value_type: TypeInformation | None) -> None:
        super().__init__(versions)
        self._retention = retention
        self._type = value_type

    @cached_property
    def _changes(self) -> DataStream[Any]:
        newest = VersionedFactory.newest(self._type, self._retention)
        return self._stream.key_by(key_of)._then("NewestVersion", newest, newest.func, None).name("KStream.to_table")

    def filter(self, predicate: Callable[[K, V], Any]) -> KTable[K, V]:
        check_function(predicate, "test", ("key", "value"), "filter() of a KTable")
        return self._with(KeptVersion(predicate, True), "filter", self._type)

    def filter_not(self, predicate: Callable[[K, V], Any]) -> KTable[K, V]:
        check_function(predicate, "test", ("key", "value"), "filter_not() of a KTable")
        return self._with(KeptVersion(predicate, False), "filter_not", self._type)

    def map_values(self, mapper: Callable[[V], R]) -> KTable[K, R]:
        check_function(mapper, "apply", ("value",), "map_values() of a KTable")
        return self._with(MappedVersion(mapper), "map_values", None)

    def _with(self, function: Any, how: str, value_type: TypeInformation | None) -> KTable[K, Any]:
        return _VersionedTable(self._stream.map(function).name(f"KTable.{how}"), self._retention, value_type)

    def _joined(
        self, pairs: DataStream[Any], joiner: Any, how: str, keeps_left: bool, grace_period: Span | None
    ) -> DataStream[Any]:
        grace = None if grace_period is None else milliseconds(grace_period, "grace_period", f"{how}() of a KStream")
        if grace is not None and grace > self._retention:
            raise ConfigurationError(
                f"{how}() of a KStream has a grace_period of {grace} ms, but the table keeps replaced values for "
                f"{self._retention} ms: the history_retention must be at least as long."
            )
        function = JoinVersions(joiner, keeps_left, self._type, self._retention, grace)
        factory = VersionedFactory.join(function, self._retention, grace)
        streams = (pairs.key_by(key_of), self._stream.key_by(key_of))
        joined = two_inputs(streams, "VersionedJoin", factory, (("join function", function),), None)
        return joined.name(f"KStream.{how}")


def _newest(change: Change) -> tuple[Any, Any]:
    return change[0], change[1]


# KStream and KTable make these, which make tables: this module comes first.
from holdfast.table.grouped import KGroupedStream, KGroupedTable  # noqa: E402
