"""The source's reader in the task: one consumer that reads the ranges of all its partitions and reads ahead.

librdkafka delivers messages in long runs per partition, in its own order. Messages of partitions that are not wanted yet
wait in their partition's buffer. Ranges of successive epochs are contiguous, so the consumer seeks only if an epoch is
run again or a partition moves here.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from holdfast.common.kafka_properties import consumer_properties
from holdfast.common.kafka_refusals import OF_THE_GROUP, REFUSED
from holdfast.connectors.base import Batch, SplitRange
from holdfast.connectors.kafka.cluster import BrokerUnavailable, silence_of
from holdfast.connectors.kafka.look_back import bounds, newest_epoch_before
from holdfast.connectors.kafka.offsets import KafkaOffsetResetStrategy
from holdfast.connectors.kafka.source.message_batches import MessageBatches
from holdfast.connectors.kafka.source.source_options import KafkaSourceOptions
from holdfast.errors import ConfigurationError, InputLost, UserCodeError

__all__ = ["KafkaReader"]

_logger = logging.getLogger(__name__)

_CONSUME = 2_000
"""Messages taken from the client at once. More of them leave the processor's cache before they are batches."""
_BUFFER_BYTES = 64 << 20
"""Limit of buffered bytes of partitions that are not wanted yet."""
_COMPLAINT_S = 10.0
_RENEWAL_S = 30.0
"""After so long without records that are to be read, another client asks for them."""
_PATIENCE_S = 600.0
"""Seconds without a record of the range to read, until the job restarts with new connections."""
_BOUNDS_S = 30.0

_GONE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
}
_DAMAGED = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION, KafkaError.MSG_SIZE_TOO_LARGE}
_OUT_OF_RANGE = {KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._LOG_TRUNCATION}

Key = tuple[str, int]


class _Partition:
    """Read state of one partition."""

    __slots__ = ("assigned", "buffer", "buffered", "epoch", "fetched", "position", "wanted")

    # All work here is per run of messages: work per message would determine the cost of reading a topic.

    def __init__(self) -> None:
        self.buffer: deque[list[Message]] = deque()
        self.buffered = 0
        """Number of buffered messages."""
        self.position = -1
        """The next offset to return."""
        self.fetched = -1
        """The first unknown offset."""
        self.epoch = -1
        """The leader epoch of the records before `fetched`; -1: unknown."""
        self.assigned = False
        self.wanted = False

    def restart(self, offset: int, epoch: int) -> None:
        """Drop the records read ahead, and continue at an offset."""
        self.buffer.clear()
        self.buffered = 0
        self.position = self.fetched = offset
        self.epoch = epoch


