"""KeyedStates, the keyed state of all operators of a subtask: opened, written and committed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.storage import Storage
from holdfast.runtime.operators.base import StateKind
from holdfast.runtime.plan import Chained, Vertex
from holdfast.runtime.redistribution import OperatorSnapshot
from holdfast.runtime.state_io import StateBackendSettings, StateFiles
from holdfast.state.key_groups import key_group_range
from holdfast.state.operator_state import OperatorState
from holdfast.state.schema import OperatorSchema

__all__ = ["KeyedStates"]


@dataclass
class _Kept:
    """The keyed state of one operator, and what the storage and this host have of it."""

    state: OperatorState
    files: StateFiles
    written: KeyedHandle | None = None
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
        self._epoch = (0, 0)
        """Generation and number of the last epoch that was written."""

    def open(self, stored: Mapping[str, OperatorSnapshot]) -> dict[str, OperatorState]:
        """The states for a checkpoint, by uid; what is not in the local store comes with `replay`."""
        for chained in self._keyed:
            kept = self._kept[chained.uid] = self._open(chained, stored.get(chained.uid))
            kept.state.registry.key(None if chained.key_type is None else chained.key_type.to_dict())
        return {uid: kept.state for uid, kept in self._kept.items()}

    def _open(self, chained: Chained, stored: OperatorSnapshot | None) -> _Kept:
        files = StateFiles(
            self._storage,
            self._paths,
            chained.uid,
            self._subtask,
            self._settings,
            self._directory(chained.uid),
            self._uploads,
        )
        handle, schema = None, None
        if stored is not None and stored.state.keyed:
            (handle,) = stored.state.keyed
            schema = OperatorSchema.of_plain(stored.schemas[handle.schema])
        state = files.open(f"{chained.name!r} (uid {chained.uid!r})", handle, schema, self._max_parallelism)
        return _Kept(state, files)

    def replay(self) -> None:
        """Bring the opened states to the checkpoint. The operators have declared their states by now."""
        for kept in self._kept.values():
            kept.files.replay(kept.state)

    @property
    def reused(self) -> bool | None:
        """Whether this host's stores were usable in the last restore; None: there is no keyed state."""
        return all(kept.files.reused for kept in self._kept.values()) if self._kept else None

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
            kept.files.bound(kept.state)

    def snapshot(self, generation: int, epoch: int, token: str) -> dict[str, tuple[KeyedHandle, OperatorSchema]]:
        """Write what the epoch changed; returns by uid how the checkpoint refers to each state, and its schema."""
        self._epoch = (generation, epoch)
        written = {}
        for uid, kept in self._kept.items():
            handle = kept.files.snapshot(kept.state, generation, epoch, token)
            schema = kept.state.schema
            kept.written = msgspec.structs.replace(
                handle, first=self._groups.first, last=self._groups.last, schema=schema.fingerprint
            )
            written[uid] = (kept.written, schema)
        return written

    def committed(self) -> None:
        """The last epoch that was written is complete: the stores may follow, new bases may begin."""
        for kept in self._kept.values():
            if kept.written is not None:
                kept.files.committed(kept.state, kept.written, *self._epoch)
                kept.written = None

    @property
    def delta_bytes(self) -> int:
        """What the last epoch wrote."""
        return sum(kept.files.written for kept in self._kept.values())

    @property
    def rows(self) -> int:
        """Rows in memory."""
        return sum(kept.state.rows() for kept in self._kept.values())

    @property
    def uploading(self) -> int | None:
        """The earliest epoch in which an upload began that is still under way."""
        return min((k.files.uploading for k in self._kept.values() if k.files.uploading is not None), default=None)

    def close(self) -> None:
        """Close the local stores; what was not committed is forgotten."""
        kept, self._kept = self._kept, {}
        for each in kept.values():
            each.files.close(each.state)
