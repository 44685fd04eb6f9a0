"""Tokens: each transaction contains one record that names its output, in a compacted topic.

A transaction's coordinator can tell only for a while whether it was committed: it forgets unused ids, and of a fenced id it
knows only that it was fenced. The token is part of the transaction itself: a read_committed reader sees it if and only
if the transaction was committed, as long as the topic exists. The topic is compacted by writer, so it stays as small as
the job's parallelism.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

import msgspec
import xxhash
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic, ResourceType

from holdfast.checkpoint.ids import Epoch
from holdfast.common.kafka_properties import admin_properties, consumer_properties
from holdfast.common.kafka_refusals import OF_THE_GROUP, REFUSED, rights_missing
from holdfast.connectors.kafka.cluster import NO_ANSWER, TOKEN_TOPIC_END, BrokerUnavailable, ClusterView
from holdfast.connectors.kafka.offsets import KafkaTopicPartition
from holdfast.connectors.kafka.sink.outbox import OutgoingBatch
from holdfast.errors import ConfigurationError, HoldfastError

__all__ = [
    "Token",
    "check_permissions",
    "create_token_topic",
    "ensure_token_topic",
    "never_written",
    "read_tokens",
    "token_topic",
]

_logger = logging.getLogger(__name__)

R = TypeVar("R")

_TIMEOUT_S = 30.0
_GRACE_S = 5.0
"""The client reports a timeout itself, a little late on a busy machine."""
_NOT_ALLOWED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_NOT_READABLE = (
    "the exactly-once Kafka sink may not read its tokens in the topic {topic}, and so not tell whether output was "
    "committed: {reason}. Allow it to READ the topic"
)
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def token_of(message: Any) -> Token:
    """The token in a message of the topic.

    Raises:
        ConfigurationError: no sink has written it. It stays there, so that a restart would not help.
    """
    try:
        return _decode(message.value())
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise ConfigurationError(
            f"the topic {message.topic()} holds the exactly-once Kafka sink's tokens, but its record at offset "
            f"{message.offset()} is none ({error}), so that it is unknown what was committed. Something else writes to the "
            "topic: see who may. If you delete the topic, output whose commit was not known may be written again"
        ) from error


class Token(msgspec.Struct, frozen=True):
    """The name of the last output that a writer has committed for one driver of its job."""

    generation: int
    epoch: Epoch
    id: str
    job_name: str = msgspec.field(name="job", default="")
    """For messages; empty: of a release that did not write it."""

    @staticmethod
    def key(uid: str, subtask: int, job: str, generation: int) -> bytes:
        """The writer's record key.

        Each driver has its own: after a return to an older checkpoint, the epochs of a later driver do not show that those
        of an earlier one were committed. Without the identity of a job (as in earlier releases), all have one.
        """
        return (f"{uid}/{subtask}/{job}/g{generation}" if job else f"{uid}/{subtask}").encode()

    def record(self, topic: str, uid: str, subtask: int, job: str) -> OutgoingBatch:
        """The token's record, written together with the output."""
        value = msgspec.json.encode(
            {"version": 1, "generation": self.generation, "epoch": self.epoch, "id": self.id, "job": self.job_name}
        )
        return OutgoingBatch(topic, [value], [self.key(uid, subtask, job, self.generation)])


_decode = msgspec.json.Decoder(Token).decode


def token_topic(prefix: str) -> str:
    """The token topic of a transactional id prefix.

    >>> token_topic("payments")
    'payments-holdfast-tokens'
    """
    safe = _UNSAFE.sub("-", prefix)[:200]
    return f"{safe if safe == prefix else f'{safe}-{xxhash.xxh3_64_hexdigest(prefix.encode())[:8]}'}{TOKEN_TOPIC_END}"


