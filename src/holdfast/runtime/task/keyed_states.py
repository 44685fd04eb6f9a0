"""KeyedStates: the keyed state of all operators of a subtask, which are opened, checkpointed and completed together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from holdfast.checkpoint.changelog import ChangelogLog
from holdfast.checkpoint.handles import inline_limit, kept_inline_limit
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.metadata import KeyedHandle, changelog_uid
from holdfast.checkpoint.paths import JobPaths, new_attempt, safe_name
from holdfast.checkpoint.stores.storage import Storage
from holdfast.connectors.base import Committable
from holdfast.runtime.plan.operator import StateKind
from holdfast.runtime.plan.plan import Vertex
from holdfast.runtime.plan.redistribution import OperatorSnapshot
from holdfast.state.backends.backend import Place, StateBackendSettings
from holdfast.state.backends.keyed_backend import KeyedStateBackend, NewPath
from holdfast.state.keys.key_groups import key_group_range
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.stored.schema import OperatorSchema, joined, restored_schema

__all__ = ["KeyedStates", "KeyedSubtask", "local_state"]


@dataclass(frozen=True)
class KeyedSubtask:
    """A subtask's operators with keyed state."""

    vertex: int
    number: int
    parallelism: int
    max_parallelism: int
    operators: Mapping[str, str]
    """The names of the operators by uid."""

    @staticmethod
    def of(vertex: Vertex, number: int) -> KeyedSubtask:
        """The keyed operators of a vertex's subtask."""
        keyed = {chained.uid: chained.name for chained in vertex.chain if StateKind.KEYED in chained.factory.state}
        return KeyedSubtask(vertex.id, number, vertex.parallelism, vertex.max_parallelism, keyed)


def local_state(directory: str, uid: str, subtask: int) -> str:
    """The local directory for an operator's state in a subtask, below the job's directory."""
    return os.path.join(directory, f"{safe_name(uid)}-{subtask}")


@dataclass
class _Kept:
    """The keyed state of one operator with its backend."""

    state: KeyedState
    backend: KeyedStateBackend
    replayed: bool = False
    written: list[KeyedHandle] | None = None
    """The handles of the last epoch, whose checkpoint may not be complete yet."""


