"""SubtaskLife: whether a subtask continues with the state in memory or restores it from a checkpoint. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Generic, TypeVar

from holdfast.runtime.plan.lifecycle import Lifecycle

__all__ = ["SubtaskLife", "SubtaskStage"]

T = TypeVar("T")


class SubtaskStage(Enum):
    """The state of a subtask in a task slot."""

    CREATED = "created"
    """Its operators have never been opened."""
    RESTORING = "restoring"
    RUNNING = "running"
    """It processes an epoch."""
    PREPARED = "prepared"
    """It has processed an epoch; the checkpoint may or may not be complete."""
    CLOSED = "closed"
    """Its operators are closed; it restores before the next epoch."""


_S = SubtaskStage
_TRANSITIONS: Mapping[SubtaskStage, frozenset[SubtaskStage]] = {
    _S.CREATED: frozenset({_S.RESTORING}),
    _S.RESTORING: frozenset({_S.RUNNING, _S.CLOSED}),
    _S.RUNNING: frozenset({_S.PREPARED, _S.CLOSED}),
    _S.PREPARED: frozenset({_S.RUNNING, _S.CLOSED}),
    _S.CLOSED: frozenset({_S.RESTORING, _S.CLOSED}),
}


class SubtaskLife(Generic[T]):
    """The life of one subtask.

    Args:
        name: The subtask, for messages.

    Each method advances the life, and raises `IllegalTransition` in a state that does not allow it. ``T`` is the type of the
    opened operators with their state, which exist while the subtask is running or prepared.
    """

    def __init__(self, name: str) -> None:
        self._life = Lifecycle(f"subtask {name}", SubtaskStage.CREATED, _TRANSITIONS)
        self._opened: T | None = None
        self._token = ""

    @property
    def state(self) -> SubtaskStage:
        """The stage of the subtask."""
        return self._life.state

    def resume(self, token: str) -> T | None:
        """Continue with the opened operators if their state is that of ``token``; None: close and restore.

        Args:
            token: The attempt that produced the state of the checkpoint which the epoch continues; empty without one.
        """
        opened = self.held(token)
        if opened is not None:
            self._life.to(SubtaskStage.RUNNING)
        return opened

    @property
    def opened(self) -> T | None:
        """The opened operators, if there are any."""
        return self._opened

    def held(self, token: str) -> T | None:
        """The opened operators with which `resume` would continue, if any."""
        return self._opened if self.state is SubtaskStage.PREPARED and token == self._token else None

    def restore(self) -> bool:
        """Start to restore a subtask that is not open; returns whether its functions have been used before."""
        used = self.state is SubtaskStage.CLOSED
        self._life.to(SubtaskStage.RESTORING)
        return used

    def restored(self, opened: T) -> None:
        """The operators are open, with the state of the checkpoint that the epoch continues."""
        self._life.to(SubtaskStage.RUNNING)
        self._opened = opened

    def prepared(self, token: str) -> None:
        """The attempt ``token`` at the epoch has written its state."""
        self._life.to(SubtaskStage.PREPARED)
        self._token = token

    def close(self) -> T | None:
        """Release the opened operators, in any state; returns them, or None if there are none."""
        if self.state is not SubtaskStage.CREATED:
            self._life.to(SubtaskStage.CLOSED)
        opened, self._opened = self._opened, None
        return opened
