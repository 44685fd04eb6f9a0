"""Debezium's events of changes and the Rows that they stand for, whatever their format."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

from holdfast.common.changelog_mode import ChangelogMode, MissingColumns, check_choice
from holdfast.common.formats.debezium_values import NOT_HERE, PLAIN, Encoding, Read, TimeUnit, column_reader, is_unavailable
from holdfast.common.serialization import SerializationSchema
from holdfast.common.typeinfo import RowTypeInfo
from holdfast.common.typeinfo.base import shown
from holdfast.common.types import Row, RowKind
from holdfast.errors import ConfigurationError

__all__ = ["PARSE_ERRORS", "ABSENT", "ChangeSerializer", "EventRows", "Readers", "check_rows", "columns", "has_rows"]

_log = logging.getLogger(__name__)
PARSE_ERRORS = (ValueError, OverflowError, TypeError, RecursionError, ArithmeticError)
_ROWS = frozenset("crud")
"""The operations that change rows: insert, row of a snapshot, update, deletion."""
ABSENT: Any = msgspec.UNSET
"""A part that an event does not have, or a column."""
_LARGE = frozenset({str, bytes, list, dict})
_FULL = "ALTER TABLE ... REPLICA IDENTITY FULL (MySQL: binlog_row_image=FULL)"

Readers = list[tuple[str, Read]]
"""The declared columns, with the functions that make their values."""
Part = dict[str, Any] | None


class EventRows:
    """Makes the rows of events. The arguments are those of the schemas, `DebeziumJsonRowDeserializationSchema`.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        type_info: RowTypeInfo,
        changelog_mode: ChangelogMode,
        primary_key: Sequence[str],
        on_truncate: Literal["fail", "skip"],
        missing_columns: MissingColumns,
        time_unit: TimeUnit | Mapping[str, TimeUnit] | None,
    ) -> None:
        check_choice("changelog_mode", changelog_mode, "all", "upsert")
        check_choice("on_truncate", on_truncate, "fail", "skip")
        check_choice("missing_columns", missing_columns, "fail", "null")
        self._type, self._names = type_info, type_info.get_field_names()
        self._all, self._skips_truncates = changelog_mode == "all", on_truncate == "skip"
        self._fails = missing_columns == "fail"
        self._key = primary_key
        if changelog_mode == "upsert" and not self._key:
            raise ConfigurationError("changelog_mode='upsert' needs the primary_key, which tells the rows of deletions")
        units = time_unit if isinstance(time_unit, Mapping) else dict.fromkeys(self._names, time_unit)
        self.check_known(self._key, "primary_key")
        self.check_known(units, "time_unit")
        for unit in units.values():
            if unit is not None:
                check_choice("time_unit", unit, *get_args(TimeUnit))
        self._units = units
        self._seen: set[str] = set()

    def check_known(self, names: Any, argument: str) -> None:
        """Check that an argument names declared columns.

        Raises:
            ConfigurationError: it does not.
        """
        if unknown := sorted(set(names) - set(self._names)):
            raise ConfigurationError(
                f"{argument}: the declared columns ({', '.join(self._names)}) lack {', '.join(unknown)}"
            )

    def readers(self, known: Mapping[str, Encoding]) -> Readers:
        """The readers of the columns, of which these encodings are known.

        Raises:
            ValueError: a type does not take values of its column's encoding.
        """
        made = []
        for name, declared in zip(self._names, self._type.get_field_types()):
            try:
                made.append((name, column_reader(declared, known.get(name, PLAIN), self._units.get(name))))
            except ValueError as error:
                raise ValueError(f"the column {name!r}: {error}") from None
        return made

    def without_rows(self, op: Any, event: Callable[[], Any]) -> list[Row]:
        """No rows, for an event that has none and may be left out.

        Raises:
            ValueError: it may not; says what it is, and what to do.
        """
        if op == "m" or (op == "t" and self._skips_truncates):
            return []
        raise ValueError(_refused(op, event))

    def rows(self, op: str, before: Any, after: Any, readers: Readers) -> list[Row]:
        """The rows of an event that `has_rows`.

        Raises:
            ValueError: the event is not of this table; names the column, and what to do.
        """
        before, after = (None if part is ABSENT else part for part in (before, after))
        if op == "c" or op == "r":
            return [self._row("after", _given(after, "after"), RowKind.INSERT, readers)]
        if op == "u":
            return self._updated(before, _given(after, "after"), readers)
        return [self._deleted(before, readers)]

    def _updated(self, before: Part, after: dict[str, Any], readers: Readers) -> list[Row]:
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

    def _deleted(self, before: Part, readers: Readers) -> Row:
        if before is None:
            raise ValueError(f"the deletion has no old row (before is null). Let the database log old rows: {_FULL}")
        if not self._all:
            before = {name: before[name] if name in self._key and name in before else None for name in self._names}
            if any(before[name] is None for name in self._key):
                raise ValueError(f"the deletion lacks the primary key ({', '.join(self._key)}) in before")
        return self._row("before", before, RowKind.DELETE, readers)

    def _row(self, part: str, fields: dict[str, Any], kind: RowKind, readers: Readers, old: Part = None) -> Row:
        """A row of one part of an event; values that an update did not change are those of the old row."""
        if len(fields) > len(self._seen):
            self._notice(fields)
        made: list[Any] = []
        for name, read in readers:
            value = fields.get(name, ABSENT)
            if value is ABSENT:
                if self._fails:
                    raise ValueError(_missing(part, name, fields))
                value = None
            elif type(value) in _LARGE and is_unavailable(value):
                value = ABSENT if old is None else old.get(name, ABSENT)
                # null: the old row has its key alone, as a value that is null is never large
                if value is ABSENT or value is None or is_unavailable(value):
                    raise ValueError(
                        f"{part} lacks the value of the column {name!r} ({NOT_HERE}): it is large, and the update did "
                        f"not change it. {_FULL}, or leave the column out; updates before that lack it for good"
                    )
            try:
                made.append(None if value is None else read(value))
            except PARSE_ERRORS as error:
                declared = self._type.get_field_types()[len(made)]
                raise ValueError(
                    f"{part} has in the column {name!r} the value {shown(value)}, which {declared} does not take: {error}"
                ) from error
        return Row.of_values(made, self._names, kind)

    def _notice(self, fields: dict[str, Any]) -> None:
        """Tell of columns that the table has got since the first event."""
        new = fields.keys() - self._seen - set(self._names)
        if self._seen and new:
            _log.warning(
                "Debezium's events have new columns, which are not declared and not read: %s", ", ".join(sorted(new))
            )
        self._seen |= fields.keys()


