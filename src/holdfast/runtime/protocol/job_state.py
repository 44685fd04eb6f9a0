"""JobState: the states of a job, their transitions, and the events that each state accepts."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from holdfast.runtime.protocol import events
from holdfast.runtime.protocol.events import Event

__all__ = ["KNOWN_EVENTS", "TRANSITIONS", "JobState"]


class JobState(Enum):
    """The state of a job in its driver."""

    CREATED = "created"
    TAKING_OVER = "taking over"
    RECOVERING = "recovering"
    OPENING = "opening"
    RUNNING = "running"
    RESTARTING = "restarting"
    """It returns to the log after the delay, once all running instructions have ended."""
    CANCELLING = "cancelling"
    """The running epoch and its commit are the last."""
    STOPPING = "stopping"
    """Running instructions end; no others follow."""
    FINISHED = "finished"
    CANCELED = "canceled"
    FAILED = "failed"


_S = JobState
TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    _S.CREATED: frozenset({_S.TAKING_OVER, _S.CANCELED}),
    _S.TAKING_OVER: frozenset({_S.RECOVERING, _S.RESTARTING, _S.STOPPING}),
    _S.RECOVERING: frozenset({_S.OPENING, _S.RESTARTING, _S.STOPPING}),
    _S.OPENING: frozenset({_S.RUNNING, _S.RESTARTING, _S.STOPPING}),
    _S.RUNNING: frozenset({_S.TAKING_OVER, _S.FINISHED, _S.RESTARTING, _S.CANCELLING, _S.STOPPING}),
    _S.RESTARTING: frozenset({_S.TAKING_OVER, _S.STOPPING}),
    _S.CANCELLING: frozenset({_S.CANCELED, _S.STOPPING}),
    _S.STOPPING: frozenset({_S.CANCELED, _S.FAILED}),
    _S.FINISHED: frozenset(),
    _S.CANCELED: frozenset(),
    _S.FAILED: frozenset(),
}

_AFTERWARDS = frozenset({events.SavepointRequested, events.RescaleRequested, events.PaceChanged, events.Cancel})
"""Accepted from a job that is over, because its clients may not know that yet."""
_ANY_TIME = _AFTERWARDS | {events.SavepointWritten}
_UNDER_WAY = _ANY_TIME | frozenset(
    {
        events.Planned,
        events.Ran,
        events.Confirmed,
        events.Completed,
        events.Verified,
        events.Committed,
        events.Acknowledged,
        events.Woke,
        events.DelayOver,
        events.Failed,
    }
)
KNOWN_EVENTS: Mapping[JobState, frozenset[type[Event]]] = {
    _S.CREATED: _AFTERWARDS | {events.Start},
    _S.TAKING_OVER: _ANY_TIME | frozenset({events.TookOver, events.Failed}),
    _S.RECOVERING: _ANY_TIME | frozenset({events.Recovered, events.Failed}),
    _S.OPENING: _ANY_TIME | frozenset({events.Opened, events.Failed}),
    _S.RUNNING: _UNDER_WAY,
    _S.RESTARTING: _UNDER_WAY,
    _S.CANCELLING: _UNDER_WAY,
    _S.STOPPING: _UNDER_WAY,
    _S.FINISHED: _AFTERWARDS,
    _S.CANCELED: _AFTERWARDS,
    _S.FAILED: _AFTERWARDS,
}
