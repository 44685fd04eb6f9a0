"""Parquet, Arrow and Avro files: written by the file sink, read by the file source."""

from __future__ import annotations

import datetime
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from holdfast.common import Instant, RestartStrategies, Row, Types, WatermarkStrategy
from holdfast.common.formats.columns import columns_of
from holdfast.connectors.file.avro_files import AvroFormat
from holdfast.connectors.file.files import FileVersion, InputFile, LocalFiles
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink, FileSource, StreamFormat
from holdfast.datastream.formats.arrow import ArrowBulkWriters
from holdfast.datastream.formats.parquet import ParquetBulkWriters
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.testing import InProcessEnvironment, TestSource

PAYMENT = Types.ROW_NAMED(["name", "amount"], [Types.STRING(), Types.LONG()])
EVERYTHING = Types.ROW_NAMED(
    ["text", "flag", "small", "amount", "price", "day", "clock", "at", "moment", "raw", "tags", "by_name", "pair", "home"],
    [
        *(
            Types.STRING(),
            Types.BOOLEAN(),
            Types.BYTE(),
            Types.DOUBLE(),
            Types.BIG_DEC(),
            Types.SQL_DATE(),
            Types.SQL_TIME(),
        ),
        *(Types.SQL_TIMESTAMP(), Types.INSTANT(), Types.PRIMITIVE_ARRAY(Types.BYTE()), Types.LIST(Types.INSTANT())),
        Types.MAP(Types.STRING(), Types.ROW_NAMED(["n"], [Types.INT()])),
        *(Types.TUPLE([Types.INT(), Types.STRING()]), Types.ROW_NAMED(["city"], [Types.STRING()])),
    ],
)
ROW = Row(
    *("a", True, 5, 2.5, Decimal("1.50"), datetime.date(2024, 2, 29), datetime.time(1, 2, 3, 4000)),
    *(datetime.datetime(2024, 2, 29, 1, 2, 3, 4000), Instant(3, 5000), b"\x00", [Instant(1, 0)], {"k": Row(n=1)}, (1, "x")),
    Row(city="Pune"),
)


def written(directory: Path, factory: Any, values: list[Any], parallelism: int = 1) -> list[Path]:
    """The files that a job writes of the values."""
    env = InProcessEnvironment().set_parallelism(parallelism)
    sink = FileSink.for_bulk_format(str(directory), factory)
    sink = sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()
    env.from_source(TestSource(values), WatermarkStrategy.no_watermarks(), "values").rebalance().sink_to(sink)
    env.execute("write")
    files = sorted(directory.iterdir())
    assert not [file for file in files if file.name.startswith(".")]
    return files


def read(directory: Path, form: Any, parallelism: int = 1) -> list[Any]:
    """The records that a job reads of the directory's files."""
    env = InProcessEnvironment().set_parallelism(parallelism)
    source = FileSource.for_bulk_file_format(form, str(directory)).build()
    with env.from_source(source, WatermarkStrategy.no_watermarks(), "files").execute_and_collect() as results:
        return list(results)


@pytest.mark.parametrize("as_tuples", [False, True])
def the_nanoseconds_of_a_column_become_times_of_python(as_tuples: bool, tmp_path: Path) -> None:
    at, took = (
        pyarrow.array([1_709_168_523_004_567_891], pyarrow.timestamp("ns")),
        pyarrow.array([1500], pyarrow.duration("ns")),
    )
    pyarrow.parquet.write_table(pyarrow.table({"at": at, "took": took}), tmp_path / "file.parquet")
    (record,) = read(tmp_path, StreamFormat.parquet(as_tuples=as_tuples))
    values = record if as_tuples else tuple(record.values())
    assert values == (datetime.datetime(2024, 2, 29, 1, 2, 3, 4567), datetime.timedelta(microseconds=1))
    assert [type(value) for value in values] == [datetime.datetime, datetime.timedelta]


def a_row_of_every_type_becomes_a_row_of_parquet(tmp_path: Path) -> None:
    (file,) = written(tmp_path, ParquetBulkWriters.for_row_type(EVERYTHING, compression="zstd"), [ROW, Row(*[None] * 14)])
    table = pyarrow.parquet.read_table(file)
    assert table.schema.field("price").type == pyarrow.decimal128(38, 18)
    first, second = table.to_pylist()
    assert {first[name] for name in ("text", "price", "at", "clock")} == {"a", Decimal("1.50"), ROW[7], ROW[6]}
    assert first["by_name"] == [("k", {"n": 1})]
    assert first["pair"] == {"f0": 1, "f1": "x"}
    assert first["home"] == {"city": "Pune"}
    assert table.column("moment")[0].value == 3_000_005_000
    assert set(second.values()) == {None}


