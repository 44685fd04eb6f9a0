"""Operator: the contract between the runtime and the processing of records, and its factory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Flag, auto
from typing import Any

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.connectors.base import Sink
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.records.records import RecordBatch

__all__ = ["Operator", "OperatorFactory", "StateKind"]


class StateKind(Flag):
    """The kinds of state that an operator keeps in checkpoints, at any position of a chain."""

    NONE = 0
    KEYED = auto()
    """Rows and timers by key, in ``context.state``."""
    LISTED = auto()
    """Non-keyed lists, in ``context.lists``."""


class Operator:
    """One operator in one subtask. It lives for many epochs, from `open` to `close`.

    The runtime calls the methods of an operator one at a time, in this order::

        open, restore_generator?, (begin_epoch, (process | advance_...)*, end_epoch, prepare_commit)*, close

    A failed epoch ends in `abort_epoch` and `close`; a new operator takes its place.
    """

    context: OperatorContext
    """Set before `open`."""
    records_written = 0
    """Records given to a sink since the operator was opened."""

    def open(self) -> None:
        """Open the operator before its first batch, and declare its keyed state and timers."""

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        """The methods that process the batches of each input."""
        return (self.process,)

    def process(self, batch: RecordBatch) -> None:
        """Process a batch. With keyed state, the batch has keys."""
        raise NotImplementedError

    def advance_watermark(self, watermark: int) -> None:
        """Advance event time to ``watermark``, which increases strictly. Downstream operators advance after this returns."""

    def advance_processing_time(self, now: int) -> None:
        """Advance processing time to ``now`` (ms since 1970, never decreasing): fire the timers and windows that are due."""

    def next_processing_time(self) -> int | None:
        """The next processing time at which the operator has work; None without one."""
        return None

    def take_idle(self, idle: bool, held: bool) -> None:
        """Take the state of the input at the barrier, before `end_epoch`; only for operators that make or hold watermarks.

        Args:
            idle: Whether no records are expected, so that the input does not hold back event time.
            held: Whether upstream tasks or operators hold back records, which will come in a later epoch.
        """

    def finish_pending(self) -> None:
        """Finish the work on all records so far. Called after each record of a traced run."""

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Start an epoch: its number, this attempt, and the last checkpoint whose output is committed."""

    def end_epoch(self) -> None:
        """Handle the barrier at the end of the epoch's input: emit buffered records."""

    def prepare_commit(self) -> Sequence[Any]:
        """Prepare the epoch's output; returns plain data for the committer. Called after `end_epoch` of the whole chain."""
        return ()

    def abort_epoch(self) -> None:
        """Drop the output of the failed epoch."""

    def snapshot_generator(self) -> Any:
        """The state of a watermark generator at the barrier, as plain data; None for other operators."""
        return None

    def restore_generator(self, stored: Any) -> None:
        """Restore the data of `snapshot_generator`, after `open`."""

    def close(self) -> None:
        """Close the operator."""


class OperatorFactory:
    """Creates an operator from its configuration and functions, and says what it needs. Pickled in the plan."""

    state = StateKind.NONE
    makes_watermarks = False
    """Whether the operator generates watermarks and drops those of its input."""
    holds_watermarks = False
    """Whether the operator forwards the watermarks of its input itself, once the records before them are emitted."""
    passes_timestamps = False
    """Whether every emitted record has the timestamp of an input record."""
    needs_timestamps = False
    """Whether every record must have a timestamp."""
    first_input: int | None = None
    """The input that is read to its end before the others; None: all inputs are read together."""
    by_columns = False
    """Whether the operator takes columns as they are, so that a record costs little."""

    @property
    def written_sink(self) -> Sink | None:
        """The sink that the operator writes to; None for other operators."""
        return None

    def create(self) -> Operator:
        """Create an operator."""
        raise NotImplementedError

    def in_batch(self) -> OperatorFactory:
        """The factory for a job in BATCH mode."""
        return self

    def definition(self) -> dict[str, Any] | None:
        """What the stored state depends on besides its schema, as plain data for the checkpoint; None: nothing.

        ``of`` says, for messages, what has the state: another kind of operator cannot continue with it.
        """
        return None

    def continuing(self, stored: Mapping[str, Any]) -> OperatorFactory:
        """The factory that continues with state stored by another definition.

        Raises:
            IncompatibleState: it cannot; the message says what has changed.
        """
        return self

    def functions(self) -> Sequence[Any]:
        """The user's functions, for checks before the job starts."""
        return ()

    def deadline(self) -> Callable[[int], int] | None:
        """Maps a record's timestamp to the first watermark that makes the record late; monotonic.

        None for an operator that drops no late records.
        """
        return None
