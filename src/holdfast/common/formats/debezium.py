"""Debezium's events as JSON: changes of tables to Rows with their kinds, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Literal

import msgspec

from holdfast.common.changelog_mode import ChangelogMode, MissingColumns
from holdfast.common.formats.debezium_events import (
    PARSE_ERRORS,
    ChangeSerializer,
    EventRows,
    Readers,
    check_rows,
    columns,
    has_rows,
)
from holdfast.common.formats.debezium_values import Encoding, TimeUnit, encodings
from holdfast.common.formats.json import JsonRowSerializationSchema
from holdfast.common.serialization import FlatDeserializationSchema
from holdfast.common.typeinfo import RowTypeInfo, TypeInformation
from holdfast.common.typeinfo.base import shown
from holdfast.common.types import Row
from holdfast.errors import ConfigurationError

__all__ = ["DebeziumJsonRowDeserializationSchema", "DebeziumJsonRowSerializationSchema"]

_SCHEMAS = 100
"""Schemas of events that are kept. A topic has few; each change of a table makes a new one."""
_Part = dict[str, Any] | str | msgspec.UnsetType | None


class _Event(msgspec.Struct, gc=False):
    op: str | None = None
    before: _Part = msgspec.UNSET
    after: _Part = msgspec.UNSET


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
        check_rows(self, type_info)
        self._type = type_info
        key, scales = columns(primary_key), decimal_scales or {}
        self._arguments: dict[str, Any] = {
            **{"changelog_mode": changelog_mode, "primary_key": key, "on_truncate": on_truncate},
            **{"missing_columns": missing_columns, "time_unit": time_unit, "decimal_scales": decimal_scales},
            "ignore_parse_errors": ignore_parse_errors,
        }
        self._events = EventRows(type_info, changelog_mode, key, on_truncate, missing_columns, time_unit)
        self._ignores = ignore_parse_errors
        self._events.check_known(scales, "decimal_scales")
        for name, scale in scales.items():
            if type(scale) is not int:
                raise ConfigurationError(f"decimal_scales: the scale of {name} is a whole number, not {scale!r:.80}")
        self._plain = self._events.readers({name: Encoding(scale=scale) for name, scale in scales.items()})
        self._by_schema: dict[bytes, Readers] = {}
        self._decode = msgspec.json.Decoder(_Message | None, float_hook=Decimal).decode

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self._type, **self._arguments), ()

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
        except PARSE_ERRORS as error:
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
        schema: bytes | None = None
        if message.payload is not msgspec.UNSET:
            if message.payload is None:
                return []
            event = message.payload
            if message.schema is not msgspec.UNSET and bytes(message.schema) != b"null":
                schema = bytes(message.schema)
        op, before, after = event.op, event.before, event.after
        if op is None or not has_rows(op, before, after):
            return self._events.without_rows(op, lambda: _payload(data))
        return self._events.rows(op, before, after, self._plain if schema is None else self._readers_of(schema))

    def _readers_of(self, schema: bytes) -> Readers:
        readers = self._by_schema.get(schema)
        if readers is None:
            readers = self._events.readers(encodings(msgspec.json.decode(schema)))
            if len(self._by_schema) >= _SCHEMAS:
                self._by_schema.clear()
            self._by_schema[schema] = readers
        return readers


class DebeziumJsonRowSerializationSchema(ChangeSerializer):
    """Serializes Rows by their kind to events as Debezium's, without a schema: ``before``, ``after`` and ``op``.

    A KafkaSink writes an ``UPDATE_BEFORE`` and the ``UPDATE_AFTER`` right behind it as one update (``u``). Where an element
    is written alone, an ``UPDATE_BEFORE`` is a deletion (``d``) and an ``UPDATE_AFTER`` an insertion (``c``), as Flink
    writes them: both say the same of the table. Values are those of `JsonRowSerializationSchema`.

    Examples:
        >>> from holdfast.common import RowKind, Types
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
        super().__init__(type_info, changelog_mode)
        self._json = JsonRowSerializationSchema(type_info).serialize

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._type, self._mode)

    def _event(self, before: Row | None, after: Row | None, op: str) -> bytes:
        parts = (b"null" if row is None else self._json(row) for row in (before, after))
        return b'{"before":%b,"after":%b,"op":"%b"}' % (*parts, op.encode())


def _payload(data: bytes) -> dict[str, Any]:
    """The event, out of its envelope."""
    found: dict[str, Any] = msgspec.json.decode(data)
    return found["payload"] if isinstance(found.get("payload"), dict) else found