@pytest.mark.parametrize(
    ("factory", "form"),
    [
        (ParquetBulkWriters.for_row_type(PAYMENT), StreamFormat.parquet(as_tuples=True)),
        (ArrowBulkWriters.for_row_type(PAYMENT, compression="zstd"), StreamFormat.arrow(as_tuples=True)),
    ],
    ids=["parquet", "arrow"],
)
def a_job_reads_what_another_has_written(tmp_path: Path, factory: Any, form: Any) -> None:
    values = [(f"name-{n}", n) for n in range(5000)]
    values[3000:3000] = [TestSource.ABORT()]  # the files of an epoch that fails never appear
    assert len(written(tmp_path, pickle.loads(pickle.dumps(factory)), values, parallelism=2)) == 4
    assert sorted(read(tmp_path, form, parallelism=3)) == sorted(v for v in values if isinstance(v, tuple))


def a_record_batch_is_an_element_in_both_directions(tmp_path: Path) -> None:
    schema = pyarrow.schema([("n", pyarrow.int64())])
    batches = [pyarrow.record_batch([pyarrow.array(range(at, at + 10))], schema=schema) for at in (0, 10)]
    written(tmp_path, ParquetBulkWriters.for_arrow_schema(schema), [batches[0], {"n": 99}, batches[1]])
    found = read(tmp_path, StreamFormat.parquet(as_batches=True))
    assert all(isinstance(batch, pyarrow.RecordBatch) for batch in found)
    assert [n for batch in found for n in batch.column(0).to_pylist()] == [*range(10), 99, *range(10, 20)]


def a_row_that_does_not_fit_fails_the_job_with_the_row(tmp_path: Path) -> None:
    env = InProcessEnvironment().set_restart_strategy(RestartStrategies.no_restart())
    sink = FileSink.for_bulk_format(str(tmp_path), ParquetBulkWriters.for_row_type(PAYMENT)).build()
    env.from_collection([("a", 1), ("b", "many")]).sink_to(sink)
    with pytest.raises(HoldfastError, match=r"(?s)field amount.*'many'"):
        env.execute("write")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def a_type_without_a_form_is_refused_when_the_sink_is_made() -> None:
    with pytest.raises(ConfigurationError, match=r"field b has the type .*, for which Parquet and Arrow have no form"):
        ParquetBulkWriters.for_row_type(Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.PICKLED_BYTE_ARRAY()]))
    with pytest.raises(ConfigurationError, match="takes the type of the rows"):
        ArrowBulkWriters.for_row_type(Types.STRING())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a factory of bulk writers"):
        FileSink.for_bulk_format("/tmp/x", "parquet")  # type: ignore[arg-type]


def a_file_of_another_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"no table")
    with pytest.raises(HoldfastError, match=r"x: is not an Arrow file that can be read"):
        read(tmp_path, StreamFormat.arrow())


def an_avro_file_is_written_and_read_by_ranges(tmp_path: Path) -> None:
    fastavro = pytest.importorskip("fastavro", reason="needs holdfast[avro]")
    from holdfast.datastream.formats.avro import AvroBulkWriters, AvroInputFormat, AvroSchema

    fields: list[Any] = [{"name": "name", "type": "string"}, {"name": "n", "type": "long"}]
    schema = AvroSchema.parse_string(json.dumps({"type": "record", "name": "P", "fields": fields}))
    values = [{"name": "x" * 50, "n": n} for n in range(3000)]
    files = written(tmp_path, AvroBulkWriters.for_generic_record(schema), values, parallelism=2)
    written_records = 0
    for path in files:
        with path.open("rb") as file:
            written_records += len(list(fastavro.reader(file)))
    assert written_records == 3000
    assert sorted(record["n"] for record in read(tmp_path, StreamFormat.avro(), parallelism=3)) == list(range(3000))
    assert Row(name="x" * 50, n=7) in read(tmp_path, StreamFormat.avro(as_rows=True))
    form, version = AvroFormat(as_rows=True), FileVersion(files[0].stat().st_size, 0)
    batches = list(form.read(InputFile(str(files[0]), LocalFiles(), version), 0, version.size, version.size, 1000))
    assert all(columns_of(batch.values) is not None for batch in batches)

    later = AvroSchema.parse_string(
        json.dumps({"type": "record", "name": "P", "fields": [*fields, {"name": "new", "type": "int", "default": 4}]})
    )
    env = InProcessEnvironment()
    source = AvroInputFormat(str(tmp_path), later)
    stream = env.create_input(source)
    assert stream.get_type() == source.get_produced_type()
    assert {record["new"] for record in stream.execute_and_collect()} == {4}

    (tmp_path / "broken.avro").write_bytes(files[0].read_bytes()[:-40])
    with pytest.raises(HoldfastError, match=r"broken.avro"):
        read(tmp_path, StreamFormat.avro())
