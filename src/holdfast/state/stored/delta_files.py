"""The delta log as files in the checkpoint storage, one file per changed epoch; small deltas are stored in their handles."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from holdfast.checkpoint.files import read_file, read_raw, verified
from holdfast.checkpoint.handles import ContainedFile, FileHandle, Handle, IndexedFile, InlineFile, RawFile
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.stores.storage import NotFound, Storage
from holdfast.errors import CorruptFile, IncompatibleState
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.stored.damage import with_content
from holdfast.state.stored.delta import (
    Change,
    StoredDelta,
    pack_delta,
    pack_joined,
    put_delta,
    read_delta,
    read_stored,
)

__all__ = ["DeltaFiles", "damaged_files", "verify_contents", "verify_data"]

_LEAST_MAPPED = 1 << 20
"""Size of the smallest file that is mapped, in bytes."""
_MOST_MAPPED = 256
"""The most files mapped at a time: each takes a file descriptor."""
_LARGEST_KEPT = 64 << 10
"""Size of the largest file to keep in memory, in bytes."""
_MOST_KEPT = 4 << 20
"""Limit of the files kept in memory, in bytes."""


class DeltaFiles:
    """The changes of each epoch, in the checkpoint storage.

    The latest small files stay in memory, so merging them reads nothing from the storage.

    Args:
        storage: The checkpoint storage.
        inline: Deltas up to this size, in bytes, are stored in their handles, and so in the checkpoint's metadata.
    """

    def __init__(self, storage: Storage, inline: int) -> None:
        self._storage = storage
        self._inline = inline
        self._mapped = 0
        self._latest = _LatestFiles()

    def append(self, changes: Sequence[Change], path: str) -> Handle:
        """Store an epoch's changes in a new file, or in the handle; ``path`` names them uniquely."""
        return self._put(path, *pack_delta(changes))

    def stored(self, handle: Handle) -> StoredDelta:
        """Read a delta in order to `join` it with others.

        Raises:
            CorruptFile: the file is missing or altered.
        """
        file = _indexed(handle)
        return read_stored(self._storage, file, self._latest.get(file.path))

    def join(self, deltas: Sequence[StoredDelta], path: str) -> Handle:
        """Store adjacent deltas as one in a new file, or in the handle."""
        return self._put(path, *pack_joined(deltas))

    def replay(self, handle: Handle, groups: KeyGroupRange) -> Iterator[Change]:
        """Read the changes of these key groups from a delta or dump.

        Raises:
            CorruptFile: the file is missing or altered.
        """
        file = _indexed(handle)
        return read_delta(self._storage, file, groups, self._latest.get(file.path) or self._map(file))

    def _put(self, path: str, data: bytes, checksum: bytes) -> IndexedFile | InlineFile:
        if len(data) <= self._inline:
            return InlineFile(path, data, checksum)
        handle = put_delta(self._storage, path, data, checksum)
        self._latest.add(path, data)
        return handle

    def _map(self, handle: IndexedFile | InlineFile) -> memoryview | None:
        """Map a large file, so that its rows take no memory until they are used."""
        if isinstance(handle, InlineFile) or handle.size < _LEAST_MAPPED or self._mapped >= _MOST_MAPPED:
            return None
        self._mapped += 1
        try:
            return self._storage.map(handle.path)
        except NotFound as error:
            raise CorruptFile(self._storage.locate(handle.path), "missing") from error


class _LatestFiles:
    """The latest small files by path. Used by the task's thread and by the thread of its merges."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[str, bytes] = {}
        self._size = 0

    def add(self, path: str, data: bytes) -> None:
        """Keep a file unless it is large; drops the oldest ones to make room."""
        if len(data) > _LARGEST_KEPT:
            return
        with self._lock:
            self._files[path] = data
            self._size += len(data)
            while self._size > _MOST_KEPT:
                self._size -= len(self._files.pop(next(iter(self._files))))

    def get(self, path: str) -> memoryview | None:
        """A file's content; None: it was not kept."""
        data = self._files.get(path)
        return None if data is None else memoryview(data)


def _indexed(handle: Handle) -> IndexedFile | InlineFile:
    if not isinstance(handle, (IndexedFile, InlineFile)):
        raise IncompatibleState(f"this state backend cannot read {handle}: another backend wrote it")
    return handle


def verify_contents(storage: Storage, checkpoint: CheckpointMetadata) -> None:
    """Read and verify every file of a checkpoint.

    Raises:
        CorruptFile: a file is missing or altered.
    """
    for error in damaged_files(storage, checkpoint):
        raise error


def damaged_files(
    storage: Storage, checkpoint: CheckpointMetadata, verified: Callable[[FileHandle], None] = lambda handle: None
) -> Iterator[CorruptFile]:
    """Read and verify every file of a checkpoint; yields the damaged ones.

    Args:
        storage: The storage of the checkpoint.
        checkpoint: The checkpoint.
        verified: Called after each file.

    Raises:
        StorageError: the storage refused a read, or the retry budget ran out.
    """
    for handle in {handle.path: handle for handle in checkpoint.files()}.values():
        try:
            _verify(storage, handle)
        except CorruptFile as error:
            yield with_content(error, storage, checkpoint)
        verified(handle)


def _verify(storage: Storage, handle: FileHandle) -> None:
    if isinstance(handle, ContainedFile):
        read_file(storage, handle)
    elif isinstance(handle, RawFile):
        read_raw(storage, handle)
    else:
        for _ in read_delta(storage, handle):
            pass


def verify_data(storage: Storage, handle: FileHandle, data: bytes) -> None:
    """Verify the complete content of a file.

    Raises:
        CorruptFile: it is not what was written.
    """
    if isinstance(handle, IndexedFile):
        for _ in read_delta(storage, handle, mapped=memoryview(data)):
            pass
    else:
        verified(storage, handle, data)
