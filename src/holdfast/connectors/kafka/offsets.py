"""Flink's offsets initializers: where to start and stop in a topic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

from holdfast.errors import ConfigurationError

__all__ = ["KafkaOffsetResetStrategy", "KafkaOffsetsInitializer", "KafkaTopicPartition", "OffsetKind", "require_partition"]


class KafkaTopicPartition(NamedTuple):
    """A partition of a topic."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


def require_partition(given: Any) -> None:
    """Check that a value is a KafkaTopicPartition.

    Raises:
        ConfigurationError: the value is of another class.
    """
    if not isinstance(given, KafkaTopicPartition):
        raise ConfigurationError(f"expected a KafkaTopicPartition, got {given!r}")


class KafkaOffsetResetStrategy(Enum):
    """The fallback for an offset that does not exist, or no longer exists."""

    LATEST = 0
    EARLIEST = 1
    NONE = 2


class OffsetKind(Enum):
    """The kinds of offsets initializers."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    TIMESTAMP = "timestamp"
    OFFSETS = "offsets"


@dataclass(frozen=True)
class KafkaOffsetsInitializer:
    """Chooses one offset per partition to start or stop reading at. Create one with the static methods."""

    _kind: OffsetKind
    _timestamp: int = 0
    _offsets: Mapping[KafkaTopicPartition, int] = field(default_factory=dict)
    _reset: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE

    @property
    def needs_group(self) -> bool:
        """Whether it asks for the offsets of a consumer group."""
        return self._kind is OffsetKind.COMMITTED

    @staticmethod
    def earliest() -> KafkaOffsetsInitializer:
        """The first available record."""
        return KafkaOffsetsInitializer(OffsetKind.EARLIEST)

    @staticmethod
    def latest() -> KafkaOffsetsInitializer:
        """The end of the partition at the job's start."""
        return KafkaOffsetsInitializer(OffsetKind.LATEST)

    @staticmethod
    def committed_offsets(
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.NONE,
    ) -> KafkaOffsetsInitializer:
        """The consumer group's committed offsets.

        Args:
            offset_reset_strategy: The fallback for partitions without a committed offset; NONE: raise an error.
        """
        if not isinstance(offset_reset_strategy, KafkaOffsetResetStrategy):
            raise ConfigurationError(
                f"offset_reset_strategy must be a KafkaOffsetResetStrategy, not {offset_reset_strategy!r}"
            )
        return KafkaOffsetsInitializer(OffsetKind.COMMITTED, _reset=offset_reset_strategy)

    @staticmethod
    def timestamp(timestamp: int) -> KafkaOffsetsInitializer:
        """The first record with this timestamp (ms) or a later one; the end if there is none."""
        if not isinstance(timestamp, int) or timestamp < 0:
            raise ConfigurationError(f"a Kafka timestamp is in milliseconds since 1970, got {timestamp!r}")
        return KafkaOffsetsInitializer(OffsetKind.TIMESTAMP, _timestamp=timestamp)

    @staticmethod
    def offsets(
        offsets: Mapping[KafkaTopicPartition, int],
        offset_reset_strategy: KafkaOffsetResetStrategy = KafkaOffsetResetStrategy.EARLIEST,
    ) -> KafkaOffsetsInitializer:
        """Explicit offsets.

        Args:
            offsets: The offset of each partition.
            offset_reset_strategy: The fallback for partitions without an entry, and for offsets that do not exist.
        """
        for partition, offset in offsets.items():
            require_partition(partition)
            if not isinstance(offset, int) or offset < 0:
                raise ConfigurationError(f"the offset of {partition} is {offset!r}; offsets are integers from 0")
        return KafkaOffsetsInitializer(OffsetKind.OFFSETS, _offsets=dict(offsets), _reset=offset_reset_strategy)

    def described(self) -> list[Any]:
        """The initializer as plain data, by which a restored job tells whether its program has another one."""
        offsets = [[p.topic, p.partition, offset] for p, offset in sorted(self._offsets.items())]
        return [self._kind.value, self._timestamp, offsets, self._reset.name]

    @staticmethod
    def of(what: KafkaOffsetsInitializer | str) -> KafkaOffsetsInitializer:
        """Return the initializer; a str names it.

        >>> KafkaOffsetsInitializer.of("latest") == KafkaOffsetsInitializer.latest()
        True

        Raises:
            ConfigurationError: the name is unknown.
        """
        if isinstance(what, KafkaOffsetsInitializer):
            return what
        named = {
            "earliest": KafkaOffsetsInitializer.earliest,
            "latest": KafkaOffsetsInitializer.latest,
            "committed": KafkaOffsetsInitializer.committed_offsets,
        }
        if not isinstance(what, str) or what.lower() not in named:
            raise ConfigurationError(
                f"unknown offsets {what!r}: give a KafkaOffsetsInitializer, or one of {', '.join(map(repr, named))}"
            )
        return named[what.lower()]()
