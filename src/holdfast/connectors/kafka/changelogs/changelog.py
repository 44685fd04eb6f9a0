"""Changelogs of keyed state in compacted topics: one topic for each operator, one transaction for each subtask and epoch.

Transactions are prepared in the task and committed by the driver after the checkpoint, like those of the exactly-once
sink. A record's key is the key group (u16) and the row's key; that of a marker begins with 0xFFFF, followed by the first
and the last key group of its subtask (u16 each) and its writer.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import msgspec
import xxhash
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclOperation, AdminClient, NewTopic

from holdfast.checkpoint.changelog import ChangelogSettings
from holdfast.common.kafka_properties import admin_properties
from holdfast.connectors.base import JobInfo
from holdfast.connectors.kafka.changelogs.changelog_log import KafkaChangelogLog
from holdfast.connectors.kafka.changelogs.changelog_reader import KafkaChangelogReader
from holdfast.connectors.kafka.cluster import ClusterView
from holdfast.connectors.kafka.sink.committable import KafkaCommittable, TransactionalId
from holdfast.connectors.kafka.sink.committer import KafkaCommitter
from holdfast.connectors.kafka.sink.outbox import OutgoingBatch
from holdfast.connectors.kafka.sink.output import KafkaOutput
from holdfast.connectors.kafka.sink.producer_record import KafkaSinkContext
from holdfast.errors import ConfigurationError

__all__ = ["ChangelogCommitter", "KafkaChangelog", "changelog_topic"]

_logger = logging.getLogger(__name__)

_TIMEOUT_S = 30.0
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")
_TOMBSTONES_MS = 86_400_000
"""Kafka's default of ``delete.retention.ms``."""
_LARGEST = 104_000_000
"""Bytes of the largest row: a little less than brokers take in a request (``socket.request.max.bytes``)."""


def changelog_topic(job_name: str, uid: str) -> str:
    """The changelog topic of an operator.

    Where a dash in the job's name or in the uid would let another job have the same topic, the length of the job's name
    tells where it ends. Names that are no topic's get a hash.

    >>> changelog_topic("payments", "counts")
    'payments-counts-changelog'
    >>> changelog_topic("payments-eu", "counts"), changelog_topic("payments", "eu-counts")
    ('payments-eu-counts-11-changelog', 'payments-eu-counts-8-changelog')
    """
    if "-" not in job_name + uid:
        return _earlier_topic(job_name, uid)
    name = f"{job_name}-{uid}"
    safe = _UNSAFE.sub("-", name)[:200]
    if safe == name:
        return f"{name}-{len(job_name)}-changelog"
    return f"{safe}-{xxhash.xxh3_64_hexdigest(f'{len(job_name)}-{name}'.encode())}-changelog"


def _earlier_topic(job_name: str, uid: str) -> str:
    """The topic in earlier releases, which gave one topic to operators of several jobs."""
    name = f"{job_name}-{uid}"
    safe = _UNSAFE.sub("-", name)[:200]
    return f"{safe if safe == name else f'{safe}-{xxhash.xxh3_64_hexdigest(name.encode())[:8]}'}-changelog"


