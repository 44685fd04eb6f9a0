"""The source in the driver: discovers partitions and assigns ranges of them to epochs."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from holdfast.checkpoint.ids import CheckpointId
from holdfast.connectors.base import EpochInput, SplitRange
from holdfast.connectors.kafka.cluster import BrokerUnavailable, ClusterView, PendingOffsets, Topic
from holdfast.connectors.kafka.offsets import KafkaOffsetResetStrategy, KafkaTopicPartition
from holdfast.connectors.kafka.source.fair_share import share
from holdfast.connectors.kafka.source.positions import Positions, created_again, first_positions, offsets_of
from holdfast.connectors.kafka.source.source_options import KafkaSourceOptions
from holdfast.errors import ConfigurationError, HoldfastError, InputLost

__all__ = ["KafkaEnumerator"]

_logger = logging.getLogger(__name__)

_FRESH_S = 0.025
"""Seconds that `plan` waits for fresh ends of the partitions before it uses the known ones: less than an epoch takes, for
which the records behind the known ends would wait."""
_POLL_MIN_S, _POLL_MAX_S = 0.005, 0.050
_MOMENT_S = 2.0
"""Seconds without an answer that are no silence."""
_MISSING_S = 15.0
"""Seconds without the topic on the brokers after which it counts as deleted; a restarting broker may not know it yet."""
_COMPLAINT_S = 30.0


_POLL_SHARE = 9
"""How many times as long as a poll takes is the shortest pause behind it."""


class KafkaEnumerator:
    """Plans ranges up to the last stable offset, evenly over the partitions; detects new partitions and lost input."""

    def __init__(self, source: KafkaSourceOptions, uid: str, own_topics: Collection[str] = ()) -> None:
        self._source = source
        self._own_topics = own_topics
        """Those that its own job writes: a pattern that matches them would read what it makes, without end."""
        self._name = f"Kafka source (uid {uid})"
        self._view = ClusterView(source.properties, source.read_committed)
        self._positions = Positions()
        self._left: set[KafkaTopicPartition] = set()
        """Partitions that are not read any more. The next plan ends their splits, which else would hold event time back."""
        self._ends: dict[KafkaTopicPartition, int] = {}
        self._epochs: dict[KafkaTopicPartition, int] = {}
        """The leader epochs of `_ends`."""
        self._shrunk: dict[KafkaTopicPartition, tuple[float, int]] = {}
        """Partitions that end before their position: the time of detection, and the lowest end."""
        self._pending: PendingOffsets | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-discovery")
        self._discovery: Future[tuple[dict[str, Topic | None], dict[KafkaTopicPartition, int]]] | None = None
        self._discovered_at = 0.0
        self._missing_since: dict[str, float] = {}
        self._silent_since: float | None = None
        self._reason = ""
        """Why Kafka is silent, for messages."""
        self._complained_at = 0.0
        self._group_commit: Future[Any] | None = None
        self._paused: Collection[str] = ()

    def start(self, state: Any | None) -> None:
        """Start at the checkpoint's positions, or at the starting offsets.

        Raises:
            ConfigurationError: a topic, a partition or a position is not there.
            ServiceUnavailable: no broker answers.
        """
        try:
            topics = self._describe()
            if state is None:
                self._start_fresh(topics)
            else:
                self._resume(Positions.decode(state), topics)
            self._ends = self._view.ends(self._positions.next)
        except BrokerUnavailable as error:
            raise BrokerUnavailable(
                f"{self._name}: {error}. Check that the broker runs and that bootstrap.servers={self._view.servers!r} "
                "is its address"
            ) from error
        self._discovered_at = time.monotonic()

    def plan(self, max_records: int) -> EpochInput:
        """Plan the next ranges from known ends, without waiting for unavailable brokers."""
        self._apply_discovery()
        if self._pending is not None:  # an answer to an earlier question: records have come since
            self._refresh(0.0)
        self._refresh(_FRESH_S)
        positions = self._positions
        available = {p: self._limit(p) - offset for p, offset in positions.next.items()}
        wanted = {p: n for p, n in available.items() if str(p) not in self._paused} if self._paused else available
        shares = share(wanted, max_records)
        ranges = [
            SplitRange(str(p), 0, 0, 1, (p.topic, p.partition, -1), last=True)
            for p in sorted(self._left - positions.next.keys())
        ]
        self._left.clear()
        for partition, offset in positions.next.items():
            taken = shares.get(partition, 0)
            end = offset + taken
            last = positions.at_stop(partition, end) and partition not in positions.closed
            if last:
                positions.closed.add(partition)
            if taken or last or partition not in positions.announced:
                payload = (partition.topic, partition.partition, positions.epochs.get(partition, -1))
                ranges.append(SplitRange(str(partition), offset, end, max(taken, 1), payload, last))
                positions.announced.add(partition)
        for partition, taken in shares.items():
            positions.next[partition] += taken
            # An older leader epoch is not valid for the range in between.
            positions.epochs.pop(partition, None)
            if partition in self._epochs:
                positions.epochs[partition] = self._epochs[partition]
        backlog = sum(max(n, 0) for n in available.values()) - sum(shares.values())
        finished = self._source.stopping_offsets is not None and positions.closed >= positions.next.keys()
        return EpochInput(tuple(ranges), backlog, finished)

    def pause(self, splits: Collection[str]) -> None:
        """Plan no records of these partitions until the next call."""
        self._paused = splits

    def snapshot(self) -> Any:
        """Topics by id, and each partition's next and last offset."""
        return self._positions.encode()

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Commit the group's offsets for monitoring of the lag; the job itself never reads them again."""
        group = self._source.group_id
        if not group or not self._source.commit_offsets:
            return
        if self._group_commit is not None:
            if not self._group_commit.done():
                return  # the next checkpoint's offsets cover these
            if isinstance(self._group_commit.exception(), ConfigurationError):
                return  # refused, and it will be again
        offsets = Positions.decode(state).next
        if offsets:
            self._group_commit = self._view.commit(group, offsets)
            self._group_commit.add_done_callback(self._warn_of_failed_commit)

    def _warn_of_failed_commit(self, commit: Future[Any]) -> None:
        if error := commit.exception():
            _logger.warning("%s: offsets of group %s not committed: %s", self._name, self._source.group_id, error)

    def wait(self, timeout: float) -> None:
        """Poll the partitions' ends until there is new input: every few ms at first, then 20 times a second.

        With thousands of partitions it is less often: polls take a tenth of a processor at most.
        """
        deadline = time.monotonic() + timeout
        pause = _POLL_MIN_S
        while True:
            self._apply_discovery()
            left, began = deadline - time.monotonic(), time.thread_time()
            self._refresh(max(0.0, min(left, 0.5)))
            if self._news() or (left := deadline - time.monotonic()) <= 0:
                return
            time.sleep(min(max(pause, _POLL_SHARE * (time.thread_time() - began)), left))
            pause = min(pause * 1.5, _POLL_MAX_S)

    def close(self) -> None:
        """Close the clients; give a pending group commit a moment to finish."""
        if self._group_commit is not None and not self._group_commit.done():
            PendingOffsets({None: self._group_commit}).wait(2)
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _start_fresh(self, topics: dict[str, Topic | None]) -> None:
        found = self._existing(topics)
        partitions = self._selected(found)
        self._positions = Positions(topics={t.name: t.id for t in found})
        self._positions.next = first_positions(self._source, self._view, partitions)
        self._positions.stop_at(self._source.stopping_offsets, self._stops(partitions))

    def _stops(self, partitions: list[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        stopping = self._source.stopping_offsets
        return {} if stopping is None else offsets_of(stopping, self._source, self._view, partitions, "stopping")

    def _resume(self, positions: Positions, topics: dict[str, Topic | None]) -> None:
        self._positions = positions
        for name in [n for n in positions.topics if n not in topics]:
            pattern = self._source.pattern
            if pattern is not None and pattern.fullmatch(name) and self._view.topics([name])[name] is None:
                self._gone(name)
            else:
                _logger.warning(
                    "%s: topic %s is no longer among the source's topics; its position is dropped", self._name, name
                )
            self._forget(name)
        for name, topic in topics.items():
            if name in positions.topics:
                if topic is None:
                    raise InputLost(self._deleted(name))
                self._check_topic(topic)
        found = self._existing(topics)
        partitions = self._selected(found)
        if others := sorted(positions.next.keys() - set(partitions)):
            _logger.warning(
                "%s: %s is no longer among the source's partitions; its position is dropped",
                self._name, ", ".join(map(str, others)),
            )  # fmt: skip
            self._left |= positions.drop(others)
        if changed := not positions.says(self._source.stopping_offsets):
            _logger.warning("%s: the program has other stopping offsets than the checkpoint; they apply now", self._name)
            positions.stop_at(self._source.stopping_offsets, self._stops(partitions))
        known = [p for p in partitions if p in positions.next]
        beginnings = self._view.beginnings(partitions)
        lost = {p: beginnings[p] for p in known if positions.next[p] < beginnings[p] and p not in positions.closed}
        if lost:
            positions.move(self._reset(lost))
        self._add(found, [p for p in partitions if p not in positions.next], beginnings, with_stops=changed)

    def _check_topic(self, topic: Topic) -> None:
        """Check that the topic is still the one read so far; if a policy allows it, begin with another one.

        Raises:
            InputLost: it is another one, and no policy allows it.
        """
        told = created_again(self._positions, topic)
        policy = self._source.reset_policy
        if told and (policy is KafkaOffsetResetStrategy.NONE or self._source.stopping_offsets is not None):
            raise InputLost(
                f"{self._name}: {told}. To read the new topic, start the job without its state, or set the property "
                "auto.offset.reset to earliest or latest (for a source without stopping offsets)"
            )
        if told:
            _logger.error("%s: %s. The new one is read from %s, as auto.offset.reset says", self._name, told, policy.name)
            self._forget(topic.name)
            if policy is KafkaOffsetResetStrategy.LATEST:
                self._positions.topics[topic.name] = topic.id
                self._positions.next |= self._view.ends(self._meant([topic]))

    def _forget(self, name: str) -> None:
        """Drop a topic."""
        self._left |= self._positions.forget(name)
        for known in (self._ends, self._epochs, self._shrunk):
            for partition in [p for p in known if p.topic == name]:
                del known[partition]

    def _gone(self, name: str) -> None:
        """Handle a topic of the pattern that was deleted.

        Raises:
            InputLost: no policy allows it.
        """
        if self._source.reset_policy is KafkaOffsetResetStrategy.NONE:
            raise InputLost(self._deleted(name))
        _logger.error("%s. It goes on without the topic, as auto.offset.reset allows", self._deleted(name))

    def _reset(self, lost: dict[KafkaTopicPartition, int]) -> dict[KafkaTopicPartition, int]:
        """Return the next offsets of partitions that lost their next records."""
        policy = self._source.reset_policy
        told = "; ".join(
            f"topic {p.topic}, partition {p.partition}: the next record to read is at offset {self._positions.next[p]}, the "
            f"first that is left at {first}"
            for p, first in sorted(lost.items())
        )
        if policy is KafkaOffsetResetStrategy.NONE:
            raise InputLost(
                f"{self._name}: Kafka no longer holds records that were not yet read ({told}). To go on without them, "
                "set the property auto.offset.reset to earliest or latest; else restore the records, or start the "
                "job without its state"
            )
        _logger.error(
            "%s: records are lost, reading on from %s as auto.offset.reset says: %s", self._name, policy.name, told
        )
        return lost if policy is KafkaOffsetResetStrategy.EARLIEST else self._view.ends(lost)

    def _describe(self) -> dict[str, Topic | None]:
        source = self._source
        names = (
            source.topics
            if source.pattern is None
            else [name for name in self._view.matching(source.pattern) if name not in self._own_topics]
        )
        return self._view.topics([*names, *(n for n in self._positions.topics if n not in names)])

    def _existing(self, topics: dict[str, Topic | None]) -> list[Topic]:
        if missing := [name for name, topic in topics.items() if topic is None]:
            raise ConfigurationError(
                f"{self._name}: there is no topic {', '.join(missing)} at {self._view.servers}. Create it, or "
                "correct the name"
            )
        if not topics and self._source.pattern is not None:
            raise ConfigurationError(
                f"{self._name}: no topic at {self._view.servers} matches {self._source.pattern.pattern!r} as a whole"
            )
        return [topic for topic in topics.values() if topic is not None]

    def _meant(self, topics: Iterable[Topic]) -> list[KafkaTopicPartition]:
        """The partitions of these topics that the source reads."""
        every = [KafkaTopicPartition(t.name, p) for t in topics for p in range(t.partitions)]
        chosen = self._source.partitions
        return every if chosen is None else sorted(set(chosen).intersection(every))

    def _selected(self, topics: Iterable[Topic]) -> list[KafkaTopicPartition]:
        """The partitions that the source reads; ``topics`` are all that it reads.

        Raises:
            ConfigurationError: a partition that the program names is not there.
        """
        meant = self._meant(topics)
        if missing := sorted(set(self._source.partitions or ()).difference(meant)):
            raise ConfigurationError(f"{self._name}: there is no partition {', '.join(map(str, missing))}")
        return meant

    def _add(
        self,
        topics: list[Topic],
        new: list[KafkaTopicPartition],
        beginnings: dict[KafkaTopicPartition, int],
        *,
        with_stops: bool = False,
    ) -> None:
        """Add partitions that appeared after the job's start, and read them from the beginning."""
        if new and self._positions.next and self._source.stopping_offsets is not None and not with_stops:
            return  # the stopping offsets were fixed at the start, for the partitions at that time
        self._positions.topics.update({t.name: t.id for t in topics})
        for partition in new:
            self._positions.next[partition] = beginnings[partition]
            _logger.info("%s: new partition %s, read from offset %d", self._name, partition, beginnings[partition])

    def _limit(self, partition: KafkaTopicPartition) -> int:
        end = self._ends.get(partition, self._positions.next[partition])
        stop = self._positions.stop.get(partition)
        return end if stop is None else min(end, stop)

    def _news(self) -> bool:
        positions = self._positions
        return any(
            (self._limit(p) > offset and not (self._paused and str(p) in self._paused))
            or p not in positions.announced
            or (positions.at_stop(p, offset) and p not in positions.closed)
            for p, offset in positions.next.items()
        )

    def _refresh(self, patience: float) -> None:
        """Update the ends, if the brokers answer within ``patience`` seconds."""
        try:
            if self._pending is None:
                self._pending = self._view.ask_ends(p for p in self._positions.next if p not in self._positions.closed)
            if not self._pending.wait(patience):
                return self._note_silence(None)
            pending, self._pending = self._pending, None
            ends, leader_epochs, errors = pending.take()
        except HoldfastError as error:
            self._pending = None
            time.sleep(min(patience, 0.05))
            return self._note_silence(str(error))
        self._ends.update(ends)
        self._epochs = {p: e for p, e in self._epochs.items() if p not in ends} | leader_epochs
        known, closed = self._positions.next, self._positions.closed
        short = {p: end for p, end in ends.items() if end < known.get(p, end) and p not in closed}
        self._check_ends(ends, short)
        if errors:
            partition, problem = next(iter(errors.items()))
            self._discovered_at = min(self._discovered_at, time.monotonic() - self._interval + 1.0)
            return self._note_silence(f"{partition}: {problem.str()}")
        if short:
            # A re-created topic has another id.
            self._discovered_at = min(self._discovered_at, time.monotonic() - self._interval + 0.5)
        self._note_answer()

    def _check_ends(self, ends: Mapping[KafkaTopicPartition, int], short: Mapping[KafkaTopicPartition, int]) -> None:
        """Detect partitions that have lost their tail; a new leader may lag behind for a moment.

        Args:
            ends: The present ends.
            short: Those before their position.
        """
        now = time.monotonic()
        for partition in [p for p in self._shrunk if p in ends and p not in short]:
            del self._shrunk[partition]
        for partition, end in short.items():
            since, lowest = self._shrunk.get(partition, (now, end))
            self._shrunk[partition] = since, min(lowest, end)
        lost = self._really_shrunk({p: end for p, (since, end) in self._shrunk.items() if now - since > _MISSING_S})
        if not lost:
            return
        told = "; ".join(
            f"topic {p.topic}, partition {p.partition}: the next record to read is at offset {self._positions.next[p]}, but "
            f"the partition ends at {end}"
            for p, end in sorted(lost.items())
        )
        if self._source.reset_policy is KafkaOffsetResetStrategy.NONE:
            raise InputLost(
                f"{self._name}: Kafka has lost records that were read already ({told}): an unclean leader election, or a "
                "broker whose disk was restored. New records at these offsets are others. To read on at the end that is "
                "left, set the property auto.offset.reset to earliest or latest; else start the job without its state"
            )
        _logger.error(
            "%s: records are lost that were read already, reading on at the end that is left: %s", self._name, told
        )
        self._positions.move(lost)
        self._shrunk.clear()

    def _really_shrunk(self, ends: dict[KafkaTopicPartition, int]) -> dict[KafkaTopicPartition, int]:
        """Leave out the partitions that reach their position with the records of transactions that are still open."""
        try:
            highest = self._view.high_watermarks(ends)
        except BrokerUnavailable as error:
            self._note_silence(str(error))
            return {}
        for partition in ends:
            if highest[partition] >= self._positions.next[partition]:
                del self._shrunk[partition]  # it is looked at again after another while
        return {p: end for p, end in ends.items() if p in self._shrunk}

    @property
    def _interval(self) -> float:
        return self._source.discovery_interval_s or 3600.0

    def _apply_discovery(self) -> None:
        """Start a discovery of topics when it is due, and apply the result of the last one."""
        if self._discovery is None:
            if time.monotonic() - self._discovered_at >= self._interval:
                self._discovery = self._worker.submit(self._discover)
            return
        if not self._discovery.done():
            return
        discovery, self._discovery = self._discovery, None
        self._discovered_at = time.monotonic()
        try:
            topics, beginnings = discovery.result()
        except BrokerUnavailable as error:
            return self._note_silence(str(error))
        now, known = time.monotonic(), set(self._positions.topics)
        for name, topic in topics.items():
            if topic is None:
                if now - self._missing_since.setdefault(name, now) > _MISSING_S:
                    if self._source.pattern is None:
                        raise InputLost(self._deleted(name))
                    self._gone(name)
                    self._forget(name)
                    del self._missing_since[name]
                    continue
                self._discovered_at = now - self._interval + 2.0
                continue
            self._missing_since.pop(name, None)
            if name in self._positions.topics:
                self._check_topic(topic)
        lost = {
            p: first
            for p, first in beginnings.items()
            if first > self._positions.next.get(p, first) and p not in self._positions.closed
        }
        if lost:
            self._positions.move(self._reset(lost))
        found = [t for t in topics.values() if t is not None]
        new = [p for p in beginnings if p not in self._positions.next]
        if self._source.discovery_interval_s is None:  # only topics that were created again are new
            found = [t for t in found if t.name in known]
            new = [p for p in new if p.topic in known - self._positions.topics.keys()]
        self._add(found, new, beginnings)

    def _discover(self) -> tuple[dict[str, Topic | None], dict[KafkaTopicPartition, int]]:
        topics = self._describe()
        found = [t for t in topics.values() if t is not None]
        chosen = self._source.partitions
        every = [KafkaTopicPartition(t.name, p) for t in found for p in range(t.partitions)]
        return topics, self._view.beginnings([p for p in every if chosen is None or p in chosen])

    def _deleted(self, name: str) -> str:
        told = f"{self._name}: topic {name} was deleted at {self._view.servers}; what the job had not read yet is gone"
        if self._source.pattern is None:
            return f"{told}. Start the job without its state if that is all right"
        return (
            f"{told}. If that is all right, set the property auto.offset.reset=earliest, or start the job without its state"
        )

    @property
    def silence(self) -> str | None:
        """Why Kafka does not answer; None: it answers, or has been silent for a moment only."""
        if self._silent_since is None or time.monotonic() - self._silent_since < _MOMENT_S:
            return None
        return f"{self._name}: no answer from Kafka at {self._view.servers}{self._reason}"

    def _note_silence(self, reason: str | None) -> None:
        now = time.monotonic()
        self._reason = f" ({reason})" if reason else ""
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since > _MOMENT_S and now - self._complained_at > _COMPLAINT_S:
            self._complained_at = now
            _logger.warning(
                "%s: no answer from Kafka at %s for %.0f s, waiting for it%s",
                self._name, self._view.servers, now - self._silent_since, f" ({reason})" if reason else "",
            )  # fmt: skip

    def _note_answer(self) -> None:
        if self._silent_since is not None and self._complained_at >= self._silent_since:
            _logger.warning("%s: Kafka answers again after %.0f s", self._name, time.monotonic() - self._silent_since)
        self._silent_since = None
