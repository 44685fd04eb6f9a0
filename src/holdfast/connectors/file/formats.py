"""File formats: text lines, CSV, JSON lines and Parquet."""

from __future__ import annotations

import codecs
import csv
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, Protocol

import msgspec

from holdfast.common.formats.columns import columns_of
from holdfast.common.formats.scans import has_none
from holdfast.common.serialization import DeserializationSchema
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import T
from holdfast.connectors.base import Batch, produced_type
from holdfast.connectors.file import lines
from holdfast.connectors.file.files import InputFile, OpenFile
from holdfast.errors import ConfigurationError, UserCodeError

__all__ = ["CsvFormat", "FileFormat", "JsonLinesFormat", "LineFormat", "TextFormat"]


_RECORD = 128
"""Bytes of text a record, about: so many for each record of a batch are parsed at once. The records, which take several
times as much memory as their text, then stay in the processor's cache until the job is done with them."""
_LEAST_PART = 1 << 16


class FileFormat(Protocol[T]):
    """Reads files by ranges of positions. For any cut of ``[0, length)``, each record is in exactly one range.

    A position is a byte for lines and a row for Parquet.
    """

    reads_compressed: bool
    """Whether the format itself reads files named like ``x.gz``."""

    def measure(self, file: InputFile) -> tuple[int, float]:
        """Return the file's length in positions, and the approximate number of positions per record."""

    def cut(self, file: InputFile, start: int, end: int) -> int:
        """Return a good end near ``end`` for a range that starts at ``start``."""

    def read(self, file: InputFile, start: int, end: int, length: int, max_batch: int) -> Iterator[Batch[T]]:
        """Read the records of ``[start, end)`` in batches, in order."""


class LineFormat(ABC, Generic[T]):
    """A text file with one record per line. Lines end with a line feed; a carriage return before it is dropped."""

    reads_compressed = False
    keeps_blank_lines = False

    def __init__(self, charset: str, schema: DeserializationSchema | None = None) -> None:
        try:
            plain = all(c.encode(charset) == c.encode("ascii") for c in "\n\r,\"'{}aZ09")
        except LookupError:
            raise ConfigurationError(f"charset {charset!r} is not known to Python") from None
        if not plain:
            raise ConfigurationError(
                f"charset {charset!r}: lines can only be found in charsets that extend ASCII, such as UTF-8 or "
                "ISO-8859-1; convert the files first (iconv -t UTF-8)"
            )
        self.charset = charset
        self._is_utf8 = codecs.lookup(charset).name in ("utf-8", "ascii")
        self._schema = schema

    def get_produced_type(self) -> TypeInformation | None:
        """The records' type, if the schema declares it."""
        return produced_type(self._schema)

    def measure(self, file: InputFile) -> tuple[int, float]:
        """Return the size in bytes, and the mean length of the first lines."""
        return file.version.size, lines.sample_line_length(file)

    def cut(self, file: InputFile, start: int, end: int) -> int:
        """Return ``end``: a range holds the lines that start in it."""
        return end

    def read(self, file: InputFile, start: int, end: int, length: int, max_batch: int) -> Iterator[Batch[T]]:
        """Read the records of the lines that start in the range.

        Raises:
            UserCodeError: a line does not parse; the message names file and line.
        """
        opened = file.open()
        try:
            yield from self._read(opened, file, start, end, length, max_batch)
        finally:
            opened.close()

    def _read(
        self, opened: OpenFile, file: InputFile, start: int, end: int, length: int, max_batch: int
    ) -> Iterator[Batch[T]]:
        size = min(max(max_batch * _RECORD, _LEAST_PART), lines.BLOCK_SIZE)
        read = lines.blocks(opened, start, end, length, file.path)
        for offset, data in ((at + first, part) for at, block in read for first, part in lines.parts(block, size)):
            block = data[3:] if offset == 0 and data.startswith(b"\xef\xbb\xbf") else data
            if b"\r" in block:
                block = block.replace(b"\r\n", b"\n").removesuffix(b"\r")
            try:
                values = self._values(block, offset, file)
            except Exception:  # a schema may raise anything; the error is to name the line
                self._raise_for_line(block, offset, file)
                raise
            where = _Where(self, file, offset, block)
            for i in range(0, len(values), max_batch):
                yield Batch(values[i : i + max_batch], locate=functools.partial(where.record, i))

    def line_of_record(self, block: bytes, offset: int, record: int) -> int:
        """Return the line (from 0) of a record in a block."""
        first = self._lines_before_records(offset)
        if self.keeps_blank_lines:
            return first + record
        schema = self._schema
        filled = (
            i
            for i, line in enumerate(block.split(b"\n"))
            if i >= first and line and (schema is None or schema.deserialize(self._in_utf8(line)) is not None)
        )
        return next(itertools.islice(filled, record, None))

    def _lines_before_records(self, offset: int) -> int:
        """Return the number of header lines in the block at an offset of the file."""
        return 0

    @abstractmethod
    def _values(self, block: bytes, offset: int, file: InputFile) -> list[T]:
        """Parse a block of whole lines."""

    def _lines(self, block: bytes) -> list[bytes]:
        every = block.split(b"\n")
        return every if self.keeps_blank_lines or all(every) else [line for line in every if line]

    def _in_utf8(self, text: bytes) -> bytes:
        """A text as schemas take it."""
        return text if self._is_utf8 else text.decode(self.charset).encode()

    def _by_schema(self, schema: DeserializationSchema, block: bytes) -> list[Any]:
        block = self._in_utf8(block)
        parse = getattr(schema, "columns_of_lines", None)
        columns = None if parse is None or self.keeps_blank_lines else parse(block)
        if columns is not None:
            return columns.as_list()  # type: ignore[no-any-return]
        values = schema.deserialize_batch(self._lines(block))
        if columns_of(values) is not None or (type(values) is list and not has_none(values)):
            return values
        return [value for value in values if value is not None]  # None skips the line

    def _raise_for_line(self, block: bytes, offset: int, file: InputFile) -> None:
        """Find the first line that does not parse, and raise for it."""
        before = 0
        for line in block.split(b"\n"):
            if line or self.keeps_blank_lines:
                try:
                    # A block at an offset other than 0 is not the start of the file and has no header.
                    self._values(line, offset or before, file)
                except Exception as e:
                    number = lines.line_number(file, offset) + block.count(b"\n", 0, before)
                    place = f"{file.path}, line {number}"
                    raise UserCodeError(
                        f"{type(e).__name__}: {e}\n{place} does not parse as {self._name()}: {line[:200]!r}",
                        record=place,
                    ) from e
            before += len(line) + 1

    def _name(self) -> str:
        return type(self).__name__.removesuffix("Format")


