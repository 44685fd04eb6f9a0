"""What every operator is: made in a task slot by its factory, fed batches, told of time and of the epoch's end."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP

if TYPE_CHECKING:
    from holdfast.runtime.context import OperatorContext

__all__ = ["MIN_TIMESTAMP", "MAX_TIMESTAMP", "Emit", "Operator", "OperatorFactory", "whole_timestamps"]


Emit = Callable[[list[Any], "list[int] | None"], None]
"""Takes a batch: values and their timestamps (None: no record has one)."""


def whole_timestamps(stamps: list[Any]) -> list[int]:
    """What a timestamp assigner returned, if all of it can be timestamps.

    Raises:
        TypeError: one is not a whole number of ms in 64 bits.
    """
    try:
        if type(sum(stamps)) is int and max(stamps, default=0) <= MAX_TIMESTAMP and min(stamps, default=0) >= MIN_TIMESTAMP:
            return stamps
    except TypeError:
        pass  # no numbers: one by one below, which tells the first that is wrong
    return [_whole_timestamp(stamp) for stamp in stamps]


def _whole_timestamp(stamp: Any) -> int:
    try:
        whole = operator.index(stamp)
    except TypeError:
        whole = MAX_TIMESTAMP + 1
    if not MIN_TIMESTAMP <= whole <= MAX_TIMESTAMP:
        raise TypeError(
            f"the timestamp assigner returned {stamp!r:.80}; a timestamp is a whole number, in ms since 1970, of 64 bits"
        )
    return whole


class Operator:
    """One operator instance in one subtask. It lives for many epochs; `open` and `close` frame its life."""

    context: OperatorContext

    def open(self) -> None:
        """Called once before the first batch; ``self.context`` is set."""

    def process(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None, input_index: int) -> None:
        """Take a batch. ``keys`` is given in a keyed vertex's first operator, else None."""
        raise NotImplementedError

    def advance_watermark(self, watermark: int) -> None:
        """Event time has reached ``watermark`` (rises strictly). Chained operators are told after this returns."""

    def advance_processing_time(self, now: int) -> None:
        """Processing time has reached ``now`` (ms since the epoch): fire the timers that are due."""

    def end_epoch(self) -> None:
        """The barrier: nothing more comes in this epoch. Emit what is held back, write state out."""

    def close(self) -> None:
        """The operator's life in this slot ends."""


class OperatorFactory:
    """Configuration and user functions of an operator; pickled into the plan."""

    makes_watermarks = False
    """Whether watermarks end here, and the operator makes others."""

    def create(self) -> Operator:
        """A fresh instance."""
        raise NotImplementedError

    def functions(self) -> Sequence[Any]:
        """The user's functions in it, for checks before the job starts."""
        return ()

    def deadline(self) -> Callable[[int], int] | None:
        """Timestamp of a record -> the watermark from which on it is late here; None: no record is ever late.

        It never falls as timestamps rise.
        """
        return None
