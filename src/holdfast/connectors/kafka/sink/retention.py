"""Detects that a sink writes records older than their topic's retention."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from holdfast.common.kafka_properties import admin_properties
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.kafka.sink.outbox import OutgoingBatch

__all__ = ["RetentionCheck"]

_logger = logging.getLogger(__name__)
_TIMEOUT_S = 10.0
_GRACE_S = 5.0
"""The client reports a timeout itself, a little late on a busy machine."""


class RetentionCheck:
    """Warns once of records whose timestamps are older than the retention of their topic.

    Kafka's retention uses the records' timestamps: if last month's records are replayed into a topic with a retention of
    seven days, Kafka deletes them within minutes of their commit.

    Args:
        properties: The user's client properties.
        where: The sink, for the log message.
        warn: Takes the subject of a warning and its text.
    """

    def __init__(self, properties: Mapping[str, Any], where: str, warn: Callable[[str, str], None]) -> None:
        self._properties = properties
        self._where = where
        self._warn = warn
        self._retention: dict[str, int | None] = {}
        """Retention in ms by topic; None for a topic without deletion by record timestamps."""
        self._told = False

    def look_at(self, batch: OutgoingBatch) -> None:
        """Check a batch before it is sent."""
        times = batch.timestamps
        if self._told or not times:
            return
        topics = {batch.topics} if isinstance(batch.topics, str) else set(batch.topics)
        if new := topics - self._retention.keys():
            self._retention.update(self._ask(new))
        limits = {topic: limit for topic in topics if (limit := self._retention[topic]) is not None}
        now = time.time_ns() // 1_000_000
        if not limits or min(times) >= now - min(limits.values()):
            return
        named = [batch.topics] * len(times) if isinstance(batch.topics, str) else batch.topics
        for topic, timestamp in zip(named, times, strict=True):
            # A record without a timestamp gets the present time, one from before 1970 the first millisecond of 1970.
            if timestamp != MIN_TIMESTAMP and topic in limits and max(timestamp, 1) < now - limits[topic]:
                return self._tell(topic, max(timestamp, 1), limits[topic])

    def _tell(self, topic: str, timestamp: int, retention: int) -> None:
        self._told = True
        at = datetime.fromtimestamp(timestamp / 1000, timezone.utc).isoformat(timespec="seconds")
        self._warn(
            f"retention of what the {self._where} writes",
            f"{self._where} writes records that Kafka is about to delete: one has the timestamp {at}, and topic {topic} "
            f"keeps records for {_duration(retention)} (retention.ms={retention}), counted from their timestamps. To keep "
            "them, raise the topic's retention.ms, or set its message.timestamp.type=LogAppendTime. Warned once",
        )

    def _ask(self, topics: set[str]) -> dict[str, int | None]:
        admin = AdminClient({**admin_properties(self._properties), "log_level": 0})
        found: dict[str, int | None] = dict.fromkeys(topics)
        asked = [ConfigResource(ResourceType.TOPIC, topic) for topic in sorted(topics)]
        for resource, answer in admin.describe_configs(asked, request_timeout=_TIMEOUT_S).items():
            try:
                config = {name: entry.value for name, entry in answer.result(_TIMEOUT_S + _GRACE_S).items()}
            except KafkaException as error:  # it may not be allowed to ask; the sink still works
                _logger.info("%s: retention of topic %s unknown: %s", self._where, resource.name, error.args[0].str())
                continue
            retention = int(config["retention.ms"])
            by_clock = config["message.timestamp.type"] == "LogAppendTime"
            if retention >= 0 and not by_clock and "delete" in config["cleanup.policy"].split(","):
                found[resource.name] = retention
        return found


def _duration(milliseconds: int) -> str:
    """Format a duration for humans.

    >>> _duration(604_800_000), _duration(90_000)
    ('7 days', '1.5 minutes')
    """
    for size, unit in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "seconds")):
        if milliseconds >= size:
            return f"{milliseconds / size:g} {unit}"
    return f"{milliseconds} ms"
