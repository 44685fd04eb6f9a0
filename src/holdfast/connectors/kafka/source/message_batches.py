"""MessageBatches: makes batches of elements from Kafka's messages, by the source's schema."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Message

from holdfast.common.formats.columns import columns_of
from holdfast.common.formats.scans import has_none
from holdfast.common.serialization import FlatDeserializationSchema
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.base import Batch
from holdfast.connectors.kafka.source.consumer_record import ConsumerRecord, KafkaRecordDeserializationSchema
from holdfast.errors import ConfigurationError, ServiceUnavailable, UserCodeError

__all__ = ["MessageBatches"]

_NO_TIMESTAMP = -1
"""The timestamp of a record that has none."""
_SHOWN = 200
"""Bytes of a key and a value that an error shows."""


class MessageBatches:
    """Makes a batch of a run of messages of one partition.

    A schema of values does not get messages without one: a tombstone emits nothing. A schema of records gets all of them.

    Args:
        schema: The source's schema: of values, of records, a callable from bytes to the element, or None for strings.
        uid: The source's uid, for error messages.
    """

    def __init__(self, schema: Any, uid: str) -> None:
        self._uid = uid
        self._of_records = isinstance(schema, KafkaRecordDeserializationSchema)
        self._flat = isinstance(schema, FlatDeserializationSchema)
        self._deserialize = _batch_deserializer(schema)
        self._skips = schema is not None

    def batch(self, topic: str, number: int, messages: list[Message]) -> Batch | None:
        """Make the batch of messages of a partition; None if they emit nothing.

        Raises:
            UserCodeError: a message does not fit the schema; the error names it.
        """
        data: list[Any]
        if self._of_records:
            data = [self._record(topic, number, message) for message in messages]
        else:
            data = list(map(Message.value, messages))
            if has_none(data):  # tombstones
                messages = [m for m, value in zip(messages, data, strict=True) if value is not None]
                data = [value for value in data if value is not None]
        try:
            values = self._deserialize(data)
            if self._flat:
                messages = [message for message, found in zip(messages, values, strict=True) for _ in found]
                values = [value for found in values for value in found]
            elif self._skips and columns_of(values) is None and has_none(list(values)):
                messages = [m for m, value in zip(messages, values, strict=True) if value is not None]
                values = [value for value in values if value is not None]
        except (ServiceUnavailable, ConfigurationError):
            raise  # no record is to blame
        except Exception as error:
            failure = error
        else:
            return _batch(topic, number, values, messages, not self._flat)
        raise self._unparsable(topic, number, data, messages, failure)

    def _unparsable(
        self, topic: str, number: int, data: Sequence[Any], messages: list[Message], failure: Exception
    ) -> UserCodeError:
        """The error for the first record that does not parse."""
        for item, message in zip(data, messages, strict=True):
            try:
                self._deserialize([item])
            except Exception as error:
                place = f"topic {topic}, partition {number}, offset {message.offset()}"
                key = f", key {_shown(message.key())}" if self._of_records else ""
                told = f"A record does not parse: {place}{key}, value {_shown(message.value())}"
                if message.value() is None and isinstance(error, (TypeError, AttributeError)):
                    told += (
                        ". It is a tombstone, a record without a value: let the schema take record.value None, or read only "
                        "values with set_value_only_deserializer(...), which leaves tombstones out"
                    )
                return self._error(told, place, error)
        place = f"topic {topic}, partition {number}, offsets {messages[0].offset()} to {messages[-1].offset()}"
        return self._error(
            f"The records {place} parse individually, but not as a batch: deserialize_batch must give one result per record",
            place,
            failure,
        )

    def _record(self, topic: str, number: int, message: Message) -> ConsumerRecord:
        try:
            headers = tuple(message.headers() or ())
            # Here, too: the client may leave its error behind for the next call.
            return ConsumerRecord(
                topic, number, message.offset(), message.timestamp()[1], message.key(), message.value(), headers
            )
        except (SystemError, UnicodeDecodeError) as error:  # of confluent-kafka, which decodes the names
            place = f"topic {topic}, partition {number}, offset {message.offset()}"
            told = (
                f"A record cannot be read: {place}, key {_shown(message.key())}: a header's name is not UTF-8. Read only "
                "values with set_value_only_deserializer(...), or write the record with another header"
            )
            raise self._error(told, place, error) from None

    def _error(self, told: str, place: str, cause: Exception) -> UserCodeError:
        text = f"{''.join(traceback.format_exception(cause))}\n{told} (Kafka source, uid {self._uid})"
        return UserCodeError(text, operator="Kafka source", uid=self._uid, record=place)


def _batch(topic: str, number: int, values: list[Any], messages: list[Message], distinct: bool) -> Batch | None:
    """The batch of elements; `distinct`: whether each is of a message of its own."""
    if not values:
        return None
    offsets = _offsets(messages, distinct)
    timestamps = [timestamp for _, timestamp in map(Message.timestamp, messages)]
    if _NO_TIMESTAMP in timestamps:
        timestamps = [MIN_TIMESTAMP if timestamp == _NO_TIMESTAMP else timestamp for timestamp in timestamps]
    return Batch(
        values,
        timestamps,
        lambda i: f"topic {topic}, partition {number}, offset {offsets[i]}",
    )


def _offsets(messages: list[Message], distinct: bool) -> Sequence[int]:
    """The offsets of messages of one partition. The batch keeps these alone, so that the messages are freed early."""
    first, last = messages[0].offset(), messages[-1].offset()
    if distinct and last - first == len(messages) - 1:
        return range(first, last + 1)
    return [message.offset() for message in messages]


def _shown(data: bytes | None) -> str:
    return repr(data) if data is None or len(data) <= _SHOWN else f"{data[:_SHOWN]!r}..."


def _batch_deserializer(schema: Any) -> Callable[[Sequence[Any]], list[Any]]:
    if schema is None:
        return lambda data: [item.decode() for item in data]
    if isinstance(schema, FlatDeserializationSchema):
        return lambda data: [schema.deserialize_flat(item) for item in data]
    batch = getattr(schema, "deserialize_batch", None)
    if batch is not None:
        return batch  # type: ignore[no-any-return]
    one = getattr(schema, "deserialize", schema)
    return lambda data: [one(item) for item in data]
