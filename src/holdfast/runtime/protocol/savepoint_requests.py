"""SavepointRequests: decides which savepoint to write next, and when. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.ids import CheckpointId, Epoch, checkpoint_of

__all__ = ["SavepointRequest", "SavepointRequests"]


@dataclass(frozen=True)
class SavepointRequest:
    """A user's request."""

    number: int
    """Identifies the request within the job."""
    uri: str
    """The savepoint's own directory."""
    stop: bool = False
    """Whether the job ends with it."""
    drain: bool = False
    """Whether event time ends before the savepoint."""


class SavepointRequests:
    """The open requests. Savepoints are written one at a time, in order of the requests."""

    def __init__(self) -> None:
        self._waiting: list[tuple[SavepointRequest, Epoch]] = []
        """Requests, each with the last epoch planned before it, which the savepoint includes."""
        self._drained_by: Epoch | None = None
        """The epoch that ends event time."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: SavepointRequest, planned: Epoch) -> None:
        """Add a request; ``planned``: the last epoch whose input is fixed."""
        self._waiting.append((request, planned))

    def next(self, committed: CheckpointId, idle: bool) -> SavepointRequest | None:
        """The request that the latest committed checkpoint fulfils, if any.

        Args:
            committed: The latest checkpoint, whose output is committed.
            idle: Whether no epoch is in flight or being planned.
        """
        if not self._waiting:
            return None
        request, planned = self._waiting[0]
        if committed < planned or (request.stop and not idle) or (request.drain and not self.drained):
            return None
        return request

    def stop_planning(self, completed: CheckpointId) -> bool:
        """Whether the job must read no more input after this checkpoint.

        An epoch planned before the request may have failed for good; then another one takes its place.
        """
        for request, planned in self._waiting:
            if planned > completed:
                return False  # it waits for another epoch
            if request.stop:
                return True
        return False

    @property
    def drain(self) -> bool:
        """Whether an epoch must end event time: the savepoints before are written."""
        return not self.drained and bool(self._waiting) and self._waiting[0][0].drain

    @property
    def drained(self) -> bool:
        """Whether event time has ended."""
        return self._drained_by is not None

    def draining(self, epoch: Epoch) -> None:
        """This epoch ends event time."""
        self._drained_by = epoch

    def restored(self, checkpoint: CheckpointId) -> None:
        """The job continues from this checkpoint; later epochs did not happen."""
        if self._drained_by is not None and checkpoint < checkpoint_of(self._drained_by):
            self._drained_by = None

    def answered(self, number: int) -> SavepointRequest:
        """The savepoint was written or failed; returns its request."""
        request = next(request for request, _ in self._waiting if request.number == number)
        self._waiting = [(other, planned) for other, planned in self._waiting if other is not request]
        if not any(other.drain for other, _ in self._waiting):
            self._drained_by = None
        return request
