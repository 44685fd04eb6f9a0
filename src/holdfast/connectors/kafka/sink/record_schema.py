"""KafkaRecordSerializationSchema: how an element becomes a Kafka record."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, cast

from holdfast.common.serialization import SerializationSchema
from holdfast.common.values.callables import check_arguments, check_kind
from holdfast.common.values.type_variables import IN, R, V
from holdfast.connectors.kafka.arguments import refuse_class, require_topic
from holdfast.connectors.kafka.sink.producer_record import KafkaSinkContext, ProducerRecord
from holdfast.connectors.kafka.sink.serializer import ElementSerializer, RecordSerializer, Serializer
from holdfast.connectors.kafka.sink.upserts import UpsertSerializer
from holdfast.errors import ConfigurationError

__all__ = [
    "KafkaRecordSerializationSchema",
    "KafkaRecordSerializationSchemaBuilder",
    "KafkaTopicSelector",
    "serializer_of",
]


class KafkaTopicSelector(ABC, Generic[IN]):
    """Chooses the topic of each record."""

    @abstractmethod
    def apply(self, data: IN) -> str:
        """The topic that the record goes to."""


class KafkaRecordSerializationSchema(Generic[IN]):
    """How an element becomes a Kafka record: made of schemas, or a subclass defines `serialize` and takes no arguments.

    Args:
        topic: The topic of all records; or `topic_selector`.
        topic_selector: Chooses each record's topic: a callable or a `KafkaTopicSelector`.
        value_serialization_schema: From the element to the record's value: a schema, or a callable that gives bytes or str.
            str and bytes need none.
        key_serialization_schema: From the element to its key, likewise. Equal keys, same partition.
        header_provider: From the element to its headers: a mapping or pairs of a name and str or bytes.
        upsert_mode: Write Rows by their kind, as Flink's upsert-kafka: DELETE as a tombstone, INSERT and UPDATE_AFTER as a
            record. UPDATE_BEFORE is not written: the record after it replaces the one before, which must have the same key.

    Raises:
        ConfigurationError: neither topic nor topic selector is given, or both, or upserts have no key.
    """

    _by_schemas: RecordSerializer | None = None
    """None: a subclass defines the whole record."""

    def __init__(
        self,
        *,
        topic: str | None = None,
        topic_selector: Callable[[IN], str] | KafkaTopicSelector[IN] | None = None,
        value_serialization_schema: SerializationSchema[IN] | Callable[[IN], Any] | None = None,
        key_serialization_schema: SerializationSchema[IN] | Callable[[IN], Any] | None = None,
        header_provider: Callable[[IN], Mapping[str, Any] | Sequence[tuple[str, Any]]] | None = None,
        upsert_mode: bool = False,
    ) -> None:
        if type(self).serialize is not KafkaRecordSerializationSchema.serialize:
            return
        if topic is not None and topic_selector is not None:
            raise ConfigurationError("the topic is set already; set either a topic or a topic selector, once")
        if topic is None and topic_selector is None:
            raise ConfigurationError(
                "a Kafka record serializer needs set_topic(...) or set_topic_selector(...), or one of the arguments topic "
                "and topic_selector"
            )
        if upsert_mode and key_serialization_schema is None:
            raise ConfigurationError("upserts need a key: set_key_serialization_schema(...)")
        if upsert_mode and hasattr(value_serialization_schema, "serialize_changes"):
            raise ConfigurationError(
                f"{type(value_serialization_schema).__name__} writes deletions itself, which upsert_mode would write as "
                "tombstones: leave upsert_mode out"
            )
        kind = UpsertSerializer if upsert_mode else RecordSerializer
        self._by_schemas = kind(
            _topic(topic) if topic is not None else _selector(topic_selector),
            _schema(value_serialization_schema),
            _schema(key_serialization_schema),
            header_provider,
        )

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


def serializer_of(schema: Any) -> Serializer:
    """The serializer of a sink with this schema.

    Raises:
        ConfigurationError: it is none, or its ``serialize`` cannot be called.
    """
    refuse_class(schema, KafkaRecordSerializationSchema)
    if isinstance(schema, RecordSerializer):
        return schema
    if not isinstance(schema, KafkaRecordSerializationSchema):
        raise ConfigurationError(
            "a record serializer is a KafkaRecordSerializationSchema, a subclass of it or made by "
            f"KafkaRecordSerializationSchema.builder(), not {type(schema).__name__}"
        )
    if schema._by_schemas is not None:
        return schema._by_schemas
    check_kind(schema.serialize, "serialize", "set_record_serializer()")
    check_arguments(schema.serialize, ("element", "context", "timestamp"), "set_record_serializer()")
    return ElementSerializer(schema)


class KafkaRecordSerializationSchemaBuilder(Generic[V]):
    """Collects the arguments of a `KafkaRecordSerializationSchema`. A topic or a topic selector must be set."""

    def __init__(self) -> None:
        self._given: dict[str, Any] = {}

    def set_topic(self, topic: str) -> KafkaRecordSerializationSchemaBuilder[V]:
        """The topic of all records."""
        self._refuse_second_topic()
        return self._with("topic", _topic(topic))

    def set_topic_selector(
        self, topic_selector: Callable[[V], str] | KafkaTopicSelector[V]
    ) -> KafkaRecordSerializationSchemaBuilder[V]:
        """Chooses each record's topic: a callable or a `KafkaTopicSelector`."""
        self._refuse_second_topic()
        return self._with("topic_selector", _selector(topic_selector))

    def set_key_serialization_schema(
        self, key_serialization_schema: SerializationSchema[V] | Callable[[V], Any]
    ) -> KafkaRecordSerializationSchemaBuilder[V]:
        """From the record to its key: a schema, or a callable that gives bytes or str. Equal keys, same partition."""
        return self._with("key_serialization_schema", _schema(key_serialization_schema, required=True))

    def set_value_serialization_schema(
        self, value_serialization_schema: SerializationSchema[R] | Callable[[R], Any]
    ) -> KafkaRecordSerializationSchemaBuilder[R]:
        """From the record to its value: a schema, or a callable that gives bytes or str. str and bytes need none."""
        given = self._with("value_serialization_schema", _schema(value_serialization_schema, required=True))
        return cast("KafkaRecordSerializationSchemaBuilder[R]", given)

    def set_header_provider(
        self, header_provider: Callable[[V], Mapping[str, Any] | Sequence[tuple[str, Any]]]
    ) -> KafkaRecordSerializationSchemaBuilder[V]:
        """From the record to its headers: a mapping or pairs of a name and str or bytes."""
        return self._with("header_provider", header_provider)

    def upsert_mode(self) -> KafkaRecordSerializationSchemaBuilder[V]:
        """Write Rows by their kind, as Flink's upsert-kafka: DELETE as a tombstone, INSERT and UPDATE_AFTER as a record.

        UPDATE_BEFORE is not written: the record after it replaces the one before, which must have the same key.
        """
        return self._with("upsert_mode", True)

    def build(self) -> KafkaRecordSerializationSchema[V]:
        """The serializer.

        Raises:
            ConfigurationError: neither topic nor topic selector is set, or upserts have no key.
        """
        return KafkaRecordSerializationSchema(**self._given)

    def _with(self, name: str, value: Any) -> KafkaRecordSerializationSchemaBuilder[V]:
        self._given[name] = value
        return self

    def _refuse_second_topic(self) -> None:
        if {"topic", "topic_selector"} & self._given.keys():
            raise ConfigurationError("the topic is set already; set either a topic or a topic selector, once")


def _topic(topic: str) -> str:
    require_topic(topic, "a topic is named by a string")
    if not topic:
        raise ConfigurationError("the topic's name is empty")
    return topic


def _selector(topic_selector: Any) -> Callable[[Any], str]:
    refuse_class(topic_selector, KafkaTopicSelector)
    selector = topic_selector.apply if isinstance(topic_selector, KafkaTopicSelector) else topic_selector
    if not callable(selector):
        raise ConfigurationError(f"a topic selector is a callable, not {type(topic_selector).__name__}")
    return selector


def _schema(schema: Any, required: bool = False) -> Any:
    refuse_class(schema, SerializationSchema)
    given = required or schema is not None
    if given and not callable(schema) and not callable(getattr(schema, "serialize", None)):
        raise ConfigurationError(
            f"a serialization schema is a SerializationSchema or a callable, not {type(schema).__name__}"
        )
    return schema
