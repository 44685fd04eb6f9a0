"""Conversion of a stream's records to Kafka records: topic, key, value, headers."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.kafka.outbox import OutgoingBatch
from holdfast.errors import ConfigurationError, ServiceUnavailable, UserCodeError

__all__ = ["RecordSerializer"]


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
        "by set_value_serialization_schema(...), or map the records before the sink"
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


def _bytes_only(column: list[Any], what: str) -> list[bytes | None]:
    for i, item in enumerate(column):
        if isinstance(item, str):
            column[i] = item.encode()
        elif item is not None and not isinstance(item, bytes):
            column[i] = bytes(item) if isinstance(item, (bytearray, memoryview)) else _refuse(item, what)
    return column


def _refuse(item: Any, what: str) -> bytes:
    raise TypeError(f"the {what} serialization schema returned {type(item).__name__}, not bytes: {item!r}")


@dataclass(frozen=True)
class RecordSerializer:
    """The record format of a sink."""

    topic: str | Callable[[Any], str]
    value_schema: Any = None
    """A `SerializationSchema` or a callable; str and bytes need none."""
    key_schema: Any = None
    """A schema for the key, likewise; None: records have no key and are spread over the partitions."""
    headers: Callable[[Any], Mapping[str, Any] | Sequence[tuple[str, Any]]] | None = None

    def serialize(self, values: Sequence[Any], timestamps: Sequence[int] | None, uid: str) -> OutgoingBatch:
        """Convert records to Kafka's form.

        Raises:
            UserCodeError: a record does not fit its schema; the message names it.
        """
        try:
            return self._serialize(values, timestamps)
        except (ServiceUnavailable, ConfigurationError):
            raise  # no record is to blame
        except Exception:
            for value in values:
                try:
                    self._serialize([value], None)
                except Exception:
                    shown = repr(value)
                    shown = shown if len(shown) <= 200 else shown[:200] + "..."
                    raise UserCodeError(
                        f"{traceback.format_exc()}\nA record cannot be written to Kafka: {shown} (Kafka sink, uid {uid})",
                        operator="Kafka sink",
                        uid=uid,
                        record=shown,
                    ) from None
            raise

    def _serialize(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> OutgoingBatch:
        data = _bytes_only(list(_column(self.value_schema)(values)), "value")
        keys = None if self.key_schema is None else _bytes_only(list(_column(self.key_schema)(values)), "key")
        select = self.topic
        topics: str | list[str] = select if isinstance(select, str) else [self._topic(select, v) for v in values]
        headers = None if self.headers is None else [_headers(self.headers(v)) for v in values]
        times = None if timestamps is None else list(timestamps)
        return OutgoingBatch(topics, data, keys, times, headers)

    @staticmethod
    def _topic(select: Callable[[Any], str], value: Any) -> str:
        topic = select(value)
        if not isinstance(topic, str) or not topic:
            raise TypeError(f"the topic selector gave {topic!r} instead of a topic's name")
        return topic


def _headers(given: Mapping[str, Any] | Sequence[tuple[str, Any]] | None) -> list[tuple[str, bytes | None]]:
    if not given:
        return []
    items = given.items() if isinstance(given, Mapping) else given
    return [(str(name), _plain(value)) for name, value in items]
