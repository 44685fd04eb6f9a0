"""What a state backend consists of: a local store, a log of deltas, and materialisations.

`holdfast.state.keyed_backend.KeyedStateBackend` drives the three; nothing outside it knows which backend there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from holdfast.checkpoint.handles import Handle, LogRange
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.storage import Storage
from holdfast.common.config_values import parse_memory_size
from holdfast.state.delta import Change
from holdfast.state.key_groups import KeyGroupRange
from holdfast.state.keyed_state import KeyedState
from holdfast.state.schema import OperatorSchema
from holdfast.state.store import rocksdb_settings

__all__ = [
    "HEAP",
    "ROCKSDB",
    "DeltaLog",
    "LocalStore",
    "Materialisation",
    "Place",
    "StateBackendSettings",
    "base_due",
    "clip",
    "paths_of",
    "size_of",
]

HEAP = "heap"
ROCKSDB = "rocksdb"
MOST_DELTAS = 64
_LARGE = 64 << 20


@dataclass(frozen=True)
class StateBackendSettings:
    """The state backend as configured."""

    kind: str
    rocksdb: Mapping[str, str]
    cache_bytes: int
    """About how much memory the rows of one subtask may take before they move to the store."""

    @classmethod
    def of(cls, config: Mapping[str, str]) -> StateBackendSettings:
        """The settings in a configuration.

        Raises:
            ValueError: an unknown backend or a value that it does not take.
        """
        kind = config.get("state.backend.type", ROCKSDB)
        kind = {"hashmap": HEAP, "rocksdb": ROCKSDB, "filesystem": HEAP, "jobmanager": HEAP}.get(kind, kind)
        if kind not in (HEAP, ROCKSDB):
            raise ValueError(f"state.backend.type is {kind!r}; there are hashmap and rocksdb")
        try:
            cache = parse_memory_size(config.get("state.backend.cache.size", "256mb"))
        except ValueError as error:
            raise ValueError(f"state.backend.cache.size: {error}") from None
        return cls(kind, rocksdb_settings(config), cache)


@dataclass(frozen=True)
class Place:
    """Whose state it is, and where it is kept."""

    where: str
    """The operator, for messages."""
    groups: KeyGroupRange
    """The key groups of the subtask."""
    max_parallelism: int
    storage: Storage
    directory: str
    """On this host, of this operator and subtask alone."""


class LocalStore(Protocol):
    """The life of the state on this host."""

    reused: bool
    """Whether `open` found this host's store usable."""

    def open(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None) -> KeyedState:
        """The state of the place's key groups, as the files of RocksDB in these handles have it.

        What else the handles refer to (dumps, deltas) is applied to the state afterwards.

        Raises:
            CorruptFile: a file of the checkpoint is missing or altered.
        """

    def follow(self, handles: Sequence[KeyedHandle]) -> None:
        """Rows that enter the store from now on belong to the checkpoint of these handles."""

    def bound(self, state: KeyedState) -> None:
        """Keep the rows in memory within the bound. What leaves memory is committed, or would not leave."""

    def close(self) -> None:
        """Close the store; its files stay for the next process on this host."""


class DeltaLog(Protocol):
    """The changes of each epoch, where they survive this host."""

    def append(self, changes: Sequence[Change], path: str) -> Handle:
        """Store an epoch's changes; ``path`` names them uniquely."""

    def replay(self, handle: Handle, groups: KeyGroupRange) -> Iterator[Change]:
        """The changes that a delta or a dump holds, of these key groups.

        Raises:
            CorruptFile: missing or altered.
        """


class Materialisation(Protocol):
    """A new base, so that a restore replays a bounded number of deltas."""

    kind: str
    """What `KeyedHandle.kind` says of its bases."""

    def due(self, handles: Sequence[KeyedHandle]) -> bool:
        """Whether the deltas of these handles are too many."""

    def begin(
        self, state: KeyedState, new_path: Callable[[str], str], ended: Callable[[], bool]
    ) -> Callable[[], list[Handle]]:
        """Begin a base of the committed state. The result runs in the background and gives the stored files.

        Args:
            state: The state; no epoch has changed it since the last one was committed.
            new_path: Gives a path in the storage that is never used again, for a kind of file.
            ended: Whether the subtask has ended, and the result is of no use any more.
        """


def base_due(handles: Sequence[KeyedHandle]) -> bool:
    """Whether the deltas are many, or large in comparison with the bases, or there are handles of predecessors."""
    deltas = [delta for handle in handles for delta in handle.deltas]
    base = sum(size_of(each) for handle in handles for each in handle.base)
    return len(deltas) >= MOST_DELTAS or sum(map(size_of, deltas)) > max(_LARGE, 2 * base) or len(handles) > 1


def clip(handle: KeyedHandle, groups: KeyGroupRange) -> KeyGroupRange:
    """The key groups that a subtask takes from a handle."""
    return KeyGroupRange(max(handle.first, groups.first), min(handle.last, groups.last))


def size_of(handle: Handle) -> int:
    """Bytes in the storage; 0 for a log's."""
    return 0 if isinstance(handle, LogRange) else handle.size


def paths_of(handles: Sequence[Handle]) -> list[str]:
    """The paths of files among handles."""
    return [handle.path for handle in handles if not isinstance(handle, LogRange)]
