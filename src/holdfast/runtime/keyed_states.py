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
from holdfast.state.schema import OperatorSchema, restored_schema

__all__ = ["KeyedStates"]


@dataclass
class _Kept:
    """The keyed state of one operator, and what the storage and this host have of it."""

    state: KeyedState
    backend: KeyedStateBackend
    written: list[KeyedHandle] | None = None
    """What the last epoch wrote, not known to be complete yet."""


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
        """``directory``: by an operator's uid, where its state is kept on this host."""
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
        """Generation and number of the last epoch that was written."""

    def open(self, stored: Mapping[str, OperatorSnapshot]) -> dict[str, KeyedState]:
        """The states for a checkpoint, by uid; what is not in the local store comes with `replay`."""
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
        """Bring the opened states to the checkpoint. The operators have declared their states by now."""
        for kept in self._kept.values():
            kept.backend.replay()

    @property
    def reused(self) -> bool | None:
        """Whether this host's stores were usable in the last restore; None: there is no keyed state."""
        return all(kept.backend.reused for kept in self._kept.values()) if self._kept else None

    def check(self, key: Any) -> None:
        """Make sure that what this epoch has changed of a key can be stored.

        Raises:
            UserCodeError: a value does not fit the declared type of its state.
        """
        for kept in self._kept.values():
            kept.state.check(key)

    def bound(self) -> None:
        """Keep the rows in memory within the bound."""
        for kept in self._kept.values():
            kept.backend.bound()

    def snapshot(self, generation: int, epoch: Epoch) -> dict[str, tuple[list[KeyedHandle], OperatorSchema]]:
        """Write what the epoch changed; returns by uid how the checkpoint refers to each state, and its schema."""
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
        """The last epoch that was written is complete: the stores may follow, new bases may begin."""
        for uid, kept in self._kept.items():
            if kept.written is not None:
                kept.backend.committed(kept.written, self._epoch[1], self._new_path(uid))
                kept.written = None

    @property
    def delta_bytes(self) -> int:
        """What the last epoch wrote."""
        return sum(kept.backend.written for kept in self._kept.values())

    @property
    def uploading(self) -> Epoch | None:
        """The earliest epoch in which an upload began that is still under way."""
        return min((u for k in self._kept.values() if (u := k.backend.uploading) is not None), default=None)

    def close(self) -> None:
        """Close the local stores; what was not committed is forgotten."""
        kept, self._kept = self._kept, {}
        for each in kept.values():
            each.backend.close()


def _stored(where: str, stored: OperatorSnapshot | None) -> tuple[list[KeyedHandle], OperatorSchema | None]:
    """The handles that a subtask starts from, and the schema that reads all of them."""
    if stored is None or not stored.state.keyed:
        return [], None
    return stored.state.keyed, restored_schema(where, list(stored.schemas.values()))
