"""Debezium's events as JSON: changes of tables to Rows with their kinds, and back."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Literal, get_args

import msgspec

from holdfast.common.changelog_mode import ChangelogMode, MissingColumns, check_choice
from holdfast.common.formats.debezium_values import (
    PLAIN,
    UNAVAILABLE,
    Encoding,
    Read,
    TimeUnit,
    column_reader,
    encodings,
)
from holdfast.common.formats.json import JsonRowSerializationSchema
from holdfast.common.serialization import FlatDeserializationSchema, SerializationSchema
from holdfast.common.typeinfo import RowTypeInfo, TypeInformation
from holdfast.common.typeinfo.base import shown
from holdfast.common.types import Row, RowKind
from holdfast.errors import ConfigurationError

__all__ = ["DebeziumJsonRowDeserializationSchema", "DebeziumJsonRowSerializationSchema"]

_log = logging.getLogger(__name__)
_PARSE_ERRORS = (ValueError, OverflowError, TypeError, RecursionError, ArithmeticError)
_SCHEMAS = 100
"""Schemas of events that are kept. A topic has few; each change of a table makes a new one."""
_ABSENT: Any = object()
_FULL = "ALTER TABLE ... REPLICA IDENTITY FULL (MySQL: binlog_row_image=FULL)"


class _Event(msgspec.Struct, gc=False):
    op: str | None = None
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None


class _Message(_Event, gc=False):
    """An event, or one in an envelope with its schema."""

    schema: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    payload: _Event | msgspec.UnsetType | None = msgspec.UNSET


class DebeziumJsonRowDeserializationSchema(FlatDeserializationSchema[Row]):
    """Deserializes Debezium's change events, with and without their schemas, to Rows with a `RowKind`.

    One event gives no row, one, or the two of an update. Events of a snapshot (``r``) and ``c`` are ``INSERT``; messages
    (``m``) and tombstones give no row. Unknown columns are ignored.

    Examples:
        >>> from holdfast.common import Types
        >>> orders = Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.DOUBLE()])
        >>> schema = DebeziumJsonRowDeserializationSchema(orders)
        >>> schema.deserialize_flat(b'{"before": null, "after": {"id": 1, "amount": 2.5}, "op": "c"}')
        [Row(id=1, amount=2.5)]

    Args:
        type_info: The columns to read, with their types: ``Types.ROW_NAMED``.
        changelog_mode: ``all``: an update is two rows, ``UPDATE_BEFORE`` and ``UPDATE_AFTER``, and a ``DELETE`` has the
            whole old row; the database must log old rows (``REPLICA IDENTITY FULL``). ``upsert``: an update is
            ``UPDATE_AFTER`` alone, and a ``DELETE`` has the primary key alone, other fields None.
        primary_key: The columns of the primary key, which ``upsert`` needs. With it, an update of the key is a ``DELETE``
            and an ``INSERT`` in both modes, as most connectors write it themselves.
        on_truncate: ``fail``: a TRUNCATE of the table is an error. ``skip``: it gives no row.
        missing_columns: ``fail``: a declared column that an event does not have is an error. ``null``: it is None.
        time_unit: The unit of times that are whole numbers, in events without a schema; for all columns, or by column.
        decimal_scales: The scales of the columns whose decimals are bytes (``decimal.handling.mode=precise``), in events
            without a schema.
        ignore_parse_errors: Drop events that cannot be parsed, or are not of this table.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        type_info: RowTypeInfo,
        changelog_mode: ChangelogMode = "all",
        *,
        primary_key: Sequence[str] = (),
        on_truncate: Literal["fail", "skip"] = "fail",
        missing_columns: MissingColumns = "fail",
        time_unit: TimeUnit | Mapping[str, TimeUnit] | None = None,
        decimal_scales: Mapping[str, int] | None = None,
        ignore_parse_errors: bool = False,
    ) -> None:
        _check_rows(self, type_info)
        self._type, self._names = type_info, type_info.get_field_names()
        self._arguments: dict[str, Any] = {
            **{"changelog_mode": changelog_mode, "primary_key": _columns(primary_key), "on_truncate": on_truncate},
            **{"missing_columns": missing_columns, "time_unit": time_unit, "decimal_scales": decimal_scales},
            "ignore_parse_errors": ignore_parse_errors,
        }
        check_choice("changelog_mode", changelog_mode, "all", "upsert")
        check_choice("on_truncate", on_truncate, "fail", "skip")
        check_choice("missing_columns", missing_columns, "fail", "null")
        self._all, self._skips_truncates = changelog_mode == "all", on_truncate == "skip"
        self._fails, self._ignores = missing_columns == "fail", ignore_parse_errors
        self._key = self._arguments["primary_key"]
        if changelog_mode == "upsert" and not self._key:
            raise ConfigurationError("changelog_mode='upsert' needs the primary_key, which tells the rows of deletions")
        units = time_unit if isinstance(time_unit, Mapping) else dict.fromkeys(self._names, time_unit)
        scales = decimal_scales or {}
        self._known(self._key, "primary_key")
        self._known(units, "time_unit")
        self._known(scales, "decimal_scales")
        for unit in units.values():
            if unit is not None:
                check_choice("time_unit", unit, *get_args(TimeUnit))
        for name, scale in scales.items():
            if type(scale) is not int:
                raise ConfigurationError(f"decimal_scales: the scale of {name} is a whole number, not {scale!r:.80}")
        self._units = units
        self._plain = self._readers({name: Encoding(scale=scale) for name, scale in scales.items()})
        self._by_schema: dict[bytes, list[tuple[str, Read]]] = {}
        self._seen: set[str] = set()
        self._decode = msgspec.json.Decoder(_Message | None, float_hook=Decimal).decode

    def __reduce__(self) -> tuple[Any, ...]:
        return _reader_of, (type(self), self._type, self._arguments)

    def get_produced_type(self) -> TypeInformation:
        """The rows' type."""
        return self._type

    def deserialize_flat(self, data: bytes) -> list[Row]:
        """Parse an event to its rows; to none for an ignored parse error.

        Raises:
            ValueError: the text is not an event of this table; names the column, and what to do.
        """
        try:
            return self._rows(data)
        except _PARSE_ERRORS as error:
            if self._ignores:
                return []
            raise ValueError(
                f"not an event of Debezium with the declared columns: {error}; in {shown(bytes(data))}"
            ) from error

    def _rows(self, data: bytes) -> list[Row]:
        message = self._decode(data)
        if message is None:
            return []  # a tombstone
        event: _Event = message
        readers = self._plain
        if message.payload is not msgspec.UNSET:
            if message.payload is None:
                return []
            event = message.payload
            if message.schema is not msgspec.UNSET and bytes(message.schema) != b"null":
                readers = self._readers_of(bytes(message.schema))
        op = event.op
        if op == "c" or op == "r":
            return [self._row("after", _given(event.after, "after"), RowKind.INSERT, readers)]
        if op == "u":
            return self._updated(event, readers)
        if op == "d":
            return [self._deleted(event.before, readers)]
        if op == "m" or (op == "t" and self._skips_truncates):
            return []
        raise ValueError(_refused(op, data))

    def _updated(self, event: _Event, readers: list[tuple[str, Read]]) -> list[Row]:
        before, after = event.before, _given(event.after, "after")
        if before is None and self._all:
            raise ValueError(
                f"the update has no old row (before is null). Let the database log old rows: {_FULL}; updates before that "
                "lack them for good. Or read with changelog_mode='upsert'"
            )
        if before is not None and any(before.get(name, after.get(name)) != after.get(name) for name in self._key):
            return [self._deleted(before, readers), self._row("after", after, RowKind.INSERT, readers, before)]
        made = self._row("after", after, RowKind.UPDATE_AFTER, readers, before)
        if not self._all:
            return [made]
        return [self._row("before", _given(before, "before"), RowKind.UPDATE_BEFORE, readers), made]

    def _deleted(self, before: dict[str, Any] | None, readers: list[tuple[str, Read]]) -> Row:
        if before is None:
            raise ValueError(f"the deletion has no old row (before is null). Let the database log old rows: {_FULL}")
        if not self._all:
            before = {name: before[name] if name in self._key and name in before else None for name in self._names}
            if any(before[name] is None for name in self._key):
                raise ValueError(f"the deletion lacks the primary key ({', '.join(self._key)}) in before")
        return self._row("before", before, RowKind.DELETE, readers)

    def _row(
        self,
        part: str,
        fields: dict[str, Any],
        kind: RowKind,
        readers: list[tuple[str, Read]],
        old: dict[str, Any] | None = None,
    ) -> Row:
        """A row of one part of an event; values that an update did not change are those of the old row."""
        if len(fields) > len(self._seen):
            self._notice(fields)
        made: list[Any] = []
        for name, read in readers:
            value = fields.get(name, _ABSENT)
            if value is _ABSENT:
                if self._fails:
                    raise ValueError(_missing(part, name, fields))
                value = None
            elif type(value) in (str, list) and value in UNAVAILABLE:
                value = _ABSENT if old is None else old.get(name, _ABSENT)
                if value is _ABSENT or value in UNAVAILABLE:
                    raise ValueError(
                        f"{part} lacks the value of the column {name!r} ({UNAVAILABLE[0]}): it is large, and the update did "
                        f"not change it. {_FULL}, or leave the column out; updates before that lack it for good"
                    )
            try:
                made.append(None if value is None else read(value))
            except _PARSE_ERRORS as error:
                declared = self._type.get_field_types()[len(made)]
                raise ValueError(
                    f"{part} has in the column {name!r} the value {shown(value)}, which {declared} does not take: {error}"
                ) from error
        return Row.of_values(made, self._names, kind)

    def _readers(self, known: Mapping[str, Encoding]) -> list[tuple[str, Read]]:
        made = []
        for name, declared in zip(self._names, self._type.get_field_types()):
            try:
                made.append((name, column_reader(declared, known.get(name, PLAIN), self._units.get(name))))
            except ValueError as error:
                raise ValueError(f"the column {name!r}: {error}") from None
        return made

    def _readers_of(self, schema: bytes) -> list[tuple[str, Read]]:
        readers = self._by_schema.get(schema)
        if readers is None:
            readers = self._readers(encodings(msgspec.json.decode(schema)))
            if len(self._by_schema) >= _SCHEMAS:
                self._by_schema.clear()
            self._by_schema[schema] = readers
        return readers

    def _notice(self, fields: dict[str, Any]) -> None:
        """Tell of columns that the table has got since the first event."""
        new = fields.keys() - self._seen - set(self._names)
        if self._seen and new:
            _log.warning(
                "Debezium's events have new columns, which are not declared and not read: %s", ", ".join(sorted(new))
            )
        self._seen |= fields.keys()

    def _known(self, columns: Any, argument: str) -> None:
        if unknown := sorted(set(columns) - set(self._names)):
            raise ConfigurationError(
                f"{argument}: the declared columns ({', '.join(self._names)}) lack {', '.join(unknown)}"
            )


