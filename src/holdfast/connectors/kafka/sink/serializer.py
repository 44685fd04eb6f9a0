"""Serializers: a stream's elements become Kafka records, with topic, key, value and headers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, NoReturn, Protocol

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.kafka.arguments import is_topic
from holdfast.connectors.kafka.sink.outbox import OutgoingBatch
from holdfast.connectors.kafka.sink.producer_record import KafkaSinkContext, ProducerRecord
from holdfast.errors import ConfigurationError, ServiceUnavailable, UserCodeError

__all__ = ["ElementSerializer", "RecordSerializer", "Serializer", "serialized"]


class Serializer(Protocol):
    """Makes Kafka records of a sink's elements."""

    @property
    def topic(self) -> str | Callable[[Any], str] | None:
        """The topic of all records; a function or None if it differs."""

    def to_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None, context: KafkaSinkContext) -> OutgoingBatch:
        """Convert elements to Kafka's form."""


def _plain(value: Any) -> bytes | None:
    """Serialize str and bytes; None is a tombstone."""
    if isinstance(value, str):
        return value.encode()
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, (bytearray, memoryview)):
        return bytes(value)
    raise TypeError(
        f"no serialization schema is set, so a record must be str or bytes, not {type(value).__name__}: {value!r}. Set one "
        "by set_value_serialization_schema(...), in KStream.to() by value_serializer=, or map the records before the sink"
    )


