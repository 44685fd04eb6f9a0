"""Records that Kafka never takes: which record is to blame, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from confluent_kafka import KafkaError

from holdfast.errors import UserCodeError

__all__ = ["blames_a_record", "refused", "suspicion"]

_REMEDIES = {
    KafkaError.MSG_SIZE_TOO_LARGE: "Raise max.message.bytes of the topic, and message.max.bytes of the client for a "
    "record of more than 1,000,000 bytes; if records are that small, set batch.size below the topic's max.message.bytes",
    KafkaError.INVALID_RECORD: "A compacted topic takes no record without a key",
    KafkaError.INVALID_TIMESTAMP: "It, or a record sent with it, has a timestamp that the topic does not take: see its "
    "message.timestamp.before.max.ms and message.timestamp.after.max.ms, or set message.timestamp.type=LogAppendTime",
    KafkaError._UNKNOWN_PARTITION: "The topic has no such partition",
    KafkaError.TOPIC_EXCEPTION: "No topic can have this name",
    KafkaError.RECORD_LIST_TOO_LARGE: "Its batch is larger than a segment of the topic: set batch.size below segment.bytes",
    KafkaError.INVALID_MSG_SIZE: "Its size is none that brokers take: see max.message.bytes of the topic",
}
_SHOWN = 200
"""Bytes of a key and a value that an error shows."""
_SUSPICIONS: dict[int, Callable[[Any], int]] = {
    KafkaError.MSG_SIZE_TOO_LARGE: len,
    KafkaError.RECORD_LIST_TOO_LARGE: len,
    KafkaError.INVALID_MSG_SIZE: len,
    KafkaError.INVALID_RECORD: lambda message: message.key() is None,
}


def blames_a_record(error: KafkaError) -> bool:
    """Whether a record is to blame for an error, so that no later attempt succeeds."""
    return error.code() in _REMEDIES


def suspicion(error: KafkaError, message: Any) -> int:
    """How likely a message is to blame: the client library may report the error of one record for its whole batch."""
    return _SUSPICIONS.get(error.code(), lambda _: 0)(message)


def refused(
    error: KafkaError, where: str, uid: str, topic: str, partition: int | None, key: bytes | None, value: bytes | None
) -> UserCodeError:
    """The error for a record that Kafka does not take.

    Args:
        error: Kafka's, for which `blames_a_record` is true.
        where: The writer.
        uid: The operator's uid.
        topic: The record's topic.
        partition: Its partition; None: not chosen yet.
        key: Its key.
        value: Its value.
    """
    size = len(key or b"") + len(value or b"")
    # Without a key, the partition differs from attempt to attempt.
    record = f"topic {topic}, key {_shown(key)}, value {_shown(value)} ({size:,} bytes)"
    place = "" if partition is None else f", partition {partition}"
    told = f"{where}: Kafka does not take a record: {record}{place}: {error.str()} ({error.name()})"
    return UserCodeError(f"{told}. {_REMEDIES[error.code()]}", operator=where, uid=uid, record=record)


def _shown(data: bytes | None) -> str:
    return repr(data) if data is None or len(data) <= _SHOWN else f"{data[:_SHOWN]!r}..."
