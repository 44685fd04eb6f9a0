"""ProducerRecord, a Kafka record to be written, and the context in which elements become such records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from holdfast.common.kafka_properties import admin_properties
from holdfast.connectors.kafka.cluster import ANSWER_TIMEOUT_S, unavailable
from holdfast.errors import ConfigurationError

__all__ = ["KafkaSinkContext", "ProducerRecord"]


class ProducerRecord(NamedTuple):
    """A record for Kafka, as Kafka's ProducerRecord. Keys, values and headers are bytes or str."""

    topic: str
    key: bytes | str | None = None
    value: bytes | str | None = None
    """None writes a tombstone, which deletes the key in a compacted topic."""
    headers: Mapping[str, Any] | Sequence[tuple[str, Any]] = ()
    timestamp: int | None = None
    """In ms; None: the time at which it is written."""
    partition: int | None = None
    """None: the partition that the key gives; without a key, any."""


class KafkaSinkContext:
    """The subtask of a Kafka sink, and the topics it can write to.

    Args:
        properties: The sink's client properties.
        uid: The sink's uid.
        subtask: The subtask's number.
        parallelism: The number of subtasks.
    """

    def __init__(self, properties: Mapping[str, Any], uid: str, subtask: int = 0, parallelism: int = 1) -> None:
        self._properties = properties
        self.uid = uid
        self._subtask = subtask
        self._parallelism = parallelism
        self._partitions: dict[str, list[int]] = {}

    def get_parallel_instance_id(self) -> int:
        """The number of this subtask, from 0."""
        return self._subtask

    def get_number_of_parallel_instances(self) -> int:
        """The number of subtasks."""
        return self._parallelism

    def get_partitions_for_topic(self, topic: str) -> list[int]:
        """The partitions of a topic, as the brokers answered when this subtask first asked.

        Raises:
            ConfigurationError: the topic does not exist.
            BrokerUnavailable: no broker answers.
        """
        if topic not in self._partitions:
            client = AdminClient({**admin_properties(self._properties), "log_level": 0})
            try:
                found = client.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic]
            except KafkaException as error:
                raise unavailable(
                    admin_properties(self._properties),
                    f"Kafka sink (uid {self.uid}): no answer about the partitions of topic {topic}: {error.args[0].str()}",
                ) from error
            if found.error is not None:
                raise ConfigurationError(f"Kafka sink (uid {self.uid}): topic {topic}: {found.error.str()}")
            self._partitions[topic] = sorted(found.partitions)
        return self._partitions[topic]
