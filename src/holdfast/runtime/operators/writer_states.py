"""ListedWriterState: the state of a sink's writer, as a list of its operator."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.handles import inline_limit
from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.metadata import WHOLE, ListPart
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.plan.listed_states import ListedStates, read_part, write_part

__all__ = ["ListedWriterState"]

_NAME = "writer-state"
"""The name of the list in checkpoints."""


class ListedWriterState:
    """The state of a writer in one subtask; see `holdfast.connectors.base.WriterState`."""

    def __init__(self, lists: ListedStates, context: OperatorContext) -> None:
        self.epoch = Epoch(0)
        """The open epoch."""
        self.inline = inline_limit(context.job.inline_bytes, context.parallelism * context.job.sinks)
        self.parts: Sequence[ListPart] = lists.parts(_NAME, WHOLE)
        self._lists = lists
        self._context = context
        self._paths = JobPaths.of(context.job.job_name)
        self._written: list[str] = []
        """The files written since the last checkpoint."""

    def read(self, part: ListPart) -> Sequence[bytes]:
        """Read the elements of a part."""
        return read_part(self._lists.storage, part)

    def write(self, elements: list[bytes]) -> ListPart:
        """Make a part of these elements."""
        part = write_part(self._lists.storage, elements, self._new_path, self.inline)
        if part.file is not None:
            self._written.append(part.file.path)
        return part

    def _new_path(self) -> str:
        context = self._context
        return self._paths.state_file(
            context.job.generation, self.epoch, context.uid, context.subtask, new_attempt(), "list"
        )

    def store(self, parts: Sequence[ListPart]) -> None:
        """Set the parts of the next checkpoint."""
        kept = {part.file.path for part in parts if part.file is not None}
        self._lists.storage.delete([path for path in self._written if path not in kept])
        self._written = []
        self.parts = parts
        self._lists.set_parts(_NAME, parts)