class DebeziumJsonRowSerializationSchema(SerializationSchema[Row]):
    """Serializes Rows by their kind to events as Debezium's, without a schema: ``before``, ``after`` and ``op``.

    A KafkaSink writes an ``UPDATE_BEFORE`` and the ``UPDATE_AFTER`` right behind it as one update (``u``). Where an element
    is written alone, an ``UPDATE_BEFORE`` is a deletion (``d``) and an ``UPDATE_AFTER`` an insertion (``c``), as Flink
    writes them: both say the same of the table. Values are those of `JsonRowSerializationSchema`.

    Examples:
        >>> from holdfast.common import Types
        >>> orders = Types.ROW_NAMED(["id", "amount"], [Types.LONG(), Types.DOUBLE()])
        >>> DebeziumJsonRowSerializationSchema(orders).serialize(Row.of_kind(RowKind.DELETE, id=1, amount=2.5))
        b'{"before":{"id":1,"amount":2.5},"after":null,"op":"d"}'

    Args:
        type_info: The rows' type, ``Types.ROW_NAMED``.
        changelog_mode: ``all``: as above. ``upsert``: an ``UPDATE_AFTER`` is an update without an old row, and a KafkaSink
            writes nothing for an ``UPDATE_BEFORE``.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(self, type_info: RowTypeInfo, changelog_mode: ChangelogMode = "all") -> None:
        _check_rows(self, type_info)
        check_choice("changelog_mode", changelog_mode, "all", "upsert")
        self._type, self._mode = type_info, changelog_mode
        self._json = JsonRowSerializationSchema(type_info).serialize

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._type, self._mode)

    def serialize(self, value: Row) -> bytes:
        """Format the event of a row.

        Raises:
            TypeError: the element is not a Row of the declared type.
            ValueError: the same, or its kind has no event of its own.
        """
        kind, row = _kind(value), self._json(value)
        if kind is RowKind.DELETE:
            return _event(row, b"null", b"d")
        if kind is RowKind.INSERT:
            return _event(b"null", row, b"c")
        if self._mode == "all":
            return _event(row, b"null", b"d") if kind is RowKind.UPDATE_BEFORE else _event(b"null", row, b"c")
        if kind is RowKind.UPDATE_BEFORE:
            raise ValueError("UPDATE_BEFORE has no event with changelog_mode='upsert': filter these rows out")
        return _event(b"null", row, b"u")

    def serialize_changes(self, rows: Sequence[Row]) -> tuple[list[int], list[bytes]]:
        """Format the events of rows in their order: for each event its last row's place, and its text."""
        kinds = list(map(_kind, rows))
        places, events = [], []
        for i, kind in enumerate(kinds):
            if kind is RowKind.UPDATE_BEFORE:
                if self._mode == "upsert" or (i + 1 < len(kinds) and kinds[i + 1] is RowKind.UPDATE_AFTER):
                    continue
            elif kind is RowKind.UPDATE_AFTER and self._mode == "all" and i and kinds[i - 1] is RowKind.UPDATE_BEFORE:
                places.append(i)
                events.append(_event(self._json(rows[i - 1]), self._json(rows[i]), b"u"))
                continue
            places.append(i)
            events.append(self.serialize(rows[i]))
        return places, events


