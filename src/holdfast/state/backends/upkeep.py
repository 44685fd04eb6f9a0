"""Upkeep: the machine that decides which maintenance of a subtask's stored state runs beside the epochs. Pure.

`KeyedStateBackend` reports each complete checkpoint and the end of each step, and carries out the answer:

    completed(checkpoint) ──► Flush ──► flushed ──► Migrate ──► migrated ──► Store ──► stored, or failed, epochs later

Any of the three may be skipped. What was stored takes its place in the handles of the next checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

import msgspec

from holdfast.checkpoint.handles import Handle
from holdfast.checkpoint.ids import Epoch
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.state.backends.compaction import Base, Merge, due, part_of

__all__ = ["Checkpoint", "Flush", "Migrate", "Phase", "Store", "Upkeep"]

_MOST_FAILURES = 192
"""The job fails after this many failed attempts in a row to store a base: each further delta lengthens recovery."""
_LACKING = 128 << 20
"""Approximate limit of the deltas, in bytes, that a restart on this host has to read."""
_CHANGED = 2 << 30
"""Approximate limit of the memory of the deltas' rows, in bytes. Small rows make small deltas, but a million of them take
half a second to apply.
"""


class Phase(Enum):
    """What runs beside the epochs.

    ::

           IDLE ───── flush ────► FLUSHING
            │ ▲ ◄─── flushed ────   │ ▲
      store │ │ stored        store │ │ stored
            ▼ │                     ▼ │
          STORING ─── flush ────► FLUSHING_AND_STORING
                  ◄── flushed ───
    """

    IDLE = 0
    FLUSHING = 1
    """Checkpointed rows enter the local store, in a step after each epoch."""
    STORING = 2
    """A base, or a merge of deltas, is being stored."""
    FLUSHING_AND_STORING = 3


_FLUSH, _FLUSHED, _STORE, _STORED = "flush", "flushed", "store", "stored"
_TRANSITIONS = {
    (Phase.IDLE, _FLUSH): Phase.FLUSHING,
    (Phase.IDLE, _STORE): Phase.STORING,
    (Phase.FLUSHING, _FLUSHED): Phase.IDLE,
    (Phase.FLUSHING, _STORE): Phase.FLUSHING_AND_STORING,
    (Phase.STORING, _FLUSH): Phase.FLUSHING_AND_STORING,
    (Phase.STORING, _STORED): Phase.IDLE,
    (Phase.FLUSHING_AND_STORING, _FLUSHED): Phase.STORING,
    (Phase.FLUSHING_AND_STORING, _STORED): Phase.FLUSHING,
}


@dataclass(frozen=True)
class Checkpoint:
    """The facts about a complete checkpoint."""

    epoch: Epoch
    handles: Sequence[KeyedHandle]
    """The subtask's handles; the last one is its own."""
    fetching: bool = False
    """Whether files of the restored checkpoint are still being fetched, so that retention must keep them."""
    linked: bool = False
    """Whether a base hard-links the local store's files."""
    restored: bool = False
    """Whether some rows in memory are still those of the restored checkpoint, in its files."""
    changed: float = 0.0
    """Estimated memory of the rows that the epoch has touched, in bytes."""
    lacking: int = 0
    """Bytes of the deltas whose rows the local store may lack."""
    outdated: bool = False
    """Whether the local store has rows of former types."""


class Flush(NamedTuple):
    """Flush one step of the checkpointed rows to the local store; start the flush if none is running."""


class Migrate(NamedTuple):
    """Rewrite some rows of former types; start the migration if none is running."""


class Store(NamedTuple):
    """Start to store a base, or a merge."""

    epoch: Epoch
    """The epoch after which it starts; file names contain it."""
    what: Base | Merge
    covered: int
    """Number of the subtask's deltas whose rows the local store has; a base covers them."""


