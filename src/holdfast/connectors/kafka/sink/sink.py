"""Kafka topics as a sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic

from confluent_kafka import KafkaException, Producer

from holdfast.common.values.type_variables import IN
from holdfast.connectors.base import Committer, JobInfo, SinkWriter, WriterContext
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.cluster import ANSWER_TIMEOUT_S, BrokerUnavailable
from holdfast.connectors.kafka.config import admin_properties, check_properties, check_transactional, protocol_properties
from holdfast.connectors.kafka.sink.committable import check_prepared
from holdfast.connectors.kafka.sink.committer import KafkaCommitter
from holdfast.connectors.kafka.sink.output import KafkaOutput
from holdfast.connectors.kafka.sink.tokens import check_readable, create_token_topic, token_topic
from holdfast.connectors.kafka.sink.transactions import TransactionClient
from holdfast.connectors.kafka.sink.writer import PlainWriter, TransactionalWriter
from holdfast.errors import ConfigurationError, IncompatibleState

__all__ = ["KafkaSink"]


@dataclass(frozen=True)
class KafkaSink(KafkaOutput, Generic[IN]):
    """Writes records to Kafka.

    With `DeliveryGuarantee.EXACTLY_ONCE` an epoch's records are one transaction per subtask, committed with the
    checkpoint; readers with ``isolation.level=read_committed`` see all of it or nothing.

    Raises:
        ConfigurationError: a property is unknown, or the transactional id prefix is missing.
    """

    def __post_init__(self) -> None:
        check_properties(self.properties, Producer)
        if self.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            if not self.transactional_id_prefix:
                raise ConfigurationError(
                    "an exactly-once Kafka sink needs set_transactional_id_prefix(...): a name that no other job or "
                    "sink on the same Kafka cluster uses, and that stays the same from start to start"
                )
            protocol_properties(self.properties)
            check_transactional(self.properties, self.transaction_timeout_ms)

    @property
    def exclusive_name(self) -> str | None:
        """The transactional id prefix, which two sinks must not share."""
        if self.guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return None
        return f"the transactional id prefix {self.transactional_id_prefix!r}"

    def validate(self) -> None:
        """Check that the brokers answer, that the topic exists, and that transactions are allowed."""
        servers = self.properties.get("bootstrap.servers")
        probe = Producer({**admin_properties(self.properties), "log_level": 0})
        topic = self.topic
        try:
            listed = (
                probe.list_topics(topic, timeout=ANSWER_TIMEOUT_S) if topic else probe.list_topics(timeout=ANSWER_TIMEOUT_S)
            )
            if topic and listed.topics[topic].error is not None:  # the first request may have created it
                listed = probe.list_topics(topic, timeout=ANSWER_TIMEOUT_S)
        except KafkaException as error:
            raise ConfigurationError(
                f"Kafka sink: no answer from Kafka at {servers}: {error.args[0].str()}. Check that the broker runs and that "
                "this is its address"
            ) from error
        if topic and (problem := listed.topics[topic].error) is not None:
            raise ConfigurationError(
                f"Kafka sink: topic {topic} at {servers}: {problem.str()}. Create it, or correct the name"
            )
        if self.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            tokens = token_topic(self.transactional_id_prefix)
            create_token_topic(self.properties, tokens, self.topic)
            check_readable(self.properties, tokens)
            client = TransactionClient(self.properties, budget=30.0)
            try:
                client.fence([f"{self.transactional_id_prefix}-check"], self.transaction_timeout_ms)
            except (BrokerUnavailable, ConfigurationError) as error:
                raise ConfigurationError(
                    "Kafka sink: transactions do not work with transactional id prefix "
                    f"{self.transactional_id_prefix!r} and "
                    f"transaction.timeout.ms={self.transaction_timeout_ms}: {error}"
                ) from error
            finally:
                client.close()

    def create_writer(self, context: WriterContext) -> SinkWriter[IN]:
        """Create a writer, in a task slot."""
        if self.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            return TransactionalWriter(self, context)
        return PlainWriter(self, context, flush=self.guarantee is DeliveryGuarantee.AT_LEAST_ONCE)

    def check_prepared(self, data: Any) -> None:
        """Check that output is a prepared transaction, which only an exactly-once sink commits."""
        check_prepared(data)
        if self.guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            raise IncompatibleState(
                f"it is a transaction, which a sink with DeliveryGuarantee.{self.guarantee.name} does not commit"
            )

    def create_committer(self, job: JobInfo, uid: str) -> Committer | None:
        """Create the committer, in the driver; only exactly-once needs one."""
        return KafkaCommitter(self, job, uid) if self.guarantee is DeliveryGuarantee.EXACTLY_ONCE else None
