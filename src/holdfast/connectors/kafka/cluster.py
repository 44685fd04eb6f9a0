"""The source's broker queries: partitions, first and last offsets, and the group's committed offsets."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    Message,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, OffsetSpec, ResourceType

from holdfast.common.kafka_properties import admin_properties, connection_settings
from holdfast.common.kafka_refusals import REFUSED, refused_login, rights_missing
from holdfast.connectors.kafka.offsets import KafkaTopicPartition
from holdfast.errors import ConfigurationError, HoldfastError, ServiceUnavailable

__all__ = ["BrokerUnavailable", "ClusterView", "Ends", "PendingOffsets", "Topic", "silence_of", "unavailable"]

ANSWER_TIMEOUT_S = 8.0
TOKEN_TOPIC_END = "-holdfast-tokens"
"""The end of the names of token topics (`tokens.token_topic`)."""
_LEADER_S = 5.0

_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
NO_ANSWER = {
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._WAIT_COORD,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_CONTROLLER,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NETWORK_EXCEPTION,
}
"""What a client tells of a request that no broker has answered, or not yet."""
_COORDINATOR_MOVES = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.NOT_COORDINATOR,
}
_COORDINATOR_PAUSE_S = 0.1
"""Between two requests to a coordinator that moves: the brokers tell nobody when it has moved."""


class BrokerUnavailable(ServiceUnavailable):
    """No broker answers; a later retry may succeed."""


def unavailable(settings: Mapping[str, Any], told: str) -> BrokerUnavailable | ConfigurationError:
    """The error for a request without an answer: a `ConfigurationError`, which ends the job, if the login is refused.

    Args:
        settings: The client's settings, with librdkafka's names.
        told: What had no answer, and the remedy.
    """
    if refusal := refused_login(settings):
        servers = settings.get("bootstrap.servers", settings.get("metadata.broker.list"))
        return ConfigurationError(
            f"Kafka at {servers} refuses the login: {refusal}. Check the user, the password and the "
            "security settings among the client's properties"
        )
    return BrokerUnavailable(told)


def silence_of(settings: Mapping[str, Any], topic: str, partition: int) -> str:
    """Who does not answer for a partition, and the remedy: the end of an error's message.

    Args:
        settings: The settings of the client that waited in vain. Another one asks: the first one's connections may be stuck.
        topic: The topic.
        partition: The partition.
    """
    client = AdminClient({**connection_settings(settings), "log_level": 0})
    try:
        listed = client.list_topics(topic, timeout=_LEADER_S)
        found = listed.topics[topic].partitions.get(partition)
        broker = None if found is None else listed.brokers.get(found.leader)
        if found is None:
            who = "it does not exist (any more)"
        else:
            who = "it has no leader" if broker is None else f"no answer from its leader, {broker.host}:{broker.port}"
    except KafkaException:
        who = f"no broker at {settings.get('bootstrap.servers')} answers"
    return (
        f"{who}. Check that the partition's brokers run, can be reached and are in sync; a running job restarts from its "
        "last checkpoint"
    )


@dataclass(frozen=True)
class Topic:
    """The present state of a topic."""

    name: str
    id: str
    """Kafka's topic id, which a topic re-created under the same name does not share."""
    partitions: int


class Ends(NamedTuple):
    """Answers about partitions."""

    offsets: dict[KafkaTopicPartition, int]
    leader_epochs: dict[KafkaTopicPartition, int]
    """Where the brokers report them."""
    errors: dict[KafkaTopicPartition, KafkaError]
    """Of partitions without an offset."""