def create_token_topic(properties: Mapping[str, Any], topic: str, output: str | None) -> None:
    """Ensure that the token topic exists, is compacted, and is replicated like the output.

    Args:
        properties: The user's client properties.
        topic: The token topic.
        output: The output topic, whose replication factor and ``min.insync.replicas`` the token topic gets; None if it is
            chosen per record: the brokers' defaults.

    Raises:
        BrokerUnavailable: the brokers do not answer.
        ConfigurationError: the topic cannot be created, or is not compacted.
    """
    admin = AdminClient({**admin_properties(properties), "log_level": 0})
    replicas, in_sync = _safety(admin, output)
    config = {"cleanup.policy": "compact", "min.insync.replicas": str(in_sync)}
    new = NewTopic(topic, 1, replicas, config=config)
    try:
        _ask(lambda: _result(admin.create_topics([new], request_timeout=_TIMEOUT_S)), f"create the topic {topic}")
        _logger.info("created the topic %s for the tokens of the Kafka sink: %d replicas, %s", topic, replicas, config)
        return _wait_for_leader(admin, topic)
    except KafkaException as error:
        code = error.args[0].code()  # who may not create topics is not told that there is one
        there = code == KafkaError.TOPIC_ALREADY_EXISTS or (code in _NOT_ALLOWED and _exists(admin, topic))
        if not there:
            raise ConfigurationError(
                f"the exactly-once Kafka sink keeps its tokens in the topic {topic}, which could not be created with "
                f"{replicas} replicas: {error.args[0].str()}. Create it yourself (1 partition, cleanup.policy=compact, as "
                "many replicas as the output), or allow its creation"
            ) from error
    have = _replicas(admin, topic)
    if have < replicas:
        _logger.warning(
            "the topic %s holds the tokens of the exactly-once Kafka sink, but has %d replicas, not %d as the output "
            "needs (its replication, at least min.insync.replicas). If the tokens are lost, output may be written "
            "twice. Raise the number of replicas with kafka-reassign-partitions",
            topic, have, replicas,
        )  # fmt: skip
    policy = _described(admin, ConfigResource(ResourceType.TOPIC, topic)).get("cleanup.policy") or "compact"
    if "delete" in policy.split(","):
        raise ConfigurationError(
            f"the topic {topic} holds the tokens of the exactly-once Kafka sink, but its cleanup.policy is {policy}; set it "
            "to compact"
        )


def ensure_token_topic(properties: Mapping[str, Any], topic: str, output: str | None) -> None:
    """Create the token topic as `create_token_topic` does if it is missing: it was deleted while the job ran."""
    if ClusterView(properties, read_committed=False).topics([topic])[topic] is None:
        create_token_topic(properties, topic, output)


def check_permissions(properties: Mapping[str, Any], topic: str) -> None:
    """Check that the job may write its tokens, and read them, as it must when a transaction was lost.

    Raises:
        BrokerUnavailable: the brokers do not answer.
        ConfigurationError: it may not.
    """
    admin = AdminClient({**admin_properties(properties), "log_level": 0})
    asked = TopicCollection([topic])

    def described() -> Any:
        return _result(
            admin.describe_topics(asked, include_authorized_operations=True, request_timeout=_TIMEOUT_S)
        ).authorized_operations

    allowed = _ask_until_known(described, f"ask for the permissions of the topic {topic}")
    if missing := rights_missing(allowed, [AclOperation.READ, AclOperation.WRITE]):
        raise ConfigurationError(
            f"the exactly-once Kafka sink keeps its tokens in the topic {topic}, and tells by them whether output was "
            f"committed, but {' and '.join(missing)} is missing among its rights on the topic. Grant it"
        )


def _safety(admin: AdminClient, output: str | None) -> tuple[int, int]:
    """The output's replicas, at least as many as must be in sync, and its ``min.insync.replicas``."""
    if output is None:
        brokers = _ask(lambda: admin.list_topics(timeout=_TIMEOUT_S), "list the brokers").brokers
        config = _described(admin, ConfigResource(ResourceType.BROKER, str(min(brokers))))
        replicas = int(config.get("default.replication.factor") or 1)
    else:
        config = _described(admin, ConfigResource(ResourceType.TOPIC, output))
        replicas = _replicas(admin, output)
    in_sync = int(config.get("min.insync.replicas") or 1)
    return max(replicas, in_sync), in_sync


def _described(admin: AdminClient, resource: ConfigResource) -> dict[str, str | None]:
    """The configuration of a topic or broker; empty without the permission to ask, which the sink can do without."""
    try:
        answer = _ask_until_known(
            lambda: _result(admin.describe_configs([resource], request_timeout=_TIMEOUT_S)),
            f"read the configuration of {resource.name}",
        )
    except KafkaException as error:
        if error.args[0].code() not in _NOT_ALLOWED:
            raise
        return {}
    return {name: entry.value for name, entry in answer.items()}


