"""Records what the operators of a harness emit."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.base import JobInfo, WriterContext
from holdfast.runtime.records.records import Emit, RecordBatch

__all__ = ["Output", "Recorder", "RecorderSink"]

_recorders: WeakValueDictionary[str, Recorder] = WeakValueDictionary()
"""By token: every subtask has another copy of the sink object than the program."""

Output = tuple[Any, int]
"""An element with its timestamp in ms; ``-2**63`` if it has none."""


class Recorder:
    """The output of a harness: elements with their timestamps, in the order in which they were emitted."""

    def __init__(self) -> None:
        self.token = uuid.uuid4().hex
        self.main: list[Output] = []
        self.side: dict[str, list[Output]] = {}
        """By the tag's id."""
        _recorders[self.token] = self

    def clear(self) -> None:
        """Forget all output."""
        self.main.clear()
        self.side.clear()


class RecorderSink:
    """The sink of a harness: gives its elements to the recorder of this process."""

    def __init__(self, token: str) -> None:
        self._token = token

    def validate(self) -> None:
        """Accept: this sink has nothing to check."""

    def create_writer(self, context: WriterContext) -> _Writer:
        """Create a writer."""
        return _Writer(_recorders[self._token].main)

    def create_committer(self, job: JobInfo, uid: str) -> None:
        """Create no committer: the output is recorded at once."""


class _Writer:
    def __init__(self, output: list[Output]) -> None:
        self._output = output

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Start an epoch; what was recorded stays."""

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Record elements."""
        self._output.extend(zip(values, timestamps or [MIN_TIMESTAMP] * len(values), strict=True))

    def prepare_commit(self) -> list[Any]:
        """Prepare nothing."""
        return []

    def abort_epoch(self) -> None:
        """Keep what was recorded."""

    def close(self) -> None:
        """Release nothing."""


class SideOutputs(dict[str, Emit]):
    """The side outputs of an operator: those that the program reads, and a record of all others."""

    def __init__(self, read: dict[str, Emit], recorder: Recorder) -> None:
        super().__init__(read)
        self._recorder = recorder

    def get(self, tag_id: str, default: Any = None) -> Emit:
        """The program's reader of a side output, or the recorder."""
        return super().get(tag_id) or (lambda batch: self._record(tag_id, batch))

    def _record(self, tag_id: str, batch: RecordBatch) -> None:
        self._recorder.side.setdefault(tag_id, []).extend(_stamped(batch))


def _stamped(batch: RecordBatch) -> Iterator[Output]:
    return zip(batch.values, batch.stamps(), strict=True)
