"""A stream takes a sink of its elements, or of anything that they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import reveal_type

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.common import Encoder, SimpleStringSchema, Types
from holdfast.common.serialization import SerializationSchema
from holdfast.connectors.base import Committer, JobInfo, SinkWriter, WriterContext
from holdfast.datastream import DataStream, StreamExecutionEnvironment
from holdfast.datastream.connectors import Sink
from holdfast.datastream.connectors.file_system import FileSink, JsonLinesEncoder
from holdfast.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcSink
from holdfast.datastream.connectors.kafka import (
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSinkContext,
    ProducerRecord,
)
from holdfast.datastream.connectors.print import PrintSink

env = StreamExecutionEnvironment.get_execution_environment()


@dataclass(frozen=True)
class Order:
    shop: str


class Large(Order):
    pass


class Orders(SerializationSchema[Order]):
    def serialize(self, value: Order) -> bytes:
        return value.shop.encode()


class Whole(KafkaRecordSerializationSchema[Order]):
    def serialize(self, element: Order, context: KafkaSinkContext, timestamp: int | None) -> ProducerRecord:
        return ProducerRecord("orders", element.shop.encode())


def shop_of(order: Order) -> str:
    return order.shop


def of_orders(orders: DataStream[Order], large: DataStream[Large], text: DataStream[str]) -> None:
    records = KafkaRecordSerializationSchema.builder().set_topic("orders")
    reveal_type(records.set_value_serialization_schema(Orders()))  # KafkaRecordSerializationSchemaBuilder[Order]
    with_key = records.set_key_serialization_schema(lambda order: order.shop).set_value_serialization_schema(Orders())
    reveal_type(with_key.build())  # KafkaRecordSerializationSchema[Order]
    keyed = records.set_value_serialization_schema(Orders()).set_key_serialization_schema(shop_of)
    reveal_type(keyed.set_topic_selector(lambda order: order.shop).build())  # KafkaRecordSerializationSchema[Order]
    alone = records.set_value_serialization_schema(lambda order: order.shop)
    reveal_type(alone.build())  # KafkaRecordSerializationSchema[Any]
    kafka = KafkaSink.builder().set_bootstrap_servers("localhost:9092")
    to_orders = kafka.set_record_serializer(with_key.build()).build()
    reveal_type(to_orders)  # KafkaSink[Order]
    orders.sink_to(to_orders).name("orders").uid("orders")
    large.sink_to(to_orders)
    large.sink_to(kafka.set_record_serializer(Whole()).build())
    strings = records.set_value_serialization_schema(SimpleStringSchema()).build()
    text.sink_to(kafka.set_record_serializer(strings).build())

    whole = KafkaRecordSerializationSchema(topic="orders", value_serialization_schema=Orders())
    reveal_type(whole)  # KafkaRecordSerializationSchema[Order]
    orders.sink_to(KafkaSink(bootstrap_servers="b:1", record_serializer=whole))
    reveal_type(FileSink("/tmp/x", Orders()))  # FileSink[Order]
    reveal_type(FileSink.for_row_format("/tmp/x", Orders()).build())  # FileSink[Order]
    orders.sink_to(FileSink.for_row_format("/tmp/x", Orders()).build())
    text.sink_to(FileSink.for_row_format("/tmp/x", Encoder.simple_string_encoder()).build())
    orders.sink_to(FileSink.for_row_format("/tmp/x", JsonLinesEncoder()).build())
    options = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url("jdbc:sqlite:/tmp/x").build()
    rows = text.map(lambda line: (line,), Types.ROW([Types.STRING()]))
    rows.sink_to(JdbcSink.sink("INSERT INTO t VALUES (?)", Types.ROW([Types.STRING()]), options))
    rows.sink_to(PrintSink())
    orders.sink_to(OwnSink())
    large.add_sink(OwnSink())


class OwnWriter:
    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        pass

    def write(self, values: Sequence[Order], timestamps: Sequence[int] | None) -> None:
        pass

    def prepare_commit(self) -> list[Any]:
        return []

    def abort_epoch(self) -> None:
        pass

    def close(self) -> None:
        pass


class OwnSink:
    def validate(self) -> None:
        pass

    def create_writer(self, context: WriterContext) -> SinkWriter[Order]:
        return OwnWriter()

    def create_committer(self, job: JobInfo, uid: str) -> Committer | None:
        return None


def of_any(stream: DataStream, sink: Sink) -> None:
    stream.sink_to(OwnSink())
    stream.sink_to(sink)
