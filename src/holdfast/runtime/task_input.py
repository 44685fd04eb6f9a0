"""TaskInput, the input of a subtask: records that a source reads, or frames from other tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.base import ReaderContext
from holdfast.errors import UserCodeError
from holdfast.runtime.chain import Chain
from holdfast.runtime.channels import InputMerge
from holdfast.runtime.event_time import deadlines, pieces
from holdfast.runtime.frames import Frame
from holdfast.runtime.keyed_states import KeyedStates
from holdfast.runtime.operators.base import StateKind
from holdfast.runtime.plan import SourceSpec, Vertex
from holdfast.runtime.records import RecordBatch
from holdfast.runtime.sorted_input import sorted_frames
from holdfast.runtime.split_merge import SplitMerge, with_location
from holdfast.runtime.task_messages import EpochAssignment, JobSetup, TaskReport
from holdfast.runtime.user_code import OperatorName

__all__ = ["ChannelInput", "SourceInput", "TaskInput", "Tick"]

_FRAME_MEMORY = 256 << 20
"""Frames of an epoch beyond this many bytes wait on disk."""


Tick = Callable[[], None]
"""Moves processing time."""


class TaskInput(Protocol):
    """Feeds a chain with the input of each epoch."""

    def feed(self, assignment: EpochAssignment, frames: Iterable[bytes], tick: Tick, report: TaskReport) -> bool:
        """Process the epoch's input: batches, late records and watermarks, in event-time order.

        Args:
            assignment: The epoch, with the ranges of a source.
            frames: The frames from other tasks.
            tick: Called before each batch.
            report: Where the input's figures go.

        Returns:
            Whether the input is idle, and so does not hold back the watermark further on.
        """

    def close(self) -> None:
        """Release connections."""


class SourceInput:
    """Reads the ranges of a source's splits into a chain."""

    def __init__(self, setup: JobSetup, vertex: Vertex, source: SourceSpec, subtask: int, chain: Chain) -> None:
        self._plan = setup.plan
        self._vertex = vertex
        self._source = source
        self._chain = chain
        self._reader = source.source.create_reader(ReaderContext(setup.job, source.uid, subtask, vertex.parallelism))

    def feed(self, assignment: EpochAssignment, frames: Iterable[bytes], tick: Tick, report: TaskReport) -> bool:
        """Read the epoch's ranges; see `TaskInput`."""
        source, chain = self._source, self._chain
        merge = SplitMerge(
            self._reader,
            assignment.sources[report.task],
            source.watermark_strategy,
            deadlines(self._plan, self._vertex, (0,), ()),
            assignment.processing_time,
            1 if assignment.trace else self._plan.settings.batch_records,
            OperatorName(source.name, source.uid),
            self._plan.settings.watermark_interval_ms,
        )
        process = chain.process
        location = ""
        if assignment.trace:
            chain.settle()
            for router in chain.routers:
                router.location = lambda: location
        try:
            for batch, timestamps, late, watermark in merge.batches():
                report.records_in += len(batch.values)
                if assignment.trace:
                    location = batch.locate(0)
                tick()
                process(RecordBatch(batch.values, timestamps), 0, late)
                if assignment.trace:
                    chain.settle()
                chain.advance_watermark(watermark)
        except UserCodeError as error:
            raise (with_location(error, location) if location else error) from error.__cause__
        chain.advance_watermark(merge.watermark)
        report.splits = merge.splits
        report.watermark = merge.watermark
        report.next_timer = merge.next_processing_time
        report.phases["read"] = merge.read_seconds
        return merge.idle

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class ChannelInput:
    """Merges the channels from other tasks into a chain.

    Args:
        setup: The job.
        vertex: The receiving vertex.
        subtask: The receiving subtask.
        chain: Its operators.
        keyed: Its keyed state, kept within its memory bound between frames.
        directory: A local directory for frames beyond the memory bound.
    """

    def __init__(
        self, setup: JobSetup, vertex: Vertex, subtask: int, chain: Chain, keyed: KeyedStates, directory: str
    ) -> None:
        self._plan = setup.plan
        self._vertex = vertex
        self._subtask = subtask
        self._chain = chain
        self._keyed = keyed
        self._directory = directory

    def feed(self, assignment: EpochAssignment, frames: Iterable[bytes], tick: Tick, report: TaskReport) -> bool:
        """Process the epoch's frames; see `TaskInput`."""
        chain = self._chain
        start = chain.clock.watermark
        merge = InputMerge(self._plan, self._vertex, self._subtask, start, self._directory, _FRAME_MEMORY)
        for frame in frames:
            merge.add(frame)
        report.seen = merge.verify(assignment.epoch)
        if assignment.trace:
            chain.settle()
        process, bound = chain.process, self._keyed.bound
        settings, received = self._plan.settings, merge.frames()
        if settings.batch and StateKind.KEYED in self._vertex.chain[0].factory.state:
            received = sorted_frames(received, self._directory, _FRAME_MEMORY, settings.frame_records)
        for content, index, watermark in received:
            tick()
            if content is not None:
                report.records_in += len(content.values)
                if assignment.trace and content.locations is not None:
                    self._process_traced(content, content.locations, index)
                else:
                    process(content.batch(), index, content.late)
            chain.advance_watermark(watermark)
            bound()
        report.watermark = chain.clock.watermark
        return merge.idle

    def _process_traced(self, frame: Frame, locations: list[str], index: int) -> None:
        """Process element by element, so that a failure names the origin of its record."""
        batch, chain = frame.batch(), self._chain
        watermarks = [each for first, end, each in pieces(len(batch.values), frame.late) for _ in range(first, end)]
        for position, (location, watermark) in enumerate(zip(locations, watermarks)):
            late = [(0, 1, watermark)] if watermark > MIN_TIMESTAMP else []
            for router in chain.routers:
                router.location = lambda: location  # noqa: B023  (called before the next one is set)
            try:
                chain.process(batch.part(position, position + 1), index, late)
                chain.settle()
                if batch.keys is not None:
                    self._keyed.check(batch.keys[position])
            except UserCodeError as error:
                raise with_location(error, location) from error

    def close(self) -> None:
        """Nothing to release."""
