"""Debezium's events as Avro records whose schemas are in a Confluent schema registry: to Rows with their kinds, and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from holdfast.common.changelog_mode import ChangelogMode, MissingColumns
from holdfast.common.formats.avro import AvroSchema
from holdfast.common.formats.avro_values import without_logical
from holdfast.common.formats.debezium_avro_schema import RecordWriter, encodings_of, envelope, key_record
from holdfast.common.formats.debezium_events import (
    ABSENT,
    ChangeSerializer,
    EventRows,
    Readers,
    check_rows,
    columns,
    has_rows,
)
from holdfast.common.formats.debezium_values import TimeUnit
from holdfast.common.serialization import FlatDeserializationSchema, SerializationSchema
from holdfast.common.typeinfo import RowTypeInfo, TypeInformation
from holdfast.common.typeinfo.base import shown
from holdfast.common.types import Row
from holdfast.connectors.confluent_avro import HEADER
from holdfast.connectors.schema_registry import SchemaRegistry
from holdfast.errors import ConfigurationError

__all__ = ["DebeziumAvroDeserializationSchema", "DebeziumAvroSerializationSchema"]


class _Writer:
    """A schema that wrote events: decodes them, with times and decimals as they are stored."""

    def __init__(self, text: str, events: EventRows) -> None:
        self._parsed = AvroSchema(text).parsed
        self._events = events
        self._readers: Readers | None = None
        self.decode = AvroSchema(json.dumps(without_logical(json.loads(text)))).decode

    @property
    def readers(self) -> Readers:
        """The readers of the columns, made when the first event with rows comes."""
        if self._readers is None:
            self._readers = self._events.readers(encodings_of(self._parsed))
        return self._readers


class DebeziumAvroDeserializationSchema(FlatDeserializationSchema[Row]):
    """Deserializes Debezium's change events in Avro to Rows with a `RowKind`: Flink's format ``debezium-avro-confluent``.

    Each event is read by the schema that wrote it, which is fetched once. Rows and kinds are those of
    `DebeziumJsonRowDeserializationSchema`; unknown columns are ignored.

    Args:
        type_info: The columns to read, with their types: ``Types.ROW_NAMED``.
        url: The registry's address, e.g. ``http://registry:8081``.
        changelog_mode: ``all``: an update is two rows, ``UPDATE_BEFORE`` and ``UPDATE_AFTER``, and a ``DELETE`` has the
            whole old row; the database must log old rows (``REPLICA IDENTITY FULL``). ``upsert``: an update is
            ``UPDATE_AFTER`` alone, and a ``DELETE`` has the primary key alone, other fields None.
        primary_key: The columns of the primary key, which ``upsert`` needs. With it, an update of the key is a ``DELETE``
            and an ``INSERT`` in both modes, as most connectors write it themselves.
        on_truncate: ``fail``: a TRUNCATE of the table is an error. ``skip``: it gives no row.
        missing_columns: ``fail``: a declared column that an event does not have is an error. ``null``: it is None.
        time_unit: The unit of times that are whole numbers, if the schemas do not tell it (the converter's
            ``connect.meta.data=false``); for all columns, or by column.
        registry_configs: Options of `holdfast.connectors.schema_registry.SchemaRegistry`, e.g. a password.
        ignore_parse_errors: Drop events that cannot be parsed, or are not of this table.

    Raises:
        ConfigurationError: an argument is invalid, or fastavro or httpx is not installed.
    """

    def __init__(
        self,
        type_info: RowTypeInfo,
        url: str,
        changelog_mode: ChangelogMode = "all",
        *,
        primary_key: Sequence[str] = (),
        on_truncate: Literal["fail", "skip"] = "fail",
        missing_columns: MissingColumns = "fail",
        time_unit: TimeUnit | Mapping[str, TimeUnit] | None = None,
        registry_configs: Mapping[str, str] | None = None,
        ignore_parse_errors: bool = False,
    ) -> None:
        check_rows(self, type_info)
        key = columns(primary_key)
        self._type = type_info
        self._arguments: dict[str, Any] = {
            **{"url": url, "changelog_mode": changelog_mode, "primary_key": key, "on_truncate": on_truncate},
            **{"missing_columns": missing_columns, "time_unit": time_unit, "registry_configs": registry_configs},
            "ignore_parse_errors": ignore_parse_errors,
        }
        self._events = EventRows(type_info, changelog_mode, key, on_truncate, missing_columns, time_unit)
        self._events.readers({})  # refuses types that no event has
        self._registry = SchemaRegistry(url, registry_configs)
        self._ignores = ignore_parse_errors
        self._writers: dict[int, _Writer] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self._type, **self._arguments), ()

    def get_produced_type(self) -> TypeInformation:
        """The rows' type."""
        return self._type

    def deserialize_flat(self, data: bytes) -> list[Row]:
        """Decode an event to its rows; to none for an ignored parse error.

        Raises:
            ValueError: the bytes are not an event of this table; names the column, and what to do.
            ServiceUnavailable: the registry does not answer.
        """
        told = "not an event of Debezium with the declared columns"
        try:
            writer = self._writer_of(data)
        except LookupError as error:  # of another registry than the one given: not to be ignored
            raise ValueError(f"{told}: {error}; in {shown(bytes(data))}") from error
        try:
            if writer is None:
                raise ValueError("it does not begin with the id of a schema in a registry (byte 0 and 4 bytes)")
            return self._rows(data, writer)
        except Exception as error:  # fastavro raises whatever it meets
            if self._ignores:
                return []
            why = str(error) or type(error).__name__
            raise ValueError(f"{told}: {why}; in {shown(bytes(data))}") from error

    def _writer_of(self, data: bytes) -> _Writer | None:
        if len(data) < HEADER.size or data[0] != 0:
            return None
        schema_id = HEADER.unpack_from(data)[1]
        writer = self._writers.get(schema_id)
        if writer is None:
            writer = self._writers[schema_id] = _Writer(self._registry.schema(schema_id), self._events)
        return writer

    def _rows(self, data: bytes, writer: _Writer) -> list[Row]:
        event = writer.decode(data[HEADER.size :])
        if not isinstance(event, dict):
            raise ValueError("it is no record: a key of Debezium's, or of another writer")
        op, before, after = event.get("op"), event.get("before", ABSENT), event.get("after", ABSENT)
        if not has_rows(op, before, after):
            return self._events.without_rows(op, lambda: event)
        return self._events.rows(str(op), before, after, writer.readers)


