"""Damaged files of each bulk format end the job with the file's name."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import fastavro
import pyarrow
import pyarrow.parquet
import pytest
from connector_harness import SourceRun
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import WatermarkStrategy
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.errors import InputLost, UserCodeError
from holdfast.testing import InProcessEnvironment

MANY = [
    {"n": n, "text": f"x{n}" * (n % 5), "real": n / 2, "list": [n] * (n % 3), "at": datetime.datetime(2024, 1, 1)}
    for n in range(100)
]


def _avro(file: Path, codec: str) -> None:
    kinds = {"n": "long", "text": "string", "real": "double", "list": {"type": "array", "items": "int"}}
    fields = [*kinds.items(), ("at", {"type": "long", "logicalType": "timestamp-millis"})]
    schema = {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}
    with file.open("wb") as out:
        fastavro.writer(out, fastavro.parse_schema(schema), MANY, codec=codec, sync_interval=1000)


def _arrow(file: Path, compression: str | None) -> None:
    table = pyarrow.Table.from_pylist(MANY)
    with pyarrow.ipc.new_file(file, table.schema, options=pyarrow.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=30)


FILES: dict[str, tuple[Any, Any]] = {
    "avro": (lambda file: _avro(file, "null"), StreamFormat.avro),
    "avro, compressed, as rows": (lambda file: _avro(file, "deflate"), lambda: StreamFormat.avro(as_rows=True)),
    "parquet": (
        lambda file: pyarrow.parquet.write_table(pyarrow.Table.from_pylist(MANY), file, row_group_size=30),
        StreamFormat.parquet,
    ),
    "arrow": (lambda file: _arrow(file, None), StreamFormat.arrow),
    "arrow, compressed": (lambda file: _arrow(file, "zstd"), StreamFormat.arrow),
}


def run(directory: Path, form: Any) -> list[Any]:
    """The records that a job reads of the directory's files."""
    source = FileSource.for_bulk_file_format(form, str(directory)).build()
    files = InProcessEnvironment().from_source(source, WatermarkStrategy.no_watermarks(), "files")
    with files.execute_and_collect() as results:
        return list(results)


@pytest.mark.parametrize("name", FILES)
def a_damaged_file_is_named_or_read(name: str, tmp_path: Path) -> None:
    """A flipped bit in a number is another number: only some damage is noticed, but all that is names the file."""
    write, form = FILES[name]
    file = tmp_path / "damaged"
    write(file)
    whole = file.read_bytes()

    @given(st.integers(0, len(whole) - 1), st.integers(0, 7), st.booleans())
    @settings(max_examples=examples(50), deadline=None)
    def check(at: int, bit: int, cut: bool) -> None:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        file.write_bytes(whole[:at] if cut else damaged)
        try:
            for rows in SourceRun(FileSource(form(), [str(file)])).start().run().values():
                list(rows)
        except (UserCodeError, InputLost) as error:
            assert str(file) in str(error)  # noqa: PT017

    check()


@pytest.mark.parametrize("name", FILES)
def a_job_ends_on_a_damaged_file(name: str, tmp_path: Path) -> None:
    write, form = FILES[name]
    write(tmp_path / "damaged")
    content = (tmp_path / "damaged").read_bytes()
    (tmp_path / "damaged").write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(UserCodeError, match=str(tmp_path / "damaged")):
        run(tmp_path, form())


def a_damaged_offset_of_a_text_is_not_followed(tmp_path: Path) -> None:
    """It would be read somewhere in memory."""
    _arrow(tmp_path / "damaged", None)
    content = bytearray((tmp_path / "damaged").read_bytes())
    offsets = b"".join(n.to_bytes(4, "little") for n in (0, 0, 2, 6, 12))
    content[content.find(offsets) + 4 * 3 + 3] = 0x7F
    (tmp_path / "damaged").write_bytes(content)
    with pytest.raises(UserCodeError, match=r"damaged: cannot be decoded after row .*[Oo]ffset"):
        run(tmp_path, StreamFormat.arrow())
