"""The decisions of a take-over, as functions of the checkpoint log's content. Pure.

If a job with checkpoints starts from a savepoint or from an older checkpoint, at the user's request, the start is *on trial*
until its first own checkpoint completes. Until then the log keeps the job's checkpoints, and nothing is deleted: if the
start is refused, fails or is given up, the next plain start continues from them as if nothing had happened.

    completed   takeover    completed       completed   ...
    7           8           9               10
                by B        by B            by B
                keeps 7     trial: a copy   ends the trial: 7 is abandoned, the request is obeyed
                            of a savepoint
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from holdfast.checkpoint.entries import FORMAT_VERSION, CheckpointRecord, Takeover
from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, LogPosition
from holdfast.checkpoint.metadata import has_output
from holdfast.checkpoint.savepoint import same_savepoint
from holdfast.errors import CorruptFile

__all__ = [
    "FromSavepoint",
    "LogFacts",
    "Start",
    "SavepointCopy",
    "after_takeover",
    "newest_intact",
    "next_takeover",
    "started",
]

_REMEMBERED = 1000
"""A driver that sleeps through more take-overs than this is no longer fenced by its successor's record."""


class FromSavepoint(NamedTuple):
    """The user's request to start from a savepoint."""

    name: str
    """The savepoint's directory and digest (`OpenSavepoint.name`)."""
    generation: int
    """The generation of the driver that wrote it; the job's generation will be higher."""
    claim: bool = False
    """Whether the job owns the savepoint from then on, and so deletes it."""


class SavepointCopy(NamedTuple):
    """A copy of a savepoint, on trial."""

    savepoint: str
    record: CheckpointRecord


@dataclass(frozen=True)
class LogFacts:
    """The content of the log's end."""

    tail: LogPosition
    """The last position; 0 if the log is empty."""
    generation: int
    """The generation of the driver that wrote the last entry; 0: no entry."""
    owner: str
    """The driver of the last take-over; empty: no take-over."""
    completed: tuple[CheckpointRecord, ...]
    """The retained checkpoints that a driver may continue from, newest first."""
    takeovers: tuple[LogPosition, ...]
    """The positions of all take-overs."""
    requested: CheckpointId
    """The checkpoint of the user's last request to go back that was obeyed; 0: none."""
    savepoint: str = ""
    """The name of the savepoint from which the job last started (`OpenSavepoint.name`); empty: none."""
    job: str = ""
    """The identity of the job (`Takeover.job`); empty: no take-over has it yet."""
    claim: bool = False
    """Whether that savepoint belongs to the job, and is not deleted yet."""
    copy: SavepointCopy | None = None
    """The savepoint that the last driver's start copied, if that start is on trial."""
    unreadable: CheckpointId = NO_CHECKPOINT
    """The newest position, if the end of the log cannot be read, so that ``completed`` is unknown; otherwise 0."""


@dataclass(frozen=True)
class Start:
    """The checkpoint from which a driver starts, and how."""

    candidates: tuple[CheckpointRecord, ...]
    """The checkpoints that it may continue from, newest first."""
    trial: bool = False
    copies: bool = False
    """Whether a savepoint must be copied: the copy is the first checkpoint to complete."""
    requested: CheckpointId = NO_CHECKPOINT
    """As in `LogFacts`, once the first checkpoint has completed; the same holds for the following fields."""
    savepoint: str = ""
    claim: bool = False


def started(facts: LogFacts, going_back: CheckpointRecord | None, savepoint: FromSavepoint | None) -> Start:
    """Decide from which checkpoint a driver starts.

    Args:
        facts: The log's content.
        going_back: The checkpoint to which the user asks to go back, if that has not been obeyed yet.
        savepoint: The savepoint that the user asks to start from.
    """
    trial = bool(facts.completed or facts.unreadable)
    if savepoint is not None and not same_savepoint(facts.savepoint, savepoint.name):
        copied = facts.copy is not None and same_savepoint(facts.copy.savepoint, savepoint.name)
        candidates = (facts.copy.record,) if facts.copy is not None and copied else ()
        return Start(candidates, trial, not copied, facts.requested, savepoint.name, savepoint.claim)
    if going_back is not None:
        return Start((going_back,), trial, False, going_back.checkpoint_id, facts.savepoint, facts.claim)
    return Start(facts.completed, False, False, facts.requested, facts.savepoint, facts.claim)


def next_takeover(facts: LogFacts, driver: str, now_ms: int, least_generation: int = 0) -> Takeover:
    """The record with which a driver takes over a log in this state; its generation exceeds ``least_generation``."""
    ids = [checkpoint.checkpoint_id for checkpoint in facts.completed]
    return Takeover(
        format_version=FORMAT_VERSION,
        generation=max(facts.generation, least_generation) + 1,
        driver=driver,
        restored=facts.unreadable or max(ids, default=NO_CHECKPOINT),
        oldest=CheckpointId(1) if facts.unreadable else min(ids, default=NO_CHECKPOINT),
        takeovers=list(facts.takeovers[-_REMEMBERED:]),
        requested=facts.requested,
        created_at=now_ms,
        savepoint=facts.savepoint,
        job=facts.job or driver,
        claim=facts.claim,
        copy=NO_CHECKPOINT if facts.copy is None else facts.copy.record.checkpoint_id,
        position=LogPosition(facts.tail + 1),
    )


def after_takeover(facts: LogFacts, record: Takeover) -> LogFacts:
    """The log's state after the record was put at its end."""
    position = LogPosition(facts.tail + 1)
    return replace(
        facts,
        tail=position,
        generation=record.generation,
        owner=record.driver,
        takeovers=(*record.takeovers, position),
        job=record.job,
    )


def newest_intact(
    completed: Sequence[CheckpointRecord],
    verify: Callable[[CheckpointRecord], object],
    locate: Callable[[CheckpointId], str],
) -> int:
    """Return the index of the newest checkpoint that can be restored without harm to the sinks.

    A damaged checkpoint may be skipped only if it has no output to commit. Its prepared output may already be visible, and
    continuing from an older checkpoint would write it a second time.

    Args:
        completed: The candidates, newest first; at least one.
        verify: Raises CorruptFile for a damaged checkpoint.
        locate: Returns the full name of a checkpoint's log entry, for the message.

    Raises:
        CorruptFile: no checkpoint is usable; the message names the file and the remedy.
    """
    first: CorruptFile | None = None
    for index, checkpoint in enumerate(completed):
        try:
            verify(checkpoint)
            return index
        except CorruptFile as error:
            first = first or error
            if any(has_output(uid) for uid, _, _ in checkpoint.committables):
                older = completed[index + 1].checkpoint_id if index + 1 < len(completed) else NO_CHECKPOINT
                raise CorruptFile(error.path, f"{error.reason}. {_advice(checkpoint, older, locate)}") from error
    assert first is not None
    raise CorruptFile(
        first.path,
        f"{first.reason}; and no older retained checkpoint is intact. Put the file back from a backup (or an older "
        "version of the object), or start the job under another name to begin afresh",
    ) from first


def _advice(damaged: CheckpointRecord, older: CheckpointId, locate: Callable[[CheckpointId], str]) -> str:
    advice = (
        f"It belongs to checkpoint {damaged.checkpoint_id}, whose output may be visible already, so an older one is "
        "not used: its output would be written twice. Put the file back from a backup (or an older version of the "
        "object) and start the job again"
    )
    if older:
        advice += (
            f". To accept repeated output instead, start from checkpoint {older}: set "
            f"execution.state-recovery.path to {locate(older)}"
        )
    return advice
