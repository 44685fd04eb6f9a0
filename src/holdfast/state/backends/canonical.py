"""Canonical form of keyed state: dumps by key group, which any backend restores at any parallelism.

A part is a range of an operator's key groups whose rows fit into memory, or a single key group of any size. It is read once,
in bounded memory: rows beyond the limit go to disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec

from holdfast.checkpoint.metadata import KeyedHandle, OperatorCheckpoint
from holdfast.checkpoint.paths import new_attempt, safe_name
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import CorruptFile
from holdfast.state.backends.backend import HEAP, PART, Place, StateBackendSettings, size_of
from holdfast.state.backends.keyed_backend import KeyedStateBackend
from holdfast.state.backends.portions import in_files, portions
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.store.scratch import scratch_directory
from holdfast.state.stored.damage import with_keyed_content
from holdfast.state.stored.delta import write_delta
from holdfast.state.stored.schema import restored_schema

__all__ = ["DUMP", "MORE", "Part", "opened_part", "part_of", "parts_of", "write_part"]

DUMP = ".dump"
"""The suffix of the files of parts."""
MORE = f".more{DUMP}"
"""The suffix of the second and further files of a part."""
_PART = 64 << 20
"""Approximate stored bytes of a part of several key groups."""
_MEMORY = 256 << 20
"""Memory limit for the encoded rows of a part, in bytes; rows beyond it go to disk."""


@dataclass(frozen=True)
class Part:
    """A range of key groups of an operator's keyed state in a checkpoint."""

    uid: str
    where: str
    """The operator, for error messages."""
    groups: KeyGroupRange
    max_parallelism: int
    handles: Sequence[KeyedHandle]
    schemas: Mapping[str, Any]
    """The schemas of these handles as plain data, by their names there."""


def part_of(uid: str, operator: OperatorCheckpoint, groups: KeyGroupRange) -> Part | None:
    """The keyed state of some key groups; None without any."""
    own = [handle for handle in _handles(operator) if handle.first <= groups.last and handle.last >= groups.first]
    if not own:
        return None
    schemas = {handle.schema: operator.schemas[handle.schema] for handle in own}
    return Part(uid, f"{operator.name!r} (uid {uid!r})", groups, operator.max_parallelism, own, schemas)


def _handles(operator: OperatorCheckpoint) -> list[KeyedHandle]:
    """The non-empty handles, each with a schema that is in the checkpoint.

    After a rescaling the checkpoint lacks the schemas of a subtask's predecessors. The subtask's own schema, the last one,
    reads their state.
    """
    return [
        handle if handle.schema in operator.schemas else msgspec.structs.replace(handle, schema=subtask.keyed[-1].schema)
        for subtask in operator.subtasks
        for handle in subtask.keyed
        if next(handle.handles(), None)
    ]


def parts_of(uid: str, operator: OperatorCheckpoint) -> Iterator[Part]:
    """The parts of an operator's keyed state; empty without keyed state."""
    handles = _handles(operator)
    if not handles:
        return
    stored = sum(size_of(each) for handle in handles for each in handle.handles())
    count = min(operator.max_parallelism, 1 + stored // _PART)
    for n in range(count):
        first, end = n * operator.max_parallelism // count, (n + 1) * operator.max_parallelism // count
        part = part_of(uid, operator, KeyGroupRange(first, end - 1))
        if part is not None:
            yield part


def write_part(
    part: Part, source: Storage, target: Storage, settings: StateBackendSettings, scratch: str
) -> tuple[KeyedHandle, dict[str, Any]]:
    """Store a part in canonical form under a unique name; returns its new handle, and its schema as plain data.

    The schema is merged from those of all subtasks with state in the part, so it may differ from each of them.

    Args:
        part: The part to store.
        source: The checkpoint's storage.
        target: The savepoint's storage.
        settings: The settings of the job's backend.
        scratch: A directory for temporary files.

    Raises:
        CorruptFile: a file of the checkpoint is missing or altered.
        IncompatibleState: the subtasks' declared states contradict each other.
        StorageError: a storage refused the call, or the retry budget ran out.
    """
    with opened_part(part, source, settings, scratch) as state:
        stem, dumps = f"{safe_name(part.uid)}-{new_attempt()}", []
        for number, changes in enumerate(in_files(portions(state))):
            dumps.append(write_delta(target, f"{stem}-{number}{MORE}" if number else stem + DUMP, changes))
        if not dumps:
            dumps = [write_delta(target, stem + DUMP, [])]
    schema = state.schema
    return KeyedHandle(part.groups.first, part.groups.last, schema.fingerprint, HEAP, base=list(dumps)), schema.plain()


@contextmanager
def opened_part(
    part: Part,
    source: Storage,
    settings: StateBackendSettings,
    scratch: str,
    declare: Callable[[KeyedState], None] = lambda state: None,
) -> Iterator[KeyedState]:
    """Restore a part, to be read once.

    Args:
        part: The part.
        source: The checkpoint's storage.
        settings: The settings of RocksDB, whose files the checkpoint may have.
        scratch: A directory for temporary files.
        declare: Declares states, like an operator when it opens. Others keep their stored form.

    Raises:
        CorruptFile: a file of the checkpoint is missing or altered; the message names the states in it.
        IncompatibleState: the subtasks' declared states contradict each other.
        StorageError: the storage refused a read, or the retry budget ran out.
    """
    schema = restored_schema(part.where, list(part.schemas.values()))
    try:
        with scratch_directory(scratch) as directory, ThreadPoolExecutor(1) as unused:
            place = Place(part.where, part.groups, part.max_parallelism, source, directory)
            backend = KeyedStateBackend(place, StateBackendSettings(PART, settings.rocksdb, _MEMORY), unused)
            state = backend.open(part.handles, schema)
            try:
                declare(state)
                backend.replay()
                yield state
            finally:
                backend.close()
    except CorruptFile as error:
        raise with_keyed_content(error, source, part.handles, part.schemas, part.where) from None