class Upkeep:
    """The upkeep of one subtask's stored state.

    Args:
        kept: The most bytes of its deltas in the checkpoint's metadata.
        kind: The `KeyedHandle.kind` of its bases.
    """

    def __init__(self, kept: int, kind: str) -> None:
        self._kept = kept
        self._kind = kind
        self.phase = Phase.IDLE
        self.handles: list[KeyedHandle] = []
        """The handles of the last complete checkpoint, with whatever was stored since then in its place."""
        self.storing: Store | None = None
        """The base or merge being stored."""
        self._checkpoint = Checkpoint(Epoch(0), ())
        self._wanted: Base | Merge | None = None
        """The base or merge to store after the preceding steps."""
        self._covered = 0
        self._last: list[Handle] = []
        """The last delta whose rows the local store will have after the running flush, if any."""
        self._migrating = False
        self._changed = 0.0
        """Estimated memory of the rows that each epoch since the last flush has touched, in bytes."""
        self._failures = 0

    def restore(self, handles: Sequence[KeyedHandle], first: int, last: int) -> None:
        """Start from the handles of a checkpoint, for these key groups."""
        self.handles = list(handles)
        if [(handle.first, handle.last) for handle in handles] != [(first, last)]:
            self.handles.append(KeyedHandle(first, last))

    def replayed(self, memory: float) -> None:
        """Called when the deltas are applied; their rows take this much memory, in bytes."""
        self._changed = memory

    def completed(self, checkpoint: Checkpoint) -> Flush | Migrate | Store | None:
        """The first step after a complete checkpoint."""
        self._checkpoint = checkpoint
        self.handles = list(checkpoint.handles)
        self._changed += checkpoint.changed
        if checkpoint.fetching:  # RocksDB cannot copy the files yet, either
            return None
        self._wanted, self._covered = self._due(), 0
        if self.phase in (Phase.IDLE, Phase.STORING) and self._flush_is_due():
            self._go(_FLUSH)
            self._last, self._changed = self.handles[-1].deltas[-1:], 0.0
        return Flush() if self.phase in (Phase.FLUSHING, Phase.FLUSHING_AND_STORING) else self._migrate_or_store()

    def _due(self) -> Base | Merge | None:
        if self.storing is not None:
            return None
        epochs = self._checkpoint.epoch - self.handles[-1].base_epoch
        wanted = due(self.handles, self._checkpoint.linked, epochs, self._kept)
        # A base reads no delta; a damaged one may have made the merge fail.
        return Base() if wanted is not None and self._failures else wanted

    def _flush_is_due(self) -> bool:
        """Whether to flush all checkpointed rows: what is wanted needs it, or the store lacks many."""
        if isinstance(self._wanted, Base) or (self._wanted is not None and self._checkpoint.restored):
            return True  # restored rows may lie in files that stay only while checkpoints refer to them
        if len(self.handles) > 1:
            return False
        return self._changed > _CHANGED or self._checkpoint.lacking > _LACKING

    def flushed(self, done: bool) -> Migrate | Store | None:
        """The step after a step of the flush; ``done``: the flush has ended.

        Until it ends, later deltas may be merged; the last flushed delta stays as it is.
        """
        deltas = self.handles[-1].deltas
        self._covered = deltas.index(self._last[0]) + 1 if self._last and self._last[0] in deltas else 0
        if done:
            self._go(_FLUSHED)
        else:
            merge = self._wanted if isinstance(self._wanted, Merge) and not self._checkpoint.restored else None
            self._wanted = merge and part_of(merge, self._covered)
        return self._migrate_or_store()

    def _migrate_or_store(self) -> Migrate | Store | None:
        if self._checkpoint.outdated and (self._migrating or self._wanted is not None):
            return Migrate()
        return self._store()

    def migrated(self, done: bool) -> Store | None:
        """The step after a step of the migration. A base can start before all rows are rewritten."""
        self._migrating = not done
        return self._store()

    def _store(self) -> Store | None:
        if self._wanted is None:
            return None
        self._go(_STORE)
        self.storing = Store(self._checkpoint.epoch, self._wanted, self._covered)
        return self.storing

    def stored(self, files: Sequence[Handle]) -> None:
        """Put the stored files in their place: a base before the deltas that it does not cover, or merged deltas."""
        epoch, what, covered = self._ended()
        self._failures = 0
        own = self.handles[-1]
        if isinstance(what, Merge):
            deltas = [*own.deltas[: what.first], *files, *own.deltas[what.end :]]
            self.handles = [msgspec.structs.replace(own, deltas=deltas)]
        else:
            deltas = own.deltas[covered:]
            own = msgspec.structs.replace(own, base_epoch=epoch, base=list(files), kind=self._kind, deltas=deltas)
            self.handles = [own]

    def failed(self) -> bool:
        """Count a failed attempt to store something; returns whether the job must fail."""
        self._ended()
        self._failures += 1
        return self._failures >= _MOST_FAILURES

    def _ended(self) -> Store:
        assert self.storing is not None
        ended, self.storing = self.storing, None
        self._go(_STORED)
        return ended

    def _go(self, event: str) -> None:
        self.phase = _TRANSITIONS[self.phase, event]