class PendingOffsets:
    """Requested offsets; `take` returns them once they have arrived."""

    def __init__(self, futures: Mapping[TopicPartition, Future[Any]]) -> None:
        self._futures = futures

    @property
    def done(self) -> bool:
        """Whether every partition has an answer or an error."""
        return all(f.done() for f in self._futures.values())

    def wait(self, timeout: float) -> bool:
        """Wait for the answers; returns whether they have arrived."""
        for future in self._futures.values():
            if future.done():
                continue
            try:
                future.exception(timeout)
            except TimeoutError:
                return False
            except Exception as error:  # before Python 3.11, concurrent.futures has its own TimeoutError
                if type(error).__name__ != "TimeoutError":
                    raise
                return False
        return True

    def take(self) -> Ends:
        """Return the answers."""
        ends = Ends({}, {}, {})
        for asked, future in self._futures.items():
            partition = KafkaTopicPartition(asked.topic, asked.partition)
            error = future.exception(0)
            if error is None:
                answer = future.result()
                if answer.offset == OFFSET_INVALID:  # for a silent broker, the client reports neither an error nor an offset
                    told = "no answer from the partition's broker"
                    ends.errors[partition] = KafkaError(KafkaError.LEADER_NOT_AVAILABLE, told)
                    continue
                ends.offsets[partition] = int(answer.offset)
                if answer.leader_epoch is not None:
                    ends.leader_epochs[partition] = int(answer.leader_epoch)
            elif isinstance(error, KafkaException):
                ends.errors[partition] = error.args[0]
            else:
                raise error
        return ends


def _described(topic: Future[Any]) -> Any:
    """The description of a topic; None if it is missing."""
    try:
        return topic.result(ANSWER_TIMEOUT_S + 2)
    except KafkaException as error:
        if error.args[0].code() in _MISSING:
            return None
        raise


def _refusal(heard: Message | None) -> KafkaError | None:
    """A refusal among what a consumer without partitions hears."""
    error = None if heard is None else heard.error()
    return error if error is not None and error.code() in REFUSED else None


