"""Avro container files as records."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, BinaryIO

from holdfast.common.avro import AvroSchema, fastavro, to_row
from holdfast.connectors.base import Batch
from holdfast.errors import InputLost, UserCodeError

__all__ = ["AvroFormat"]


class AvroFormat:
    """Avro: every record is a dict, or a Row. Positions are records.

    Raises:
        ConfigurationError: fastavro is not installed.
    """

    reads_compressed = True  # Avro compresses its blocks; a file like x.avro.gz fails as invalid Avro

    def __init__(self, schema: AvroSchema | None = None, as_rows: bool = False) -> None:
        fastavro()
        self._schema = schema
        self._as_rows = as_rows

    def measure(self, path: str, size: int) -> tuple[int, float]:
        """Return the number of records; reads the file without decoding it.

        Raises:
            UserCodeError: the file is not Avro.
        """
        with self.open(path) as file:
            return sum(block.num_records for block in self._blocks(file, path)), 1.0

    def cut(self, path: str, start: int, end: int) -> int:
        """Return ``end``: a block is decoded from its start, and blocks are small."""
        return end

    def open(self, path: str) -> BinaryIO:
        """Open the file."""
        return open(path, "rb")

    def read(self, file: BinaryIO, path: str, start: int, end: int, length: int, max_batch: int) -> Iterator[Batch]:
        """Read the records ``[start, end)``.

        Raises:
            InputLost: the file has fewer records than when it was discovered.
            UserCodeError: a part of the file cannot be decoded, or its schema does not fit the reader's.
        """
        file.seek(0)
        at = 0
        values: list[Any] = []
        first = start
        for block in self._blocks(file, path):
            before, at = at, at + block.num_records
            if at <= start:
                continue
            if before >= end:
                break
            values += self._decoded(block, path, before)[max(start - before, 0) : end - before]
            while len(values) >= max_batch:
                yield Batch(values[:max_batch], locate=functools.partial(_place, path, first))
                values, first = values[max_batch:], first + max_batch
        if at < end:
            raise InputLost(f"{path}: has {at} records, but had {length} when the source found it; put it back")
        if values:
            yield Batch(values, locate=functools.partial(_place, path, first))

    def _blocks(self, file: BinaryIO, path: str) -> Iterator[Any]:
        reader_schema = None if self._schema is None else self._schema.parsed
        try:
            yield from fastavro().block_reader(file, reader_schema)
        except (ValueError, EOFError, KeyError, IndexError) as error:
            raise UserCodeError(f"{path}: is not an Avro file that can be read: {error}", record=path) from error

    def _decoded(self, block: Any, path: str, before: int) -> list[Any]:
        try:
            records = list(block)
        except Exception as error:  # fastavro raises whatever it meets
            why = str(error) or type(error).__name__
            raise UserCodeError(f"{path}: a record after record {before} cannot be decoded: {why}", record=path) from error
        if not self._as_rows:
            return records
        convert = to_row(self._schema or AvroSchema.of(block.writer_schema))
        return list(map(convert, records))


def _place(path: str, first: int, i: int) -> str:
    return f"{path}, record {first + i + 1}"
