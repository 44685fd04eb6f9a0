"""The enumerator's state, and how the first one is found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.connectors.kafka.offsets import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaTopicPartition,
    OffsetKind,
)
from holdfast.connectors.kafka.source_options import KafkaSourceOptions
from holdfast.errors import ConfigurationError, IncompatibleState, InputLost

if TYPE_CHECKING:
    from holdfast.connectors.kafka.cluster import ClusterView, Topic

__all__ = ["Positions", "check_topic", "first_positions", "offsets_of"]

_VERSION = 1


@dataclass
class Positions:
    """How far the source has planned."""

    topics: dict[str, str] = field(default_factory=dict)
    """Each topic's id: a topic that was deleted and made again has another."""
    next: dict[KafkaTopicPartition, int] = field(default_factory=dict)
    """The first offset that no epoch holds yet."""
    stop: dict[KafkaTopicPartition, int] = field(default_factory=dict)
    """Where to stop, if the source stops."""
    announced: set[KafkaTopicPartition] = field(default_factory=set)
    """Those of which the runtime knows, by a range."""
    closed: set[KafkaTopicPartition] = field(default_factory=set)
    """Those whose last range was planned."""
    epochs: dict[KafkaTopicPartition, int] = field(default_factory=dict)
    """A leader epoch in which all before ``next`` was there: the brokers tell whether it still is (KIP-320)."""

    def encode(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "version": _VERSION,
            "topics": dict(self.topics),
            "partitions": [
                [
                    p.topic,
                    p.partition,
                    offset,
                    self.stop.get(p, -1),
                    p in self.announced,
                    p in self.closed,
                    self.epochs.get(p, -1),
                ]
                for p, offset in self.next.items()
            ],
        }

    @classmethod
    def decode(cls, state: Mapping[str, Any]) -> Positions:
        """The inverse of `encode`."""
        if state.get("version") != _VERSION:
            raise IncompatibleState(
                f"Kafka positions of version {state.get('version')}; this program knows version {_VERSION}"
            )
        positions = cls(topics=dict(state["topics"]))
        for topic, number, offset, stop, announced, closed, *epoch in state["partitions"]:
            partition = KafkaTopicPartition(topic, number)
            positions.next[partition] = offset
            if stop >= 0:
                positions.stop[partition] = stop
            if epoch and epoch[0] >= 0:
                positions.epochs[partition] = epoch[0]
            if announced:
                positions.announced.add(partition)
            if closed:
                positions.closed.add(partition)
        return positions

    def at_stop(self, partition: KafkaTopicPartition, offset: int) -> bool:
        """Whether the partition is to be read up to the offset and no further; it may even begin behind its stop."""
        return partition in self.stop and offset >= self.stop[partition]

    def move(self, offsets: Mapping[KafkaTopicPartition, int]) -> None:
        """Go on elsewhere, past what is lost."""
        for partition, offset in offsets.items():
            self.next[partition] = offset
            self.epochs.pop(partition, None)

    def forget(self, topic: str) -> None:
        """Drop a topic."""
        self.topics.pop(topic, None)
        for partition in [p for p in self.next if p.topic == topic]:
            del self.next[partition]
            self.stop.pop(partition, None)
            self.epochs.pop(partition, None)
            self.announced.discard(partition)
            self.closed.discard(partition)


def check_topic(source: str, positions: Positions, topic: Topic) -> None:
    """Make sure that the topic is the one that was read so far.

    Raises:
        InputLost: it was deleted and made again.
    """
    before = positions.topics[topic.name]
    if topic.id != before:
        offsets = {p.partition: o for p, o in positions.next.items() if p.topic == topic.name}
        raise InputLost(
            f"{source}: topic {topic.name} was deleted and created again (its id was {before}, now it is "
            f"{topic.id}), so the "
            f"positions by partition {offsets} mean nothing any more. Start the job without its state to read the new topic"
        )


def first_positions(
    source: KafkaSourceOptions, view: ClusterView, partitions: Sequence[KafkaTopicPartition]
) -> dict[KafkaTopicPartition, int]:
    """Where a fresh job begins.

    Raises:
        ConfigurationError: committed offsets are asked for where there are none, and no reset strategy is given.
        InputLost: an offset that was asked for is not there, and no reset strategy is given.
    """
    found = offsets_of(source.starting_offsets, source, view, partitions, "starting")
    beginnings, ends = view.beginnings(partitions), view.ends(partitions)
    strategy = source.starting_offsets._reset
    for partition, offset in found.items():
        if beginnings[partition] <= offset <= ends[partition]:
            continue
        if source.starting_offsets._kind in (OffsetKind.COMMITTED, OffsetKind.OFFSETS):
            if strategy is KafkaOffsetResetStrategy.NONE:
                raise InputLost(
                    f"topic {partition.topic}, partition {partition.partition}: reading was to start at offset "
                    f"{offset}, but "
                    f"Kafka holds the offsets {beginnings[partition]} to {ends[partition]}. Give an offset reset "
                    "strategy, or "
                    "other starting offsets"
                )
            found[partition] = (beginnings if strategy is KafkaOffsetResetStrategy.EARLIEST else ends)[partition]
        else:  # retention was at work since the offset was asked for
            found[partition] = max(beginnings[partition], min(offset, ends[partition]))
    return found


def offsets_of(
    initializer: KafkaOffsetsInitializer,
    source: KafkaSourceOptions,
    view: ClusterView,
    partitions: Sequence[KafkaTopicPartition],
    role: str,
) -> dict[KafkaTopicPartition, int]:
    """The offset that the initializer names in each partition.

    Raises:
        ConfigurationError: it names none in some, and no reset strategy is given.
    """
    kind = initializer._kind
    if kind is OffsetKind.EARLIEST:
        return view.beginnings(partitions)
    if kind is OffsetKind.LATEST:
        return view.ends(partitions)
    if kind is OffsetKind.TIMESTAMP:
        return view.at_timestamp(partitions, initializer._timestamp)
    if kind is OffsetKind.COMMITTED:
        if not source.group_id:
            raise ConfigurationError(f"committed offsets as {role} offsets need a consumer group: set_group_id(...)")
        found = view.committed(source.group_id, partitions)
    else:
        found = {p: initializer._offsets[p] for p in partitions if p in initializer._offsets}
        if unknown := sorted(set(initializer._offsets) - set(partitions)):
            raise ConfigurationError(f"{role} offsets for {', '.join(map(str, unknown))}, which the source does not read")
    missing = [p for p in partitions if p not in found]
    if missing:
        where = f"group {source.group_id} has committed" if kind is OffsetKind.COMMITTED else f"the {role} offsets hold"
        if initializer._reset is KafkaOffsetResetStrategy.NONE:
            raise ConfigurationError(
                f"{where} no offset for {', '.join(map(str, missing))}; give an offset reset strategy (earliest or latest)"
            )
        earliest = initializer._reset is KafkaOffsetResetStrategy.EARLIEST
        found |= view.beginnings(missing) if earliest else view.ends(missing)
    return {p: found[p] for p in partitions}
