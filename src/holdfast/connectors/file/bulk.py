"""Bulk writers: part files that are written as a whole, in Parquet, Arrow or Avro."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, BinaryIO, Protocol, runtime_checkable

from holdfast.common.formats.arrow import RecordColumns, arrow_schema, pyarrow
from holdfast.common.formats.avro import AvroSchema, fastavro, from_row
from holdfast.common.typeinfo import RowTypeInfo
from holdfast.connectors.file.chunks import ArrowChunks, AvroChunks, BulkWriter, Chunks
from holdfast.errors import ConfigurationError

__all__ = ["ArrowBulkWriters", "AvroBulkWriters", "BulkWriter", "BulkWriterFactory", "ParquetBulkWriters"]


@runtime_checkable
class BulkWriterFactory(Protocol):
    """Makes the writers of a file sink's part files; pickled into the job."""

    def create(self, file: BinaryIO) -> BulkWriter:
        """Create the writer of a new part file."""


_ROWS = 1 << 16
"""The number of records in a row group of Parquet, or in a record batch of Arrow."""


class _Columnar:
    """Gathers records into record batches."""

    def __init__(self, writer: Any, columns: RecordColumns) -> None:
        self._writer = writer
        self._columns = columns
        self._values: list[Any] = []
        self._batches: list[Any] = []
        """Small batches, before the values."""
        self._waiting = 0
        """Their rows."""

    def add(self, values: Sequence[Any]) -> None:
        """Add records, and record batches of them."""
        batches = pyarrow().RecordBatch
        for value in values:
            if isinstance(value, batches):
                self._flush()
                self._writer.write_batch(value)
            else:
                self._values.append(self._columns.fitting(value))
                if len(self._values) >= _ROWS:
                    self._flush()

    def add_batches(self, batches: Sequence[Any]) -> None:
        """Add record batches, of which small ones are joined."""
        if self._values:
            self._flush()
        for batch in batches:
            self._batches.append(batch)
            self._waiting += batch.num_rows
            if self._waiting >= _ROWS:
                self._flush()

    def _flush(self) -> None:
        if self._batches:
            for batch in pyarrow().Table.from_batches(self._batches).combine_chunks().to_batches():
                self._writer.write_batch(batch)
            self._batches, self._waiting = [], 0
        if self._values:
            self._writer.write_batch(self._columns.batch(self._values))
            self._values = []

    def finish(self) -> None:
        """Write the rest, and the footer."""
        self._flush()
        self._writer.close()

    def abandon(self) -> None:
        """Close the writer."""
        self._writer.close()


class _ArrowFactory:
    """Makes writers of files in Arrow's forms."""

    def __init__(self, form: str, row_type: RowTypeInfo | None, schema: Any, compression: str | None) -> None:
        self._form = form
        self._compression = compression
        self._columns = RecordColumns(arrow_schema(row_type) if row_type is not None else schema, row_type)

    def create(self, file: BinaryIO) -> BulkWriter:
        """Create the writer of a new part file."""
        library, schema = pyarrow(), self._columns.schema
        if self._form == "parquet":
            from pyarrow.parquet import ParquetWriter

            return _Columnar(ParquetWriter(file, schema, compression=self._compression), self._columns)
        options = library.ipc.IpcWriteOptions(compression=self._compression)
        return _Columnar(library.ipc.new_file(file, schema, options=options), self._columns)

    def chunks(self) -> Chunks:
        """The form in which records wait for their file."""
        schema = self._columns.schema
        return ArrowChunks(schema, lambda writer: _Columnar(writer, self._columns))


def _row_type(row_type: Any, where: str) -> RowTypeInfo:
    if not isinstance(row_type, RowTypeInfo):
        raise ConfigurationError(f"{where} takes the type of the rows, Types.ROW_NAMED([...], [...]), not {row_type!r}")
    return row_type


class ParquetBulkWriters:
    """Parquet files. ``compression``: ``snappy``, ``zstd``, ``gzip``, ``lz4`` or ``none``."""

    @staticmethod
    def for_row_type(row_type: RowTypeInfo, compression: str = "snappy") -> BulkWriterFactory:
        """Write Rows, tuples and dicts of this type.

        Raises:
            ConfigurationError: it is not the type of rows, or Parquet has no form for a field, or pyarrow is not installed.
        """
        return _ArrowFactory("parquet", _row_type(row_type, "ParquetBulkWriters.for_row_type()"), None, compression)

    @staticmethod
    def for_arrow_schema(schema: Any, compression: str = "snappy") -> BulkWriterFactory:
        """Write ``pyarrow.RecordBatch`` objects, and rows, of this ``pyarrow.Schema``."""
        return _ArrowFactory("parquet", None, schema, compression)


class ArrowBulkWriters:
    """Arrow IPC files (Feather). ``compression``: ``zstd``, ``lz4`` or None."""

    @staticmethod
    def for_row_type(row_type: RowTypeInfo, compression: str | None = None) -> BulkWriterFactory:
        """Write Rows, tuples and dicts of this type.

        Raises:
            ConfigurationError: it is not the type of rows, or Arrow has no form for a field, or pyarrow is not installed.
        """
        return _ArrowFactory("arrow", _row_type(row_type, "ArrowBulkWriters.for_row_type()"), None, compression)

    @staticmethod
    def for_arrow_schema(schema: Any, compression: str | None = None) -> BulkWriterFactory:
        """Write ``pyarrow.RecordBatch`` objects, and rows, of this ``pyarrow.Schema``."""
        return _ArrowFactory("arrow", None, schema, compression)


class _AvroFactory:
    def __init__(self, schema: AvroSchema, codec: str) -> None:
        self._schema = schema
        self._codec = codec

    def create(self, file: BinaryIO) -> BulkWriter:
        return _AvroWriter(file, self._schema, self._codec)

    def chunks(self) -> Chunks:
        """The form in which records wait for their file."""
        return AvroChunks(self._schema, self.create)


class _AvroWriter:
    def __init__(self, file: BinaryIO, schema: AvroSchema, codec: str) -> None:
        self._writer = fastavro().write.Writer(file, schema.parsed, codec)
        self._convert = from_row(schema)

    def add(self, values: Sequence[Any]) -> None:
        for value in values:
            self._writer.write(self._convert(value))

    def add_block(self, block: Any) -> None:
        """Add a block of records of the same schema."""
        self._writer.write_block(block)

    def finish(self) -> None:
        self._writer.flush()

    def abandon(self) -> None:
        """Nothing is held."""


class AvroBulkWriters:
    """Avro container files (``.avro``). ``codec``: ``deflate``, ``null`` (none), or another one that fastavro has."""

    @staticmethod
    def for_generic_record(schema: AvroSchema, codec: str = "deflate") -> BulkWriterFactory:
        """Write dicts, Rows and tuples of this schema.

        Raises:
            ConfigurationError: fastavro is not installed.
        """
        return _AvroFactory(schema, codec)
