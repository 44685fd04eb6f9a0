"""Looks back at a partition: its bounds, and whether the records before an offset are still those the job has read."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from holdfast.common.kafka_properties import consumer_properties
from holdfast.connectors.kafka.cluster import BrokerUnavailable, silence_of

__all__ = ["bounds", "newest_epoch_before"]

_REACH = 1000
"""Offsets to look back: enough to find a record among the control markers of small transactions."""
_PATIENCE_S = 60.0


def newest_epoch_before(properties: Mapping[str, Any], topic: str, partition: int, offset: int) -> int:
    """The highest leader epoch among the last records before an offset; -1 if there are none.

    Raises:
        BrokerUnavailable: the brokers do not answer.
    """
    settings = {**consumer_properties(properties), "log_level": 0}
    consumer = Consumer(settings)
    newest = -1
    try:
        low, _ = bounds(consumer, settings, topic, partition, _PATIENCE_S)
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
        raise BrokerUnavailable(
            f"topic {topic}, partition {partition}: the records before offset {offset}, whose leader epochs are to be "
            f"compared, did not arrive within {_PATIENCE_S:.0f} s: {silence_of(settings, topic, partition)}"
        )
    finally:
        consumer.close()


def bounds(consumer: Consumer, settings: Mapping[str, Any], topic: str, partition: int, timeout: float) -> tuple[int, int]:
    """The first offset of a partition, and its end.

    Raises:
        BrokerUnavailable: no answer within the timeout, in seconds.
    """
    try:
        low, high = consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=timeout)
    except KafkaException as error:
        raise BrokerUnavailable(
            f"topic {topic}, partition {partition}: its first offset and its end are unknown ({error.args[0].str()}): "
            f"{silence_of(settings, topic, partition)}"
        ) from error
    return int(low), int(high)
