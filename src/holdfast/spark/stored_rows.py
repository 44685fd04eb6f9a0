"""The rows of a DataFrame in a job's storage: written once by Spark's tasks, read by the job's.

    <prefix>/rows                     the manifest: the names and numbers of rows of each partition's parts
    <prefix>/<partition>-<number>-<attempt>    a part: a file of Arrow

Parts that the manifest does not name were written by attempts that failed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from holdfast.checkpoint.paths import new_attempt
from holdfast.checkpoint.stores.storage import NotFound, Storage
from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.python_times import times_fit
from holdfast.errors import InputLost

__all__ = [
    "OpenParts",
    "Part",
    "Partitions",
    "PartsWriter",
    "WrittenPart",
    "parts_between",
    "read_manifest",
    "write_manifest",
]

_PART_BYTES = 16 << 20
"""Bytes of rows in a part, at least, but for a partition's last."""
_OPEN = 8
"""Parts that a reader keeps open, at most."""
_MANIFEST = "rows"

Part = tuple[str, int]
"""A part: its path and its number of rows."""


class WrittenPart(NamedTuple):
    """A part that a task has written, or in place of its name the reason why the rows cannot be read."""

    partition: int
    number: int
    """Its place among those of the partition; -1: the rows are refused."""
    name: str
    rows: int
    latest: int | None = None
    """The highest event time of its rows, in ms."""


@dataclass(frozen=True)
class PartsWriter:
    """Writes the rows of a partition, in a task of Spark.

    Args:
        uri: The job's storage.
        config: Its settings.
        prefix: The directory of the rows.
        schema: The ``pyarrow.Schema`` of the columns.
        event_time: The column with the event time, for messages; None: there is none. Else the batches have another, last
            column with the time in ms.
    """

    uri: str
    config: Mapping[str, str] = field(repr=False)
    prefix: str
    schema: Any
    event_time: str | None

    def write(self, partition: int, batches: Iterable[Any]) -> Iterator[WrittenPart]:
        """Write the record batches of a partition; yields its parts."""
        storage, attempt = Storage.open(self.uri, self.config), new_attempt()
        number = row = size = 0
        waiting: list[Any] = []
        for batch in batches:
            fault = self._fault(batch)
            if fault:
                yield WrittenPart(partition, -1, f"{fault} (partition {partition}, rows from {row} on)", 0)
                return
            waiting.append(self._normal(batch))
            row += batch.num_rows
            size += batch.nbytes
            if size >= _PART_BYTES:
                yield self._put(storage, attempt, partition, number, waiting)
                number, size, waiting = number + 1, 0, []
        if waiting:
            yield self._put(storage, attempt, partition, number, waiting)

    def _fault(self, batch: Any) -> str:
        if self.event_time is not None and batch.column(batch.num_columns - 1).null_count:
            return f"the event time, column {self.event_time}, is null"
        for name, column in zip(self.schema.names, batch.columns, strict=False):
            if _is_time(column.type) and not times_fit(column):
                return f"column {name} has a date or time outside of the years 1 to 9999, which Python's do not hold"
        return ""

    def _normal(self, batch: Any) -> Any:
        """The columns in the types of the schema: Spark may send large strings, and says what cannot be null."""
        kinds = [each.type for each in self.schema]
        columns = [
            column if column.type == kind else column.cast(kind) for column, kind in zip(batch.columns, kinds, strict=False)
        ]
        names = list(self.schema.names)
        if self.event_time is not None:
            columns.append(batch.column(batch.num_columns - 1))
            names.append("")
        return pyarrow().RecordBatch.from_arrays(columns, names=names)

    def _put(self, storage: Storage, attempt: str, partition: int, number: int, batches: list[Any]) -> WrittenPart:
        library = pyarrow()
        out = library.BufferOutputStream()
        with library.ipc.new_file(out, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        name = f"{self.prefix}{partition:05d}-{number:05d}-{attempt}"
        storage.put(name, memoryview(out.getvalue()))
        rows = sum(batch.num_rows for batch in batches)
        return WrittenPart(partition, number, name, rows, None if self.event_time is None else _latest(batches))


def _latest(batches: list[Any]) -> int | None:
    return max(
        (int(batch.column(batch.num_columns - 1).to_numpy().max()) for batch in batches if batch.num_rows), default=None
    )


def _is_time(kind: Any) -> bool:
    types = pyarrow().types
    return bool(types.is_date(kind) or types.is_timestamp(kind))


Partitions = Callable[[PartsWriter], Iterable[WrittenPart]]
"""Lets each partition of a DataFrame be written once; returns the parts, in any order."""


def write_manifest(storage: Storage, prefix: str, written: Iterable[WrittenPart]) -> dict[str, list[Part]]:
    """Store which parts belong to each partition."""
    parts: dict[str, list[Part]] = {}
    for each in sorted(written):
        parts.setdefault(f"partition {each.partition}", []).append((each.name, each.rows))
    storage.put(prefix + _MANIFEST, msgspec.msgpack.encode(parts))
    return parts


def read_manifest(storage: Storage, prefix: str) -> dict[str, list[Part]]:
    """The parts of each partition.

    Raises:
        InputLost: they are gone.
    """
    try:
        return msgspec.msgpack.decode(storage.get(prefix + _MANIFEST), type=dict[str, list[Part]])
    except NotFound as error:
        raise InputLost(
            f"the rows of the DataFrame, {storage.locate(prefix)}, are gone: they are kept until the job has read them and "
            "that checkpoint is complete. Restore the latest checkpoint, or start afresh"
        ) from error


def parts_between(parts: Sequence[Part], start: int, end: int) -> list[tuple[str, int, int]]:
    """The parts with the rows ``[start, end)``: path, number of the first row, and number of rows."""
    firsts = [0]
    for _, rows in parts:
        firsts.append(firsts[-1] + rows)
    at = bisect_right(firsts, start) - 1
    found = []
    while at < len(parts) and firsts[at] < end:
        found.append((parts[at][0], firsts[at], parts[at][1]))
        at += 1
    return found


class OpenParts:
    """Reads parts; keeps the last few open."""

    def __init__(self, config: Mapping[str, str]) -> None:
        self._config = config
        self._storages: dict[str, Storage] = {}
        self._open: OrderedDict[tuple[str, str], Any] = OrderedDict()

    def batches(self, uri: str, path: str, start: int, end: int) -> Iterator[Any]:
        """The rows ``[start, end)`` of a part, as record batches.

        Raises:
            InputLost: the part is gone.
        """
        reader = self._reader(uri, path)
        first = 0
        for at in range(reader.num_record_batches):
            batch = reader.get_batch(at)
            low, high = max(start, first), min(end, first + batch.num_rows)
            if low < high:
                yield batch.slice(low - first, high - low)
            first += batch.num_rows
            if first >= end:
                return

    def _reader(self, uri: str, path: str) -> Any:
        found = self._open.pop((uri, path), None)
        if found is None:
            storage = self._storages.get(uri)
            if storage is None:
                storage = self._storages[uri] = Storage.open(uri, self._config)
            try:
                mapped = storage.map(path)
                content = storage.get(path) if mapped is None else mapped
            except NotFound as error:
                raise InputLost(f"{storage.locate(path)}, a part of the rows of a DataFrame, is gone") from error
            library = pyarrow()
            found = library.ipc.open_file(library.py_buffer(content))
        self._open[uri, path] = found
        if len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return found

    def close(self) -> None:
        """Close all."""
        self._open.clear()
