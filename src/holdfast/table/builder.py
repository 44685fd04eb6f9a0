"""StreamsBuilder: streams and tables of Kafka topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from holdfast.common.serialization import DeserializationSchema
from holdfast.common.time import Span
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.operations.function_checks import check_function
from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment
from holdfast.table.cluster import Cluster, register
from holdfast.table.global_tables import GlobalKTable
from holdfast.table.tables import KStream, KTable

__all__ = ["StreamsBuilder"]

Deserializer = DeserializationSchema | Callable[[bytes], Any]


class StreamsBuilder:
    """Makes streams and tables of the topics of one Kafka cluster, as Kafka Streams' StreamsBuilder.

    ``KStream.to(topic)`` writes to the same cluster.

    Args:
        env: The environment.
        properties: Kafka's client properties with ``bootstrap.servers``, and ``application.id``: the consumer group, and the
            prefix of the transactional ids. It must stay the same from start to start, and belong to this job alone.

    Examples:
        >>> env = StreamExecutionEnvironment.get_execution_environment()
        >>> builder = StreamsBuilder(env, {"bootstrap.servers": "localhost:9092", "application.id": "balances"})
        >>> accounts = builder.table("accounts", value_deserializer=int)
    """

    def __init__(self, env: StreamExecutionEnvironment, properties: Mapping[str, Any]) -> None:
        if not isinstance(env, StreamExecutionEnvironment):
            raise TypeError(f"StreamsBuilder() takes a StreamExecutionEnvironment, not {env!r}.")
        self._env = env
        self._cluster = Cluster(properties)
        register(env, self._cluster)

    def stream(
        self,
        topic: str,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        watermark_strategy: WatermarkStrategy | None = None,
    ) -> KStream[Any, Any]:
        """Read a topic as a stream of pairs of key and value, from its beginning. A missing key or value is None.

        Args:
            topic: The topic.
            key_deserializer: A DeserializationSchema or a callable from bytes for the keys; None: strings.
            value_deserializer: The same for the values.
            watermark_strategy: Timestamps and watermarks; None: Kafka's timestamps, without watermarks.
        """
        return KStream(self._pairs("stream", topic, key_deserializer, value_deserializer, watermark_strategy, False))

    def table(
        self,
        topic: str,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        watermark_strategy: WatermarkStrategy | None = None,
        value_type: TypeInformation | None = None,
        *,
        history_retention: Span | None = None,
    ) -> KTable[Any, Any]:
        """Read a compacted topic as a table: the newest value of each key. A record without a value deletes its key.

        The records of a key take effect in the order of their offsets. A record without a key fails the job.

        Args:
            topic: The topic.
            key_deserializer: A DeserializationSchema or a callable from bytes for the keys; None: strings.
            value_deserializer: The same for the values.
            watermark_strategy: Timestamps and watermarks; None: Kafka's timestamps, without watermarks. Of a versioned table
                None means that the watermark is the latest timestamp, as Kafka Streams' stream time.
            value_type: The declared type of the values.
            history_retention: Makes the table versioned, see ``KStream.to_table``.
        """
        if history_retention is not None and watermark_strategy is None:
            watermark_strategy = WatermarkStrategy.for_monotonous_timestamps()
        pairs = self._pairs("table", topic, key_deserializer, value_deserializer, watermark_strategy, True)
        return KStream(pairs).to_table(value_type, history_retention=history_retention)

    def global_table(
        self,
        topic: str,
        key_deserializer: Deserializer | None = None,
        value_deserializer: Deserializer | None = None,
        watermark_strategy: WatermarkStrategy | None = None,
    ) -> GlobalKTable[Any, Any]:
        """Read a compacted topic as a table that every subtask has as a whole, to join streams with by any key.

        What is in the topic when the job starts is read before the streams that are joined with it, up to
        ``holdfast.epoch.max-records``. A record without a value deletes its key. A record without a key fails the job.

        Args:
            topic: The topic.
            key_deserializer: A DeserializationSchema or a callable from bytes for the keys; None: strings.
            value_deserializer: The same for the values.
            watermark_strategy: Timestamps and watermarks; None: Kafka's timestamps, without watermarks.
        """
        pairs = self._pairs("global_table", topic, key_deserializer, value_deserializer, watermark_strategy, True)
        return GlobalKTable(pairs)

    def _pairs(
        self, call: str, topic: str, key: Any, value: Any, strategy: WatermarkStrategy | None, of_table: bool
    ) -> DataStream[Any]:
        for name, given in (("key_deserializer", key), ("value_deserializer", value)):
            if given is not None:
                check_function(given, "deserialize", ("data",), f"{name} of StreamsBuilder.{call}()")
        source = self._cluster.source(topic, key, value, of_table)
        return self._env.from_source(source, strategy or WatermarkStrategy.no_watermarks(), f"topic {topic}")