class KeyedStates:
    """The keyed state of a subtask's operators, at any position of the chain."""

    def __init__(
        self,
        storage: Storage,
        paths: JobPaths,
        subtask: KeyedSubtask,
        settings: StateBackendSettings,
        directory: str,
        uploads: ThreadPoolExecutor,
        changelog: Callable[[str], ChangelogLog] | None = None,
        uncommitted: Sequence[Committable] = (),
    ) -> None:
        """Open nothing yet.

        Args:
            storage: The checkpoint storage.
            paths: The names of the job's files.
            subtask: The subtask.
            settings: The state backend.
            directory: The job's local directory for state.
            uploads: Runs background uploads.
            changelog: Opens an operator's changelog, by uid; None: there are none.
            uncommitted: Committables of the checkpoint to restore that may not be committed yet.
        """
        self._storage = storage
        self._paths = paths
        self.subtask = subtask
        self._groups = key_group_range(subtask.max_parallelism, subtask.parallelism, subtask.number)
        operators = max(len(subtask.operators), 1)
        writers = operators * subtask.parallelism
        self._settings = replace(
            settings,
            cache_bytes=settings.cache_bytes // operators,
            inline_bytes=inline_limit(settings.inline_bytes, writers),
            kept_inline_bytes=kept_inline_limit(writers),
        )
        self._root = directory
        self._uploads = uploads
        self._changelog = changelog
        self._uncommitted = uncommitted
        self._kept: dict[str, _Kept] = {}
        self._epoch = (0, Epoch(0))
        """Generation and number of the last written epoch."""

    @property
    def uids(self) -> frozenset[str]:
        """The uids of the operators."""
        return frozenset(self.subtask.operators)

    def directory(self, uid: str) -> str:
        """This subtask's local directory for an operator."""
        return local_state(self._root, uid, self.subtask.number)

    def open(self, stored: Mapping[str, OperatorSnapshot]) -> dict[str, KeyedState]:
        """Open the states of a checkpoint, by uid, unless they are open; then call `replay`."""
        for uid, name in self.subtask.operators.items():
            if uid not in self._kept:
                self._kept[uid] = self._open(uid, name, stored.get(uid))
        return {uid: kept.state for uid, kept in self._kept.items()}

    def _open(self, uid: str, name: str, stored: OperatorSnapshot | None) -> _Kept:
        where = f"{name!r} (uid {uid!r})"
        log = None if self._changelog is None else self._changelog(uid)
        most = self.subtask.max_parallelism
        uncommitted = [each.data for each in self._uncommitted if each.uid == changelog_uid(uid)]
        place = Place(where, self._groups, most, self._storage, self.directory(uid), log, uncommitted)
        backend = KeyedStateBackend(place, self._settings, self._uploads)
        state = backend.open(*_stored(where, stored))
        return _Kept(state, backend)

    def replay(self) -> None:
        """Apply the checkpoint's deltas to the opened states. Called after the operators have declared their states."""
        for kept in self._kept.values():
            if not kept.replayed:
                kept.backend.replay()
                kept.replayed = True

    def replay_encoded(self) -> None:
        """Apply the deltas of those states whose rows stay encoded; their states may be declared later."""
        for kept in self._kept.values():
            if not kept.state.decodes_deltas:
                kept.backend.replay()
                kept.replayed = True

    @property
    def reused(self) -> bool | None:
        """Whether the last restore reused this host's stores; None without keyed state."""
        return all(kept.backend.reused for kept in self._kept.values()) if self._kept else None

    def check(self, key: Any) -> None:
        """Check that the changes of a key in this epoch can be stored.

        Raises:
            UserCodeError: a value does not fit the declared type of its state.
        """
        for kept in self._kept.values():
            kept.state.check(key)

    def bound(self) -> None:
        """Evict rows until memory is within the bound."""
        for kept in self._kept.values():
            kept.backend.bound()

    def begin_epoch(self, epoch: Epoch, committed: CheckpointId) -> None:
        """Start an epoch. ``committed``: the last checkpoint whose committables are committed."""
        for kept in self._kept.values():
            kept.backend.begin_epoch(epoch, committed)

    def prepare_commit(self) -> list[Committable]:
        """Prepare the changelogs' transactions, with the changes of the last snapshot."""
        return [
            Committable(changelog_uid(uid), self.subtask.number, data)
            for uid, kept in self._kept.items()
            for data in kept.backend.prepare_commit(kept.written or [])
        ]

    def snapshot(self, generation: int, epoch: Epoch) -> dict[str, tuple[list[KeyedHandle], OperatorSchema]]:
        """Write the epoch's changes; returns the handles and the schema of each state, by uid."""
        self._epoch = (generation, epoch)
        written = {}
        for uid, kept in self._kept.items():
            kept.written = kept.backend.snapshot(self._new_path(uid))
            written[uid] = (kept.written, kept.state.schema)
        return written

    def _new_path(self, uid: str) -> NewPath:
        generation, epoch = self._epoch
        return lambda kind: self._paths.state_file(generation, epoch, uid, self.subtask.number, new_attempt(), kind)

    def completed(self) -> None:
        """The last written epoch is complete: local stores follow it, and new bases may start."""
        for uid, kept in self._kept.items():
            if kept.written is not None:
                kept.backend.completed(kept.written, self._epoch[1], self._new_path(uid))
                kept.written = None

    @property
    def delta_bytes(self) -> int:
        """Bytes written in the last epoch."""
        return sum(kept.backend.written for kept in self._kept.values())

    @property
    def uploading(self) -> Epoch | None:
        """The earliest epoch in which a running upload began."""
        return min((u for k in self._kept.values() if (u := k.backend.uploading) is not None), default=None)

    def close(self) -> None:
        """Close the local stores; uncommitted changes are dropped."""
        kept, self._kept = self._kept, {}
        for each in kept.values():
            each.backend.close()


def _stored(where: str, stored: OperatorSnapshot | None) -> tuple[list[KeyedHandle], OperatorSchema | None]:
    """The handles that a subtask restores, and the schema that reads all of them."""
    if stored is None or not stored.state.keyed:
        return [], None
    # If possible, all subtasks continue one schema, so that their changes of types get the same versions.
    schema = joined(list(map(OperatorSchema.of_plain, stored.schemas.values())))
    if schema is None:
        used = {handle.schema for handle in stored.state.keyed}
        schema = restored_schema(where, [each for name, each in stored.schemas.items() if name in used])
    return stored.state.keyed, schema