class DebeziumAvroSerializationSchema(ChangeSerializer):
    """Serializes Rows by their kind to events as Debezium's in Avro: ``before``, ``after`` and ``op``.

    The schema has the names that Debezium gives it, and is registered when the first event is written, under the subject
    ``<topic>-value``. Columns are nullable, except the primary key, so that columns may be added and removed. Which kinds
    are written as which events is told by `DebeziumJsonRowSerializationSchema`.

    Args:
        type_info: The rows' type, ``Types.ROW_NAMED``.
        topic: The topic, by which the records of the schema and the subject are named.
        url: The registry's address.
        changelog_mode: ``all``: an update has its old row. ``upsert``: an ``UPDATE_AFTER`` is an update without an old row,
            and a KafkaSink writes nothing for an ``UPDATE_BEFORE``.
        primary_key: The columns of the primary key, for `keys`.
        decimal_scales: The digits behind the point of columns of type ``BIG_DEC``, which are then Avro's ``decimal``.
            Others have each value's own scale (Debezium's ``VariableScaleDecimal``).
        registry_configs: Options of `holdfast.connectors.schema_registry.SchemaRegistry`, e.g. a password.

    Raises:
        ConfigurationError: an argument is invalid, or fastavro or httpx is not installed.
    """

    def __init__(
        self,
        type_info: RowTypeInfo,
        topic: str,
        url: str,
        changelog_mode: ChangelogMode = "all",
        *,
        primary_key: Sequence[str] = (),
        decimal_scales: Mapping[str, int] | None = None,
        registry_configs: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(type_info, changelog_mode)
        if not isinstance(topic, str) or not topic:
            raise ConfigurationError(f"{type(self).__name__}: the topic is a name, not {topic!r:.80}")
        self._topic, self._url, self._configs = topic, url, registry_configs
        self._key, self._scales = columns(primary_key), dict(decimal_scales or {})
        for argument, given in (("primary_key", self._key), ("decimal_scales", self._scales)):
            if unknown := sorted(set(given) - set(type_info.get_field_names())):
                raise ConfigurationError(f"{argument}: the declared columns lack {', '.join(unknown)}")
        self._writer = RecordWriter(type_info, envelope(type_info, topic, self._key, self._scales), self._scales)
        self._encode = _Registered(f"{topic}-value", self._writer.text, SchemaRegistry(url, registry_configs))

    def __reduce__(self) -> tuple[Any, ...]:
        arguments: dict[str, Any] = {
            "primary_key": self._key,
            "decimal_scales": self._scales,
            "registry_configs": self._configs,
        }
        return partial(type(self), self._type, self._topic, self._url, self._mode, **arguments), ()

    def _event(self, before: Row | None, after: Row | None, op: str) -> bytes:
        fields = [None if row is None else self._writer.fields(row) for row in (before, after)]
        return self._encode({"before": fields[0], "after": fields[1], "op": op})

    def keys(self) -> SerializationSchema[Row]:
        """The schema of the records' keys: the primary key, under the subject ``<topic>-key``.

        Raises:
            ConfigurationError: no primary key is given.
        """
        if not self._key:
            raise ConfigurationError(f"{type(self).__name__}: keys() need the primary_key")
        return _Keys(self._type, self._topic, self._url, self._key, self._scales, self._configs)


class _Keys(SerializationSchema[Row]):
    """Serializes the primary key of Rows."""

    def __init__(
        self,
        type_info: RowTypeInfo,
        topic: str,
        url: str,
        key: tuple[str, ...],
        scales: Mapping[str, int],
        configs: Mapping[str, str] | None,
    ) -> None:
        self._arguments = (type_info, topic, url, key, scales, configs)
        self._key = key
        self._writer = RecordWriter(type_info, key_record(type_info, topic, key, scales), scales, key)
        self._encode = _Registered(f"{topic}-key", self._writer.text, SchemaRegistry(url, configs))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._arguments

    def serialize(self, value: Row) -> bytes:
        """Encode the key of a row.

        Raises:
            ValueError: a field of the key is None, or does not fit.
        """
        return self._encode(self._writer.fields(value))


class _Registered:
    """Encodes records with the id of their schema, which is registered when the first one is written."""

    def __init__(self, subject: str, text: str, registry: SchemaRegistry) -> None:
        self._subject, self._text, self._registry = subject, text, registry
        self._encode: Callable[[Any], bytes] = AvroSchema(json.dumps(without_logical(json.loads(text)))).encode
        self._header = b""

    def __call__(self, record: Any) -> bytes:
        if not self._header:
            self._header = HEADER.pack(0, self._registry.register(self._subject, self._text))
        return self._header + self._encode(record)
