"""Avro container files as records."""

from __future__ import annotations

import functools
import io
import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from holdfast.common.formats.avro import AvroSchema, fastavro, record_type, to_row
from holdfast.common.formats.avro_columns import AvroColumns
from holdfast.common.formats.columns import Columns
from holdfast.common.typeinfo import TypeInformation
from holdfast.connectors.base import Batch
from holdfast.connectors.file.damage import decoded, decoding
from holdfast.connectors.file.files import InputFile
from holdfast.errors import InputLost

__all__ = ["AvroFormat"]

_SYNC = 16
"""Bytes of the marker that ends the header and each block."""
_STEP = 64 << 10
_WRITERS_KNOWN = 16
_UNREADABLE = "is not an Avro file that can be read"


class AvroFormat:
    """Avro: every record is a dict, or a Row. Positions are bytes: a range holds the blocks that start in it.

    Raises:
        ConfigurationError: fastavro is not installed.
    """

    reads_compressed = True  # Avro compresses its blocks; a file like x.avro.gz fails as invalid Avro

    def __init__(self, schema: AvroSchema | None = None, as_rows: bool = False) -> None:
        fastavro()
        self._schema = schema
        self._as_rows = as_rows
        self._by_writer: dict[str, AvroColumns | None] = {}
        """The decoders of the files' schemas."""

    def get_produced_type(self) -> TypeInformation | None:
        """The records' type, if there is a reader's schema."""
        return None if self._schema is None else record_type(self._schema, self._as_rows)

    def measure(self, file: InputFile) -> tuple[int, float]:
        """Return the size in bytes, and the mean size of a record in the first block.

        Raises:
            UserCodeError: the file is not Avro.
        """
        size = file.version.size
        with file.stream() as stream:
            first = next(self._blocks(stream, file.path, 0, size), None)
        return size, 1.0 if first is None else max(1.0, first.size / max(1, first.num_records))

    def cut(self, file: InputFile, start: int, end: int) -> int:
        """Return ``end``: blocks are small."""
        return end

    def read(self, file: InputFile, start: int, end: int, length: int, max_batch: int) -> Iterator[Batch]:
        """Read the records of the blocks that start in the range.

        Raises:
            InputLost: the file is shorter than when it was discovered.
            UserCodeError: a part of the file cannot be decoded, or its schema does not fit the reader's.
        """
        with file.stream() as stream:
            if stream.seek(0, io.SEEK_END) < length:
                raise InputLost(f"{file.path}: is shorter than {length} bytes, as the source found it; put it back")
            stream.seek(0)
            for block in self._blocks(stream, file.path, start, end):
                place = f"{file.path}, the block at byte {block.offset}"
                with decoding(place, "a record cannot be decoded", place):
                    columns = self._columns(block)
                    values = self._decoded(block) if columns is None else columns.as_list()
                for i in range(0, len(values), max_batch):
                    locate = functools.partial(_place, file.path, block.offset, i)
                    yield Batch(values[i : i + max_batch], locate=locate)

    def _blocks(self, stream: BinaryIO, path: str, start: int, end: int) -> Iterator[Any]:
        """The blocks that start in ``[start, end)``."""
        with decoding(path, _UNREADABLE):
            blocks = fastavro().block_reader(stream, None if self._schema is None else self._schema.parsed)
            first = stream.tell()
            if start > first:
                stream.seek(first - _SYNC)
                at = _after_marker(stream, stream.read(_SYNC), start, end)
                if at is None:
                    return
                stream.seek(at)
        for block in decoded(iter(blocks), path, _UNREADABLE):
            if block.offset >= end:
                return
            yield block

    def _columns(self, block: Any) -> Columns | None:
        """The records of a block as columns; None if they must be decoded one by one."""
        if not self._as_rows:
            return None
        text = json.dumps(block.writer_schema)
        if text not in self._by_writer:
            if len(self._by_writer) >= _WRITERS_KNOWN:
                self._by_writer.clear()
            self._by_writer[text] = AvroColumns.of(AvroSchema(text), self._schema)
        columns = self._by_writer[text]
        return None if columns is None else columns.of_block(block.bytes_.getvalue(), block.num_records)

    def _decoded(self, block: Any) -> list[Any]:
        writer = AvroSchema.of(block.writer_schema)
        read = writer.reader_of(None) if self._schema is None else self._schema.reader_of(writer)
        records = [read(block.bytes_) for _ in range(block.num_records)]
        return list(map(to_row(self._schema or writer), records)) if self._as_rows else records


def _after_marker(stream: BinaryIO, marker: bytes, start: int, end: int) -> int | None:
    """The first position in ``[start, end)`` after a marker; None if there is none."""
    at = start - _SYNC
    stream.seek(at)
    data = b""
    while at + len(data) < end:
        more = stream.read(_STEP)
        if not more:
            return None
        data += more
        found = data.find(marker)
        if found >= 0:
            position = at + found + _SYNC
            return position if position < end else None
        at, data = at + len(data) - (_SYNC - 1), data[-(_SYNC - 1) :]
    return None


def _place(path: str, offset: int, first: int, i: int) -> str:
    return f"{path}, record {first + i + 1} of the block at byte {offset}"
