"""The checked settings of a Kafka source."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer

from holdfast.common.kafka_properties import check_properties
from holdfast.connectors.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer, KafkaTopicPartition
from holdfast.errors import ConfigurationError

__all__ = ["KafkaSourceOptions"]

_DISCOVERY_MS = 10_000
_RESET = {
    "none": "NONE",
    "error": "NONE",
    "earliest": "EARLIEST",
    "smallest": "EARLIEST",
    "latest": "LATEST",
    "largest": "LATEST",
}


@dataclass(frozen=True)
class KafkaSourceOptions:
    """The settings of a Kafka source.

    Raises:
        ConfigurationError: a property is unknown, or its value is out of range.
    """

    properties: Mapping[str, Any]
    """Client properties, ``bootstrap.servers`` among them."""
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    partitions: frozenset[KafkaTopicPartition] | None = None
    starting_offsets: KafkaOffsetsInitializer = field(default_factory=KafkaOffsetsInitializer.earliest)
    stopping_offsets: KafkaOffsetsInitializer | None = None
    is_bounded: bool = False
    deserializer: Any = None
    """A `DeserializationSchema` or a callable from bytes to the element, for values; or a
    `KafkaRecordDeserializationSchema`, for whole records. None: the values are strings."""

    def __post_init__(self) -> None:
        check_properties(self.properties, Consumer)
        for role, offsets in (("starting", self.starting_offsets), ("stopping", self.stopping_offsets)):
            if offsets is not None and offsets.needs_group and not self.group_id:
                raise ConfigurationError(f"committed offsets as {role} offsets need a consumer group: set_group_id(...)")
        for derived in (self.discovery_interval_s, self.reset_policy, self.read_committed):
            del derived  # each property checks its setting

    @property
    def bounded(self) -> bool:
        """Whether the source is bounded."""
        return self.is_bounded

    @property
    def group_id(self) -> str | None:
        """The consumer group whose offsets are committed for lag monitoring."""
        return self.properties.get("group.id") or None

    @property
    def commit_offsets(self) -> bool:
        """Whether to commit the group's offsets (``commit.offsets.on.checkpoint``)."""
        return str(self.properties.get("commit.offsets.on.checkpoint", "true")).lower() == "true"

    @property
    def read_committed(self) -> bool:
        """Whether to skip records of open and aborted transactions (``isolation.level``)."""
        level = self.properties.get("isolation.level", "read_committed")
        if level not in ("read_committed", "read_uncommitted"):
            raise ConfigurationError(f"isolation.level={level}: must be read_committed or read_uncommitted")
        return bool(level == "read_committed")

    @property
    def reset_policy(self) -> KafkaOffsetResetStrategy:
        """The reaction to records lost before they were read (``auto.offset.reset``; by default the job stops)."""
        value = str(self.properties.get("auto.offset.reset", "none")).lower()
        if value not in _RESET:
            raise ConfigurationError(f"auto.offset.reset={value}: must be none, earliest or latest")
        return KafkaOffsetResetStrategy[_RESET[value]]

    @property
    def discovery_interval_s(self) -> float | None:
        """Seconds between discoveries of new partitions (``partition.discovery.interval.ms``; default 10 s); None: never."""
        value = self.properties.get("partition.discovery.interval.ms", _DISCOVERY_MS)
        try:
            milliseconds = int(value)
        except ValueError:
            raise ConfigurationError(f"partition.discovery.interval.ms={value}: must be a number of milliseconds") from None
        return milliseconds / 1000 if milliseconds > 0 and self.stopping_offsets is None else None
