"""Kafka topics as source and sink: PyFlink's builders, on confluent-kafka, without a jar."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, cast

from holdfast.common.serialization import DeserializationSchema, SerializationSchema
from holdfast.common.system.jvm_only import refusing
from holdfast.common.values.type_variables import IN, R, T, V
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.offsets import (
    KafkaOffsetResetStrategy,
    KafkaOffsetsInitializer,
    KafkaTopicPartition,
    require_partition,
)
from holdfast.connectors.kafka.sink import sink as _sink
from holdfast.connectors.kafka.sink.producer_record import KafkaSinkContext, ProducerRecord
from holdfast.connectors.kafka.sink.serializer import ElementSerializer, RecordSerializer, Serializer
from holdfast.connectors.kafka.sink.upserts import UpsertSerializer
from holdfast.connectors.kafka.source import source as _source
from holdfast.connectors.kafka.source.consumer_record import (
    CalledWithRecord,
    ConsumerRecord,
    KafkaRecordDeserializationSchema,
)
from holdfast.datastream.operations.function_checks import check_function, check_object
from holdfast.errors import ConfigurationError

__all__ = [
    "ConsumerRecord",
    "KafkaOffsetResetStrategy",
    "KafkaOffsetsInitializer",
    "KafkaRecordDeserializationSchema",
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaSink",
    "KafkaSinkBuilder",
    "KafkaSinkContext",
    "KafkaSource",
    "KafkaSourceBuilder",
    "KafkaTopicPartition",
    "KafkaTopicSelector",
    "ProducerRecord",
]


class KafkaSource(_source.KafkaSource[T]):
    """The records of Kafka topics, partition by partition, exactly once; made by its `builder`."""

    @staticmethod
    def builder() -> KafkaSourceBuilder[Any]:
        """A builder. Its deserializer sets the type of the elements.

        >>> source = (
        ...     KafkaSource.builder()
        ...     .set_bootstrap_servers("localhost:9092")
        ...     .set_topics("payments")
        ...     .set_starting_offsets("earliest")
        ...     .build()
        ... )
        >>> source.topics
        ('payments',)
        """
        return KafkaSourceBuilder()


class KafkaSourceBuilder(Generic[T]):
    """Builds a `KafkaSource`. Servers and one of topics, topic pattern and partitions must be set."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._topics: tuple[str, ...] = ()
        self._pattern: re.Pattern[str] | None = None
        self._partitions: frozenset[KafkaTopicPartition] | None = None
        self._starting = KafkaOffsetsInitializer.earliest()
        self._stopping: KafkaOffsetsInitializer | None = None
        self._bounded = False
        self._deserializer: Any = None

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder[T]:
        """The brokers to begin with, ``host:port`` separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder[T]:
        """The consumer group whose offsets are committed with each checkpoint, for those who watch the lag."""
        return self.set_property("group.id", group_id)

    def set_topics(self, *topics: str | Sequence[str]) -> KafkaSourceBuilder[T]:
        """The topics to read, by name."""
        names: list[Any] = [n for t in topics for n in (t if isinstance(t, (list, tuple, set)) else [t])]
        for name in names:
            _require_topic(name, "topics are named by strings")
        if not names:
            raise ConfigurationError("set_topics() needs at least one topic")
        self._choose("topics")
        self._topics = tuple(dict.fromkeys(names))
        return self

    def set_topic_pattern(self, topic_pattern: str | re.Pattern[str]) -> KafkaSourceBuilder[T]:
        """Read all topics whose whole name matches, including topics created later."""
        self._choose("a topic pattern")
        try:
            self._pattern = re.compile(topic_pattern)
        except re.error as error:
            raise ConfigurationError(f"the topic pattern {topic_pattern!r} is no regular expression: {error}") from None
        return self

    def set_partitions(self, partitions: Iterable[KafkaTopicPartition]) -> KafkaSourceBuilder[T]:
        """Read exactly these partitions."""
        self._choose("partitions")
        self._partitions = frozenset(partitions)
        for partition in self._partitions:
            require_partition(partition)
        self._topics = tuple(sorted({p.topic for p in self._partitions}))
        return self

    def set_starting_offsets(self, starting_offsets_initializer: KafkaOffsetsInitializer | str) -> KafkaSourceBuilder[T]:
        """Where a job without a checkpoint begins: an initializer, or ``"earliest"``, ``"latest"``, ``"committed"``."""
        self._starting = KafkaOffsetsInitializer.of(starting_offsets_initializer)
        return self

    def set_unbounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer | str) -> KafkaSourceBuilder[T]:
        """Stop at these offsets, in a job that is planned as unbounded."""
        self._stopping = KafkaOffsetsInitializer.of(stopping_offsets_initializer)
        self._bounded = False
        return self

    def set_bounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer | str) -> KafkaSourceBuilder[T]:
        """Stop at these offsets: the source is bounded."""
        self._stopping = KafkaOffsetsInitializer.of(stopping_offsets_initializer)
        self._bounded = True
        return self

    def set_value_only_deserializer(
        self, deserialization_schema: DeserializationSchema[R] | Callable[[bytes], R | None]
    ) -> KafkaSourceBuilder[R]:
        """How values become elements: a schema, or a callable from bytes to the element; strings if not set.

        The schema does not get records without a value (tombstones): they emit nothing. For those use `set_deserializer`.
        """
        _refuse_class(deserialization_schema, DeserializationSchema)
        if isinstance(deserialization_schema, KafkaRecordDeserializationSchema):
            raise ConfigurationError(
                "a KafkaRecordDeserializationSchema reads records, not values: use set_deserializer(...)"
            )
        if not callable(deserialization_schema) and not callable(getattr(deserialization_schema, "deserialize", None)):
            raise ConfigurationError(
                f"a deserializer is a DeserializationSchema or a callable, not {type(deserialization_schema).__name__}"
            )
        self._deserializer = deserialization_schema
        return cast("KafkaSourceBuilder[R]", self)

    def set_deserializer(
        self, record_deserializer: KafkaRecordDeserializationSchema[R] | Callable[[ConsumerRecord], R | None]
    ) -> KafkaSourceBuilder[R]:
        """How whole records become elements: a schema, or a callable from a `ConsumerRecord`; tombstones come too."""
        _refuse_class(record_deserializer, KafkaRecordDeserializationSchema)
        schema: Any = record_deserializer
        if isinstance(schema, DeserializationSchema):
            raise ConfigurationError(
                f"{type(schema).__name__} is a DeserializationSchema, which reads values: give it to "
                "set_value_only_deserializer(...), or call it in a function of the record"
            )
        if not isinstance(schema, KafkaRecordDeserializationSchema):
            if not callable(schema):
                raise ConfigurationError(
                    f"a record deserializer is a KafkaRecordDeserializationSchema or a callable, not {type(schema).__name__}"
                )
            schema = CalledWithRecord(check_function(schema, "deserialize", ("record",), "set_deserializer()"))
        self._deserializer = schema
        return cast("KafkaSourceBuilder[R]", self)

    def set_client_id_prefix(self, prefix: str) -> KafkaSourceBuilder[T]:
        """How the clients call themselves to the brokers."""
        return self.set_property("client.id", prefix)

    def set_property(self, key: str, value: Any) -> KafkaSourceBuilder[T]:
        """A client property: a consumer's, ``partition.discovery.interval.ms`` or ``commit.offsets.on.checkpoint``."""
        self._properties[key] = value
        return self

    def set_properties(self, props: Mapping[str, Any]) -> KafkaSourceBuilder[T]:
        """Several client properties."""
        self._properties.update(props)
        return self

    def build(self) -> KafkaSource[T]:
        """The source.

        Raises:
            ConfigurationError: something is missing, or a property is unknown.
        """
        if not self._properties.get("bootstrap.servers"):
            raise ConfigurationError("a KafkaSource needs set_bootstrap_servers(...)")
        if not self._topics and self._pattern is None:
            raise ConfigurationError(
                "a KafkaSource needs one of set_topics(...), set_topic_pattern(...) and set_partitions(...)"
            )
        return KafkaSource(
            properties=dict(self._properties),
            topics=self._topics,
            pattern=self._pattern,
            partitions=self._partitions,
            starting_offsets=self._starting,
            stopping_offsets=self._stopping,
            is_bounded=self._bounded,
            deserializer=self._deserializer,
        )

    def _choose(self, what: str) -> None:
        if self._topics or self._pattern is not None:
            raise ConfigurationError(
                f"a KafkaSource reads topics, a topic pattern or partitions: {what} cannot be set in addition"
            )


