"""A stream knows the elements of its source."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from typing_extensions import reveal_type

from holdfast.common import Duration, Row, SimpleStringSchema, Types, WatermarkStrategy
from holdfast.common.serialization import DeserializationSchema
from holdfast.connectors.base import Batch, Enumerator, JobInfo, ReaderContext, SourceReader, SplitRange
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors import Source
from holdfast.datastream.connectors.datagen import PaymentsSource
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.connectors.hybrid_source import HybridSource
from holdfast.datastream.connectors.kafka import ConsumerRecord, KafkaRecordDeserializationSchema, KafkaSource
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.formats.csv import CsvRowDeserializationSchema
from holdfast.datastream.formats.json import JsonRowDeserializationSchema

env = StreamExecutionEnvironment.get_execution_environment()
none = WatermarkStrategy.no_watermarks()


@dataclass(frozen=True)
class Order:
    shop: str
    at_ms: int


class Orders(DeserializationSchema[Order]):
    def deserialize(self, data: bytes) -> Order | None:
        return Order(data.decode(), 0) if data else None


class Whole(KafkaRecordDeserializationSchema[tuple[str, int]]):
    def deserialize(self, record: ConsumerRecord) -> tuple[str, int]:
        return record.topic, record.offset


class Untyped(DeserializationSchema):
    def deserialize(self, data: bytes) -> Any:
        return data


kafka = KafkaSource.builder().set_bootstrap_servers("localhost:9092").set_topics("orders")
reveal_type(kafka.set_value_only_deserializer(SimpleStringSchema()).build())  # KafkaSource[str]
reveal_type(kafka.set_value_only_deserializer(Orders()).set_group_id("g").build())  # KafkaSource[Order]
reveal_type(kafka.set_value_only_deserializer(int).build())  # KafkaSource[int]
reveal_type(kafka.set_value_only_deserializer(Untyped()).build())  # KafkaSource[Any]
reveal_type(kafka.set_deserializer(Whole()).build())  # KafkaSource[tuple[str, int]]
reveal_type(kafka.set_deserializer(lambda record: record.offset).build())  # KafkaSource[int]
row_type = Types.ROW_NAMED(["shop"], [Types.STRING()])
json = JsonRowDeserializationSchema.builder().type_info(row_type).build()
reveal_type(env.from_source(kafka.set_value_only_deserializer(json).build(), none, "rows"))  # DataStream[Row]
csv = CsvRowDeserializationSchema.Builder(row_type).build()
reveal_type(env.from_source(kafka.set_value_only_deserializer(csv).build(), none, "rows"))  # DataStream[Row]

reveal_type(KafkaSource(bootstrap_servers="b:1", topics="orders"))  # KafkaSource[str]
reveal_type(KafkaSource(bootstrap_servers="b:1", topics=["o"], value_only_deserializer=Orders()))  # KafkaSource[Order]
reveal_type(KafkaSource(bootstrap_servers="b:1", topics="o", deserializer=lambda record: record.offset))  # KafkaSource[int]
reveal_type(FileSource(StreamFormat.csv(header=True), "/tmp/x"))  # FileSource[dict[str, str]]

lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), "/tmp/x").build()
reveal_type(lines)  # FileSource[str]
reveal_type(env.from_source(lines, none, "lines").map(len))  # DataStream[int]
reveal_type(StreamFormat.csv())  # FileFormat[tuple[str, ...]]
reveal_type(StreamFormat.csv(header=True))  # FileFormat[dict[str, str]]
reveal_type(StreamFormat.csv(schema=Orders()))  # FileFormat[Order]
reveal_type(StreamFormat.json_lines())  # FileFormat[Any]
reveal_type(StreamFormat.json_lines(Orders()))  # FileFormat[Order]
reveal_type(StreamFormat.parquet())  # FileFormat[dict[str, Any]]
reveal_type(StreamFormat.avro(as_rows=True))  # FileFormat[Row]
orders = FileSource.for_record_stream_format(StreamFormat.json_lines(Orders()), "/tmp/x")
reveal_type(orders.monitor_continuously(Duration.of_seconds(1)).build())  # FileSource[Order]

numbers = NumberSequenceSource(1, 5)
reveal_type(env.from_source(numbers, none, "numbers"))  # DataStream[int]
reveal_type(env.add_source(numbers))  # DataStream[int]
reveal_type(env.add_source(numbers, "numbers", Types.STRING()))  # DataStream[str]
reveal_type(env.create_input(lines))  # DataStream[str]
reveal_type(env.from_source(PaymentsSource(), none, "payments"))  # DataStream[dict[str, Any]]
reveal_type(HybridSource.builder(lines).add_source(numbers).build())  # HybridSource[str | int]
reveal_type(env.from_source(numbers, none, "numbers", Types.ROW([Types.INT()])))  # DataStream[Row]


class OwnReader:
    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch[Order]]:
        yield Batch([Order("coffee", 3)])

    def close(self) -> None:
        pass


class OwnSource:
    bounded = True

    def create_enumerator(self, job: JobInfo, uid: str) -> Enumerator:
        raise NotImplementedError

    def create_reader(self, context: ReaderContext) -> SourceReader[Order]:
        return OwnReader()


reveal_type(env.from_source(OwnSource(), none, "own"))  # DataStream[Order]


def of_orders(source: Source[Order]) -> None:
    at = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda order, stamp: order.at_ms)
    reveal_type(env.from_source(source, at, "orders"))  # DataStream[Order]


def of_any(source: Source, row: Row) -> None:
    reveal_type(env.from_source(source, none, "any"))  # DataStream[Any]


of_orders(OwnSource())
of_any(numbers, Row(1))
