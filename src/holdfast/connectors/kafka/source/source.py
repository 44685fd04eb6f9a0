"""Kafka topics as a source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, cast, overload

from holdfast.common.serialization import DeserializationSchema
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.callables import check_arguments, check_kind
from holdfast.common.values.type_variables import R, T
from holdfast.connectors.base import Enumerator, JobInfo, ReaderContext, SourceReader, produced_type
from holdfast.connectors.kafka.arguments import client_properties, refuse_class, require_topic
from holdfast.connectors.kafka.offsets import KafkaOffsetsInitializer, KafkaTopicPartition, require_partition
from holdfast.connectors.kafka.source.consumer_record import (
    CalledWithRecord,
    ConsumerRecord,
    KafkaRecordDeserializationSchema,
)
from holdfast.connectors.kafka.source.enumerator import KafkaEnumerator
from holdfast.connectors.kafka.source.positions import check_positions
from holdfast.connectors.kafka.source.reader import KafkaReader
from holdfast.connectors.kafka.source.source_options import KafkaSourceOptions
from holdfast.errors import ConfigurationError

__all__ = ["KafkaSource", "KafkaSourceBuilder"]


class KafkaSource(KafkaSourceOptions, Generic[T]):
    """The records of Kafka topics, partition by partition, exactly once. Elements have Kafka's timestamps.

    Args:
        bootstrap_servers: The brokers to begin with, ``host:port`` separated by commas.
        topics: The topics to read, by name; or one of the two that follow.
        topic_pattern: Read all topics whose whole name matches, including topics created later.
        partitions: Read exactly these partitions.
        group_id: The consumer group whose offsets are committed with each checkpoint, for those who watch the lag.
        starting_offsets: Where a job without a checkpoint begins: an initializer, or ``"earliest"``, ``"latest"``,
            ``"committed"``.
        bounded: Stop at these offsets: the source is bounded.
        unbounded: Stop at these offsets, in a job that is planned as unbounded.
        value_only_deserializer: How values become elements: a schema, or a callable from bytes to the element; strings if
            nothing is given. It does not get records without a value (tombstones): they emit nothing.
        deserializer: How whole records become elements: a schema, or a callable from a `ConsumerRecord`. Tombstones come,
            too.
        client_id_prefix: How the clients call themselves to the brokers.
        properties: Client properties: a consumer's, ``partition.discovery.interval.ms`` or ``commit.offsets.on.checkpoint``.

    Raises:
        ConfigurationError: something is missing, or a property is unknown or out of range.

    >>> KafkaSource(bootstrap_servers="localhost:9092", topics="payments", value_only_deserializer=int).topics
    ('payments',)
    """

    @overload
    def __init__(
        self: KafkaSource[str],
        *,
        bootstrap_servers: str | None = None,
        topics: str | Sequence[str] | None = None,
        topic_pattern: str | re.Pattern[str] | None = None,
        partitions: Iterable[KafkaTopicPartition] | None = None,
        group_id: str | None = None,
        starting_offsets: KafkaOffsetsInitializer | str = "earliest",
        bounded: KafkaOffsetsInitializer | str | None = None,
        unbounded: KafkaOffsetsInitializer | str | None = None,
        value_only_deserializer: None = None,
        deserializer: None = None,
        client_id_prefix: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        *,
        bootstrap_servers: str | None = None,
        topics: str | Sequence[str] | None = None,
        topic_pattern: str | re.Pattern[str] | None = None,
        partitions: Iterable[KafkaTopicPartition] | None = None,
        group_id: str | None = None,
        starting_offsets: KafkaOffsetsInitializer | str = "earliest",
        bounded: KafkaOffsetsInitializer | str | None = None,
        unbounded: KafkaOffsetsInitializer | str | None = None,
        value_only_deserializer: DeserializationSchema[T] | Callable[[bytes], T | None] | None = None,
        deserializer: KafkaRecordDeserializationSchema[T] | Callable[[ConsumerRecord], T | None] | None = None,
        client_id_prefix: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None: ...

    def __init__(
        self,
        *,
        bootstrap_servers: str | None = None,
        topics: str | Sequence[str] | None = None,
        topic_pattern: str | re.Pattern[str] | None = None,
        partitions: Iterable[KafkaTopicPartition] | None = None,
        group_id: str | None = None,
        starting_offsets: KafkaOffsetsInitializer | str = "earliest",
        bounded: KafkaOffsetsInitializer | str | None = None,
        unbounded: KafkaOffsetsInitializer | str | None = None,
        value_only_deserializer: Any = None,
        deserializer: Any = None,
        client_id_prefix: str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        named = {"bootstrap.servers": bootstrap_servers, "group.id": group_id, "client.id": client_id_prefix}
        own = client_properties("KafkaSource", properties, named)
        inputs = {"topics": topics, "a topic pattern": topic_pattern, "partitions": partitions}
        if not _check_one([name for name, given in inputs.items() if given is not None]):
            raise ConfigurationError(
                "a KafkaSource needs one of set_topics(...), set_topic_pattern(...) and set_partitions(...), or of the "
                "arguments topics, topic_pattern and partitions"
            )
        if bounded is not None and unbounded is not None:
            raise ConfigurationError("a KafkaSource stops at the offsets of bounded or of unbounded, not of both")
        if deserializer is not None and value_only_deserializer is not None:
            raise ConfigurationError("a KafkaSource has a deserializer of values or one of whole records, not both")
        chosen = None if partitions is None else _partitions(partitions)
        stop = unbounded if bounded is None else bounded
        super().__init__(
            properties=own,
            topics=_topics(topics if chosen is None else sorted({each.topic for each in chosen})),
            pattern=None if topic_pattern is None else _pattern(topic_pattern),
            partitions=chosen,
            starting_offsets=KafkaOffsetsInitializer.of(starting_offsets),
            stopping_offsets=None if stop is None else KafkaOffsetsInitializer.of(stop),
            is_bounded=bounded is not None,
            deserializer=_of_values(value_only_deserializer) if deserializer is None else _of_records(deserializer),
        )

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

    def get_produced_type(self) -> TypeInformation | None:
        """The records' type, if the schema declares it."""
        return produced_type(self.deserializer)

    def create_enumerator(self, job: JobInfo, uid: str) -> Enumerator:
        """Create the enumerator, in the driver."""
        return KafkaEnumerator(self, uid, job.own_topics)

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in topics; a topic that the source no longer reads is dropped."""
        check_positions(state)

    def create_reader(self, context: ReaderContext) -> SourceReader[T]:
        """Create a reader, in a task slot."""
        return KafkaReader(self, context.uid)


class KafkaSourceBuilder(Generic[T]):
    """Collects the arguments of a `KafkaSource`. Servers and one of topics, topic pattern and partitions must be set."""

    def __init__(self) -> None:
        self._properties: dict[str, Any] = {}
        self._input: dict[str, Any] = {}
        self._given: dict[str, Any] = {}

    def set_bootstrap_servers(self, bootstrap_servers: str) -> KafkaSourceBuilder[T]:
        """The brokers to begin with, ``host:port`` separated by commas."""
        return self.set_property("bootstrap.servers", bootstrap_servers)

    def set_group_id(self, group_id: str) -> KafkaSourceBuilder[T]:
        """The consumer group whose offsets are committed with each checkpoint, for those who watch the lag."""
        return self.set_property("group.id", group_id)

    def set_topics(self, *topics: str | Sequence[str]) -> KafkaSourceBuilder[T]:
        """The topics to read, by name."""
        return self._reading("topics", topics=_topics([name for each in topics for name in _several(each)]))

    def set_topic_pattern(self, topic_pattern: str | re.Pattern[str]) -> KafkaSourceBuilder[T]:
        """Read all topics whose whole name matches, including topics created later."""
        return self._reading("a topic pattern", topic_pattern=_pattern(topic_pattern))

    def set_partitions(self, partitions: Iterable[KafkaTopicPartition]) -> KafkaSourceBuilder[T]:
        """Read exactly these partitions."""
        return self._reading("partitions", partitions=_partitions(partitions))

    def set_starting_offsets(self, starting_offsets_initializer: KafkaOffsetsInitializer | str) -> KafkaSourceBuilder[T]:
        """Where a job without a checkpoint begins: an initializer, or ``"earliest"``, ``"latest"``, ``"committed"``."""
        self._given["starting_offsets"] = KafkaOffsetsInitializer.of(starting_offsets_initializer)
        return self

    def set_unbounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer | str) -> KafkaSourceBuilder[T]:
        """Stop at these offsets, in a job that is planned as unbounded."""
        stop = KafkaOffsetsInitializer.of(stopping_offsets_initializer)
        self._given = {**self._given, "unbounded": stop, "bounded": None}
        return self

    def set_bounded(self, stopping_offsets_initializer: KafkaOffsetsInitializer | str) -> KafkaSourceBuilder[T]:
        """Stop at these offsets: the source is bounded."""
        stop = KafkaOffsetsInitializer.of(stopping_offsets_initializer)
        self._given = {**self._given, "unbounded": None, "bounded": stop}
        return self

    def set_value_only_deserializer(
        self, deserialization_schema: DeserializationSchema[R] | Callable[[bytes], R | None]
    ) -> KafkaSourceBuilder[R]:
        """How values become elements: a schema, or a callable from bytes to the element; strings if not set.

        The schema does not get records without a value (tombstones): they emit nothing. For those use `set_deserializer`.
        """
        schema = _of_values(deserialization_schema)
        self._given = {**self._given, "value_only_deserializer": schema, "deserializer": None}
        return cast("KafkaSourceBuilder[R]", self)

    def set_deserializer(
        self, record_deserializer: KafkaRecordDeserializationSchema[R] | Callable[[ConsumerRecord], R | None]
    ) -> KafkaSourceBuilder[R]:
        """How whole records become elements: a schema, or a callable from a `ConsumerRecord`; tombstones come too."""
        schema = _of_records(record_deserializer)
        self._given = {**self._given, "value_only_deserializer": None, "deserializer": schema}
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
        return KafkaSource(properties=self._properties, **self._input, **self._given)

    def _reading(self, name: str, **chosen: Any) -> KafkaSourceBuilder[T]:
        _check_one([*self._input, name])
        self._input = chosen
        return self


def _check_one(inputs: Sequence[str]) -> bool:
    """Whether there is an input; more than one are refused."""
    if len(inputs) > 1:
        raise ConfigurationError(
            f"a KafkaSource reads topics, a topic pattern or partitions: {inputs[-1]} cannot be set in addition"
        )
    return len(inputs) == 1


def _several(topics: Any) -> list[Any]:
    return list(topics) if isinstance(topics, (list, tuple, set, frozenset)) else [topics]


def _topics(topics: str | Sequence[str] | None) -> tuple[str, ...]:
    if topics is None:
        return ()
    names = _several(topics)
    for name in names:
        require_topic(name, "topics are named by strings")
    if not names:
        raise ConfigurationError("a KafkaSource needs at least one topic, in set_topics() or topics")
    return tuple(dict.fromkeys(names))


def _pattern(topic_pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    try:
        return re.compile(topic_pattern)
    except re.error as error:
        raise ConfigurationError(f"the topic pattern {topic_pattern!r} is no regular expression: {error}") from None


def _partitions(partitions: Iterable[KafkaTopicPartition]) -> frozenset[KafkaTopicPartition]:
    found = frozenset(partitions)
    for partition in found:
        require_partition(partition)
    return found


def _of_values(schema: Any) -> Any:
    """A checked deserializer of values."""
    refuse_class(schema, DeserializationSchema)
    if isinstance(schema, KafkaRecordDeserializationSchema):
        raise ConfigurationError("a KafkaRecordDeserializationSchema reads records, not values: use set_deserializer(...)")
    if schema is not None and not callable(schema) and not callable(getattr(schema, "deserialize", None)):
        raise ConfigurationError(f"a deserializer is a DeserializationSchema or a callable, not {type(schema).__name__}")
    return schema


def _of_records(schema: Any) -> KafkaRecordDeserializationSchema:
    """A checked deserializer of whole records."""
    refuse_class(schema, KafkaRecordDeserializationSchema)
    if isinstance(schema, DeserializationSchema):
        raise ConfigurationError(
            f"{type(schema).__name__} is a DeserializationSchema, which reads values: give it to "
            "set_value_only_deserializer(...), or call it in a function of the record"
        )
    if isinstance(schema, KafkaRecordDeserializationSchema):
        return schema
    if not callable(schema):
        raise ConfigurationError(
            f"a record deserializer is a KafkaRecordDeserializationSchema or a callable, not {type(schema).__name__}"
        )
    check_kind(schema, "deserialize", "set_deserializer()")
    check_arguments(schema, ("record",), "set_deserializer()")
    return CalledWithRecord(schema)
