"""Counts references to files; a checkpoint that follows a counted one costs only its changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.checkpoint.handles import FileHandle, InlineFile
from holdfast.checkpoint.layers import subtask_change
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorCheckpoint, SubtaskState

__all__ = ["References", "StateFiles"]


class _Counts:
    """The number of references to each file, and the total size of the files."""

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.bytes = 0

    def refer(self, file: FileHandle | InlineFile) -> None:
        count = self.files.get(file.path, 0)
        self.files[file.path] = count + 1
        if not count:
            self.bytes += file.size

    def release(self, file: FileHandle | InlineFile) -> bool:
        """Remove a reference; returns whether it was the last one to the file."""
        left = self.files[file.path] - 1
        if left:
            self.files[file.path] = left
            return False
        del self.files[file.path]
        self.bytes -= file.size
        return True


class References:
    """Counts the references of several checkpoints.

    Consecutive checkpoints share unchanged states as the same objects; a shared object counts once.
    """

    def __init__(self) -> None:
        self._counts = _Counts()
        self._states: dict[int, tuple[SubtaskState, int]] = {}
        """The state of a subtask, and the number of checkpoints with it, by object id."""

    def __contains__(self, path: object) -> bool:
        return path in self._counts.files

    def __len__(self) -> int:
        return len(self._counts.files)

    def add(self, checkpoint: CheckpointMetadata) -> None:
        """Add a checkpoint."""
        for state in _states(checkpoint):
            _, count = self._states.get(id(state), (state, 0))
            self._states[id(state)] = state, count + 1
            if not count:
                for file in state.files():
                    self._counts.refer(file)
        for file in checkpoint.manifests:
            self._counts.refer(file)

    def remove(self, checkpoint: CheckpointMetadata) -> list[str]:
        """Remove a checkpoint; returns the files that no other checkpoint references."""
        gone: list[FileHandle] = []
        for state in _states(checkpoint):
            _, count = self._states[id(state)]
            if count > 1:
                self._states[id(state)] = state, count - 1
            else:
                del self._states[id(state)]
                gone += state.files()
        return [file.path for file in (*gone, *checkpoint.manifests) if self._counts.release(file)]


class StateFiles:
    """The state files of successive checkpoints."""

    def __init__(self) -> None:
        self._counts = _Counts()
        self._states: dict[tuple[str, int], SubtaskState] = {}

    def become(self, operators: Mapping[str, OperatorCheckpoint]) -> int:
        """Change to the states of another checkpoint; returns the size of all its files, in bytes."""
        old = self._states
        self._states = {(uid, n): state for uid, each in operators.items() for n, state in enumerate(each.subtasks)}
        for place, state in self._states.items():
            change = subtask_change(old.get(place), state)
            if change is None or change.state is None:
                old.pop(place, None)  # the files stay
            for file in () if change is None else change.contents():
                self._counts.refer(file)
        for state in old.values():
            for file in state.contents():
                self._counts.release(file)
        return self._counts.bytes


def _states(checkpoint: CheckpointMetadata) -> Iterator[SubtaskState]:
    for operator in checkpoint.operators.values():
        yield from operator.subtasks
