"""Operator, the contract between the runtime and everything that works on records, and the factory that makes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Flag, auto
from typing import Any

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.connectors.base import Sink
from holdfast.runtime.context import OperatorContext
from holdfast.runtime.records import RecordBatch

__all__ = ["Operator", "OperatorFactory", "StateKind"]


class StateKind(Flag):
    """What state an operator keeps in checkpoints, at any position of a chain."""

    NONE = 0
    KEYED = auto()
    """Rows and timers by key, in ``context.state``."""
    LISTED = auto()
    """Lists that belong to no key, in ``context.lists``."""


class Operator:
    """One operator in one subtask. It lives for many epochs; `open` and `close` frame its life.

    The runtime calls the methods of an operator one at a time, in this order::

        open, restore_generator?, (begin_epoch, (process | advance_...)*, end_epoch, prepare_commit)*, close

    A failed epoch ends in `abort_epoch` and `close`; a new operator takes its place.
    """

    context: OperatorContext
    """Set before `open`."""
    records_written = 0
    """Records given to a sink since the operator was opened."""

    def open(self) -> None:
        """Called once before the first batch. Keyed state and timers are declared here."""

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        """What takes the batches of each input, by the input's number; an operator with two inputs has two."""
        return (self.process,)

    def process(self, batch: RecordBatch) -> None:
        """Take a batch. An operator with keyed state gets the keys with it."""
        raise NotImplementedError

    def advance_watermark(self, watermark: int) -> None:
        """Event time has reached ``watermark`` (rises strictly). Chained operators learn it after this returns."""

    def advance_processing_time(self, now: int) -> None:
        """Processing time has reached ``now`` (ms since 1970; never falls): fire what is due."""

    def next_processing_time(self) -> int | None:
        """The processing time at which the operator next has something to do; None: at no known time."""
        return None

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """An epoch starts: its number, the name of this attempt at it, and the last epoch whose output is committed."""

    def end_epoch(self) -> None:
        """The barrier: nothing more comes in this epoch. Emit what is held back."""

    def prepare_commit(self) -> Sequence[Any]:
        """The epoch's output as plain data for the committer; `end_epoch` has been called on the whole chain."""
        return ()

    def abort_epoch(self) -> None:
        """The epoch has failed: throw its output away."""

    def snapshot_generator(self) -> Any:
        """The state of an operator that makes watermarks, at the barrier: plain data; None for all others."""
        return None

    def restore_generator(self, stored: Any) -> None:
        """Go on from the data of `snapshot_generator`, after `open`."""

    def close(self) -> None:
        """The operator's life in this slot ends."""


class OperatorFactory:
    """Configuration and user functions of an operator; pickled into the plan. It says what the runtime must provide."""

    state = StateKind.NONE
    makes_watermarks = False
    """Whether watermarks end here, and the operator makes others."""
    passes_timestamps = False
    """Whether all that it emits has the timestamp of a record that it takes."""
    needs_timestamps = False
    """Whether every record must have a timestamp."""

    @property
    def written_sink(self) -> Sink | None:
        """The sink that the operator writes to, if it is the end of a stream."""
        return None

    def create(self) -> Operator:
        """A fresh operator."""
        raise NotImplementedError

    def functions(self) -> Sequence[Any]:
        """The user's functions in it, for checks before the job starts."""
        return ()

    def deadline(self) -> Callable[[int], int] | None:
        """Timestamp of a record -> the watermark from which on it is late here; None: no record is ever late.

        It never falls as timestamps rise.
        """
        return None
