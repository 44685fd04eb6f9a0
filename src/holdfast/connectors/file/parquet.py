"""Parquet files, and Arrow IPC files, as records."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

from holdfast.common.formats.columns import Columns, as_dicts, columns_available, in_microseconds
from holdfast.common.formats.python_times import fits_python
from holdfast.common.system.optional_library import optional_library
from holdfast.connectors.base import Batch
from holdfast.connectors.file.damage import decoding
from holdfast.connectors.file.files import FileVersion, InputFile
from holdfast.errors import InputLost, UserCodeError

__all__ = ["ArrowFormat", "ParquetFormat"]

_FILES_KNOWN = 64
"""Files whose groups of rows are known without another read."""


class ParquetFormat:
    """Parquet: every row is a dict by column name, or a tuple of the columns' values. Positions are rows.

    With ``as_batches`` an element is a ``pyarrow.RecordBatch`` of rows.

    Raises:
        ConfigurationError: pyarrow is not installed.
    """

    reads_compressed = True  # Parquet compresses internally; a file like x.parquet.gz fails as invalid Parquet

    def __init__(self, columns: Sequence[str] | None = None, as_tuples: bool = False, as_batches: bool = False) -> None:
        optional_library("pyarrow.parquet", "Parquet files need pyarrow", "'holdfast[parquet]'")
        self._columns = list(columns) if columns is not None else None
        self._as_tuples = as_tuples
        self._as_batches = as_batches
        self._group_starts: dict[tuple[str, FileVersion], list[int]] = {}

    def measure(self, file: InputFile) -> tuple[int, float]:
        """Return the number of rows, from the file's footer.

        Raises:
            UserCodeError: the file is not Parquet, or a column is missing.
        """
        opened = self._open(file)
        try:
            with decoding(file.path, "its columns cannot be read"):
                missing = set(self._columns or ()) - set(opened.columns)
            if missing:
                have, lacks = ", ".join(opened.columns), ", ".join(sorted(missing))
                raise UserCodeError(f"{file.path}: no column {lacks}; the file has {have}", record=file.path)
            return self._starts(file, opened)[-1], 1.0
        finally:
            opened.close()

    def cut(self, file: InputFile, start: int, end: int) -> int:
        """Return the end of a nearby row group, if any, because a row group is decoded from its start."""
        starts = self._group_starts.get((file.path, file.version))
        if starts is None:
            opened = self._open(file)
            try:
                starts = self._starts(file, opened)
            finally:
                opened.close()
        near = [row for row in starts[1:] if (start + end) // 2 < row <= end + (end - start)]
        return min(near, key=lambda row: abs(row - end), default=end)

    def _open(self, file: InputFile) -> _OpenColumns:
        """Open the file and read its footer."""
        return _OpenParquet(file)

    def _starts(self, file: InputFile, opened: _OpenColumns) -> list[int]:
        """The first row of each group, followed by the number of rows."""
        known = self._group_starts.get((file.path, file.version))
        if known is None:
            if len(self._group_starts) >= _FILES_KNOWN:
                self._group_starts.clear()
            with decoding(file.path, "its groups of rows cannot be read"):
                known = self._group_starts[file.path, file.version] = opened.group_starts()
        return known

    def read(self, file: InputFile, start: int, end: int, length: int, max_batch: int) -> Iterator[Batch]:
        """Read the rows ``[start, end)``.

        Raises:
            InputLost: the file has fewer rows than when it was discovered.
            UserCodeError: a part of the file cannot be decoded.
        """
        opened = self._open(file)
        try:
            yield from self._read(opened, file, start, end, length, max_batch)
        finally:
            opened.close()

    def _read(
        self, opened: _OpenColumns, file: InputFile, start: int, end: int, length: int, max_batch: int
    ) -> Iterator[Batch]:
        path, starts = file.path, self._starts(file, opened)
        if starts[-1] < length:
            raise InputLost(f"{path}: has {starts[-1]} rows, but had {length} when the source found it; put it back")
        groups = [g for g in range(len(starts) - 1) if starts[g] < end and starts[g + 1] > start]
        if not groups:
            return
        at = starts[groups[0]]
        batches = opened.batches(groups, self._columns, max_batch)
        while True:
            with decoding(path, f"cannot be decoded after row {at}", f"{path}, row {at + 1}"):
                rows = next(batches, None)
                if rows is None:
                    return
                rows.validate(full=True)  # a damaged offset would be read somewhere in memory
                first, stop = max(at, start), min(at + rows.num_rows, end)
                values = self._values(rows.slice(first - at, stop - first)) if first < stop else []
            if values:
                yield Batch(values, locate=functools.partial(_place, path, first + 1))
            at += rows.num_rows

    def _values(self, rows: Any) -> list[Any]:
        if self._as_batches:
            return [rows]
        if self._as_tuples:
            return list(zip(*(in_microseconds(column).to_pylist() for column in rows.columns), strict=True))
        # Rows are made of columns later, where no error names the file.
        return Columns(rows, as_dicts).as_list() if columns_available() and fits_python(rows) else as_dicts(rows)


def _place(path: str, first: int, i: int) -> str:
    return f"{path}, row {first + i}"


class ArrowFormat(ParquetFormat):
    """Arrow IPC files (Feather), read like Parquet."""

    def _open(self, file: InputFile) -> _OpenColumns:
        """Open the file and read its footer."""
        return _OpenArrow(file)


class _OpenColumns(Protocol):
    """An open file of columns, in groups of rows."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""

    def group_starts(self) -> list[int]:
        """Read the first row of each group, followed by the number of rows."""

    def batches(self, groups: list[int], columns: list[str] | None, size: int) -> Iterator[Any]:
        """The rows of some groups, as record batches of at most ``size`` rows."""

    def close(self) -> None:
        """Close the file."""