def has_rows(op: Any, before: Any, after: Any) -> bool:
    """Whether an event with these parts changes a row of a table."""
    return op in _ROWS and str is not type(after) and str is not type(before) and not before is after is ABSENT


class ChangeSerializer(SerializationSchema[Row]):
    """Serializes Rows by their kind to events. Subclasses define `_event`.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(self, type_info: RowTypeInfo, changelog_mode: ChangelogMode) -> None:
        check_rows(self, type_info)
        check_choice("changelog_mode", changelog_mode, "all", "upsert")
        self._type, self._mode = type_info, changelog_mode

    @abstractmethod
    def _event(self, before: Row | None, after: Row | None, op: str) -> bytes:
        """The bytes of an event."""

    def serialize(self, value: Row) -> bytes:
        """Format the event of a row.

        Raises:
            TypeError: the element is not a Row of the declared type.
            ValueError: the same, or its kind has no event of its own.
        """
        kind = _kind(value)
        if kind is RowKind.DELETE:
            return self._event(value, None, "d")
        if kind is RowKind.INSERT:
            return self._event(None, value, "c")
        if self._mode == "all":
            return self._event(value, None, "d") if kind is RowKind.UPDATE_BEFORE else self._event(None, value, "c")
        if kind is RowKind.UPDATE_BEFORE:
            raise ValueError("UPDATE_BEFORE has no event with changelog_mode='upsert': filter these rows out")
        return self._event(None, value, "u")

    def serialize_changes(self, rows: Sequence[Row]) -> tuple[list[int], list[bytes]]:
        """Format the events of rows in their order: for each event its last row's place, and its bytes."""
        kinds = list(map(_kind, rows))
        places, events = [], []
        for i, kind in enumerate(kinds):
            if kind is RowKind.UPDATE_BEFORE:
                if self._mode == "upsert" or (i + 1 < len(kinds) and kinds[i + 1] is RowKind.UPDATE_AFTER):
                    continue
            elif kind is RowKind.UPDATE_AFTER and self._mode == "all" and i and kinds[i - 1] is RowKind.UPDATE_BEFORE:
                places.append(i)
                events.append(self._event(rows[i - 1], rows[i], "u"))
                continue
            places.append(i)
            events.append(self.serialize(rows[i]))
        return places, events