def _exists(admin: AdminClient, topic: str) -> bool:
    listed = _ask(lambda: admin.list_topics(topic, timeout=_TIMEOUT_S), f"describe the topic {topic}")
    return listed.topics[topic].error is None


def _replicas(admin: AdminClient, topic: str) -> int:
    """The number of replicas of the topic's partitions."""

    def listed() -> Any:
        found = admin.list_topics(topic, timeout=_TIMEOUT_S).topics[topic]
        if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise KafkaException(found.error)
        return found.partitions

    partitions = _ask_until_known(listed, f"describe the topic {topic}")
    return min((len(each.replicas) for each in partitions.values()), default=1)


def _wait_for_leader(admin: AdminClient, topic: str) -> None:
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        found = _ask(lambda: admin.list_topics(timeout=_TIMEOUT_S), f"describe the topic {topic}").topics.get(topic)
        if found is not None and found.partitions and found.partitions[0].leader >= 0:
            return
        time.sleep(0.02)


def _result(futures: Mapping[Any, Future[R]]) -> R:
    """The answer to a request for one thing."""
    (future,) = futures.values()
    return future.result(_TIMEOUT_S + _GRACE_S)


def _ask_until_known(call: Callable[[], R], what: str) -> R:
    """`_ask` again while a broker does not know a topic yet that was just created."""
    deadline = time.monotonic() + _TIMEOUT_S
    while True:
        try:
            return _ask(call, what)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART or time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _ask(call: Callable[[], R], what: str) -> R:
    """Call the brokers, and tell those that do not answer from those that refuse.

    Raises:
        BrokerUnavailable: no answer; a later attempt may succeed.
        KafkaException: any other error.
    """
    try:
        return call()
    except KafkaException as error:
        if error.args[0].code() in NO_ANSWER:
            raise BrokerUnavailable(
                f"could not {what} for the tokens of the Kafka sink: {error.args[0].str()}. Check that the brokers run; a "
                "running job restarts from its last checkpoint"
            ) from error
        raise


def never_written(properties: Mapping[str, Any], topic: str) -> bool:
    """Whether the topic has had no record: it was created anew if a transaction has been prepared with it before."""
    partition = KafkaTopicPartition(topic, 0)
    return ClusterView(properties, read_committed=False).ends([partition])[partition] == 0


def read_tokens(properties: Mapping[str, Any], topic: str, *, wait: bool = True) -> dict[bytes, Token]:
    """Read the last committed token of each writer, for those that have no open transaction.

    Args:
        properties: The user's client properties.
        topic: The token topic.
        wait: Whether to wait for the end of the transactions that are open now; else what is before them is read.

    Raises:
        ConfigurationError: the job may not read the topic.
        HoldfastError: a foreign transaction stays open in the topic.
    """
    partition = KafkaTopicPartition(topic, 0)
    view = ClusterView(properties, read_committed=True)
    end = (view.high_watermarks if wait else view.ends)([partition])[partition]
    deadline = time.monotonic() + 2 * _TIMEOUT_S
    while view.ends([partition])[partition] < end:
        if time.monotonic() > deadline:
            raise HoldfastError(
                f"a transaction stays open in the topic {topic}, so the committed output cannot be determined. Does "
                "another job use the same transactional id prefix? Each needs its own"
            )
        time.sleep(0.02)
    consumer = Consumer(
        {
            **consumer_properties(properties),
            "log_level": 0,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    tokens: dict[bytes, Token] = {}
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        deadline = time.monotonic() + 2 * _TIMEOUT_S
        while time.monotonic() < deadline:
            message = consumer.poll(1.0)
            if message is not None:
                error = message.error()
                if error is None:
                    tokens[message.key()] = token_of(message)
                    if message.offset() + 1 >= end:
                        return tokens
                elif error.code() == KafkaError._PARTITION_EOF and message.offset() >= end:
                    return tokens
                elif error.code() in REFUSED - {OF_THE_GROUP}:
                    raise ConfigurationError(_NOT_READABLE.format(topic=topic, reason=error.str()))
    finally:
        consumer.close()
    raise HoldfastError(f"the topic {topic} could not be read to its end at offset {end}")
