"""The output of a stream, staged as Arrow in the job's storage: parts that subtasks write and Spark's tasks read.

    <job directory>/sinks/<uid>/<job's identity>/
        0000000003-00000000000000000018-00001-<attempt>      a part: rows of subtask 1 in epoch 18, by a driver's generation
        done-00000000000000000017                            the output of checkpoint 17 has been delivered

The names of the parts are the committables of a checkpoint. A part that no committable names was written by an attempt that
failed. A marker precedes the deletion of the parts, so that after it nobody looks for them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.paths import JobPaths, new_attempt, safe_name
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.columns import columns_of
from holdfast.connectors.base import Committable, JobInfo, WriterContext, check_form
from holdfast.errors import CorruptFile
from holdfast.runtime.records.user_code import user_error
from holdfast.spark.element_columns import ElementColumns, fitted, joined, united
from holdfast.spark.stored_rows import OpenParts

__all__ = ["PartName", "PartsReader", "StagedOutput", "StagedPart", "StagedWriter", "StagingArea", "check_staged", "outputs"]

_VERSION = 1
_PART_BYTES = 16 << 20
"""Bytes of rows in a part, at least, but for a subtask's last."""
_ROWS = 4096
"""Elements that become a record batch together."""
_PART = re.compile(r"(\d{10})-(\d{20})-(\d{5})-[0-9a-f]{32}")
_ERRORS = (TypeError, ValueError, ArithmeticError, LookupError, AttributeError)


class PartName(NamedTuple):
    """What the name of a part tells."""

    generation: int
    checkpoint_id: CheckpointId

    @staticmethod
    def parse(name: str) -> PartName | None:
        """Parse a name, also of a part that was not written to its end; None if it is not that of a part."""
        match = _PART.fullmatch(JobPaths.whole(name))
        return None if match is None else PartName(int(match[1]), CheckpointId(int(match[2])))


class StagedPart(NamedTuple):
    """A part: its name and its number of rows."""

    name: str
    rows: int


@dataclass(frozen=True)
class StagingArea:
    """Where the parts of a sink are."""

    uri: str
    config: Mapping[str, str] = field(repr=False)
    prefix: str

    @staticmethod
    def of(job: JobInfo, uid: str, directory: str | None = None) -> StagingArea:
        """The area of a job's sink; ``directory``: in place of the job's storage."""
        uri = directory or job.storage_uri
        assert uri is not None
        owner = job.identity or job.job_id
        prefix = f"{JobPaths.of(job.job_name).directory}/sinks/{safe_name(uid)}/{safe_name(owner)}/"
        return StagingArea(uri, job.storage_config, prefix)

    def open(self) -> Storage:
        """Open the storage."""
        return Storage.open(self.uri, self.config)


@dataclass(frozen=True)
class StagedOutput:
    """The rows of one or more checkpoints, in order of their checkpoints and subtasks."""

    checkpoint_id: CheckpointId
    area: StagingArea
    schema: Any
    """The ``pyarrow.Schema`` that holds the rows of all parts."""
    parts: tuple[StagedPart, ...]

    def batches(self) -> Iterator[Any]:
        """Read the rows in this process, as record batches of the schema.

        Raises:
            InputLost: a part is gone.
        """
        reader = PartsReader(self.area, self.schema)
        for part in self.parts:
            yield from reader.read(part)


class PartsReader:
    """Reads parts as record batches of one schema."""

    def __init__(self, area: StagingArea, schema: Any) -> None:
        self._area = area
        self._schema = schema
        self._open = OpenParts(area.config)

    def read(self, part: StagedPart) -> Iterator[Any]:
        """Read a part."""
        for batch in self._open.batches(self._area.uri, self._area.prefix + part.name, 0, part.rows):
            yield fitted(batch, self._schema)


def check_staged(data: Any, sink: str) -> None:
    """Check that the ``data`` of a committable names parts.

    Raises:
        IncompatibleState: another kind of sink has stored it.
        CorruptFile: it names something else.
    """
    check_form(data, ("version", "checkpoint", "columns", "parts"), sink, (_VERSION,))
    for name, _ in data["parts"]:
        if PartName.parse(name) is None or JobPaths.is_part(name):
            raise CorruptFile(str(name), "the checkpoint names it as a part of a sink's output, which it is not")