class ClusterView:
    """The source's connection to the brokers.

    Args:
        properties: The user's client properties.
        read_committed: Whether a partition ends at its last stable offset; otherwise at its high watermark.
    """

    def __init__(self, properties: Mapping[str, Any], read_committed: bool) -> None:
        self.servers = str(properties.get("bootstrap.servers", ""))
        self._connection = {**admin_properties(properties), "log_level": 0}
        self._admin = AdminClient(self._connection)
        self._committing = ThreadPoolExecutor(1, thread_name_prefix="kafka-group-offsets")
        self._group: tuple[Consumer, list[KafkaError | None]] | None = None
        """Consumer for commits of the group's offsets; only the committing thread uses it."""
        self._isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED

    def topics(self, names: Iterable[str]) -> dict[str, Topic | None]:
        """Describe topics by name; None for a missing topic.

        Raises:
            BrokerUnavailable: the brokers do not answer.
            ConfigurationError: the brokers refuse the request.
        """
        wanted = list(names)
        if not wanted:
            return {}
        futures = self._ask(
            lambda: self._admin.describe_topics(TopicCollection(wanted), request_timeout=ANSWER_TIMEOUT_S), "the topics"
        )
        found: dict[str, Topic | None] = {}
        for name, future in futures.items():
            described = self._ask(partial(_described, future), f"topic {name}")
            found[name] = None if described is None else Topic(name, str(described.topic_id), len(described.partitions))
        return found

    def setting(self, topic: str, name: str) -> str:
        """A setting of a topic.

        Raises:
            BrokerUnavailable: the brokers do not answer.
            ConfigurationError: the brokers refuse the request.
        """
        asked = [ConfigResource(ResourceType.TOPIC, topic)]

        def described() -> Any:
            (answer,) = self._admin.describe_configs(asked, request_timeout=ANSWER_TIMEOUT_S).values()
            return answer.result(ANSWER_TIMEOUT_S + 2)

        return str(self._ask(described, f"the settings of topic {topic}")[name].value)

    def check_allowed(self, topics: Iterable[str], *operations: AclOperation) -> None:
        """Check that the user has these rights on topics; a topic that is missing is not checked.

        Raises:
            BrokerUnavailable: the brokers do not answer.
            ConfigurationError: a right is missing; topic and right are named.
        """
        futures = self._ask(
            lambda: self._admin.describe_topics(
                TopicCollection([*topics]), include_authorized_operations=True, request_timeout=ANSWER_TIMEOUT_S
            ),
            "the topics",
        )
        for name, future in futures.items():
            described = self._ask(partial(_described, future), f"topic {name}")
            if missing := rights_missing(described and described.authorized_operations, operations):
                raise ConfigurationError(
                    f"Kafka at {self.servers} does not give the user all rights on topic {name}: {' and '.join(missing)} "
                    f"{'is' if len(missing) == 1 else 'are'} missing. Grant {'it' if len(missing) == 1 else 'them'} "
                    f"(kafka-acls.sh --add --topic {name} {' '.join(f'--operation {right}' for right in missing)} ...)"
                )

    def matching(self, pattern: re.Pattern[str]) -> list[str]:
        """The sorted names of topics whose whole name matches; internal topics and those of sinks' tokens are excluded.

        Raises:
            BrokerUnavailable: the brokers do not answer.
        """
        listed = self._ask(lambda: self._admin.list_topics(timeout=ANSWER_TIMEOUT_S), "the list of topics")
        found = (n for n in listed.topics if pattern.fullmatch(n))
        return sorted(n for n in found if not n.startswith("__") and not n.endswith(TOKEN_TOPIC_END))

    def ask_ends(self, partitions: Iterable[KafkaTopicPartition], timeout: float = ANSWER_TIMEOUT_S) -> PendingOffsets:
        """Request the ends of partitions; returns at once."""
        asked = {TopicPartition(p.topic, p.partition): OffsetSpec.latest() for p in partitions}
        if not asked:
            return PendingOffsets({})
        return PendingOffsets(
            self._ask(
                lambda: self._admin.list_offsets(asked, isolation_level=self._isolation, request_timeout=timeout), "offsets"
            )
        )

    def ends(self, partitions: Iterable[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        """The ends of partitions."""
        return self._complete(self.ask_ends(partitions))

    def beginnings(self, partitions: Iterable[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        """The first available offsets of partitions."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def high_watermarks(self, partitions: Iterable[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        """The ends of partitions with the records of open transactions, which `ends` may leave out."""
        return self._offsets(partitions, OffsetSpec.latest())

    def at_timestamp(self, partitions: Iterable[KafkaTopicPartition], timestamp: int) -> dict[KafkaTopicPartition, int]:
        """The first offsets with this timestamp (ms) or a later one; otherwise the high watermarks."""
        wanted = list(partitions)
        found = self._offsets(wanted, OffsetSpec.for_timestamp(timestamp))
        missing = [p for p in wanted if found[p] < 0]
        return found | self.high_watermarks(missing)

    def committed(self, group: str, partitions: Iterable[KafkaTopicPartition]) -> dict[KafkaTopicPartition, int]:
        """The group's committed offsets; partitions without one are omitted. Waits for the group's coordinator.

        Raises:
            BrokerUnavailable: the brokers do not answer.
            ConfigurationError: the brokers refuse the request.
        """
        asked = [TopicPartition(p.topic, p.partition) for p in partitions]
        # A consumer, because librdkafka's admin client aborts the process after the coordinator has moved (its issue 5040).
        consumer = Consumer({**self._connection, "group.id": group, "enable.auto.commit": False})
        try:
            deadline = time.monotonic() + ANSWER_TIMEOUT_S
            while True:
                try:
                    answer = consumer.committed(asked, timeout=ANSWER_TIMEOUT_S)
                    for failed in (p.error for p in answer if p.error is not None):
                        raise KafkaException(failed)
                except KafkaException as error:
                    if (refusal := _refusal(consumer.poll(0))) is not None:  # the answer itself only times out
                        raise self._translate(KafkaException(refusal), f"group {group}") from error
                    if error.args[0].code() not in _COORDINATOR_MOVES or time.monotonic() > deadline:
                        raise self._translate(error, f"group {group}") from error
                    time.sleep(_COORDINATOR_PAUSE_S)
                else:
                    return {KafkaTopicPartition(p.topic, p.partition): p.offset for p in answer if p.offset >= 0}
        finally:
            consumer.close()

    def commit(self, group: str, offsets: Mapping[KafkaTopicPartition, int]) -> Future[None]:
        """Commit the group's offsets; returns at once. The future completes, or fails, within about ten seconds."""
        return self._committing.submit(self._commit, group, dict(offsets))

    def _commit(self, group: str, offsets: Mapping[KafkaTopicPartition, int]) -> None:
        asked = [TopicPartition(p.topic, p.partition, o) for p, o in offsets.items()]
        # A consumer, for the same reason as in `committed`; it is kept unless an error occurs.
        kept, self._group = self._group, None
        consumer, answers = kept or self._group_consumer(group)
        try:
            deadline = time.monotonic() + ANSWER_TIMEOUT_S
            consumer.commit(offsets=asked, asynchronous=True)
            while True:
                refusal = _refusal(consumer.poll(0.05))
                if answers or refusal is not None:
                    error = refusal or answers.pop()
                    if error is None:
                        break
                    if error.code() not in _COORDINATOR_MOVES or time.monotonic() > deadline:
                        raise self._translate(KafkaException(error), f"group {group}")
                    time.sleep(_COORDINATOR_PAUSE_S)
                    consumer.commit(offsets=asked, asynchronous=True)
                elif time.monotonic() > deadline:
                    raise self._silent(f" to the offsets of group {group}")
        except ConfigurationError:  # closing waits for the commit, perhaps for ever, and must not hold up the process's end
            threading.Thread(target=consumer.close, name="kafka-group-close", daemon=True).start()
            raise
        except BaseException:
            consumer.close()
            raise
        self._group = consumer, answers

    def _group_consumer(self, group: str) -> tuple[Consumer, list[KafkaError | None]]:
        """A consumer that is not a member of the group, and the list of its commit results."""
        answers: list[KafkaError | None] = []

        def on_commit(error: KafkaError | None, partitions: list[TopicPartition]) -> None:
            answers.append(error or next((p.error for p in partitions if p.error is not None), None))

        settings = {"group.id": group, "enable.auto.commit": False, "on_commit": on_commit}
        return Consumer({**self._connection, **settings}), answers

    def _offsets(self, partitions: Iterable[KafkaTopicPartition], spec: Any) -> dict[KafkaTopicPartition, int]:
        asked = {TopicPartition(p.topic, p.partition): spec for p in partitions}
        if not asked:
            return {}
        return self._complete(
            PendingOffsets(self._ask(lambda: self._admin.list_offsets(asked, request_timeout=ANSWER_TIMEOUT_S), "offsets"))
        )

    def _complete(self, pending: PendingOffsets) -> dict[KafkaTopicPartition, int]:
        if not pending.wait(ANSWER_TIMEOUT_S + 2):
            raise self._silent()
        ends = pending.take()
        for partition, error in ends.errors.items():
            raise self._translate(KafkaException(error), str(partition))
        return ends.offsets

    def _ask(self, call: Callable[[], Any], what: str) -> Any:
        try:
            return call()
        except KafkaException as error:
            raise self._translate(error, what) from error
        except TimeoutError as error:
            raise self._silent() from error

    def _silent(self, to: str = "") -> HoldfastError:
        return unavailable(self._connection, f"no answer from Kafka at {self.servers}{to}")

    def _translate(self, error: KafkaException, what: str) -> HoldfastError:
        if error.args[0].code() in REFUSED:
            return ConfigurationError(f"Kafka at {self.servers} refuses the request for {what}: {error.args[0].str()}")
        told = f"Kafka at {self.servers} does not answer for {what}: {error.args[0].str()}"
        return unavailable(self._connection, told) if error.args[0].code() in NO_ANSWER else BrokerUnavailable(told)
