"""Reference counts of files over the known checkpoints; adding or removing one costs only its changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.checkpoint.handles import FileHandle
from holdfast.checkpoint.metadata import CheckpointMetadata, SubtaskState

__all__ = ["References"]


class References:
    """Counts the checkpoints' references to files.

    Consecutive checkpoints share unchanged states as the same objects; a shared object counts once.
    """

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._states: dict[int, tuple[SubtaskState, int]] = {}
        """By object id: the state of a subtask, and the number of checkpoints with it."""

    def __contains__(self, path: object) -> bool:
        return path in self._files

    def __len__(self) -> int:
        return len(self._files)

    def add(self, checkpoint: CheckpointMetadata) -> None:
        """Add a checkpoint."""
        for state in _states(checkpoint):
            _, count = self._states.get(id(state), (state, 0))
            self._states[id(state)] = state, count + 1
            if not count:
                for file in state.files():
                    self._refer(file)
        for file in checkpoint.manifests:
            self._refer(file)

    def remove(self, checkpoint: CheckpointMetadata) -> list[str]:
        """Remove a checkpoint; returns the files without any other reference."""
        gone: list[str] = []
        for state in _states(checkpoint):
            _, count = self._states[id(state)]
            if count > 1:
                self._states[id(state)] = state, count - 1
                continue
            del self._states[id(state)]
            for file in state.files():
                self._release(file, gone)
        for file in checkpoint.manifests:
            self._release(file, gone)
        return gone

    def _refer(self, file: FileHandle) -> None:
        self._files[file.path] = self._files.get(file.path, 0) + 1

    def _release(self, file: FileHandle, gone: list[str]) -> None:
        left = self._files[file.path] - 1
        if left:
            self._files[file.path] = left
        else:
            del self._files[file.path]
            gone.append(file.path)


def _states(checkpoint: CheckpointMetadata) -> Iterator[SubtaskState]:
    for operator in checkpoint.operators.values():
        yield from operator.subtasks
