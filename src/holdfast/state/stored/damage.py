"""Adds to the error of a damaged file whose state it holds: the operator, and its states by name."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.handles import LogRange
from holdfast.checkpoint.metadata import CheckpointMetadata, KeyedHandle, OperatorCheckpoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.stored.schema import ROWS, OperatorSchema

__all__ = ["Naming", "naming", "with_content", "with_keyed_content", "with_remedy"]

Naming = Callable[[CorruptFile, Container[int]], CorruptFile]
"""Adds to an error the states in the file, given their ids: see `naming`."""


def with_content(error: CorruptFile, storage: Storage, checkpoint: CheckpointMetadata, remedy: str = "") -> CorruptFile:
    """Add to the error of a checkpoint's or savepoint's file what the file holds, and what to do.

    Args:
        error: The error.
        storage: The storage to which the files' paths are relative.
        checkpoint: The checkpoint.
        remedy: What to do; a sentence that starts in lower case.
    """
    found = [
        f"{', '.join(map(repr, names))} of operator {operator.name!r} (uid {uid!r})"
        for uid, operator in checkpoint.operators.items()
        if (names := list(dict.fromkeys(_states(operator, storage, error.path))))
    ]
    told = CorruptFile(error.path, f"{error.reason}; it holds {'; '.join(found)}") if found else error
    return with_remedy(told, remedy) if remedy else told


def with_keyed_content(
    error: CorruptFile, storage: Storage, handles: Sequence[KeyedHandle], schemas: Mapping[str, Any], operator: str
) -> CorruptFile:
    """Add to the error of a file of keyed state what the file holds.

    Args:
        error: The error.
        storage: The storage to which the files' paths are relative.
        handles: The operator's keyed state.
        schemas: The operator's schemas as plain data, by their names in the handles.
        operator: The operator, for messages.
    """
    names = list(dict.fromkeys(_keyed(handles, schemas, storage, error.path)))
    content = f"{', '.join(map(repr, names)) or 'keyed state'} of operator {operator}"
    return CorruptFile(error.path, f"{error.reason}; it holds {content}")


def naming(where: str, schema: Callable[[], OperatorSchema | None]) -> Naming:
    """Names what is in files of keyed state that is being restored.

    Args:
        where: The operator.
        schema: Returns the schema of its state, if it is known.
    """

    def named(error: CorruptFile, states: Container[int]) -> CorruptFile:
        known = schema()
        names = {} if known is None else {each.id: name for name, each in known.states.items()}
        found = [repr(name) for number, name in sorted(names.items()) if number in states]
        content = f"state of {where}" + (f": {', '.join(found)}" if found else "")
        return CorruptFile(error.path, f"{error.reason}; it holds {content}")

    return named


def with_remedy(error: CorruptFile, remedy: str) -> CorruptFile:
    """Add the remedy to the error: a sentence that starts in lower case."""
    return CorruptFile(error.path, f"{error.reason}: {remedy}")


def _states(operator: OperatorCheckpoint, storage: Storage, where: str) -> Iterator[str]:
    """The names of an operator's states that are in a file."""
    for subtask in operator.subtasks:
        yield from _keyed(subtask.keyed, operator.schemas, storage, where)
        for name, parts in subtask.lists.items():
            if any(part.file is not None and storage.locate(part.file.path) == where for part in parts):
                yield name


def _keyed(handles: Iterable[KeyedHandle], schemas: Mapping[str, Any], storage: Storage, where: str) -> Iterator[str]:
    for keyed in handles:
        files = [each for each in keyed.handles() if not isinstance(each, LogRange)]
        if any(storage.locate(each.path) == where for each in files) and keyed.schema in schemas:
            yield from _names(OperatorSchema.of_plain(schemas[keyed.schema]))


def _names(schema: OperatorSchema) -> Iterator[str]:
    for name, state in schema.states.items():
        if state.kind == ROWS:
            yield from (column.name for column in state.columns)
        elif state.kind == "timers":
            yield name
