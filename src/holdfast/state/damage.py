"""What a damaged file holds, for its error: the operators and states that a person needs to know."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.checkpoint.handles import LogRange
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorCheckpoint
from holdfast.checkpoint.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.schema import ROWS, OperatorSchema

__all__ = ["with_content"]


def with_content(error: CorruptFile, storage: Storage, checkpoint: CheckpointMetadata, remedy: str = "") -> CorruptFile:
    """The error of a checkpoint's or savepoint's file, which also says what the file holds, and what to do.

    Args:
        error: The error.
        storage: The storage to which the paths of the files are relative.
        checkpoint: The checkpoint.
        remedy: What to do; a sentence without a capital.
    """
    found = [
        f"{', '.join(map(repr, names))} of operator {operator.name!r} (uid {uid!r})"
        for uid, operator in checkpoint.operators.items()
        if (names := list(dict.fromkeys(_states(operator, storage, error.path))))
    ]
    content = f"; it holds {'; '.join(found)}" if found else ""
    return CorruptFile(error.path, f"{error.reason}{content}" + (f": {remedy}" if remedy else ""))


def _states(operator: OperatorCheckpoint, storage: Storage, where: str) -> Iterator[str]:
    """The names of an operator's states that have a part in a file."""
    for subtask in operator.subtasks:
        for keyed in subtask.keyed:
            handles = [each for each in keyed.handles() if not isinstance(each, LogRange)]
            if any(storage.locate(each.path) == where for each in handles) and keyed.schema in operator.schemas:
                yield from _names(OperatorSchema.of_plain(operator.schemas[keyed.schema]))
        for name, parts in subtask.lists.items():
            if any(part.file is not None and storage.locate(part.file.path) == where for part in parts):
                yield name


def _names(schema: OperatorSchema) -> Iterator[str]:
    for name, state in schema.states.items():
        if state.kind == ROWS:
            yield from (column.name for column in state.columns)
        elif state.kind == "timers":
            yield name
