"""Reference counts of files over checkpoints; a checkpoint that follows a counted one costs only its changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from holdfast.checkpoint.handles import FileHandle
from holdfast.checkpoint.metadata import CheckpointMetadata, OperatorCheckpoint, SubtaskState

__all__ = ["References", "StateFiles"]


class References:
    """Counts the checkpoints' references to files.

    Consecutive checkpoints share unchanged states as the same objects; a shared object counts once.
    """

    def __init__(self) -> None:
        self.bytes = 0
        """The total size of the files."""
        self._files: dict[str, int] = {}
        self._states: dict[int, tuple[SubtaskState, int]] = {}
        """By object id: the state of a subtask, and the number of checkpoints with it."""

    def __contains__(self, path: object) -> bool:
        return path in self._files

    def __len__(self) -> int:
        return len(self._files)

    def add(self, checkpoint: CheckpointMetadata) -> None:
        """Add a checkpoint."""
        self.add_states(checkpoint.operators)
        for file in checkpoint.manifests:
            self._refer(file)

    def add_states(self, operators: Mapping[str, OperatorCheckpoint]) -> None:
        """Add the states of a checkpoint."""
        for state in _states(operators):
            _, count = self._states.get(id(state), (state, 0))
            self._states[id(state)] = state, count + 1
            if not count:
                for file in state.files():
                    self._refer(file)

    def remove(self, checkpoint: CheckpointMetadata) -> list[str]:
        """Remove a checkpoint; returns the files without any other reference."""
        gone = self.remove_states(checkpoint.operators)
        for file in checkpoint.manifests:
            self._release(file, gone)
        return gone

    def remove_states(self, operators: Mapping[str, OperatorCheckpoint]) -> list[str]:
        """Remove the states of a checkpoint; returns the files without any other reference."""
        gone: list[str] = []
        for state in _states(operators):
            _, count = self._states[id(state)]
            if count > 1:
                self._states[id(state)] = state, count - 1
                continue
            del self._states[id(state)]
            for file in state.files():
                self._release(file, gone)
        return gone

    def _refer(self, file: FileHandle) -> None:
        count = self._files.get(file.path, 0)
        self._files[file.path] = count + 1
        if not count:
            self.bytes += file.size

    def _release(self, file: FileHandle, gone: list[str]) -> None:
        left = self._files[file.path] - 1
        if left:
            self._files[file.path] = left
        else:
            del self._files[file.path]
            self.bytes -= file.size
            gone.append(file.path)


class StateFiles:
    """The state files of the latest checkpoint."""

    def __init__(self) -> None:
        self._references = References()
        self._operators: Mapping[str, OperatorCheckpoint] = {}

    def become(self, operators: Mapping[str, OperatorCheckpoint]) -> int:
        """Go on to the states of the next checkpoint; returns the size of all its files, in bytes."""
        self._references.add_states(operators)
        self._references.remove_states(self._operators)
        self._operators = operators
        return self._references.bytes


def _states(operators: Mapping[str, OperatorCheckpoint]) -> Iterator[SubtaskState]:
    for operator in operators.values():
        yield from operator.subtasks
