"""Chunks: records of a part file that wait for the file to be rolled, as bytes in the state of the sink's writer.

A chunk holds what was written to one file between two checkpoints, in a form from which the file is written quickly: encoded
records as they are, columns as record batches, Avro as blocks, and records of other formats as pickles.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, BinaryIO, Protocol

import xxhash

from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.avro import AvroSchema, fastavro
from holdfast.common.values import pickling

__all__ = ["ArrowChunks", "AvroChunks", "BulkWriter", "Chunks", "EncodedChunks", "PickledChunks", "chunks_of"]


class BulkWriter(Protocol):
    """Writes one part file."""

    def add(self, values: Sequence[Any]) -> None:
        """Add records.

        Raises:
            Exception: a record does not fit the file's schema.
        """

    def finish(self) -> None:
        """Write the rest, and the file's footer. The file stays open."""

    def abandon(self) -> None:
        """Release what the writer holds; the file has been deleted."""


class Chunks(Protocol):
    """The form of the chunks of a file sink."""

    @property
    def form(self) -> str:
        """The form's name, with what the bytes depend on: chunks of another form cannot be replayed."""

    def create(self, file: BinaryIO) -> BulkWriter:
        """Create the writer of a new chunk."""

    def replay(self, chunk: bytes, writer: Any) -> None:
        """Write a chunk's records to a part file, by a writer of the sink's format."""


def chunks_of(factory: Any) -> Chunks:
    """The chunks of a factory of part files."""
    made = getattr(factory, "chunks", None)
    return PickledChunks() if made is None else made()


class EncodedChunks:
    """Encoded records. ``create`` makes their writer."""

    form = "encoded"

    def __init__(self, create: Callable[[BinaryIO], BulkWriter]) -> None:
        self.create = create

    def replay(self, chunk: bytes, writer: Any) -> None:
        """Append the bytes."""
        writer.add_encoded(chunk)


class ArrowChunks:
    """Record batches in Arrow's IPC form. ``columnar`` makes a writer of records of a writer of batches."""

    def __init__(self, schema: Any, columnar: Callable[[Any], BulkWriter]) -> None:
        self._schema = schema
        self._columnar = columnar

    @property
    def form(self) -> str:
        """Of a schema."""
        shown = self._schema.to_string(show_field_metadata=False, show_schema_metadata=False)
        return f"arrow-{xxhash.xxh3_64_hexdigest(shown.encode())}"

    def create(self, file: BinaryIO) -> BulkWriter:
        """Create the writer of a new chunk."""
        library = pyarrow()
        options = library.ipc.IpcWriteOptions(compression="zstd")
        return self._columnar(library.ipc.new_file(file, self._schema, options=options))

    def replay(self, chunk: bytes, writer: Any) -> None:
        """Write the record batches."""
        with pyarrow().ipc.open_file(chunk) as batches:
            writer.add_batches([batches.get_batch(position) for position in range(batches.num_record_batches)])


class AvroChunks:
    """Avro container files. ``create`` makes their writer."""

    def __init__(self, schema: AvroSchema, create: Callable[[BinaryIO], BulkWriter]) -> None:
        self._schema = schema
        self.create = create

    @property
    def form(self) -> str:
        """Of a schema."""
        return f"avro-{xxhash.xxh3_64_hexdigest(self._schema.text.encode())}"

    def replay(self, chunk: bytes, writer: Any) -> None:
        """Write the blocks."""
        for block in fastavro().block_reader(io.BytesIO(chunk)):
            writer.add_block(block)


class PickledChunks:
    """Pickled records, for formats of which nothing more is known."""

    form = "pickled"

    def create(self, file: BinaryIO) -> BulkWriter:
        """Create the writer of a new chunk."""
        return _Pickled(file)

    def replay(self, chunk: bytes, writer: BulkWriter) -> None:
        """Write the records."""
        with io.BytesIO(chunk) as stored:
            while stored.tell() < len(chunk):
                writer.add(pickle.load(stored))


class _Pickled:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, values: Sequence[Any]) -> None:
        self._file.write(pickling.dumps(list(values)))

    def finish(self) -> None:
        """Nothing is left to write."""

    def abandon(self) -> None:
        """Nothing is held."""