def _event(before: bytes, after: bytes, op: bytes) -> bytes:
    return b'{"before":%b,"after":%b,"op":"%b"}' % (before, after, op)


def _kind(row: Any) -> RowKind:
    if not isinstance(row, Row):
        raise TypeError(f"Debezium's events are made of Rows with a kind, not of {type(row).__name__}: {shown(row)}")
    return row.get_row_kind()


def _reader_of(cls: type[Any], type_info: RowTypeInfo, arguments: dict[str, Any]) -> Any:
    return cls(type_info, **arguments)


def _check_rows(schema: Any, type_info: Any) -> None:
    if not isinstance(type_info, RowTypeInfo):
        raise ConfigurationError(f"{type(schema).__name__}: give the columns as Types.ROW_NAMED(...), got {type_info!r:.80}")


def _columns(names: Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _given(row: dict[str, Any] | None, part: str) -> dict[str, Any]:
    if row is None:
        raise ValueError(f"{part} is null")
    return row


def _missing(part: str, name: str, fields: dict[str, Any]) -> str:
    told = (
        f"{part} has no column {name!r} (it has {', '.join(fields)}): it was added later, dropped or renamed. Declare the "
        "columns under all names that events have, with missing_columns='null'; a missing one is None"
    )
    return told if part == "after" else f"{told}. If only old rows lack it: {_FULL}, or changelog_mode='upsert'"


def _refused(op: str | None, data: bytes) -> str:
    """Why an event has no rows of the table, and what to do."""
    if op == "t":
        return "it is a TRUNCATE of the table, which has no rows: read with on_truncate='skip', or empty what depends on it"
    if op is not None:
        return f"its op is {op!r:.80}, which is none of c, r, u, d, t and m"
    found = msgspec.json.decode(data)
    found = found["payload"] if isinstance(found.get("payload"), dict) else found
    if "status" in found and "id" in found:
        return f"it is the {found['status']!s:.20} of a transaction: read the topics of tables, not that of transactions"
    if "ddl" in found or "tableChanges" in found:
        return "it is a schema change: read the topics of tables, not that of the connector's schema changes"
    if found.keys() == {"ts_ms"}:
        return "it is a heartbeat: read the topics of tables, not that of heartbeats"
    return (
        "it has no op. Rows that ExtractNewRecordState has taken out of their events are plain JSON: read them with "
        "JsonRowDeserializationSchema"
    )