class KafkaTopicSelector(ABC, Generic[IN]):
    """Chooses the topic of each record."""

    @abstractmethod
    def apply(self, data: IN) -> str:
        """The topic that the record goes to."""


class KafkaRecordSerializationSchema(Generic[IN]):
    """How an element becomes a Kafka record: a subclass defines `serialize`, or a `builder` makes one of schemas."""

    def serialize(self, element: IN, context: KafkaSinkContext, timestamp: int | None) -> ProducerRecord | None:
        """Make the record of an element; None writes nothing.

        Args:
            element: The element.
            context: The subtask, and the partitions of topics.
            timestamp: The element's timestamp in ms; None if it has none.
        """
        raise NotImplementedError(f"{type(self).__name__} must define serialize(element, context, timestamp)")

    @staticmethod
    def builder() -> KafkaRecordSerializationSchemaBuilder[Any]:
        """A builder. The schema of the value sets the type of the elements."""
        return KafkaRecordSerializationSchemaBuilder()


class _OfSchemas(RecordSerializer, KafkaRecordSerializationSchema[Any]):
    """Made by the builder."""


class _OfUpserts(UpsertSerializer, KafkaRecordSerializationSchema[Any]):
    """Made by the builder, for Rows with a kind."""


class KafkaRecordSerializationSchemaBuilder(Generic[V]):
    """Builds a `KafkaRecordSerializationSchema`. A topic or a topic selector must be set."""

    def __init__(self) -> None:
        self._topic: str | Callable[[Any], str] | None = None
        self._key: Any = None
        self._value: Any = None
        self._headers: Callable[[Any], Any] | None = None
        self._upserts = False

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder[V]:
        """The topic of all records."""
        _require_topic(topic, "a topic is named by a string")
        return self._set_topic(topic)

    def set_topic_selector(
        self, topic_selector: Callable[[V], str] | KafkaTopicSelector[V]
    ) -> KafkaRecordSerializationSchemaBuilder[V]:
        """Chooses each record's topic: a callable or a `KafkaTopicSelector`."""
        _refuse_class(topic_selector, KafkaTopicSelector)
        selector = topic_selector.apply if isinstance(topic_selector, KafkaTopicSelector) else topic_selector
        if not callable(selector):
            raise ConfigurationError(f"a topic selector is a callable, not {type(topic_selector).__name__}")
        return self._set_topic(selector)

    def set_key_serialization_schema(
        self, key_serialization_schema: SerializationSchema[V] | Callable[[V], Any]
    ) -> KafkaRecordSerializationSchemaBuilder[V]:
        """From the record to its key: a schema, or a callable that gives bytes or str. Equal keys, same partition."""
        self._key = _checked(key_serialization_schema)
        return self

    def set_value_serialization_schema(
        self, value_serialization_schema: SerializationSchema[R] | Callable[[R], Any]
    ) -> KafkaRecordSerializationSchemaBuilder[R]:
        """From the record to its value: a schema, or a callable that gives bytes or str. str and bytes need none."""
        self._value = _checked(value_serialization_schema)
        return cast("KafkaRecordSerializationSchemaBuilder[R]", self)

    def set_header_provider(
        self, header_provider: Callable[[V], Mapping[str, Any] | Sequence[tuple[str, Any]]]
    ) -> KafkaRecordSerializationSchemaBuilder[V]:
        """From the record to its headers: a mapping or pairs of a name and str or bytes."""
        self._headers = header_provider
        return self

    def upsert_mode(self) -> KafkaRecordSerializationSchemaBuilder[V]:
        """Write Rows by their kind, as Flink's upsert-kafka: DELETE as a tombstone, INSERT and UPDATE_AFTER as a record.

        UPDATE_BEFORE is not written: the record after it replaces the one before, which must have the same key.
        """
        self._upserts = True
        return self

    def build(self) -> KafkaRecordSerializationSchema[V]:
        """The serializer.

        Raises:
            ConfigurationError: neither topic nor topic selector is set, or upserts have no key.
        """
        if self._topic is None:
            raise ConfigurationError("a Kafka record serializer needs set_topic(...) or set_topic_selector(...)")
        if self._upserts and self._key is None:
            raise ConfigurationError("upserts need a key: set_key_serialization_schema(...)")
        kind = _OfUpserts if self._upserts else _OfSchemas
        return kind(self._topic, self._value, self._key, self._headers)

    def _set_topic(self, topic: str | Callable[[Any], str]) -> KafkaRecordSerializationSchemaBuilder[V]:
        if self._topic is not None:
            raise ConfigurationError("the topic is set already; set either a topic or a topic selector, once")
        if not topic:
            raise ConfigurationError("the topic's name is empty")
        self._topic = topic
        return self


