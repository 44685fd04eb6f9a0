"""A schema that declares its records' type declares that of the source's stream, too (Flink's ResultTypeQueryable)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.common import SimpleStringSchema, Time, Types, WatermarkStrategy
from holdfast.common.serialization import DeserializationSchema
from holdfast.datastream.connectors.base import Source
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.datastream.connectors.hybrid_source import HybridSource
from holdfast.datastream.connectors.kafka import KafkaSource
from holdfast.datastream.formats.avro import AvroInputFormat, AvroRowDeserializationSchema, AvroSchema
from holdfast.datastream.formats.csv import CsvRowDeserializationSchema
from holdfast.datastream.formats.json import JsonRowDeserializationSchema
from holdfast.datastream.operations.batches import Sum, col
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError

PAYMENT = Types.ROW_NAMED(["user", "amount"], [Types.STRING(), Types.DOUBLE()])
JSON = JsonRowDeserializationSchema.builder().type_info(PAYMENT).build()
CSV = CsvRowDeserializationSchema.Builder(PAYMENT).build()
AVRO = """{"type": "record", "name": "Payment", "fields": [
    {"name": "user", "type": "string"}, {"name": "amount", "type": "double"}]}"""

LIST = """{"type": "record", "name": "List", "fields": [{"name": "next", "type": ["null", "List"], "default": null}]}"""
"""No type stands for a record that contains itself; it can be read nevertheless."""


def kafka(schema: Any) -> Source:
    builder = KafkaSource.builder().set_bootstrap_servers("localhost:9092").set_topics("payments")
    return builder.set_value_only_deserializer(schema).build()


def files(form: Any) -> Source:
    return FileSource.for_record_stream_format(form, "/payments").build()


def stream_of(env: Any, source: Source, *type_info: Any) -> Any:
    return env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "payments", *type_info)


@pytest.mark.parametrize(
    "source",
    [
        kafka(JSON),
        kafka(CSV),
        kafka(AvroRowDeserializationSchema(avro_schema_string=AVRO)),
        files(StreamFormat.json_lines(JSON)),
        files(StreamFormat.csv(schema=CSV)),
        files(StreamFormat.avro(AvroSchema.parse_string(AVRO), as_rows=True)),
        HybridSource.builder(files(StreamFormat.json_lines(JSON))).add_source(kafka(JSON)).build(),
    ],
)
def the_type_of_a_schema_is_that_of_the_stream(env, source):
    assert stream_of(env, source).get_type() == PAYMENT
    assert stream_of(env, source).filter(bool).get_type() == PAYMENT


@pytest.mark.parametrize(
    "source",
    [
        kafka(SimpleStringSchema()),
        kafka(lambda data: data),
        files(StreamFormat.text_line_format()),
        files(StreamFormat.json_lines()),
        files(StreamFormat.csv()),
        files(StreamFormat.avro()),
        files(StreamFormat.avro(AvroSchema.parse_string(LIST), as_rows=True)),
        kafka(AvroRowDeserializationSchema(avro_schema_string=LIST)),
        HybridSource.builder(files(StreamFormat.json_lines())).add_source(kafka(JSON)).build(),
    ],
)
def a_stream_without_a_declared_type_has_none(env, source):
    assert stream_of(env, source).get_type() == Types.PICKLED_BYTE_ARRAY()


def a_type_given_to_from_source_comes_first(env):
    other = Types.ROW_NAMED(["user", "amount"], [Types.STRING(), Types.INT()])
    assert stream_of(env, kafka(JSON), other).get_type() == other


def an_input_format_knows_its_type(env):
    schema = AvroSchema.parse_string(AVRO)
    assert "Payment" in repr(env.create_input(AvroInputFormat("/payments", schema)).get_type())


class Wrong(DeserializationSchema):
    def deserialize(self, data: bytes) -> Any:
        return data

    def get_produced_type(self) -> Any:
        return "Row"


def a_schema_that_declares_no_type_is_refused(env):
    with pytest.raises(TypeError, match="takes a type such as"):
        stream_of(env, kafka(Wrong()))


def columns_travel(env: Any, step: Callable[[Any], Any]) -> bool:
    """Whether columns travel to the windows of a stream behind this step."""
    windows = step(stream_of(env, kafka(JSON))).key_by(col("user")).window(TumblingEventTimeWindows.of(Time.seconds(1)))
    windows.agg(total=Sum("amount")).print()
    (channel,) = [channel for vertex in env._plan("job").vertices for each in vertex.chain for channel in each.channels]
    return channel.columns is not None


def the_elements_travel_as_columns_behind_a_filter(env):
    assert columns_travel(env, lambda stream: stream.filter(lambda row: row.amount > 0))


def the_elements_of_no_declared_type_do_not(env):
    assert not columns_travel(env, lambda stream: stream.map(lambda row: row))


def a_field_that_the_schema_does_not_have_is_refused_before_the_job_starts(env):
    windows = stream_of(env, kafka(JSON)).key_by(col("user")).window(TumblingEventTimeWindows.of(Time.seconds(1)))
    with pytest.raises(ConfigurationError, match="amuont"):
        windows.agg(total=Sum("amuont"))
