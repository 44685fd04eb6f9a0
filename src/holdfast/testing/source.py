"""TestSource: a source under a test's control, with instructions between its elements."""

from __future__ import annotations

import os
import tempfile
import threading
import time
import uuid
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from holdfast.checkpoint.ids import CheckpointId
from holdfast.common.time import Duration, Time, to_milliseconds
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange
from holdfast.errors import HoldfastError
from holdfast.runtime.driver.job import running_job
from holdfast.testing.clock import VirtualClock

__all__ = ["Abort", "Eof", "Pause", "TestSource"]

_SPLIT = "test"


class Eof:
    """Stop the job here; its next run goes on behind it."""

    def __repr__(self) -> str:
        return "TestSource.EOF"


@dataclass(frozen=True)
class Abort:
    """Fail here, once: the epoch and its output are lost, and the job restarts from its last checkpoint."""

    mark: Path = field(default_factory=lambda: Path(tempfile.gettempdir()) / f"holdfast-aborted-{uuid.uuid4().hex}")
    """A file that exists once the failure has happened."""

    def __post_init__(self) -> None:
        weakref.finalize(self, self.mark.unlink, missing_ok=True)

    def __repr__(self) -> str:
        return "TestSource.ABORT()"


@dataclass(frozen=True)
class Pause:
    """Read nothing for a span of processing time."""

    span: Time | Duration


_INSTRUCTIONS = (Eof, Abort, Pause)


class Aborted(HoldfastError):
    """The failure that an ABORT instruction causes."""


@dataclass(frozen=True)
class TestSource:
    """A bounded source of the given elements, in one split.

    Instructions may stand between the elements. An epoch never reads beyond one.

    - ``TestSource.EOF``: the job stops here, with a checkpoint of all before. The next run of the job goes on behind it.
    - ``TestSource.ABORT()``: the epoch that has read up to here fails, once. The job restarts from its last checkpoint.
    - ``TestSource.PAUSE(Time.seconds(10))``: no input for this long; with a `VirtualClock`, the clock moves on instead.

    Args:
        elements: The elements and instructions.
        timestamps: The timestamps of the elements in ms (instructions have none), for the watermark strategy.
        epoch: The largest number of elements in an epoch; None: as many as a job reads.
        clock: The clock of the environment, for pauses.

    Raises:
        ValueError: the number of timestamps is not that of the elements.

    Examples:
        >>> from holdfast.common import WatermarkStrategy
        >>> from holdfast.testing import InProcessEnvironment
        >>> env = InProcessEnvironment()
        >>> source = TestSource([1, 2, TestSource.ABORT(), 3])
        >>> numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
        >>> with numbers.key_by(lambda n: 0).sum().execute_and_collect() as results:
        ...     list(results)
        [1, 3, 6]
    """

    __test__ = False  # no test, whatever its name

    EOF: ClassVar[Eof] = Eof()
    ABORT: ClassVar[type[Abort]] = Abort
    PAUSE: ClassVar[type[Pause]] = Pause

    elements: Sequence[Any]
    timestamps: Sequence[int] | None = None
    epoch: int | None = None
    clock: VirtualClock | None = None

    def __post_init__(self) -> None:
        count = sum(not isinstance(each, _INSTRUCTIONS) for each in self.elements)
        if self.timestamps is not None and len(self.timestamps) != count:
            raise ValueError(f"TestSource got {count} elements and {len(self.timestamps)} timestamps")

    def __reduce__(self) -> tuple[Any, ...]:
        return TestSource, (list(self.elements), self.timestamps, self.epoch)  # the clock stays in the driver's process

    @property
    def bounded(self) -> bool:
        """True: the source ends with its elements."""
        return True

    def create_enumerator(self, job: JobInfo, uid: str) -> _Enumerator:
        """Create the enumerator, in the driver."""
        return _Enumerator(self, job)

    def create_reader(self, context: ReaderContext) -> _Reader:
        """Create a reader, in a task."""
        return _Reader(self)


class _Enumerator:
    """Plans the elements up to the next instruction. Positions count elements and instructions."""

    def __init__(self, source: TestSource, job: JobInfo) -> None:
        self._source = source
        self._job = job
        self._at = 0
        self._stops_at: int | None = None
        """The position behind the EOF at which the job stops."""
        self._until: float | None = None
        """The end of a pause, in seconds of the monotonic clock."""
        self._closed = threading.Event()

    def start(self, state: Any | None) -> None:
        """Go on behind the last planned element, or begin."""
        if state is not None:
            self._at = state

    def plan(self, max_records: int) -> EpochInput:
        """Plan the elements up to the next instruction; a pause has a plan of its own, without elements."""
        elements = self._source.elements
        if self._pausing() or self._stops_at is not None:
            return EpochInput()
        if self._at < len(elements) and isinstance(elements[self._at], Pause):
            self._pause(elements[self._at].span)
            self._at += 1
            return EpochInput(backlog=len(elements) - self._at)
        first = end = self._at
        most = min(max_records, self._source.epoch or max_records)
        while end < len(elements) and end - first < most and not isinstance(elements[end], _INSTRUCTIONS):
            end += 1
        self._at = end
        mark = ""
        following = elements[end] if end < len(elements) else None
        if isinstance(following, Abort):
            mark = str(following.mark)
            self._at += 1
        elif isinstance(following, Eof):
            self._at += 1
            self._stops_at = self._at
        finished = self._at >= len(elements) and self._stops_at is None
        part = SplitRange(_SPLIT, first, end, end - first, payload=mark, last=finished)
        return EpochInput((part,), len(elements) - self._at, finished=finished)

    def _pause(self, span: Time | Duration) -> None:
        if self._source.clock is not None:
            self._source.clock.advance(span)
        else:
            self._until = time.monotonic() + to_milliseconds(span) / 1000

    def _pausing(self) -> bool:
        if self._until is not None and time.monotonic() >= self._until:
            self._until = None
        return self._until is not None

    def snapshot(self) -> Any:
        """The position behind the last planned element."""
        return self._at

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Stop the job behind an EOF, once its checkpoint is complete."""
        if state == self._stops_at:
            job = running_job(self._job.job_id)
            if job is not None:
                job.cancel()

    def wait(self, timeout: float) -> None:
        """Wait for the end of a pause."""
        left = timeout if self._until is None else min(timeout, max(0.0, self._until - time.monotonic()))
        self._closed.wait(left)

    def close(self) -> None:
        """End a wait."""
        self._closed.set()


class _Reader:
    """Reads a range, and fails behind it if it is to."""

    def __init__(self, source: TestSource) -> None:
        self._elements = source.elements
        self._stamps = source.timestamps

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        """Read the elements of the range."""
        before = sum(not isinstance(each, _INSTRUCTIONS) for each in self._elements[: part.start])
        for at in range(part.start, part.end, max_batch):
            end = min(at + max_batch, part.end)
            number = before + at - part.start
            stamps = None if self._stamps is None else list(self._stamps[number : number + end - at])
            yield Batch(list(self._elements[at:end]), stamps, partial(_place, number))
        if part.payload:
            _abort_once(part.payload)

    def close(self) -> None:
        """Release nothing."""


def _place(first: int, i: int) -> str:
    return f"element {first + i} of the test source"


def _abort_once(mark: str) -> None:
    """Fail the first time, whichever process of this host reads the range."""
    try:
        os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    raise Aborted("TestSource.ABORT(): the epoch is lost, and the job restarts from its last checkpoint")