class KafkaReader:
    """Reads ranges. Not thread-safe."""

    def __init__(self, source: KafkaSourceOptions, uid: str) -> None:
        self._source = source
        self._uid = uid
        self._settings = consumer_properties(source.properties)
        self._consumer = Consumer(self._settings, logger=_logger)
        self._partitions: dict[Key, _Partition] = {}
        self._topics: set[str] = set()
        """The topics of all partitions that have been assigned."""
        self._buffered = 0
        """Number of messages in all buffers."""
        self._width = 100
        """Approximate bytes per message."""
        self._batches = MessageBatches(source.deserializer, uid)
        self._complained_at = 0.0
        self._renewed_at = 0.0

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        """Read the records of the range, in order."""
        if part.start >= part.end:
            return
        key: Key = (part.payload[0], part.payload[1])
        end: int = part.end
        if self._want(key, part):
            self._assign([key])
        partition = self._partitions[key]
        since = time.monotonic()
        while True:
            while partition.buffer:
                messages, complete = self._take(partition, end, max_batch)
                batch = self._batches.batch(*key, messages) if messages else None
                del messages  # freed while they are in the processor's cache
                if batch is not None:
                    yield batch
                batch = None  # the next one takes its memory
                if complete:
                    partition.position = end
                    partition.wanted = False
                    return
                since = time.monotonic()
            if partition.fetched >= end:
                partition.position = end
                partition.wanted = False
                return
            self._poll(key, partition, end, since)

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
        self._partitions.clear()

    def _want(self, key: Key, part: SplitRange) -> bool:
        """Register a range to read; returns whether the consumer must be assigned to it."""
        partition = self._partitions.get(key)
        if partition is None:
            partition = self._partitions[key] = _Partition()
        partition.wanted = True
        if partition.position != part.start:
            self._buffered -= partition.buffered
            partition.restart(part.start, part.payload[2])
            self._unassign([key])
        elif partition.epoch < 0 and partition.fetched == part.start:
            partition.epoch = part.payload[2]
        return not partition.assigned

    def _assign(self, keys: Sequence[Key]) -> None:
        if keys:
            self._topics.update(topic for topic, _ in keys)
            self._consumer.incremental_assign([self._next_of(key) for key in keys])
            for key in keys:
                self._partitions[key].assigned = True

    def _next_of(self, key: Key) -> TopicPartition:
        """The position to read on from. With a leader epoch, the consumer validates the records before it (KIP-320)."""
        partition = self._partitions[key]
        if partition.epoch < 0:
            return TopicPartition(*key, partition.fetched)
        return TopicPartition(*key, partition.fetched, leader_epoch=partition.epoch)

    def _unassign(self, keys: Sequence[Key]) -> None:
        assigned = [key for key in keys if self._partitions[key].assigned]
        if assigned:
            self._consumer.incremental_unassign([TopicPartition(t, p) for t, p in assigned])
            for key in assigned:
                self._partitions[key].assigned = False

    def _take(self, partition: _Partition, end: int, limit: int) -> tuple[list[Message], bool]:
        """The next buffered messages before ``end``, and whether they are the last ones (a later message is buffered)."""
        messages = partition.buffer[0]
        if messages[-1].offset() < end and len(messages) <= limit:
            partition.buffer.popleft()
            taken, complete = messages, False
        else:
            cut = min(limit, _first_at(messages, end))
            taken, rest = messages[:cut], messages[cut:]
            complete = rest[0].offset() >= end
            partition.buffer[0] = rest
        partition.buffered -= len(taken)
        self._buffered -= len(taken)
        if taken:
            partition.position = taken[-1].offset() + 1
        return taken, complete

    def _poll(self, key: Key, partition: _Partition, end: int, since: float) -> None:
        """Let the consumer fill the buffers until ``key`` has news, or for a while."""
        if not partition.assigned:
            self._assign([key])
        try:
            # With a timeout, consume() waits for a full batch. So take the available messages; if there are none, wait for
            # the first one, and take those that arrived with it.
            messages = self._consumer.consume(_CONSUME, 0)
            if not messages and (first := self._consumer.poll(0.2)) is not None:
                messages = [first, *self._consumer.consume(_CONSUME, 0)]
        except KafkaException as error:
            raise ConfigurationError(f"Kafka source (uid {self._uid}): {error.args[0].str()}") from error
        if messages:
            self._sort_in(messages)
            if self._buffered * max(self._width, 1) > _BUFFER_BYTES:
                self._relieve(key)
            return
        now = time.monotonic()
        if now - since > _PATIENCE_S:
            raise BrokerUnavailable(
                f"Kafka source (uid {self._uid}): no records from topic {key[0]}, partition {key[1]} for {now - since:.0f} "
                f"s (offsets {partition.position} to {end} are to be read): {silence_of(self._settings, *key)}"
            )
        if now - since > _COMPLAINT_S and now - self._complained_at > 3 * _COMPLAINT_S:
            self._complained_at = now
            _logger.warning(
                "Kafka source (uid %s): no records from topic %s, partition %d for %.0f s (offsets %d to %d are to "
                "be read); waiting",
                self._uid, *key, now - since, partition.position, end,
            )  # fmt: skip
        if now - max(since, self._renewed_at) > _RENEWAL_S:
            self._renewed_at = now
            self._renew()

    def _renew(self) -> None:
        """Read on with a new client: one whose broker restarted while it validated its position may wait for ever."""
        keys = [key for key, partition in self._partitions.items() if partition.assigned]
        self._consumer.close()
        self._consumer = Consumer(self._settings, logger=_logger)
        for key in keys:
            self._partitions[key].assigned = False
        self._assign(keys)

    def _sort_in(self, messages: list[Message]) -> None:
        if any(map(Message.error, messages)):
            errors = [m for m in messages if m.error() is not None]
            messages = [m for m in messages if m.error() is None]
        else:
            errors = []
        for key, run in _runs(messages, self._topics):
            partition = self._partitions.get(key)
            if partition is None or not partition.assigned:
                continue
            if run[0].offset() < partition.fetched:  # delivered before the last seek
                run = [m for m in run if m.offset() >= partition.fetched]
                if not run:
                    continue
            epoch = run[-1].leader_epoch()
            if epoch is not None and 0 <= partition.epoch < epoch:
                self._look_back(key, partition, run)
            partition.buffer.append(run)
            partition.fetched = run[-1].offset() + 1
            partition.epoch = -1 if epoch is None else epoch
            partition.buffered += len(run)
            self._buffered += len(run)
            self._width += (len(run[0]) + len(run[-1]) + len(run[len(run) // 2]) - 3 * self._width) // 4
        # A partition's end event comes after the messages before it.
        for message in errors:
            self._handle(message)

    def _handle(self, message: Message) -> None:
        error = message.error()
        code = error.code()
        key = (message.topic(), message.partition())
        partition = self._partitions.get(key)
        if code == KafkaError._PARTITION_EOF:
            if partition is not None and partition.assigned and message.offset() > partition.fetched:
                partition.fetched = message.offset()
                partition.epoch = -1  # a transaction marker at the end may have a later epoch
        elif code in _OUT_OF_RANGE and partition is not None:
            # Only the text of the client library's error tells the cause.
            self._out_of_range(key, partition, truncated="log truncation detected" in error.str())
        elif code == OF_THE_GROUP:
            return
        elif code in REFUSED:
            of = "" if key[0] is None else f", topic {key[0]}"
            raise ConfigurationError(f"Kafka source (uid {self._uid}){of}: {error.str()}")
        elif code in _DAMAGED and partition is not None:
            if not partition.wanted:  # read ahead; the next epoch shows whether it is needed
                return self._unassign([key])
            record = f"topic {key[0]}, partition {key[1]}, offset {max(message.offset() or 0, partition.fetched)}"
            raise UserCodeError(
                f"Kafka source (uid {self._uid}): records cannot be read: {error.str()} ({error.name()}), {record}. To go "
                "on without them, start the job behind them",
                uid=self._uid,
                record=record,
            )
        elif code in _GONE:
            if partition is not None and partition.wanted:
                raise InputLost(
                    f"Kafka source (uid {self._uid}): topic {key[0]}, partition {key[1]} is gone; the records from offset "
                    f"{partition.position} on were not read yet"
                )
        else:
            _logger.warning("Kafka source (uid %s): %s", self._uid, error.str())

    def _out_of_range(self, key: Key, partition: _Partition, truncated: bool) -> None:
        """Handle an offset from which the consumer cannot continue."""
        topic, number = key
        if not partition.wanted:  # read ahead; the next epoch shows whether it is needed
            self._unassign([key])
            return
        low, high = bounds(self._consumer, self._settings, topic, number, _BOUNDS_S)
        if low <= partition.fetched <= high:
            if truncated:
                return self._truncated(key, partition)
            self._unassign([key])  # the error concerns an earlier position
            return self._assign([key])
        told = (
            f"topic {topic}, partition {number}: the next record to read is at offset {partition.fetched}, but Kafka "
            f"holds the offsets {low} to {high}"
        )
        if self._source.reset_policy is KafkaOffsetResetStrategy.NONE or partition.fetched > high:
            raise InputLost(
                f"Kafka source (uid {self._uid}): records are gone before they were read. {told}. To go on without "
                "them, set the property auto.offset.reset to earliest or latest"
            )
        _logger.error("Kafka source (uid %s): records are lost, as auto.offset.reset allows. %s", self._uid, told)
        self._unassign([key])
        partition.fetched = low
        self._assign([key])

    def _look_back(self, key: Key, partition: _Partition, run: list[Message]) -> None:
        """Check the records before the first one of a later leader epoch.

        The consumer should have done so; while leaders move, it may begin to read before.
        """
        first: int = next(m for m in run if (m.leader_epoch() or 0) > partition.epoch).offset()
        if newest_epoch_before(self._source.properties, *key, first) > partition.epoch:
            self._lost_tail(key, partition, first)

    def _truncated(self, key: Key, partition: _Partition) -> None:
        """Handle a partition whose records before the position are no longer the ones read."""
        self._unassign([key])
        self._lost_tail(key, partition, partition.fetched)
        partition.epoch = -1
        self._assign([key])

    def _lost_tail(self, key: Key, partition: _Partition, offset: int) -> None:
        """Report that the records before an offset are others than those that were read."""
        told = (
            f"topic {key[0]}, partition {key[1]}: the records before offset {offset} are no longer those of leader epoch "
            f"{partition.epoch}"
        )
        if self._source.reset_policy is KafkaOffsetResetStrategy.NONE:
            raise InputLost(
                f"Kafka source (uid {self._uid}): Kafka has lost records that were read already ({told}): an unclean leader "
                "election, or a broker whose disk was restored; others may be in their place, unread. To read on from this "
                "offset, set the property auto.offset.reset to earliest or latest; else start the job without its state"
            )
        _logger.error("Kafka source (uid %s): records are lost that were read already: %s", self._uid, told)

    def _relieve(self, wanted: Key) -> None:
        """Stop reading ahead when the buffers are full, and drop records of unwanted partitions."""
        for key, partition in list(self._partitions.items()):
            if key == wanted or not partition.buffered:
                continue
            self._unassign([key])
            if not partition.wanted:
                self._buffered -= partition.buffered
                del self._partitions[key]


def _runs(messages: list[Message], topics: set[str]) -> Iterator[tuple[Key, list[Message]]]:
    """Cut messages of these topics into runs of one partition."""
    if len(topics) == 1:
        (topic,) = topics
        for number, run in itertools.groupby(messages, Message.partition):
            yield (topic, number), list(run)
    else:
        for key, run in itertools.groupby(messages, key=lambda m: (m.topic(), m.partition())):
            yield key, list(run)


def _first_at(messages: list[Message], offset: int) -> int:
    """The index of the first message at or after ``offset``."""
    low, high = 0, len(messages)
    while low < high:
        middle = (low + high) // 2
        if messages[middle].offset() < offset:
            low = middle + 1
        else:
            high = middle
    return low
