"""What a checkpoint or savepoint holds: operators, states, their types and stored sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.checkpoint.handles import IndexedFile, InlineFile, RawFile
from holdfast.checkpoint.metadata import ListPart, OperatorCheckpoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.typeinfo.text import type_text
from holdfast.state.backends.backend import size_of
from holdfast.state.stored.delta import stored_sizes
from holdfast.state.stored.layout import state_of
from holdfast.state.stored.schema import ROWS, OperatorSchema, restored_schema
from holdfast.state_api.snapshots.catalog import Snapshot, explained

__all__ = ["OperatorContent", "StateContent", "describe"]


@dataclass(frozen=True)
class StateContent:
    """One state of an operator."""

    name: str
    """The user's name, for the states of user functions."""
    kind: str
    """``value``, ``list``, ``map``, ``reducing``, ``aggregating``; ``timers``; or an operator state's redistribution:
    ``split``, ``union``, ``broadcast``."""
    type: str
    """The declared types; ``pickled`` without."""
    ttl: bool = False
    family: str = ""
    """The rows that contain the state: states of one family are stored side by side. Empty for operator state."""
    elements: int | None = None
    """The number of elements of operator state."""


@dataclass(frozen=True)
class OperatorContent:
    """The state of one operator."""

    uid: str
    uid_given: bool
    name: str
    parallelism: int
    max_parallelism: int
    key_type: str
    """Empty for an operator without keyed state."""
    states: tuple[StateContent, ...]
    sizes: dict[str, int]
    """Stored bytes by family, deltas included; RocksDB's files that span several families are under ``shared files``. The
    elements of operator state are under ``operator state``."""

    @property
    def size(self) -> int:
        """Stored bytes of all states."""
        return sum(self.sizes.values())


def describe(snapshot: Snapshot, sizes: bool = True) -> list[OperatorContent]:
    """Describe the operators with state, in order of their uids.

    Args:
        snapshot: A checkpoint or savepoint, from `open_snapshot`.
        sizes: Whether to read the sizes from the indexes of the files (not the files themselves).

    Raises:
        CorruptFile: an index is damaged; `holdfast.state_api.verify` lists all damaged files.
        IncompatibleState: a later release wrote the schema of a state.
        StorageError: the storage does not answer.
    """
    with explained(snapshot.path, snapshot.storage):
        return [
            content
            for uid, operator in sorted(snapshot.checkpoint.operators.items())
            if (content := _operator(uid, operator, snapshot.storage if sizes else None)).states or content.sizes
        ]


def _operator(uid: str, operator: OperatorCheckpoint, storage: Storage | None) -> OperatorContent:
    schema = schema_of(uid, operator)
    states = [] if schema is None else list(_keyed(schema))
    for name, listed in operator.listed.items():
        elements = sum(len(part) for part in _parts(operator, name))
        states.append(StateContent(name, listed.mode, type_text(listed.type), elements=elements))
    return OperatorContent(
        uid,
        operator.uid_given,
        operator.name,
        operator.parallelism,
        operator.max_parallelism,
        "" if schema is None else type_text(schema.key.type),
        tuple(states),
        {} if storage is None else _sizes(operator, schema or OperatorSchema(), storage),
    )


def schema_of(uid: str, operator: OperatorCheckpoint) -> OperatorSchema | None:
    """The schema that reads the keyed state of all subtasks; None without keyed state."""
    if not operator.schemas:
        return None
    return restored_schema(f"{operator.name!r} (uid {uid!r})", list(operator.schemas.values()))


def _keyed(schema: OperatorSchema) -> Iterator[StateContent]:
    for family, state in schema.states.items():
        if state.kind == ROWS:
            for column in state.columns:
                types = ", ".join(map(type_text, column.types)) or "pickled"
                yield StateContent(column.name, column.kind, types, column.ttl, family)
        elif state.kind == "timers":
            yield StateContent(family, "timers", "", family=family)


def _parts(operator: OperatorCheckpoint, name: str) -> Iterator[ListPart]:
    for subtask in operator.subtasks:
        yield from subtask.lists.get(name, [])


def _sizes(operator: OperatorCheckpoint, schema: OperatorSchema, storage: Storage) -> dict[str, int]:
    names = {state.id: name.split("/")[0] for name, state in schema.states.items()}
    sizes: Counter[str] = Counter()
    handles = {
        each.path: each
        for subtask in operator.subtasks
        for keyed in subtask.keyed
        for each in keyed.handles()
        if isinstance(each, (IndexedFile, InlineFile, RawFile))
    }
    for handle in handles.values():
        if isinstance(handle, (IndexedFile, InlineFile)):
            for state, size in stored_sizes(storage, handle):
                sizes[names.get(state, f"state {state}")] += size
        else:
            first, last = state_of(handle.first_key), state_of(handle.last_key)
            alone = first == last and first in names
            sizes[names[first] if alone else "shared files"] += handle.size
    listed = [part for name in operator.listed for part in _parts(operator, name)]
    inline = sum(len(element) for part in listed for element in part.elements)
    files = sum({part.file.path: size_of(part.file) for part in listed if part.file is not None}.values())
    if inline + files:
        sizes["operator state"] = inline + files
    return dict(sizes)
