"""Deltas as files in the checkpoint storage, one for each epoch that changed something."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.checkpoint.files import read_file, read_raw
from holdfast.checkpoint.handles import ContainedFile, Handle, IndexedFile, RawFile
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.storage import Storage
from holdfast.errors import IncompatibleState
from holdfast.state.delta import Change, read_delta, write_delta
from holdfast.state.key_groups import KeyGroupRange

__all__ = ["DeltaFiles", "verify_contents"]


class DeltaFiles:
    """A `holdfast.state.backend.DeltaLog` of files."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def append(self, changes: Sequence[Change], path: str) -> Handle:
        """Store an epoch's changes."""
        return write_delta(self._storage, path, changes)

    def replay(self, handle: Handle, groups: KeyGroupRange) -> Iterator[Change]:
        """The changes in a delta or a dump, of these key groups."""
        if not isinstance(handle, IndexedFile):
            raise IncompatibleState(f"the state backend cannot read {handle}: another backend wrote it")
        return read_delta(self._storage, handle, groups)


def verify_contents(storage: Storage, checkpoint: CheckpointMetadata) -> None:
    """Read every file of a checkpoint.

    Raises:
        CorruptFile: one is missing or altered.
    """
    for handle in {handle.path: handle for handle in checkpoint.files()}.values():
        if isinstance(handle, ContainedFile):
            read_file(storage, handle)
        elif isinstance(handle, RawFile):
            read_raw(storage, handle)
        else:
            for _ in read_delta(storage, handle):
                pass
