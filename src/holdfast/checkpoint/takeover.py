"""The decisions of a take-over, as functions of the checkpoint log's content. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.checkpoint.entries import FORMAT_VERSION, CheckpointRecord, Takeover
from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, LogPosition
from holdfast.checkpoint.metadata import has_output
from holdfast.errors import CorruptFile

__all__ = ["LogFacts", "after_takeover", "newest_intact", "next_takeover"]

_REMEMBERED = 1000
"""A driver that sleeps through more take-overs than this is no longer fenced by its successor's record."""


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
    """The checkpoint of the user's last request to go back; 0: never requested."""
    savepoint: str = ""
    """The savepoint from which the job last started; empty: none."""
    job: str = ""
    """The identity of the job (`Takeover.job`); empty: no take-over has it yet."""


def next_takeover(facts: LogFacts, driver: str, now_ms: int) -> Takeover:
    """The record with which a driver takes over a log in this state."""
    ids = [checkpoint.checkpoint_id for checkpoint in facts.completed]
    return Takeover(
        format_version=FORMAT_VERSION,
        generation=facts.generation + 1,
        driver=driver,
        restored=max(ids, default=NO_CHECKPOINT),
        oldest=min(ids, default=NO_CHECKPOINT),
        takeovers=list(facts.takeovers[-_REMEMBERED:]),
        requested=facts.requested,
        created_at=now_ms,
        savepoint=facts.savepoint,
        job=facts.job or driver,
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
