"""Lateness: which elements of a function are late, by the watermark of their own split."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.runtime.operators.keyed import KeyedProcess
from holdfast.runtime.records.records import RecordBatch

__all__ = ["Lateness", "TimedProcess"]


class Lateness:
    """Judges the elements of a function by the watermark."""

    def __init__(self) -> None:
        self.late_by = MIN_TIMESTAMP
        """The watermark that decides which elements are late: that of their own split just before them."""
        self.dropped: tuple[list[Any], list[int]] = ([], [])
        """The late elements that the operator has not counted yet, and their timestamps."""

    def passed(self, stamp: int, allowed: int) -> bool:
        """Whether an element is later than it is allowed to be, in ms."""
        return stamp + allowed <= self.late_by

    def drop(self, value: Any, stamp: int) -> None:
        """Count an element as late."""
        self.dropped[0].append(value)
        self.dropped[1].append(stamp)

    def drops(self, value: Any, stamp: int, allowed: int) -> bool:
        """Whether an element is too late; it is counted then."""
        late = self.passed(stamp, allowed)
        if late:
            self.drop(value, stamp)
        return late


class TimedProcess(KeyedProcess):
    """Calls a function that needs timestamps, and tells it which elements are late. It keeps a `Lateness`."""

    needing = "a versioned table"
    """What needs the timestamps, for the error."""

    def process_by(self, function: Callable[[Any, Any], Any], batch: RecordBatch) -> None:
        """Call a method of the function with each element, and count the late ones."""
        self.check_timed(batch)
        lateness = self.function.lateness
        lateness.late_by = self.context.clock.passed
        super().process_by(function, batch)
        if lateness.dropped[0]:
            self.context.emit_late(None, *lateness.dropped)
            lateness.dropped = ([], [])

    def check_timed(self, batch: RecordBatch) -> None:
        """Check that all elements have timestamps.

        Raises:
            UserCodeError: one has none.
        """
        if (at := batch.untimed()) is not None:
            assert batch.keys is not None
            told = ValueError(f"the element has no timestamp, which {self.needing} needs: assign timestamps before it")
            raise self.fail(told, batch.values[at], batch.keys[at])
