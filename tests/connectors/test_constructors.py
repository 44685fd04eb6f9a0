"""Constructors take by keyword what builders collect, and refuse what they refuse."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Duration, Encoder, Row, Types
from holdfast.connectors.base import Sink, Source
from holdfast.datastream.connectors.file_system import (
    BucketAssigner,
    FileCompactor,
    FileCompactStrategy,
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    StreamFormat,
)
from holdfast.datastream.connectors.hybrid_source import HybridSource
from holdfast.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.formats.csv import CsvRowDeserializationSchema, CsvRowSerializationSchema
from holdfast.datastream.formats.json import JsonRowDeserializationSchema, JsonRowSerializationSchema
from holdfast.errors import ConfigurationError

TEXT = StreamFormat.text_line_format()
ROW = Types.ROW_NAMED(["id", "name"], [Types.LONG(), Types.STRING()])
DATABASE = JdbcConnectionOptions(db_url="jdbc:sqlite:/tmp/x.db")


def a_file_source_is_the_same_by_constructor_and_by_builder(tmp_path: Path) -> None:
    built = FileSource.for_record_stream_format(TEXT, str(tmp_path)).monitor_continuously(Duration.of_seconds(2)).build()
    made = FileSource(TEXT, str(tmp_path), discovery_interval=Duration.of_seconds(2))
    assert vars(made) == vars(built)
    assert type(made) is type(built)
    assert isinstance(made, Source)
    assert (made.bounded, FileSource(TEXT, [str(tmp_path), "/y"]).paths) == (False, (str(tmp_path), "/y"))


def a_file_sink_is_the_same_by_constructor_and_by_builder(tmp_path: Path) -> None:
    encoder, flat = Encoder.simple_string_encoder(), BucketAssigner.base_path_bucket_assigner()
    names = OutputFileConfig.builder().with_part_prefix("pay").with_part_suffix(".txt").build()
    builder = FileSink.for_row_format(str(tmp_path), encoder).with_bucket_assigner(flat).with_output_file_config(names)
    made = FileSink(str(tmp_path), encoder, bucket_assigner=flat, part_prefix="pay", part_suffix=".txt")
    assert vars(made) == vars(builder.build())
    assert isinstance(made, Sink)
    policy, strategy = RollingPolicy.default_rolling_policy(), FileCompactStrategy.builder().set_size_threshold(9).build()
    builder.with_rolling_policy(policy).enable_compact(strategy, FileCompactor.concat_file_compactor(b"-"))
    options: dict[str, Any] = {"bucket_assigner": flat, "part_prefix": "pay", "part_suffix": ".txt"}
    concat = FileCompactor.concat_file_compactor(b"-")
    made = FileSink(str(tmp_path), encoder, **options, rolling_policy=policy, compact_strategy=strategy, compactor=concat)
    assert vars(made) == vars(builder.build())
    by_hour = FileSink(str(tmp_path), encoder), FileSink.for_row_format(str(tmp_path), encoder).build()
    assert len({each._buckets.bucket()[:10] for each in by_hour}) == 1


def a_schema_is_the_same_by_constructor_and_by_builder() -> None:
    read = CsvRowDeserializationSchema(ROW, field_delimiter=";", null_literal="-", allow_comments=True)
    builder = (
        CsvRowDeserializationSchema.Builder(ROW).set_field_delimiter(";").set_null_literal("-").set_allow_comments(True)
    )
    for schema in (read, builder.build(), pickle.loads(pickle.dumps(read))):
        assert schema.deserialize_batch([b"1;ann", b"# none", b"2;-"]) == [Row(id=1, name="ann"), None, Row(id=2, name=None)]
    write = CsvRowSerializationSchema(ROW, quote_character=None, line_delimiter="")
    written = CsvRowSerializationSchema.Builder(ROW).disable_quote_character().set_line_delimiter("").build()
    assert {each.serialize(Row(1, "ann")) for each in (write, written, pickle.loads(pickle.dumps(write)))} == {b"1,ann"}
    json = JsonRowDeserializationSchema(ROW, ignore_parse_errors=True)
    for each in (json, JsonRowDeserializationSchema.builder().type_info(ROW).ignore_parse_errors().build()):
        assert (each.deserialize(b'{"id": 1}'), each.deserialize(b"x")) == (Row(id=1, name=None), None)
    assert JsonRowSerializationSchema(ROW).serialize(Row(1, "ann")) == b'{"id":1,"name":"ann"}'


def a_sink_of_a_database_and_a_hybrid_source_have_constructors() -> None:
    execution = JdbcExecutionOptions(batch_size=10, max_retries=1)
    assert execution == JdbcExecutionOptions.builder().with_batch_size(10).with_max_retries(1).build()
    arguments: Any = ("INSERT INTO t VALUES (?, ?)", ROW, DATABASE, execution)
    made, built = JdbcSink(*arguments), JdbcSink.sink(*arguments)
    assert (made._sql, made._type, made._execution) == (built._sql, built._type, built._execution)
    numbers = NumberSequenceSource(1, 2), NumberSequenceSource(3, 4)
    assert HybridSource(numbers).sources == HybridSource.builder(numbers[0]).add_source(numbers[1]).build().sources


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: FileSource(TEXT, []), ConfigurationError, "at least one path"),
        (lambda: FileSource(TEXT, "/x", discovery_interval=Duration.of_millis(0)), ConfigurationError, "a millisecond"),
        (lambda: FileSink("/x", 5), ConfigurationError, "is no encoder"),  # type: ignore[arg-type]
        (lambda: FileSink("/x", Encoder.simple_string_encoder(), part_prefix="."), ConfigurationError, "hidden"),
        (lambda: JdbcConnectionOptions(""), ConfigurationError, "need a URL"),
        (lambda: JdbcExecutionOptions(batch_size=0), ConfigurationError, "a whole number from 1, not 0"),
        (lambda: JdbcSink("INSERT INTO t VALUES (?)", ROW, DATABASE), ConfigurationError, "1 parameters"),
        (lambda: JdbcSink("x", 5, DATABASE), TypeError, "takes a RowTypeInfo"),  # type: ignore[arg-type]
        (lambda: HybridSource([]), ConfigurationError, "at least one source"),
        (lambda: HybridSource([5]), TypeError, "this is a int"),  # type: ignore[list-item]
        (lambda: CsvRowDeserializationSchema(Types.LONG()), ConfigurationError, "Types.ROW"),  # type: ignore[arg-type]
        (lambda: CsvRowDeserializationSchema(ROW, field_delimiter='"'), ConfigurationError, "must differ"),
        (lambda: CsvRowSerializationSchema(ROW, field_delimiter=",,"), ConfigurationError, "must be one character"),
        (lambda: CsvRowSerializationSchema(ROW, line_delimiter="x"), ConfigurationError, "a line ends with"),
        (lambda: JsonRowDeserializationSchema(ROW, True, True), ConfigurationError, "exclude each other"),
        (lambda: JsonRowSerializationSchema(5), ConfigurationError, "with_type_info"),  # type: ignore[arg-type]
    ],
)
def an_argument_that_cannot_be_used_is_refused(make: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        make()