class KafkaChangelog:
    """The changelog topic of one operator.

    Args:
        settings: The brokers, and the number of partitions.
        job_name: The job.
        uid: The operator.
        max_parallelism: Its number of key groups.
    """

    def __init__(self, settings: ChangelogSettings, job_name: str, uid: str, max_parallelism: int) -> None:
        self._properties = {"message.max.bytes": str(_LARGEST), **settings.properties}
        self._partitions = min(settings.partitions, max_parallelism)
        self._max_parallelism = max_parallelism
        self._uid = uid
        self._prefix = f"{job_name}-changelog"
        self.topic = changelog_topic(job_name, uid)
        self._earlier_topic = _earlier_topic(job_name, uid)

    @property
    def _view(self) -> ClusterView:
        return ClusterView(self._properties, read_committed=True)

    @property
    def where(self) -> str:
        """The topic and its operator, for messages."""
        return f"the changelog topic {self.topic} of operator uid {self._uid!r}"

    def validate(self) -> None:
        """Create the topic, or check the one that is there, and the rights on it.

        Raises:
            BrokerUnavailable: the brokers do not answer.
            ConfigurationError: the topic cannot be created, has another number of partitions, or is not compacted; or a
                right is missing.
        """
        if not self.exists():
            self._create()
        self._view.check_allowed([self.topic], AclOperation.READ, AclOperation.WRITE)

    def exists(self) -> bool:
        """Check the topic; returns whether it is there.

        Raises:
            BrokerUnavailable: the brokers do not answer.
            ConfigurationError: it has another number of partitions, or is not compacted, or the brokers refuse to tell.
        """
        view = self._view
        found = view.topics([self.topic])[self.topic]
        if found is None:
            return False
        where = self.where
        remedy = "Or delete the topic while the job does not run: it is created again and filled from the checkpoint's files"
        if found.partitions != self._partitions:
            raise ConfigurationError(
                f"{where} has {found.partitions} partitions, but state.changelog.partitions asks for {self._partitions}: "
                f"set it to {found.partitions}. {remedy}"
            )
        policy = view.setting(self.topic, "cleanup.policy")
        if policy != "compact":
            raise ConfigurationError(
                f"{where} has cleanup.policy={policy}, so Kafka deletes rows that the state still has; set it to compact "
                f"before Kafka has deleted any. {remedy}"
            )
        return True

    def _create(self) -> None:
        admin = AdminClient({**admin_properties(self._properties), "log_level": 0})
        config = {
            "cleanup.policy": "compact",
            "delete.retention.ms": str(_TOMBSTONES_MS),
            "max.message.bytes": str(_LARGEST),
        }
        new = NewTopic(self.topic, self._partitions, -1, config=config)
        try:
            _result(admin.create_topics([new], request_timeout=_TIMEOUT_S))
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return  # another driver of the job was faster
            raise ConfigurationError(
                f"the changelog topic {self.topic} could not be created: {error.args[0].str()}. Create it yourself "
                f"({self._partitions} partitions, cleanup.policy=compact), or allow its creation"
            ) from error
        _logger.info("created the changelog topic %s with %d partitions", self.topic, self._partitions)
        if self._earlier_topic != self.topic and self._view.topics([self._earlier_topic])[self._earlier_topic] is not None:
            _logger.warning(
                "%s is new: earlier releases used the topic %s for it, and also for operators of other jobs, whose rows "
                "could get into its state. The new topic is filled from the checkpoint's files; delete the old one when no "
                "job of an earlier release uses it",
                self.where,
                self._earlier_topic,
            )

    def create_committer(self, job: JobInfo, uid: str) -> ChangelogCommitter:
        """Create the committer of the topic's transactions."""
        return ChangelogCommitter(self._output(), _without_storage(job), uid, self.where)

    def open(self, job: JobInfo, uid: str, subtask: int) -> KafkaChangelogLog:
        """Open the topic in a task."""
        return KafkaChangelogLog(
            self._output(), self.topic, self._partitions, self._max_parallelism, job, uid, subtask, _TOMBSTONES_MS
        )

    def follow(self) -> KafkaChangelogReader:
        """Read the topic for a standby copy."""
        return KafkaChangelogReader(self._properties, self.topic, self._partitions, _TOMBSTONES_MS, keeps=True)

    def _output(self) -> KafkaOutput:
        return KafkaOutput(self._properties, _Rows(self.topic), transactional_id_prefix=self._prefix)


class _Rows(msgspec.Struct, frozen=True):
    """The serializer of a `KafkaOutput` that gets records in Kafka's form."""

    topic: str

    def to_batch(self, values: Sequence[Any], timestamps: Sequence[int] | None, context: KafkaSinkContext) -> OutgoingBatch:
        """Refuse records that are not in Kafka's form.

        Raises:
            NotImplementedError: always; a changelog makes its batches itself.
        """
        raise NotImplementedError("a changelog's rows are in Kafka's form already; it makes its batches itself")


class ChangelogCommitter(KafkaCommitter):
    """Commits the transactions of a changelog.

    A lost transaction is not written again: the checkpoint's files have its rows, and the tasks fill the log from them.
    """

    _advice = (
        "The topics of changelogs have the job's name, so each job that shares the brokers needs a name of its own "
        "(pipeline.name)"
    )

    def __init__(self, sink: KafkaOutput, job: JobInfo, uid: str, where: str) -> None:
        super().__init__(sink, job, uid)
        self._where = where

    def _owner(self, transaction: TransactionalId) -> str:
        return "another job of this name, with checkpoints in another storage,"

    def _rewrite(self, lost: Sequence[KafkaCommittable]) -> None:
        if lost:
            _logger.warning(
                "%s: %d transactions of the changelog are gone. If they were not committed, the state is restored from the "
                "checkpoint's files",
                self._where,
                len(lost),
            )


def _without_storage(job: JobInfo) -> JobInfo:
    return replace(job, storage_uri=None)


def _result(futures: Mapping[Any, Future[Any]]) -> Any:
    (future,) = futures.values()
    return future.result(_TIMEOUT_S + 5)