class _Where:
    """The origin of a block's records; counts the file's lines only on demand."""

    def __init__(self, form: LineFormat[Any], file: InputFile, offset: int, block: bytes) -> None:
        self._format = form
        self._file = file
        self._offset = offset
        self._block = block

    def record(self, first: int, i: int) -> str:
        """Return file and line of the block's record ``first + i``."""
        before = lines.line_number(self._file, self._offset)
        return f"{self._file.path}, line {before + self._format.line_of_record(self._block, self._offset, first + i)}"


_load = msgspec.json.Decoder().decode  # whole numbers of any size stay whole


class TextFormat(LineFormat[str]):
    """Text lines: every line is a str, without its line end."""

    keeps_blank_lines = True

    def _values(self, block: bytes, offset: int, file: InputFile) -> list[str]:
        return block.decode(self.charset).split("\n")


class JsonLinesFormat(LineFormat[T]):
    """JSON lines: every line is a JSON value; blank lines are skipped."""

    def __init__(self, schema: DeserializationSchema | None = None) -> None:
        super().__init__("utf-8", schema)

    def _values(self, block: bytes, offset: int, file: InputFile) -> list[Any]:
        if self._schema is not None:
            return self._by_schema(self._schema, block)
        return list(map(_load, self._lines(block)))


class CsvFormat(LineFormat[T]):
    """CSV: every line is a row of delimited values; blank lines are skipped.

    Rows are tuples of str; with ``header`` each file's first line names the columns and rows are dicts; a
    ``schema`` deserializes each line instead. A quoted value may hold delimiters and (doubled) quotes, but no line
    feed, because line feeds delimit the ranges of a file.
    """

    def __init__(
        self, delimiter: str, quote: str, header: bool, charset: str, schema: DeserializationSchema | None = None
    ) -> None:
        super().__init__(charset, schema)
        for what, char in (("delimiter", delimiter), ("quote", quote)):
            if len(char) != 1 or char in "\r\n":
                raise ConfigurationError(f"CSV {what} must be one character, got {char!r}")
        if delimiter == quote:
            raise ConfigurationError(f"CSV delimiter and quote must differ, both are {quote!r}")
        self._delimiter = delimiter
        self._quote = quote
        self._header = header
        self._columns: dict[str, tuple[str, ...]] = {}

    def _lines_before_records(self, offset: int) -> int:
        return 1 if self._header and offset == 0 else 0

    def _values(self, block: bytes, offset: int, file: InputFile) -> list[Any]:
        if self._lines_before_records(offset):
            block = block.partition(b"\n")[2]
        if self._schema is not None:
            return self._by_schema(self._schema, block)
        rows = self._rows(block.decode(self.charset))
        if not self._header:
            return rows
        columns = self._columns_of(file)
        for row in rows:
            if len(row) != len(columns):
                raise ValueError(f"the row has {len(row)} values, the header {len(columns)} columns")
        return [dict(zip(columns, row, strict=True)) for row in rows]

    def _rows(self, text: str) -> list[Any]:
        every = [line for line in text.split("\n") if line]
        if self._quote not in text:
            delimiter = self._delimiter
            return [tuple(line.split(delimiter)) for line in every]
        if "\r" in text:  # to the library, it ends a line
            stand_in = next(each for each in map(chr, range(0xE000, 0x110000)) if each not in text)
            rows = self._rows(text.replace("\r", stand_in))
            return [tuple([value.replace(stand_in, "\r") for value in row]) for row in rows]
        longest = max(map(len, every))
        if longest > csv.field_size_limit():
            csv.field_size_limit(longest)  # the limit guards against unclosed quotes; here the line ends them
        rows = list(csv.reader(every, delimiter=self._delimiter, quotechar=self._quote, strict=True))
        if len(rows) != len(every):
            raise ValueError(f"a quote ({self._quote}) is not closed in its line: values may not hold line feeds")
        return list(map(tuple, rows))

    def _columns_of(self, file: InputFile) -> tuple[str, ...]:
        columns = self._columns.get(file.path)
        if columns is None:
            line = lines.first_line(file).removeprefix(b"\xef\xbb\xbf").removesuffix(b"\r")
            first = line.decode(self.charset)
            rows = self._rows(first)
            columns = rows[0] if rows else ()
            if len(set(columns)) != len(columns):
                raise ValueError(f"the header names a column twice: {first}")
            self._columns = {file.path: columns}
        return columns
