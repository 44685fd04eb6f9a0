"""Kafka topics as a sink."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Generic, cast

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AclOperation

from holdfast.common.kafka_properties import admin_properties, check_properties, check_transactional, protocol_properties
from holdfast.common.values.type_variables import IN, R
from holdfast.connectors.base import Committer, JobInfo, SinkWriter, WriterContext
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.arguments import client_properties
from holdfast.connectors.kafka.cluster import ANSWER_TIMEOUT_S, BrokerUnavailable, ClusterView, unavailable
from holdfast.connectors.kafka.sink.committable import check_prepared
from holdfast.connectors.kafka.sink.committer import KafkaCommitter
from holdfast.connectors.kafka.sink.output import KafkaOutput
from holdfast.connectors.kafka.sink.record_schema import KafkaRecordSerializationSchema, serializer_of
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.sink.tokens import check_permissions, create_token_topic, token_topic
from holdfast.connectors.kafka.sink.transactions import TransactionClient
from holdfast.connectors.kafka.sink.writer import PlainWriter, TransactionalWriter
from holdfast.errors import ConfigurationError, IncompatibleState

__all__ = ["KafkaSink", "KafkaSinkBuilder"]


class KafkaSink(KafkaOutput, Generic[IN]):
    """Writes records to Kafka.

    With `DeliveryGuarantee.EXACTLY_ONCE` an epoch's records are one transaction per subtask, committed with the
    checkpoint; readers with ``isolation.level=read_committed`` see all of it or nothing.

    Args:
        bootstrap_servers: The brokers to begin with, ``host:port`` separated by commas.
        record_serializer: How records are written.
        delivery_guarantee: The delivery guarantee; the default is none, as in Flink.
        transactional_id_prefix: For exactly-once: a name of this sink's own, the same at every start.
        properties: A producer's client properties.

    Raises:
        ConfigurationError: something is missing, or a property is unknown.

    >>> records = KafkaRecordSerializationSchema(topic="alerts", value_serialization_schema=str)
    >>> KafkaSink(bootstrap_servers="localhost:9092", record_serializer=records).topic
    'alerts'
    """

    def __init__(
        self,
        *,
        bootstrap_servers: str | None = None,
        record_serializer: KafkaRecordSerializationSchema[IN] | RecordSerializer,
        delivery_guarantee: DeliveryGuarantee = DeliveryGuarantee.NONE,
        transactional_id_prefix: str = "",
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        own = client_properties("KafkaSink", properties, {"bootstrap.servers": bootstrap_servers})
        super().__init__(own, serializer_of(record_serializer), _guarantee(delivery_guarantee), transactional_id_prefix)
        check_properties(own, Producer)
        if self.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            if not transactional_id_prefix:
                raise ConfigurationError(
                    "an exactly-once Kafka sink needs set_transactional_id_prefix(...): a name that no other job or "
                    "sink on the same Kafka cluster uses, and that stays the same from start to start"
                )
            protocol_properties(own)
            check_transactional(own, self.transaction_timeout_ms)

    @staticmethod
    def builder() -> KafkaSinkBuilder[Any]:
        """A builder. Its record serializer sets the type of the elements."""
        return KafkaSinkBuilder()

    @property
    def exclusive_name(self) -> str | None:
        """The transactional id prefix, which two sinks must not share."""
        if self.guarantee is not DeliveryGuarantee.EXACTLY_ONCE:
            return None
        return f"the transactional id prefix {self.transactional_id_prefix!r}"

    def validate(self) -> None:
        """Check that the brokers answer, that the topic exists, and that transactions are allowed.

        Raises:
            BrokerUnavailable: the brokers do not answer.
            ConfigurationError: the topic or transactions do not do.
        """
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
            raise unavailable(
                admin_properties(self.properties),
                f"Kafka sink: no answer from Kafka at {servers}: {error.args[0].str()}. Check that the broker runs and that "
                "this is its address",
            ) from error
        if topic and (problem := listed.topics[topic].error) is not None:
            raise ConfigurationError(
                f"Kafka sink: topic {topic} at {servers}: {problem.str()}. Create it, or correct the name"
            )
        if topic:
            ClusterView(self.properties, read_committed=False).check_allowed([topic], AclOperation.WRITE)
        if self.guarantee is DeliveryGuarantee.EXACTLY_ONCE:
            tokens = token_topic(self.transactional_id_prefix)
            create_token_topic(self.properties, tokens, self.topic)
            check_permissions(self.properties, tokens)
            client = TransactionClient(self.properties, budget=30.0)
            try:
                client.fence([f"{self.transactional_id_prefix}-check"], self.transaction_timeout_ms)
            except (BrokerUnavailable, ConfigurationError) as error:
                raise type(error)(
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


class KafkaSinkBuilder(Generic[IN]):
    """Collects the arguments of a `KafkaSink`. Servers and a record serializer must be set."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._given: dict[str, Any] = {}

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder[IN]:
        """The brokers to begin with, ``host:port`` separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder[IN]:
        """Set the delivery guarantee; the default is none, as in Flink."""
        self._given["delivery_guarantee"] = _guarantee(delivery_guarantee)
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder[IN]:
        """For exactly-once: a name of this sink's own, the same at every start."""
        self._given["transactional_id_prefix"] = transactional_id_prefix
        return self

    def set_record_serializer(
        self, record_serializer: KafkaRecordSerializationSchema[R] | RecordSerializer
    ) -> KafkaSinkBuilder[R]:
        """How records are written."""
        serializer_of(record_serializer)  # refuses it here, not in build()
        self._given["record_serializer"] = record_serializer
        return cast("KafkaSinkBuilder[R]", self)

    def set_property(self, key: str, value: Any) -> KafkaSinkBuilder[IN]:
        """A producer's client property."""
        self._properties[key] = value
        return self

    def set_properties(self, props: Mapping[str, Any]) -> KafkaSinkBuilder[IN]:
        """Several client properties."""
        self._properties.update(props)
        return self

    def build(self) -> KafkaSink[IN]:
        """The sink.

        Raises:
            ConfigurationError: something is missing, or a property is unknown.
        """
        if "record_serializer" not in self._given:
            client_properties("KafkaSink", self._properties, {})
            raise ConfigurationError("a KafkaSink needs set_record_serializer(...)")
        return KafkaSink(properties=self._properties, **self._given)


def _guarantee(given: Any) -> DeliveryGuarantee:
    if not isinstance(given, DeliveryGuarantee):
        raise ConfigurationError(f"a delivery guarantee is a DeliveryGuarantee, not {given!r}")
    return given
