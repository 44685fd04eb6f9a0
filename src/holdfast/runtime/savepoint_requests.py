"""SavepointRequests: which savepoint is to be written next, and what has to be over before. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.checkpoint.ids import CheckpointId, Epoch

__all__ = ["SavepointRequest", "SavepointRequests"]


@dataclass(frozen=True)
class SavepointRequest:
    """A user's request."""

    number: int
    """Tells the requests of one job apart."""
    uri: str
    """The directory of the savepoint itself."""
    stop: bool = False
    """Whether the job ends with it."""
    drain: bool = False
    """Whether event time comes to its end before."""


class SavepointRequests:
    """The requests that have no answer yet. One savepoint is written at a time, in order of the requests."""

    def __init__(self) -> None:
        self._waiting: list[tuple[SavepointRequest, Epoch]] = []
        """Each with the last epoch that was planned when it came: the savepoint includes it."""
        self._drained = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: SavepointRequest, planned: Epoch) -> None:
        """Take a request; ``planned`` is the last epoch whose input is fixed."""
        self._waiting.append((request, planned))

    def next(self, committed: CheckpointId, idle: bool) -> SavepointRequest | None:
        """The savepoint that can be taken of the latest checkpoint, whose output is committed; None: none yet.

        Args:
            committed: The checkpoint.
            idle: Whether no epoch is under way or being planned.
        """
        if not self._waiting:
            return None
        request, planned = self._waiting[0]
        if committed < planned or (request.stop and not idle) or (request.drain and not self._drained):
            return None
        return request

    @property
    def stop_planning(self) -> bool:
        """Whether the job reads no more input."""
        return any(request.stop for request, _ in self._waiting)

    @property
    def drain(self) -> bool:
        """Whether event time is to be brought to its end."""
        return not self._drained and any(request.drain for request, _ in self._waiting)

    @property
    def drained(self) -> bool:
        """Whether it has been."""
        return self._drained

    def draining(self) -> None:
        """The epoch that brings event time to its end is planned."""
        self._drained = True

    def answered(self, number: int) -> SavepointRequest:
        """A savepoint was written, or could not be; returns the request."""
        request = next(request for request, _ in self._waiting if request.number == number)
        self._waiting = [(other, planned) for other, planned in self._waiting if other is not request]
        return request
