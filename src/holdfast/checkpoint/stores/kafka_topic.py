"""KafkaTopic: the topic of a checkpoint log on Kafka's brokers."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AclOperation, AdminClient, ConfigResource, NewTopic, ResourceType

from holdfast.checkpoint.stores.object_store import Unavailable
from holdfast.checkpoint.stores.topic import LARGEST_PART, Record
from holdfast.common.kafka_properties import admin_properties, consumer_properties, producer_properties
from holdfast.common.kafka_refusals import OF_THE_GROUP, REFUSED, refused_login, rights_missing
from holdfast.errors import ConfigurationError, StorageError

__all__ = ["KafkaTopic"]

_logger = logging.getLogger(__name__)

_ANSWER_S = 10.0
"""Seconds to wait for the brokers in one attempt."""
_MISSING = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
_ROOM = 4 << 10
"""Bytes of a record besides the part of an entry."""
_AT_ONCE = 100
_RIGHTS = {
    "describe it": "Describe",
    "create it": "Create",
    "read its settings": "DescribeConfigs",
    "read its end": "Describe",
    "read it": "Read",
    "write to it": "Write",
    "delete records of it": "Delete",
    "delete it": "Delete",
}
"""The rights that requests need, as ``kafka-acls.sh`` names them."""
_NEEDED = (AclOperation.DESCRIBE_CONFIGS, AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE)
_NOT_ALLOWED = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}
_SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
"""Settings that the topic must have, so that Kafka deletes no record by itself."""


class KafkaTopic:
    """A topic with one partition. Thread-safe.

    Args:
        name: The topic's name.
        properties: The properties of Kafka's clients, including ``bootstrap.servers``.
    """

    def __init__(self, name: str, properties: Mapping[str, str]) -> None:
        self.name = name
        self._servers = properties.get("bootstrap.servers", "")
        self._properties = dict(properties)
        self._partition = TopicPartition(name, 0)
        self._producing = threading.Lock()
        self._reading = threading.Lock()
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._admin: AdminClient | None = None

    def create(self) -> str:
        """Create the topic unless it exists, and check its settings; returns its id."""
        identity = self.id()
        if not identity:
            new = NewTopic(self.name, 1, -1, config={**_SETTINGS, "unclean.leader.election.enable": "false"})
            try:
                self._answer(self._client().create_topics([new], request_timeout=_ANSWER_S), "create it")
            except StorageError as error:
                cause = error.__cause__
                if not isinstance(cause, KafkaException) or cause.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
            identity = self.id()
            if not identity:
                raise Unavailable(f"Kafka at {self._servers}: topic {self.name} was created, but is not known yet")
            _logger.info("created topic %s for the checkpoint log", self.name)
        self._check()
        return identity

    def id(self) -> str:
        """The topic's id; empty if no topic has this name."""
        asked = self._client().describe_topics(TopicCollection([self.name]), request_timeout=_ANSWER_S)
        try:
            found = self._answer(asked, "describe it")
        except StorageError as error:
            cause = error.__cause__
            if isinstance(cause, KafkaException) and cause.args[0].code() in _MISSING:
                return ""
            raise
        if len(found.partitions) != 1:
            raise ConfigurationError(
                f"topic {self.name} has {len(found.partitions)} partitions, but the order of a checkpoint log is that of "
                "one: name another topic by execution.checkpointing.log.topic, or delete this one if nobody needs it"
            )
        return str(found.topic_id)

    def append(self, records: list[tuple[bytes, bytes]]) -> int:
        """Append records; returns the offset of the last one, once all are replicated."""
        with self._producing:
            if self._producer is None:
                settings = {
                    **producer_properties(self._properties),
                    "linger.ms": 0,
                    "socket.nagle.disable": True,
                    "delivery.report.only.error": False,
                    "message.timeout.ms": round(1000 * _ANSWER_S),
                    "message.max.bytes": max(LARGEST_PART + _ROOM, int(self._properties.get("message.max.bytes", "0"))),
                }
                self._producer = Producer({**settings, "log_level": 0})
            offsets: list[int] = []
            errors: list[KafkaError] = []

            def delivered(error: KafkaError | None, message: Message) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    offsets.append(message.offset())

            try:
                for key, value in records:
                    self._producer.produce(self.name, value, key, 0, on_delivery=delivered)
                left = self._producer.flush(_ANSWER_S + 5)
            except (BufferError, KafkaException) as error:
                self._producer = None
                raise self._failed(error, "write to it") from error
            if errors or left or len(offsets) < len(records):
                producer, self._producer = self._producer, None
                producer.purge()
                failed = errors[0] if errors else KafkaError(KafkaError._TIMED_OUT)
                raise self._failed(KafkaException(failed), "write to it")
            return max(offsets)

    def bounds(self) -> tuple[int, int]:
        """The first offset, and the offset after the last replicated record."""
        with self._reading:
            try:
                found = self._reader().get_watermark_offsets(self._partition, timeout=_ANSWER_S, cached=False)
            except KafkaException as error:
                raise self._failed(error, "read its end") from error
            if found is None:
                raise self._silent(f"{self._where}: no answer")
            return int(found[0]), int(found[1])

    def read(self, start: int, end: int) -> list[Record]:
        """The records with offsets in ``[start, end)``, without deleted ones."""
        found: list[Record] = []
        with self._reading:
            reader = self._reader()
            try:
                reader.assign([TopicPartition(self.name, 0, start)])
                at = start
                while at < end:
                    first = reader.poll(_ANSWER_S)
                    if first is None:
                        raise self._silent(f"{self._where}: no records from offset {at} on")
                    for message in (first, *reader.consume(_AT_ONCE, 0)):
                        if (error := message.error()) is not None:
                            if error.code() == KafkaError._PARTITION_EOF:
                                at = max(at, message.offset())
                                continue
                            if error.code() == OF_THE_GROUP:
                                continue
                            raise KafkaException(error)
                        at = message.offset() + 1
                        if message.offset() < end:
                            found.append(Record(message.offset(), message.key() or b"", message.value() or b""))
            except KafkaException as error:
                if error.args[0].code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
                    return []
                raise self._failed(error, "read it") from error
            finally:
                reader.unassign()
        return found

    def truncate(self, offset: int) -> None:
        """Delete the records before an offset."""
        asked = self._client().delete_records([TopicPartition(self.name, 0, offset)], request_timeout=_ANSWER_S)
        self._answer(asked, "delete records of it")

    def delete(self) -> None:
        """Delete the topic."""
        self._answer(self._client().delete_topics([self.name], request_timeout=_ANSWER_S), "delete it")

    def _check(self) -> None:
        """Check the topic's settings, and the user's rights.

        Raises:
            ConfigurationError: Kafka would lose records by itself, or refuse them; or a right is missing.
        """
        asked_rights = self._client().describe_topics(
            TopicCollection([self.name]), include_authorized_operations=True, request_timeout=_ANSWER_S
        )
        described = self._answer(asked_rights, "describe it")
        if missing := rights_missing(described.authorized_operations, _NEEDED):
            raise ConfigurationError(
                f"{self._where}: the user lacks the right {' and '.join(missing)} on the topic. {self._remedy(missing)}"
            )
        asked = self._client().describe_configs([ConfigResource(ResourceType.TOPIC, self.name)], request_timeout=_ANSWER_S)
        found = {name: str(entry.value) for name, entry in self._answer(asked, "read its settings").items()}
        wrong = {name: found[name] for name, value in _SETTINGS.items() if found.get(name, value) != value}
        if found.get("unclean.leader.election.enable", "false") != "false":
            wrong["unclean.leader.election.enable"] = "true"
        if wrong:
            said = ", ".join(f"{name}={value}" for name, value in wrong.items())
            better = ", ".join(f"{name}={_SETTINGS.get(name, 'false')}" for name in wrong)
            raise ConfigurationError(
                f"topic {self.name}, for the checkpoint log, has {said}: records that the job needs would be lost. "
                f"Set {better} (kafka-configs.sh --alter), or name another topic by execution.checkpointing.log.topic"
            )
        largest = int(found.get("max.message.bytes", LARGEST_PART + _ROOM))
        if largest < LARGEST_PART + _ROOM:
            raise ConfigurationError(
                f"topic {self.name}, for the checkpoint log, has max.message.bytes={largest}, but records of up to "
                f"{LARGEST_PART + _ROOM} bytes are written: set it to 1048588, Kafka's default, or more"
            )
        replicas = len(described.partitions[0].replicas)
        insync = int(found.get("min.insync.replicas", 1))
        if replicas == 1:
            _logger.warning(
                "topic %s has one replica: the checkpoint log is lost with its broker. Create it with three replicas and "
                "min.insync.replicas=2",
                self.name,
            )
        elif insync == 1:
            _logger.warning(
                "topic %s has min.insync.replicas=1: a checkpoint may be on one broker only, and be lost with it. Set 2",
                self.name,
            )

    def _client(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({**admin_properties(self._properties), "log_level": 0})
        return self._admin

    def _reader(self) -> Consumer:
        if self._consumer is None:
            settings = consumer_properties(self._properties)
            self._consumer = Consumer({**settings, "isolation.level": "read_uncommitted", "log_level": 0})
        return self._consumer

    def _answer(self, asked: Mapping[Any, Future[Any]], what: str) -> Any:
        (future,) = asked.values()
        try:
            return future.result(_ANSWER_S + 5)
        except KafkaException as error:
            raise self._failed(error, what) from error
        except NoAnswer as error:
            raise self._silent(f"{self._where}: no answer to a request to {what}") from error

    def _failed(self, error: Exception, what: str) -> StorageError | ConfigurationError:
        """The error for a request; a `ConfigurationError`, which ends the job, if the brokers refuse it."""
        said = error.args[0].str() if isinstance(error, KafkaException) else str(error)
        code = error.args[0].code() if isinstance(error, KafkaException) else None
        text = f"{self._where}: could not {what}: {said}"
        if code in REFUSED:
            return ConfigurationError(f"{text}. {self._remedy([_RIGHTS[what]])}" if code in _NOT_ALLOWED else text)
        if code in _MISSING and what not in ("describe it", "create it"):
            return StorageError(f"{text}. Was the topic deleted?")
        return StorageError(text) if code == KafkaError.TOPIC_ALREADY_EXISTS else self._silent(text)

    def _silent(self, text: str) -> Unavailable | ConfigurationError:
        """The error for a request without an answer."""
        if refusal := refused_login(admin_properties(self._properties)):
            return ConfigurationError(
                f"{self._where}: the brokers refuse the login: {refusal}. Check the settings "
                "execution.checkpointing.log.kafka.*"
            )
        return Unavailable(text)

    @property
    def _where(self) -> str:
        return f"Kafka at {self._servers}, topic {self.name} (the checkpoint log)"

    def _remedy(self, rights: list[str]) -> str:
        options = " ".join(f"--operation {right}" for right in rights)
        return f"Grant the user {' and '.join(rights)} (kafka-acls.sh --add --topic {self.name} {options} ...)"
