"""The enumerator's state, and the initial positions of a new job."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.connectors.base import check_form
from holdfast.connectors.kafka.offsets import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaTopicPartition,
    OffsetKind,
)
from holdfast.connectors.kafka.source.source_options import KafkaSourceOptions
from holdfast.errors import ConfigurationError, InputLost

if TYPE_CHECKING:
    from holdfast.connectors.kafka.cluster import ClusterView, Topic

__all__ = ["Positions", "check_positions", "created_again", "first_positions", "offsets_of"]

_VERSION = 1


@dataclass
class Positions:
    """The source's planned positions."""

    topics: dict[str, str] = field(default_factory=dict)
    """Each topic's id, which a re-created topic does not share."""
    next: dict[KafkaTopicPartition, int] = field(default_factory=dict)
    """The first offset not yet planned."""
    stop: dict[KafkaTopicPartition, int] = field(default_factory=dict)
    """The stopping offsets, if any."""
    stopping: list[Any] | None = None
    """What the program says of them (`KafkaOffsetsInitializer.described`); None: the source has none. Empty: not known, the
    checkpoint is of a release that did not store it."""
    announced: set[KafkaTopicPartition] = field(default_factory=set)
    """Partitions announced to the runtime by a range."""
    closed: set[KafkaTopicPartition] = field(default_factory=set)
    """Partitions whose last range was planned."""
    epochs: dict[KafkaTopicPartition, int] = field(default_factory=dict)
    """A leader epoch that covers all records before ``next``; the brokers can tell whether it still does (KIP-320)."""

    def encode(self) -> dict[str, Any]:
        """Encode as plain data."""
        return {
            "version": _VERSION,
            "topics": dict(self.topics),
            "stopping": self.stopping,
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
        """Decode plain data that `check_positions` has not refused; the inverse of `encode`."""
        positions = cls(topics=dict(state["topics"]), stopping=state.get("stopping", []))
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
        """Whether the offset is at or past the partition's stopping offset; a partition may even start past it."""
        return partition in self.stop and offset >= self.stop[partition]

    def says(self, stopping: KafkaOffsetsInitializer | None) -> bool:
        """Whether the stopping offsets are those of a program with this initializer."""
        if self.stopping == []:
            return bool(self.stop) == (stopping is not None)
        return self.stopping == (None if stopping is None else stopping.described())

    def stop_at(self, stopping: KafkaOffsetsInitializer | None, offsets: Mapping[KafkaTopicPartition, int]) -> None:
        """Take other stopping offsets: partitions that had ended go on, and those beyond their new end will end."""
        self.stopping = None if stopping is None else stopping.described()
        self.stop = dict(offsets)
        self.announced -= self.closed
        self.closed.clear()

    def move(self, offsets: Mapping[KafkaTopicPartition, int]) -> None:
        """Move positions past lost records."""
        for partition, offset in offsets.items():
            self.next[partition] = offset
            self.epochs.pop(partition, None)

    def forget(self, topic: str) -> set[KafkaTopicPartition]:
        """Drop a topic; returns the partitions of which the runtime knows, and does not know that they end."""
        self.topics.pop(topic, None)
        return self.drop([p for p in self.next if p.topic == topic])

    def drop(self, partitions: Collection[KafkaTopicPartition]) -> set[KafkaTopicPartition]:
        """Drop partitions; returns those of which the runtime knows, and does not know that they end."""
        known = (self.announced - self.closed).intersection(partitions)
        for partition in partitions:
            del self.next[partition]
            self.stop.pop(partition, None)
            self.epochs.pop(partition, None)
            self.announced.discard(partition)
            self.closed.discard(partition)
        return known


def check_positions(state: Any) -> None:
    """Check that plain data is encoded positions.

    Raises:
        IncompatibleState: another source, or a release of another form, has stored it.
    """
    check_form(state, ("version", "topics", "partitions"), "KafkaSource", (_VERSION,))


def created_again(positions: Positions, topic: Topic) -> str:
    """What happened to a topic that is another one than the one read so far; empty: nothing."""
    before = positions.topics[topic.name]
    if topic.id == before:
        return ""
    offsets = {p.partition: o for p, o in positions.next.items() if p.topic == topic.name}
    return (
        f"topic {topic.name} was deleted and created again (its id was {before}, now it is {topic.id}), so the positions by "
        f"partition {offsets} are meaningless"
    )


def first_positions(
    source: KafkaSourceOptions, view: ClusterView, partitions: Sequence[KafkaTopicPartition]
) -> dict[KafkaTopicPartition, int]:
    """The initial positions of a new job.

    Raises:
        ConfigurationError: a partition has no committed offset, and no reset strategy is set.
        InputLost: a starting offset does not exist, and no reset strategy is set.
    """
    found = offsets_of(source.starting_offsets, source, view, partitions, "starting")
    # An offset behind an open transaction exists, although a reader of committed records does not get there yet.
    beginnings, ends = view.beginnings(partitions), view.high_watermarks(partitions)
    strategy = source.starting_offsets._reset
    for partition, offset in found.items():
        if beginnings[partition] <= offset <= ends[partition]:
            continue
        if source.starting_offsets._kind in (OffsetKind.COMMITTED, OffsetKind.OFFSETS):
            if strategy is KafkaOffsetResetStrategy.NONE:
                raise InputLost(
                    f"topic {partition.topic}, partition {partition.partition}: the starting offset is {offset}, but "
                    f"Kafka holds the offsets {beginnings[partition]} to {ends[partition]}. Give an offset reset "
                    "strategy, or other starting offsets"
                )
            earliest = strategy is KafkaOffsetResetStrategy.EARLIEST
            found[partition] = beginnings[partition] if earliest else view.ends([partition])[partition]
        else:  # retention has deleted records since the offset was requested
            found[partition] = max(beginnings[partition], min(offset, ends[partition]))
    return found


def offsets_of(
    initializer: KafkaOffsetsInitializer,
    source: KafkaSourceOptions,
    view: ClusterView,
    partitions: Sequence[KafkaTopicPartition],
    role: str,
) -> dict[KafkaTopicPartition, int]:
    """The initializer's offset for each partition.

    Raises:
        ConfigurationError: a partition has no offset, and no reset strategy is set.
    """
    kind = initializer._kind
    if kind is OffsetKind.EARLIEST:
        return view.beginnings(partitions)
    if kind is OffsetKind.LATEST:
        return view.ends(partitions)
    if kind is OffsetKind.TIMESTAMP:
        return view.at_timestamp(partitions, initializer._timestamp)
    if kind is OffsetKind.COMMITTED:
        found = view.committed(str(source.group_id), partitions)
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
