"""The print sink: lines on the standard output of the driver."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import zstandard

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.stores.storage import NotFound
from holdfast.common.typeinfo import TypeInformation
from holdfast.connectors.base import Committable, JobInfo, WriterContext, check_form
from holdfast.connectors.java_text import text_of
from holdfast.connectors.job_files import JobFiles

__all__ = ["PrintSink"]

_MARKER = "printed.json"


class PrintSink:
    """A sink that prints each record once, when the checkpoint that covers it is complete.

    The lines travel in the checkpoint's metadata to the driver, which prints them to ``sys.stdout`` (a terminal, a
    notebook's cell) and then records that in the job's storage. If the driver is killed while it prints or before it
    records, the next driver prints the lines of that one checkpoint again: at least once in this case, exactly once
    otherwise.

    Args:
        identifier: Prefix of each line, as in ``id> `` or, with several subtasks, ``id:2> ``.
        type_info: The records' declared type: with a type the text is Flink's (``+I[1,x]``, ``(1,x)``, ``true``),
            without one Python's.
    """

    def __init__(self, identifier: str | None = None, type_info: TypeInformation | None = None) -> None:
        self.identifier = identifier
        self.type_info = type_info

    def validate(self) -> None:
        """Accept: this sink has nothing to check."""

    def create_writer(self, context: WriterContext) -> PrintWriter:
        """Create a writer."""
        parts = [self.identifier] if self.identifier else []
        if context.parallelism > 1:
            parts.append(str(context.subtask + 1))
        return PrintWriter(":".join(parts) + "> " if parts else "", self.type_info)

    def check_prepared(self, data: Any) -> None:
        """Check that output is an epoch's records for this kind of sink."""
        check_form(data, ("epoch", "text"), "print sink")

    def create_committer(self, job: JobInfo, uid: str) -> PrintCommitter:
        """Create the committer, which prints."""
        return PrintCommitter(job, uid)


class PrintWriter:
    """Formats records as lines."""

    def __init__(self, prefix: str, type_info: TypeInformation | None) -> None:
        self._prefix = prefix
        self._text = text_of(type_info)
        self._lines: list[str] = []
        self._epoch = 0

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Start an epoch without lines."""
        self._epoch = epoch
        self._lines = []

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Add the records' lines."""
        prefix, text = self._prefix, self._text
        self._lines += [f"{prefix}{text(value)}\n" for value in values]

    def prepare_commit(self) -> list[Any]:
        """Return the epoch's lines, compressed, as one committable."""
        lines, self._lines = self._lines, []
        if not lines:
            return []
        text = "".join(lines).encode("utf-8", "backslashreplace")
        return [{"epoch": self._epoch, "text": zstandard.compress(text)}]

    def abort_epoch(self) -> None:
        """Drop the lines."""
        self._lines = []

    def close(self) -> None:
        """Do nothing: no resources are open."""


class PrintCommitter:
    """Prints lines; skips epochs that it has already printed."""

    def __init__(self, job: JobInfo, uid: str) -> None:
        self._marker = JobFiles(job, "sinks", uid) if job.storage_uri is not None else None
        self._printed = 0
        """The last epoch whose lines are all printed."""

    def recover(self, committables: Sequence[Committable]) -> None:
        """Print the restored checkpoint's lines, unless they are recorded as printed."""
        if self._marker is None:
            return
        try:
            self._printed = int(json.loads(self._marker.get(_MARKER))["epoch"])
        except NotFound:
            pass  # no epoch was printed yet
        if committables:
            self.commit(committables)
        else:
            # Epochs may restart at 1; the record of an earlier run does not apply to them.
            self._printed = 0
            self._marker.delete([_MARKER])

    def commit(self, committables: Sequence[Committable]) -> None:
        """Print the lines of an epoch, subtask by subtask; repeated calls print nothing."""
        new = [c for c in committables if c.data["epoch"] > self._printed]
        if not new:
            return
        for committable in sorted(new, key=lambda c: (c.data["epoch"], c.subtask)):
            with parsing("the output in the checkpoint", "a frame of zstd"):
                text = zstandard.decompress(committable.data["text"]).decode()
            sys.stdout.write(text)
        sys.stdout.flush()
        self._printed = max(c.data["epoch"] for c in new)
        if self._marker is not None:
            self._marker.put(_MARKER, json.dumps({"epoch": self._printed}).encode())

    def close(self) -> None:
        """Do nothing: no resources are open."""