class _OpenArrow:
    def __init__(self, file: InputFile) -> None:
        import pyarrow

        local = file.local_path
        self._file = pyarrow.memory_map(local) if local else pyarrow.PythonFile(file.stream(), mode="r")
        self._open = pyarrow.ipc.open_file
        self._options = pyarrow.ipc.IpcReadOptions
        try:
            with decoding(file.path, "is not an Arrow file that can be read"):
                self._reader = self._open(self._file)
                self.columns: list[str] = list(self._reader.schema.names)
        except BaseException:
            self._file.close()
            raise

    def group_starts(self) -> list[int]:
        # Reads one column, a narrow one, because no function of the library reads the numbers of rows alone.
        widths = [_width(field.type) for field in self._reader.schema]
        narrowest = [widths.index(min(widths))] if widths else []
        narrow = self._open(self._file, options=self._options(included_fields=narrowest))
        starts = [0]
        for i in range(narrow.num_record_batches):
            starts.append(starts[-1] + narrow.get_batch(i).num_rows)
        return starts

    def batches(self, groups: list[int], columns: list[str] | None, size: int) -> Iterator[Any]:
        for group in groups:
            rows = self._reader.get_batch(group)
            rows = rows if columns is None else rows.select(columns)
            for first in range(0, rows.num_rows, size):
                yield rows.slice(first, size)

    def close(self) -> None:
        self._file.close()


def _width(type: Any) -> int:
    """The bits of a value; many for values of different sizes."""
    try:
        return int(type.bit_width)
    except ValueError:
        return 1 << 20


class _OpenParquet:
    def __init__(self, file: InputFile) -> None:
        import pyarrow
        import pyarrow.parquet

        self._stream = None if file.local_path else file.stream()
        try:
            with decoding(file.path, "is not a Parquet file that can be read"):
                self._reader = pyarrow.parquet.ParquetFile(file.local_path or self._stream)
        except BaseException:
            if self._stream is not None:
                self._stream.close()
            raise

    @cached_property
    def columns(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._reader.schema_arrow.names)

    def group_starts(self) -> list[int]:
        """Return the first row of each row group, followed by the number of rows."""
        starts = [0]
        for i in range(self._reader.metadata.num_row_groups):
            starts.append(starts[-1] + self._reader.metadata.row_group(i).num_rows)
        return starts

    def batches(self, groups: list[int], columns: list[str] | None, size: int) -> Iterator[Any]:
        """Read the rows of some groups."""
        batches: Iterator[Any] = self._reader.iter_batches(batch_size=size, row_groups=groups, columns=columns)
        return batches

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
        if self._stream is not None:
            self._stream.close()
