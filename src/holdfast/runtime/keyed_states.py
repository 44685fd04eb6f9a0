"""KeyedStates, the keyed state of all operators of a subtask: opened, written and committed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.storage import Storage
from holdfast.runtime.operators.base import StateKind
from holdfast.runtime.plan import Chained, Vertex
from holdfast.runtime.redistribution import OperatorSnapshot
from holdfast.state.backend import Place, StateBackendSettings
from holdfast.state.key_groups import key_group_range
from holdfast.state.keyed_backend import KeyedStateBackend, NewPath
from holdfast.state.keyed_state import KeyedState
from holdfast.state.schema import OperatorSchema, joined, restored_schema

__all__ = ["KeyedStates"]


@dataclass
class _Kept:
    """The keyed state of one operator with its backend."""

    state: KeyedState
    backend: KeyedStateBackend
    written: list[KeyedHandle] | None = None
    """The handles of the last epoch, whose checkpoint may not be complete yet."""


class KeyedStates:
    """The keyed state of a subtask's operators, at any position of the chain."""

    def __init__(
        self,
        storage: Storage,
        paths: JobPaths,
        vertex: Vertex,
        subtask: int,
        settings: StateBackendSettings,
        directory: Callable[[str], str],
        uploads: ThreadPoolExecutor,
    ) -> None:
        """``directory``: operator uid -> local directory of its state."""
        self._storage = storage
        self._paths = paths
        self._keyed = [chained for chained in vertex.chain if StateKind.KEYED in chained.factory.state]
        self._subtask = subtask
        self._max_parallelism = vertex.max_parallelism
        self._groups = key_group_range(vertex.max_parallelism, vertex.parallelism, subtask)
        self._settings = replace(settings, cache_bytes=settings.cache_bytes // max(len(self._keyed), 1))
        self._directory = directory
        self._uploads = uploads
        self._kept: dict[str, _Kept] = {}
        self._epoch = (0, Epoch(0))
        """Generation and number of the last written epoch."""

    def open(self, stored: Mapping[str, OperatorSnapshot]) -> dict[str, KeyedState]:
        """Open the states of a checkpoint, by uid; `replay` completes them."""
        for chained in self._keyed:
            kept = self._kept[chained.uid] = self._open(chained, stored.get(chained.uid))
            kept.state.registry.key(None if chained.key_type is None else chained.key_type.to_dict())
        return {uid: kept.state for uid, kept in self._kept.items()}

    def _open(self, chained: Chained, stored: OperatorSnapshot | None) -> _Kept:
        where = f"{chained.name!r} (uid {chained.uid!r})"
        place = Place(where, self._groups, self._max_parallelism, self._storage, self._directory(chained.uid))
        backend = KeyedStateBackend(place, self._settings, self._uploads)
        state = backend.open(*_stored(where, stored))
        return _Kept(state, backend)

    def replay(self) -> None:
        """Apply the checkpoint's deltas to the opened states. Called after the operators have declared their states."""
        for kept in self._kept.values():
            kept.backend.replay()

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
        return lambda kind: self._paths.state_file(generation, epoch, uid, self._subtask, new_attempt(), kind)

    def committed(self) -> None:
        """The last written epoch is complete: local stores follow it, and new bases may begin."""
        for uid, kept in self._kept.items():
            if kept.written is not None:
                kept.backend.committed(kept.written, self._epoch[1], self._new_path(uid))
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
    # All subtasks continue one schema, if possible, so that their changes of types get the same versions.
    schema = joined(list(map(OperatorSchema.of_plain, stored.schemas.values())))
    if schema is None:
        used = {handle.schema for handle in stored.state.keyed}
        schema = restored_schema(where, [each for name, each in stored.schemas.items() if name in used])
    return stored.state.keyed, schema
