"""Clock: the event time and the processing time of one operator, and what is late or over by its event time.

Every operator has its own event time. It advances when a watermark is forwarded to the operator, after the preceding
operators have fired: their results come before the watermark that fired them. What an operator has fired is part of its
state, so its event time is stored with it (`EventTime`), by key group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from holdfast.common.formats.positions import picker, positions_by
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.metrics.stats import LateRecord
from holdfast.runtime.records.records import Emit, RecordBatch
from holdfast.state.keys.key_groups import key_grouper

__all__ = ["Clock", "EventTime", "GroupTime", "Passing"]

T = TypeVar("T")

GroupTime = tuple[int, int, int]
"""The first and last of a range of key groups, and the watermark up to which an operator has fired for them."""


@dataclass(frozen=True)
class EventTime:
    """The event time of an operator in one subtask, as a checkpoint holds it."""

    watermark: int = MIN_TIMESTAMP
    """Everything up to here has fired."""
    ahead: tuple[GroupTime, ...] = ()
    """Key groups that have fired further: before a rescaling they belonged to a subtask that was ahead."""


@dataclass
class Passing:
    """The records passing through those operators of a chain that share their watermarks."""

    late_by: int = MIN_TIMESTAMP
    """While late records pass, their own split's watermark; otherwise the minimum timestamp."""


class _Ahead:
    """The key groups whose event time is ahead of that of their operator in a subtask.

    >>> ahead = _Ahead([(0, 0, 70)], max_parallelism=1)
    >>> list(ahead.unfired([("k", 1)], 60)), list(ahead.unfired([("k", 1)], 71))
    ([], [('k', 1)])
    """

    def __init__(self, times: Sequence[GroupTime], max_parallelism: int) -> None:
        self.times = tuple(times)
        self._max_parallelism = max_parallelism
        self._groups_of = key_grouper(max_parallelism)
        self._watermarks = {group: watermark for first, last, watermark in times for group in range(first, last + 1)}

    def beyond(self, watermark: int) -> _Ahead | None:
        """The key groups that are ahead of a watermark; None without any."""
        times = [time for time in self.times if time[2] > watermark]
        if len(times) == len(self.times):
            return self
        return _Ahead(times, self._max_parallelism) if times else None

    def of(self, keys: Iterable[Any]) -> list[int]:
        """The event time of each key; the minimum timestamp for a key that is not ahead."""
        watermarks = self._watermarks
        return [watermarks.get(group, MIN_TIMESTAMP) for group in self._groups_of(list(keys))]

    def unfired(self, pairs: Iterable[tuple[Any, T]], time: int) -> Iterator[tuple[Any, T]]:
        """The pairs whose keys have not fired for this time."""
        listed = list(pairs)
        for pair, watermark in zip(listed, self.of(key for key, _ in listed)):
            if watermark < time:
                yield pair

    def parts(self, batch: RecordBatch) -> Iterator[tuple[int, RecordBatch]]:
        """Cut a batch by the event time of its keys; each key's elements keep their order."""
        assert batch.keys is not None
        keys, values = list(batch.keys), list(batch.values)
        stamps = None if batch.timestamps is None else list(batch.timestamps)
        for watermark, positions in positions_by(self.of(keys)).items():
            pick = picker(positions)
            timed = None if stamps is None else list(pick(stamps))
            yield watermark, RecordBatch(list(pick(values)), timed, list(pick(keys)))


@dataclass
class Clock:
    """The two times of an operator. They advance only between batches."""

    watermark: int = MIN_TIMESTAMP
    """Event time."""
    processing_time: int = 0
    late_dropped: int = 0
    late: list[LateRecord] = field(default_factory=list)
    """The first late records that were dropped in the epoch."""
    passing: Passing = field(default_factory=Passing)
    """The records that pass through the operator."""
    fired: int = MIN_TIMESTAMP
    """The watermark up to which the operator has fired for all keys. It lags behind event time during an advance."""
    ahead: _Ahead | None = None
    """The key groups that have fired further."""

    def restore(self, time: EventTime, max_parallelism: int) -> None:
        """Restore from a checkpoint."""
        self.watermark = self.fired = time.watermark
        self.ahead = _Ahead(time.ahead, max_parallelism) if time.ahead else None

    @property
    def event_time(self) -> EventTime:
        """Event time for the checkpoint."""
        return EventTime(self.watermark, () if self.ahead is None else self.ahead.times)

    def advance(self, watermark: int, fire: Callable[[int], None]) -> bool:
        """Advance event time, and fire what is due; False if it was reached before."""
        if watermark <= self.watermark:
            return False
        self.watermark = watermark
        fire(watermark)
        self.fired = watermark
        if self.ahead is not None:
            self.ahead = self.ahead.beyond(watermark)
        return True

    def reached(self, key: Any) -> int:
        """The event time of a key."""
        return self.watermark if self.ahead is None else max(self.watermark, *self.ahead.of((key,)))

    def unfired(self, pairs: Iterable[tuple[Any, T]], time: int) -> Iterable[tuple[Any, T]]:
        """The pairs whose keys have not fired for this time."""
        return pairs if self.ahead is None else self.ahead.unfired(pairs, time)

    def process_by_key(self, process: Emit, batch: RecordBatch) -> None:
        """Process each element at the event time of its key."""
        if self.ahead is None or batch.keys is None:
            process(batch)
            return
        reached = self.watermark
        try:
            for watermark, part in self.ahead.parts(batch):
                self.watermark = max(reached, watermark)
                process(part)
        finally:
            self.watermark = reached

    @property
    def passed(self) -> int:
        """The watermark that decides whether the current elements are late: the operator's, or that of their own split.

        Anything due up to this time is over for them: they are late for a window that is removed by then.
        """
        return max(self.watermark, self.passing.late_by)
