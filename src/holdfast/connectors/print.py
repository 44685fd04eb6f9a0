"""The print sink: lines on the standard output of the driver, where the user looks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import zstandard

from holdfast.checkpoint.storage import NotFound
from holdfast.common.typeinfo import TypeInformation
from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.connectors.java_text import text_of
from holdfast.connectors.job_files import JobFiles

__all__ = ["PrintSink"]

_MARKER = "printed.json"


class PrintSink:
    """A sink that prints each record once, when the checkpoint that covers it is complete.

    The lines travel in the checkpoint's metadata to the driver, which prints them to ``sys.stdout`` (a terminal, a
    notebook's cell) and notes in the job's storage that it has. A driver that is killed between the two, or while it
    prints, leaves it to the next to print the lines of that one checkpoint again: at least once in this corner,
    exactly once otherwise.

    Args:
        identifier: Put before each line, as in ``id> `` or, with several subtasks, ``id:2> ``.
        type_info: The records' declared type: with it the text is Flink's (``+I[1,x]``, ``(1,x)``, ``true``), without
            it Python's.
    """

    def __init__(self, identifier: str | None = None, type_info: TypeInformation | None = None) -> None:
        self.identifier = identifier
        self.type_info = type_info

    def validate(self) -> None:
        """Nothing can be wrong."""

    def create_writer(self, context: WriterContext) -> PrintWriter:
        """A writer."""
        parts = [self.identifier] if self.identifier else []
        if context.parallelism > 1:
            parts.append(str(context.subtask + 1))
        return PrintWriter(":".join(parts) + "> " if parts else "", self.type_info)

    def create_committer(self, job: JobInfo, uid: str) -> PrintCommitter:
        """The committer, which prints."""
        return PrintCommitter(job, uid)


class PrintWriter:
    """Turns records into lines."""

    def __init__(self, prefix: str, type_info: TypeInformation | None) -> None:
        self._prefix = prefix
        self._text = text_of(type_info)
        self._lines: list[str] = []
        self._epoch = 0

    def begin_epoch(self, epoch: int, attempt: str, completed: int) -> None:
        """Start with no lines."""
        self._epoch = epoch
        self._lines = []

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        """Add the records' lines."""
        prefix, text = self._prefix, self._text
        self._lines += [f"{prefix}{text(value)}\n" for value in values]

    def prepare_commit(self) -> list[Any]:
        """The epoch's lines, compressed, as one committable."""
        lines, self._lines = self._lines, []
        if not lines:
            return []
        text = "".join(lines).encode("utf-8", "backslashreplace")
        return [{"epoch": self._epoch, "text": zstandard.compress(text)}]

    def abort_epoch(self) -> None:
        """Forget the lines."""
        self._lines = []

    def close(self) -> None:
        """Nothing to free."""


class PrintCommitter:
    """Prints; knows by epoch what has been printed."""

    def __init__(self, job: JobInfo, uid: str) -> None:
        self._marker = JobFiles(job, "sinks", uid) if job.storage_uri is not None else None
        self._printed = 0
        """The last epoch of which all lines are printed."""

    def recover(self, committables: Sequence[Committable]) -> None:
        """Print what the restored checkpoint holds, unless it is known to be printed."""
        if self._marker is None:
            return
        try:
            self._printed = int(json.loads(self._marker.get(_MARKER))["epoch"])
        except NotFound:
            pass  # nothing was ever printed
        if committables:
            self.commit(committables)
        else:
            # Epochs may begin anew at 1: what an earlier run has printed says nothing about them.
            self._printed = 0
            self._marker.delete([_MARKER])

    def commit(self, committables: Sequence[Committable]) -> None:
        """Print the lines of an epoch, subtask by subtask; nothing when called again."""
        new = [c for c in committables if c.data["epoch"] > self._printed]
        if not new:
            return
        for committable in sorted(new, key=lambda c: (c.data["epoch"], c.subtask)):
            sys.stdout.write(zstandard.decompress(committable.data["text"]).decode())
        sys.stdout.flush()
        self._printed = max(c.data["epoch"] for c in new)
        if self._marker is not None:
            self._marker.put(_MARKER, json.dumps({"epoch": self._printed}).encode())

    def close(self) -> None:
        """Nothing to free."""