def _column(schema: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """Return a function from records to bytes, given a schema, a callable or None."""
    if schema is None:
        return lambda values: [_plain(v) for v in values]
    batch = getattr(schema, "serialize_batch", None)
    if batch is not None:
        return batch  # type: ignore[no-any-return]
    one = getattr(schema, "serialize", schema)
    return lambda values: [one(v) for v in values]


def _bytes_only(column: list[Any], source: str) -> list[bytes | None]:
    if set(map(type, column)) <= {bytes, NoneType}:
        return column
    for i, item in enumerate(column):
        if isinstance(item, str):
            column[i] = item.encode()
        elif item is not None and not isinstance(item, bytes):
            column[i] = bytes(item) if isinstance(item, (bytearray, memoryview)) else _refuse(item, source)
    return column


def _refuse(item: Any, source: str) -> NoReturn:
    raise TypeError(f"{source} {type(item).__name__}, not bytes: {item!r}")


def serialized(schema: Any, items: Sequence[Any], what: str) -> list[bytes | None]:
    """Serialize keys or values by a schema, a callable or, for str and bytes, None.

    Args:
        schema: The schema.
        items: What to serialize.
        what: ``key`` or ``value``, for error messages.
    """
    return _bytes_only(list(_column(schema)(items)), f"the {what} serialization schema returned")


def converted(
    convert: Callable[[Sequence[Any], Sequence[int] | None], OutgoingBatch],
    values: Sequence[Any],
    timestamps: Sequence[int] | None,
    uid: str,
) -> OutgoingBatch:
    """Convert elements.

    Raises:
        UserCodeError: an element does not fit; the message names it.
    """
    try:
        return convert(values, timestamps)
    except (ServiceUnavailable, ConfigurationError):
        raise  # no record is to blame
    except Exception as error:
        failure = error
    for i, value in enumerate(values):
        try:
            convert([value], None if timestamps is None else [timestamps[i]])
        except Exception:
            shown = repr(value)
            shown = shown if len(shown) <= 200 else shown[:200] + "..."
            raise UserCodeError(
                f"{traceback.format_exc()}\nA record cannot be written to Kafka: {shown} (Kafka sink, uid {uid})",
                operator="Kafka sink",
                uid=uid,
                record=shown,
            ) from None
    raise failure


@dataclass(frozen=True)
class RecordSerializer:
    """The record format of a sink, by schemas for key and value."""

    topic: str | Callable[[Any], str]
    value_schema: Any = None
    """A `SerializationSchema` or a callable; str and bytes need none."""
    key_schema: Any = None
    """A schema for the key, likewise; None: records have no key and are spread over the partitions."""
    headers: Callable[[Any], Mapping[str, Any] | Sequence[tuple[str, Any]]] | None = None

    def to_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None, context: KafkaSinkContext) -> OutgoingBatch:
        """Convert records to Kafka's form.

        Raises:
            UserCodeError: a record does not fit its schema; the message names it.
        """
        return converted(self.columns, values, timestamps, context.uid)

    def columns(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> OutgoingBatch:
        """Convert records; errors are those of the schemas."""
        changes = getattr(self.value_schema, "serialize_changes", None)
        if changes is None:
            data = serialized(self.value_schema, values, "value")
        else:  # a changelog format: some elements have no record of their own
            kept, data = changes(values)
            if len(kept) < len(values):
                values = [values[i] for i in kept]
                timestamps = None if timestamps is None else [timestamps[i] for i in kept]
        keys = None if self.key_schema is None else serialized(self.key_schema, values, "key")
        return self.outgoing(values, data, keys, timestamps)

    def outgoing(
        self,
        elements: Sequence[Any],
        data: list[bytes | None],
        keys: list[bytes | None] | None,
        timestamps: Sequence[int] | None,
    ) -> OutgoingBatch:
        """The batch of serialized elements."""
        select = self.topic
        topics: str | list[str] = select if isinstance(select, str) else [self._topic(select, v) for v in elements]
        headers = None if self.headers is None else [_headers(self.headers(v)) for v in elements]
        times = None if timestamps is None else list(timestamps)
        return OutgoingBatch(topics, data, keys, times, headers)

    @staticmethod
    def _topic(select: Callable[[Any], str], value: Any) -> str:
        topic = select(value)
        if not is_topic(topic):
            raise TypeError(f"the topic selector gave {topic!r} instead of a topic's name")
        return topic


def _headers(given: Mapping[str, Any] | Sequence[tuple[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    if not given:
        return []
    items = given.items() if isinstance(given, Mapping) else given
    return [(_header_name(name), _plain(value)) for name, value in items]


def _header_name(name: Any) -> str:
    """The name of a header. The client library dies of one without a UTF-8 form, and cuts one at a NUL."""
    text = str(name)
    if isinstance(name, bytes) or "\0" in text:
        raise TypeError(f"the name of a header is {name!r}: it must be text, without the character NUL")
    text.encode()
    return text


@dataclass(frozen=True)
class ElementSerializer:
    """The record format of a sink, by a schema that makes the whole record of an element."""

    schema: Any
    """Has a method ``serialize(element, context, timestamp) -> ProducerRecord | None``."""
    topic: None = None

    def to_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None, context: KafkaSinkContext) -> OutgoingBatch:
        """Convert elements to Kafka's form; those without a record are left out.

        Raises:
            UserCodeError: an element does not fit the schema; the message names it.
        """
        return converted(lambda elements, times: self._batch(elements, times, context), values, timestamps, context.uid)

    def _batch(self, values: Sequence[Any], timestamps: Sequence[int] | None, context: KafkaSinkContext) -> OutgoingBatch:
        serialize = self.schema.serialize
        made = [
            _checked(serialize(value, context, None if at == MIN_TIMESTAMP else at), value)
            for value, at in zip(values, timestamps or [MIN_TIMESTAMP] * len(values), strict=True)
        ]
        records = [record for record in made if record is not None]
        partitions = [-1 if record.partition is None else record.partition for record in records]
        return OutgoingBatch(
            [record.topic for record in records],
            _bytes_only([record.value for record in records], "the value of a ProducerRecord is a"),
            _bytes_only([record.key for record in records], "the key of a ProducerRecord is a"),
            [MIN_TIMESTAMP if record.timestamp is None else record.timestamp for record in records],
            [_headers(record.headers) for record in records] if any(record.headers for record in records) else None,
            None if set(partitions) <= {-1} else partitions,
        )


def _checked(record: Any, element: Any) -> ProducerRecord | None:
    if record is None:
        return None
    if not isinstance(record, ProducerRecord):
        raise TypeError(
            f"serialize() returned {type(record).__name__} for {element!r:.200}: it must return a ProducerRecord, or None "
            "to write nothing"
        )
    topic, partition = record.topic, record.partition
    if not is_topic(topic):
        raise TypeError(f"serialize() returned a ProducerRecord with the topic {topic!r} instead of a topic's name")
    if partition is not None and (not isinstance(partition, int) or not 0 <= partition < 2**31):
        raise TypeError(
            f"serialize() returned a ProducerRecord with the partition {partition!r}: it must be a number or None"
        )
    at = record.timestamp
    if at is not None and (not isinstance(at, int) or not -(2**63) <= at < 2**63):
        raise TypeError(f"serialize() returned a ProducerRecord with the timestamp {at!r}: it must be whole ms or None")
    return record
