"""The decisions of a driver that takes a job over, as functions of what it has read of the checkpoint log. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from holdfast.checkpoint.entries import FORMAT_VERSION, CheckpointRecord, Takeover
from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, LogPosition
from holdfast.errors import CorruptFile

__all__ = ["LogFacts", "after_takeover", "newest_intact", "next_takeover"]

_REMEMBERED = 1000
"""A driver that sleeps through more take-overs than this is no longer fenced by the record of its successor."""


@dataclass(frozen=True)
class LogFacts:
    """What the end of the log says."""

    tail: LogPosition
    """The last position; 0 if the log is empty."""
    generation: int
    """Of the driver that wrote the last entry; 0 if there is none."""
    owner: str
    """The driver that took over last; empty if there is none."""
    completed: tuple[CheckpointRecord, ...]
    """The retained checkpoints that a driver may go on from, the newest first."""
    takeovers: tuple[LogPosition, ...]
    """The positions of all take-overs."""
    requested: CheckpointId
    """The checkpoint that the user last asked to go back to; 0 for never."""


def next_takeover(facts: LogFacts, driver: str, now_ms: int) -> Takeover:
    """The record by which a driver takes over a log in this state."""
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
    )


def after_takeover(facts: LogFacts, record: Takeover) -> LogFacts:
    """The log's state once the record stands at its end."""
    position = LogPosition(facts.tail + 1)
    return replace(
        facts, tail=position, generation=record.generation, owner=record.driver, takeovers=(*record.takeovers, position)
    )


def newest_intact(
    completed: Sequence[CheckpointRecord],
    verify: Callable[[CheckpointRecord], object],
    locate: Callable[[CheckpointId], str],
) -> int:
    """The index of the newest checkpoint that can be restored without harm to the sinks.

    A damaged checkpoint may be passed over only if it had prepared no output: what it had prepared may be visible
    already, and going on from an older checkpoint would write it a second time.

    Args:
        completed: The candidates, the newest first; at least one.
        verify: Raises CorruptFile for a damaged one.
        locate: The full name of a position's log entry, for the message.

    Raises:
        CorruptFile: none; with the file's name and what to do.
    """
    first: CorruptFile | None = None
    for index, checkpoint in enumerate(completed):
        try:
            verify(checkpoint)
            return index
        except CorruptFile as error:
            first = first or error
            if checkpoint.committables:
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
