"""A source that does not give what the program makes of it."""

from __future__ import annotations

from holdfast.common import Row, SimpleStringSchema, WatermarkStrategy
from holdfast.common.serialization import DeserializationSchema
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors import Source
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.connectors.kafka import KafkaSource
from holdfast.datastream.connectors.number_seq import NumberSequenceSource

env = StreamExecutionEnvironment.get_execution_environment()
none = WatermarkStrategy.no_watermarks()


class Numbers(DeserializationSchema[int]):
    def deserialize(self, data: bytes) -> str:  # Return type "str" of "deserialize" incompatible
        return data.decode()


def shop_of(row: Row) -> str:
    return str(row["shop"])


def of_text(source: Source[str]) -> None:
    pass


kafka = KafkaSource.builder().set_bootstrap_servers("localhost:9092").set_topics("orders")
text = kafka.set_value_only_deserializer(SimpleStringSchema()).build()
env.from_source(text, none, "text").map(shop_of)  # expected "Callable[[str]
env.from_source(text, none, "text").map(lambda line: line + 1)  # Unsupported operand types for + ("str" and "int")
kafka.set_value_only_deserializer(SimpleStringSchema)  # has incompatible type "type[SimpleStringSchema]"
kafka.set_deserializer(SimpleStringSchema())  # has incompatible type "SimpleStringSchema"
env.from_source(NumberSequenceSource(1, 5), none, "numbers").key_by(len)  # has incompatible type "Callable[[Sized], int]"
of_text(NumberSequenceSource(1, 5))  # has incompatible type "NumberSequenceSource"; expected "Source[str]"
of_text(FileSource.for_record_stream_format(StreamFormat.csv(), "/tmp/x").build())  # expected "Source[str]"
env.from_source(kafka, none, "not built")  # No overload variant of "from_source"
