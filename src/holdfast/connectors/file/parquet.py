"""Parquet files, and Arrow IPC files, as records."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Protocol

from holdfast.common.optional_library import optional_library
from holdfast.connectors.base import Batch
from holdfast.errors import InputLost, UserCodeError

__all__ = ["ArrowFormat", "ParquetFormat"]


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

    def measure(self, path: str, size: int) -> tuple[int, float]:
        """Return the number of rows, from the file's footer.

        Raises:
            UserCodeError: the file is not Parquet, or a column is missing.
        """
        file = self.open(path)
        try:
            missing = set(self._columns or ()) - set(file.columns)
            if missing:
                have, lacks = ", ".join(file.columns), ", ".join(sorted(missing))
                raise UserCodeError(f"{path}: no column {lacks}; the file has {have}", record=path)
            return file.rows, 1.0
        finally:
            file.close()

    def cut(self, path: str, start: int, end: int) -> int:
        """Return the end of a nearby row group, if any, because a row group is decoded from its start."""
        file = self.open(path)
        try:
            near = [row for row in file.group_starts[1:] if (start + end) // 2 < row <= end + (end - start)]
        finally:
            file.close()
        return min(near, key=lambda row: abs(row - end), default=end)

    def open(self, path: str) -> _OpenColumns:
        """Open the file and read its footer."""
        return _OpenParquet(path)

    def read(self, file: _OpenColumns, path: str, start: int, end: int, length: int, max_batch: int) -> Iterator[Batch]:
        """Read the rows ``[start, end)``.

        Raises:
            InputLost: the file has fewer rows than when it was discovered.
            UserCodeError: a part of the file cannot be decoded.
        """
        if file.rows < length:
            raise InputLost(f"{path}: has {file.rows} rows, but had {length} when the source found it; put it back")
        starts = file.group_starts
        groups = [g for g in range(len(starts) - 1) if starts[g] < end and starts[g + 1] > start]
        if not groups:
            return
        at = starts[groups[0]]
        try:
            for rows in file.batches(groups, self._columns, max_batch):
                first, stop = max(at, start), min(at + rows.num_rows, end)
                if first < stop:
                    values = self._values(rows.slice(first - at, stop - first))
                    yield Batch(values, locate=functools.partial(_place, path, first + 1))
                at += rows.num_rows
        except (OSError, ValueError) as e:
            raise UserCodeError(f"{e}\n{path}: cannot be decoded after row {at}", record=f"{path}, row {at + 1}") from e

    def _values(self, rows: Any) -> list[Any]:
        if self._as_batches:
            return [rows]
        if self._as_tuples:
            return list(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        values: list[Any] = rows.to_pylist()
        return values


def _place(path: str, first: int, i: int) -> str:
    return f"{path}, row {first + i}"


class ArrowFormat(ParquetFormat):
    """Arrow IPC files (Feather), read like Parquet."""

    def open(self, path: str) -> _OpenColumns:
        """Open the file and read its footer."""
        return _OpenArrow(path)


class _OpenColumns(Protocol):
    """An open file of columns, in groups of rows."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""

    @property
    def group_starts(self) -> list[int]:
        """The first row of each group, followed by the number of rows."""

    @property
    def rows(self) -> int:
        """The number of rows."""

    def batches(self, groups: list[int], columns: list[str] | None, size: int) -> Iterator[Any]:
        """The rows of some groups, as record batches of at most ``size`` rows."""

    def close(self) -> None:
        """Close the file."""


class _OpenArrow:
    def __init__(self, path: str) -> None:
        import pyarrow

        self._file = pyarrow.memory_map(path)
        try:
            self._reader = pyarrow.ipc.open_file(self._file)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as e:
            self._file.close()
            raise UserCodeError(f"{path}: is not an Arrow file that can be read: {e}", record=path) from e
        self.columns: list[str] = list(self._reader.schema.names)
        self.group_starts = [0]
        for i in range(self._reader.num_record_batches):
            self.group_starts.append(self.group_starts[-1] + self._reader.get_batch(i).num_rows)

    @property
    def rows(self) -> int:
        return self.group_starts[-1]

    def batches(self, groups: list[int], columns: list[str] | None, size: int) -> Iterator[Any]:
        for group in groups:
            rows = self._reader.get_batch(group)
            rows = rows if columns is None else rows.select(columns)
            for first in range(0, rows.num_rows, size):
                yield rows.slice(first, size)

    def close(self) -> None:
        self._file.close()


class _OpenParquet:
    def __init__(self, path: str) -> None:
        import pyarrow
        import pyarrow.parquet

        try:
            self._reader = pyarrow.parquet.ParquetFile(path)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowNotImplementedError) as e:
            raise UserCodeError(f"{path}: is not a Parquet file that can be read: {e}", record=path) from e

    @cached_property
    def columns(self) -> list[str]:
        """Return the names of the columns."""
        return list(self._reader.schema_arrow.names)

    @cached_property
    def group_starts(self) -> list[int]:
        """Return the first row of each row group, followed by the number of rows."""
        starts = [0]
        for i in range(self._reader.metadata.num_row_groups):
            starts.append(starts[-1] + self._reader.metadata.row_group(i).num_rows)
        return starts

    @property
    def rows(self) -> int:
        """Return the number of rows."""
        return self.group_starts[-1]

    def batches(self, groups: list[int], columns: list[str] | None, size: int) -> Iterator[Any]:
        """Read the rows of some groups."""
        batches: Iterator[Any] = self._reader.iter_batches(batch_size=size, row_groups=groups, columns=columns)
        return batches

    def close(self) -> None:
        """Close the file."""
        self._reader.close()
