"""Cluster, the Kafka cluster of a program's topics."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment
from holdfast.errors import ConfigurationError

if TYPE_CHECKING:
    from holdfast.datastream.connectors.kafka import KafkaSink, KafkaSource

__all__ = ["Cluster", "cluster_of", "register"]

# The Kafka connector is imported where it is needed: tables work without its client.


class Cluster:
    """Makes the sources and sinks of topics.

    Args:
        properties: Client properties, and ``application.id``.

    Raises:
        ConfigurationError: ``bootstrap.servers`` or ``application.id`` is missing.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        for name in ("bootstrap.servers", "application.id"):
            if not properties.get(name):
                raise ConfigurationError(f"a StreamsBuilder needs the property {name}")
        self.properties = dict(properties)
        self._application: str = properties["application.id"]
        self._client = {name: value for name, value in properties.items() if name != "application.id"}

    def source(self, topic: str, key_deserializer: Any, value_deserializer: Any, of_table: bool) -> KafkaSource:
        """The source of a topic's records as pairs of key and value, from the beginning."""
        from holdfast.connectors.kafka.sink.pairs import PairDeserializer
        from holdfast.datastream.connectors.kafka import KafkaSource

        return (
            KafkaSource.builder()
            .set_group_id(self._application)
            .set_properties(self._client)
            .set_topics(topic)
            .set_deserializer(PairDeserializer(key_deserializer, value_deserializer, of_table))
            .build()
        )

    def sink(self, topic: str, key_serializer: Any, value_serializer: Any) -> KafkaSink:
        """The exactly-once sink of pairs of key and value.

        Keys go to the partitions where the Java client puts them, unless the property ``partitioner`` says otherwise.
        """
        from holdfast.connectors.delivery import DeliveryGuarantee
        from holdfast.connectors.kafka.sink.pairs import PairSerializer
        from holdfast.datastream.connectors.kafka import KafkaSink

        return (
            KafkaSink.builder()
            .set_property("partitioner", "murmur2_random")
            .set_properties(self._client)
            .set_record_serializer(PairSerializer(topic, value_serializer, key_serializer))
            .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .set_transactional_id_prefix(_prefix(self._application, topic))
            .build()
        )


def _prefix(application: str, topic: str) -> str:
    """The transactional id prefix of an application's sink.

    Where a dash in the application's id would let another application have the same prefix, the id's length tells where it
    ends. No topic's name has a percent sign.

    >>> _prefix("shop", "orders"), _prefix("shop-eu", "orders"), _prefix("shop", "eu-orders")
    ('shop-orders', 'shop-eu-orders%7', 'shop-eu-orders')
    """
    joined = f"{application}-{topic}"
    return f"{joined}%{len(application)}" if "-" in application or "%" in application else joined


_CLUSTERS: weakref.WeakKeyDictionary[StreamExecutionEnvironment, Cluster] = weakref.WeakKeyDictionary()


def register(env: StreamExecutionEnvironment, cluster: Cluster) -> None:
    """Remember the cluster of an environment's program.

    Raises:
        ConfigurationError: the environment has another one.
    """
    if _CLUSTERS.setdefault(env, cluster).properties != cluster.properties:
        raise ConfigurationError(
            "this environment has a StreamsBuilder with other properties; use one for all topics of the program, and a "
            "KafkaSource or KafkaSink for another cluster"
        )


def cluster_of(env: StreamExecutionEnvironment) -> Cluster:
    """The cluster of an environment's program.

    Raises:
        ConfigurationError: it has none.
    """
    if env not in _CLUSTERS:
        raise ConfigurationError(
            'to() does not know the Kafka cluster: create StreamsBuilder(env, {"bootstrap.servers": ..., '
            '"application.id": ...}) first'
        )
    return _CLUSTERS[env]