class KafkaSink(_sink.KafkaSink[IN]):
    """Writes records to Kafka; made by its `builder`."""

    @staticmethod
    def builder() -> KafkaSinkBuilder[Any]:
        """A builder. Its record serializer sets the type of the elements."""
        return KafkaSinkBuilder()


class KafkaSinkBuilder(Generic[IN]):
    """Builds a `KafkaSink`. Servers and a record serializer must be set."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._serializer: Serializer | None = None
        self._guarantee = DeliveryGuarantee.NONE
        self._prefix = ""

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSinkBuilder[IN]:
        """The brokers to begin with, ``host:port`` separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_delivery_guarantee(self, delivery_guarantee: DeliveryGuarantee) -> KafkaSinkBuilder[IN]:
        """Set the delivery guarantee; the default is none, as in Flink."""
        if not isinstance(delivery_guarantee, DeliveryGuarantee):
            raise ConfigurationError(f"a delivery guarantee is a DeliveryGuarantee, not {delivery_guarantee!r}")
        self._guarantee = delivery_guarantee
        return self

    def set_transactional_id_prefix(self, transactional_id_prefix: str) -> KafkaSinkBuilder[IN]:
        """For exactly-once: a name of this sink's own, the same at every start."""
        self._prefix = transactional_id_prefix
        return self

    def set_record_serializer(
        self, record_serializer: KafkaRecordSerializationSchema[R] | RecordSerializer
    ) -> KafkaSinkBuilder[R]:
        """How records are written."""
        _refuse_class(record_serializer, KafkaRecordSerializationSchema)
        if isinstance(record_serializer, RecordSerializer):
            self._serializer = record_serializer
        elif isinstance(record_serializer, KafkaRecordSerializationSchema):
            calls = {"serialize": ("element", "context", "timestamp")}
            where = "set_record_serializer()"
            self._serializer = ElementSerializer(
                check_object(record_serializer, KafkaRecordSerializationSchema, calls, where)
            )
        else:
            raise ConfigurationError(
                "a record serializer is a KafkaRecordSerializationSchema, a subclass of it or made by "
                f"KafkaRecordSerializationSchema.builder(), not {type(record_serializer).__name__}"
            )
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
        if not self._properties.get("bootstrap.servers"):
            raise ConfigurationError("a KafkaSink needs set_bootstrap_servers(...)")
        if self._serializer is None:
            raise ConfigurationError("a KafkaSink needs set_record_serializer(...)")
        return KafkaSink(dict(self._properties), self._serializer, self._guarantee, self._prefix)


def _require_topic(name: Any, what: str) -> None:
    if not isinstance(name, str):
        raise ConfigurationError(f"{what}, got {name!r}")


def _refuse_class(given: Any, wanted: type) -> None:
    if isinstance(given, type) and issubclass(given, wanted):
        raise ConfigurationError(f"got the class {given.__name__}; give it an object: {given.__name__}(...)")


def _checked(schema: Any) -> Any:
    _refuse_class(schema, SerializationSchema)
    if not callable(schema) and not callable(getattr(schema, "serialize", None)):
        raise ConfigurationError(
            f"a serialization schema is a SerializationSchema or a callable, not {type(schema).__name__}"
        )
    return schema


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "FlinkKafkaConsumer": "it is Flink's older source on the JVM; use KafkaSource.builder()",
            "FlinkKafkaConsumerBase": "it is Flink's older source on the JVM; use KafkaSource.builder()",
            "FlinkKafkaProducer": "it is Flink's older sink on the JVM; use KafkaSink.builder()",
            "FlinkKafkaProducerBase": "it is Flink's older sink on the JVM; use KafkaSink.builder()",
            "Semantic": "it belongs to FlinkKafkaProducer; use DeliveryGuarantee",
        },
    )