def outputs(area: StagingArea, committables: Sequence[Committable]) -> list[StagedOutput]:
    """The output that committables name, one for each checkpoint, in their order."""
    found: dict[int, list[Committable]] = {}
    for each in sorted(committables, key=lambda each: (each.data["checkpoint"], each.subtask)):
        found.setdefault(each.data["checkpoint"], []).append(each)
    library = pyarrow()
    made = []
    for checkpoint_id, own in found.items():
        schema = united(library.ipc.read_schema(library.py_buffer(each.data["columns"])) for each in own)
        parts = tuple(StagedPart(*part) for each in own for part in each.data["parts"])
        made.append(StagedOutput(CheckpointId(checkpoint_id), area, schema, parts))
    return made


class StagedWriter:
    """Writes the parts of one subtask.

    Args:
        area: Where they are.
        columns: Makes record batches of elements.
        context: The subtask.
        name: The sink's, for messages.
    """

    def __init__(self, area: StagingArea, columns: ElementColumns, context: WriterContext, name: str) -> None:
        self._area = area
        self._columns = columns
        self._context = context
        self._name = name
        self._storage: Storage | None = None
        self._epoch = Epoch(0)
        self._clear()

    def _clear(self) -> None:
        self._rows: list[Any] = []
        self._batches: list[Any] = []
        self._size = 0
        self._parts: list[StagedPart] = []
        self._schemas: list[Any] = []

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Start an epoch without rows."""
        self.abort_epoch()
        self._epoch = epoch

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Add elements.

        Raises:
            UserCodeError: one of them does not fit the columns.
        """
        if columns_of(values) is not None:
            self._convert()
            self._add(self._columns.batch(values))
            return
        self._rows += values
        if len(self._rows) >= _ROWS:
            self._convert()

    def _convert(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            try:
                batch = self._columns.batch(rows)
            except _ERRORS as error:
                raise self._refused(error, rows) from error
            self._add(batch)

    def _refused(self, error: Exception, rows: Sequence[Any]) -> Exception:
        """The user's error, with the first element that has no columns by itself."""
        for row in rows:
            try:
                self._columns.batch([row])
            except _ERRORS as alone:
                return user_error(alone, self._name, self._context.uid, row)
        return user_error(error, self._name, self._context.uid)

    def _add(self, batch: Any) -> None:
        self._batches.append(batch)
        self._size += batch.nbytes
        if self._size >= _PART_BYTES:
            self._put()

    def _put(self) -> None:
        library = pyarrow()
        batches, self._batches, self._size = self._batches, [], 0
        try:
            batches = joined(batches)
        except ValueError as error:
            raise user_error(error, self._name, self._context.uid) from error
        out = library.BufferOutputStream()
        with library.ipc.new_file(out, batches[0].schema) as writer:
            for batch in batches:
                writer.write_batch(batch)
        context = self._context
        name = f"{context.job.generation:010d}-{self._epoch:020d}-{context.subtask:05d}-{new_attempt()}"
        self._opened().put(self._area.prefix + name, memoryview(out.getvalue()))
        self._parts.append(StagedPart(name, sum(batch.num_rows for batch in batches)))
        self._schemas.append(batches[0].schema)

    def _opened(self) -> Storage:
        if self._storage is None:
            self._storage = self._area.open()
        return self._storage

    def prepare_commit(self) -> list[Any]:
        """Store the epoch's rows; their parts are the committable.

        Raises:
            UserCodeError: the rows have no columns in common.
        """
        self._convert()
        if self._batches:
            self._put()
        if not self._parts:
            return []
        try:
            schema = united(self._schemas)
        except ValueError as error:
            raise user_error(error, self._name, self._context.uid) from error
        parts = [list(part) for part in self._parts]
        self._clear()
        columns = schema.serialize().to_pybytes()
        return [{"version": _VERSION, "checkpoint": int(self._epoch), "columns": columns, "parts": parts}]

    def abort_epoch(self) -> None:
        """Delete the rows of the open epoch."""
        if self._parts:
            self._opened().delete([self._area.prefix + part.name for part in self._parts])
        self._clear()

    def close(self) -> None:
        """Drop an epoch that is still open."""
        self.abort_epoch()
