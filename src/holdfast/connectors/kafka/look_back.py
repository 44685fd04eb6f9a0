"""Rereads the records before an offset, to detect whether they are still the ones that the job has read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from holdfast.connectors.kafka.config import consumer_properties
from holdfast.errors import HoldfastError

__all__ = ["newest_epoch_before"]

_REACH = 1000
"""Offsets to look back: enough to find a record among the control markers of small transactions."""
_PATIENCE_S = 60.0


def newest_epoch_before(properties: Mapping[str, Any], topic: str, partition: int, offset: int) -> int:
    """The highest leader epoch among the last records before an offset; -1 if there are none.

    Raises:
        HoldfastError: the brokers do not answer.
    """
    consumer = Consumer({**consumer_properties(properties), "log_level": 0})
    newest = -1
    try:
        low, _ = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_PATIENCE_S)
        start = max(low, offset - _REACH)
        if start >= offset:
            return newest
        consumer.assign([TopicPartition(topic, partition, start)])
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            for message in consumer.consume(_REACH, 0.2):
                error = message.error()
                if error is None and message.offset() < offset:
                    newest = max(newest, message.leader_epoch() or 0)
                elif error is None or error.code() == KafkaError._PARTITION_EOF:
                    return newest
    finally:
        consumer.close()
    raise HoldfastError(
        f"topic {topic}, partition {partition}: no answer from Kafka for the records before offset {offset}, of which the "
        "leader epochs are to be compared"
    )
