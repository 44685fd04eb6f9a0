"""A sink of other elements than the stream's."""

from __future__ import annotations

from holdfast.common import Row, SimpleStringSchema
from holdfast.datastream import DataStream, StreamExecutionEnvironment
from holdfast.datastream.connectors import Sink
from holdfast.datastream.connectors.file_system import FileSink
from holdfast.datastream.connectors.kafka import KafkaRecordSerializationSchema, KafkaSink

env = StreamExecutionEnvironment.get_execution_environment()


def shop_of(row: Row) -> str:
    return str(row["shop"])


def of(numbers: DataStream[int], rows: DataStream[Row], text: Sink[str]) -> None:
    records = KafkaRecordSerializationSchema.builder().set_topic("orders")
    strings = records.set_value_serialization_schema(SimpleStringSchema())
    kafka = KafkaSink.builder().set_bootstrap_servers("localhost:9092")
    sink = kafka.set_record_serializer(strings.build()).build()
    numbers.sink_to(KafkaSink(record_serializer=strings.build()))  # incompatible type "KafkaRecordSerializationSchema[str]"
    numbers.sink_to(sink)  # incompatible type "KafkaSink[str]"; expected "Sink[int]"
    rows.map(shop_of).sink_to(sink)
    rows.sink_to(text)  # expected "Sink[Row]"
    rows.add_sink(sink)  # expected "Sink[Row]"
    rows.sink_to(kafka)  # has incompatible type "KafkaSinkBuilder[Any]"; expected "Sink[Row]"
    numbers.sink_to(FileSink.for_row_format("/tmp/x", SimpleStringSchema()).build())  # expected "Sink[int]"
    strings.set_key_serialization_schema(shop_of)  # has incompatible type "Callable[[Row], str]"
    strings.set_topic_selector(lambda line: line.shop)  # "str" has no attribute "shop"
