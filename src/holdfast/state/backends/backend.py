"""Local store and materialisation: the parts of a state backend beside the deltas (`holdfast.state.stored.delta_files`).

`holdfast.state.backends.keyed_backend.KeyedStateBackend` drives them; the rest of the runtime does not know which backend it
uses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.checkpoint.changelog import ChangelogLog
from holdfast.checkpoint.handles import Handle, LogRange, kept_inline_limit
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.config_values import parse_memory_size
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.store.store import rocksdb_settings
from holdfast.state.stored.schema import OperatorSchema

__all__ = [
    "HEAP",
    "INLINE_THRESHOLD",
    "PART",
    "ROCKSDB",
    "LocalStore",
    "Materialisation",
    "Place",
    "StateBackendSettings",
    "clip",
    "paths_of",
    "size_of",
]

HEAP = "heap"
ROCKSDB = "rocksdb"
PART = "part"
"""A store that spills, to read a part of a checkpoint once (`holdfast.state.backends.part_store`); not for jobs."""
INLINE_THRESHOLD = "execution.checkpointing.data-inline-threshold"
_LARGEST_THRESHOLD = 1 << 20


@dataclass(frozen=True)
class StateBackendSettings:
    """The state backend as configured."""

    kind: str
    rocksdb: Mapping[str, str]
    cache_bytes: int
    """Memory budget for one subtask's rows, in bytes (an estimate); rows beyond it move to the store."""
    inline_bytes: int = 0
    """Size up to which a delta is stored in the checkpoint's metadata (`holdfast.checkpoint.handles.InlineFile`)."""
    kept_inline_bytes: int = kept_inline_limit(1)
    """Limit of the bytes of all deltas there."""

    @classmethod
    def of(cls, config: Mapping[str, str]) -> StateBackendSettings:
        """Read the settings from a configuration.

        Raises:
            ValueError: an unknown backend or an invalid value.
        """
        kind = config.get("state.backend.type", ROCKSDB)
        kind = {"hashmap": HEAP, "rocksdb": ROCKSDB, "filesystem": HEAP, "jobmanager": HEAP}.get(kind, kind)
        if kind not in (HEAP, ROCKSDB):
            raise ValueError(f"state.backend.type is {kind!r}; it must be hashmap or rocksdb")
        try:
            cache = parse_memory_size(config.get("state.backend.cache.size", "256mb"))
        except ValueError as error:
            raise ValueError(f"state.backend.cache.size: {error}") from None
        try:
            inline = parse_memory_size(config.get(INLINE_THRESHOLD, "20kb"))
        except ValueError as error:
            raise ValueError(f"{INLINE_THRESHOLD}: {error}") from None
        if inline > _LARGEST_THRESHOLD:
            raise ValueError(f"{INLINE_THRESHOLD} must be at most 1mb, as in Flink, got {config[INLINE_THRESHOLD]}")
        return cls(kind, rocksdb_settings(config), cache, inline)


@dataclass(frozen=True)
class Place:
    """The owner of the state and its locations."""

    where: str
    """The operator, for error messages."""
    groups: KeyGroupRange
    """The key groups of the subtask."""
    max_parallelism: int
    storage: Storage
    directory: str
    """Local directory, exclusive to this operator and subtask."""
    changelog: ChangelogLog | None = None
    """The changelog that also holds the state."""
    uncommitted: Sequence[Any] = ()
    """The changelog's committables in the restored checkpoint, if they may still have to be committed."""


class LocalStore(Protocol):
    """The state's life cycle on this host."""

    reused: bool
    """Whether `open` could reuse the store left on this host."""
    complete: bool
    """Whether `open` has restored all of the state, so that nothing is left to replay."""
    migrated: str
    """The `OperatorSchema.evolved` up to which all rows in the store have been rewritten."""

    def open(self, handles: Sequence[KeyedHandle], schema: OperatorSchema | None) -> KeyedState:
        """Open the state of this subtask's key groups from the RocksDB files in these handles.

        The caller then applies the dumps and deltas of the handles.

        Raises:
            CorruptFile: a file of the checkpoint is missing or altered.
        """

    def missing(self, deltas: Sequence[Handle]) -> Sequence[Handle]:
        """The deltas whose rows the store may lack."""

    def follow(self, handles: Sequence[KeyedHandle]) -> None:
        """Tag rows that enter the store from now on with the checkpoint of these handles."""

    def flushed_ahead(self) -> bool:
        """Whether `adopt` is quick now. If not, it starts the flush that `adopt` would wait for."""

    def adopt(self, handles: Sequence[KeyedHandle]) -> None:
        """Prepare for the first checkpoint with a new base or a merged delta, which has these handles."""

    def flushing(self, state: KeyedState, handles: Sequence[KeyedHandle]) -> Iterator[None]:
        """Flush the rows of these handles, or newer ones, to the store in steps.

        Between two steps epochs may run. At the end, a restart on this host need not read the handles' deltas, and a base
        that covers them can begin.
        """

    def completed(self, handles: Sequence[KeyedHandle], *, incomplete: bool) -> None:
        """An epoch since `open` is complete, with these handles.

        ``incomplete``: files of the restored checkpoint are still being fetched.
        """

    def check(self) -> None:
        """Raise an error found in files that `open` has not read or fetched.

        Raises:
            CorruptFile: one of them was found to be altered, or is missing.
            StorageError: the storage refused a read, or the retry budget ran out.
        """

    def bound(self, state: KeyedState, *, restoring: bool = False) -> None:
        """Evict rows until memory is within the budget; only checkpointed rows are evicted.

        ``restoring``: a restore may leave more in memory; later calls evict it over the next epochs.
        """

    def close(self) -> None:
        """Close the store; its files stay for this host's next process."""


class Materialisation(Protocol):
    """Writes a new base, which bounds the number of deltas that a restore replays."""

    kind: str
    """The `KeyedHandle.kind` of its bases."""

    @property
    def linked(self) -> bool:
        """Whether a base hard-links the local store's files, and so writes no bytes."""

    def begin(
        self, state: KeyedState, new_path: Callable[[str], str], ended: Callable[[], bool]
    ) -> Callable[[], list[Handle]]:
        """Begin a base of checkpointed state. The returned function runs in the background and returns the stored files.

        Args:
            state: The state, between two epochs. What the base is to cover is in the store (`LocalStore.flushing`).
            new_path: Returns a unique storage path for a kind of file.
            ended: Whether the subtask has ended, so that the result is no longer needed.
        """


def clip(handle: KeyedHandle, groups: KeyGroupRange) -> KeyGroupRange:
    """The key groups that a subtask restores from a handle."""
    return KeyGroupRange(max(handle.first, groups.first), min(handle.last, groups.last))


def size_of(handle: Handle) -> int:
    """The handle's size in the storage, in bytes; 0 for a log range."""
    return 0 if isinstance(handle, LogRange) else handle.size


def paths_of(handles: Sequence[Handle]) -> list[str]:
    """The paths of the file handles."""
    return [handle.path for handle in handles if not isinstance(handle, LogRange)]