def _kind(row: Any) -> RowKind:
    if not isinstance(row, Row):
        raise TypeError(f"Debezium's events are made of Rows with a kind, not of {type(row).__name__}: {shown(row)}")
    return row.get_row_kind()


def check_rows(schema: Any, type_info: Any) -> None:
    """Check that columns are declared.

    Raises:
        ConfigurationError: they are not.
    """
    if not isinstance(type_info, RowTypeInfo):
        raise ConfigurationError(f"{type(schema).__name__}: give the columns as Types.ROW_NAMED(...), got {type_info!r:.80}")


def columns(names: Sequence[str]) -> tuple[str, ...]:
    """The names of columns, of which one may stand alone."""
    return (names,) if isinstance(names, str) else tuple(names)


def _given(row: Part, part: str) -> dict[str, Any]:
    if row is None:
        raise ValueError(f"{part} is null")
    return row


def _missing(part: str, name: str, fields: dict[str, Any]) -> str:
    told = (
        f"{part} has no column {name!r} (it has {', '.join(fields)}): it was added later, dropped or renamed. Declare the "
        "columns under all names that events have, with missing_columns='null'; a missing one is None"
    )
    return told if part == "after" else f"{told}. If only old rows lack it: {_FULL}, or changelog_mode='upsert'"


_FLATTENED = (
    "Rows that ExtractNewRecordState has taken out of their events are plain records: read them with "
    "JsonRowDeserializationSchema (Avro: ConfluentRegistryAvroDeserializationSchema)"
)


def _refused(op: Any, event: Callable[[], Any]) -> str:
    """Why an event has no rows of the table, and what to do."""
    if op == "t":
        return "it is a TRUNCATE of the table, which has no rows: read with on_truncate='skip', or empty what depends on it"
    found = event()
    if op in _ROWS:
        if any(isinstance(found.get(part), str) for part in ("before", "after")):
            return (
                "its rows are text: documents of MongoDB have no columns. Read such events with a "
                "JsonRowDeserializationSchema of op, before and after as STRING, and parse the documents"
            )
        return f"it has neither before nor after. {_FLATTENED}"
    if op is not None:
        return f"its op is {op!r:.80}, which is none of c, r, u, d, t and m"
    if "status" in found and "id" in found:
        return f"it is the {found['status']!s:.20} of a transaction: read the topics of tables, not that of transactions"
    if "ddl" in found or "tableChanges" in found:
        return "it is a schema change: read the topics of tables, not that of the connector's schema changes"
    if found.keys() == {"ts_ms"}:
        return "it is a heartbeat: read the topics of tables, not that of heartbeats"
    return f"it has no op. {_FLATTENED}"
