"""TaskInput: the input of a subtask: records read by a source, or frames from other tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from holdfast.checkpoint.metadata import ListPart
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.base import ReaderContext
from holdfast.errors import UserCodeError
from holdfast.runtime.channels.channel_state import ChannelState
from holdfast.runtime.channels.channels import InputMerge
from holdfast.runtime.plan.event_time import deadlines, pieces
from holdfast.runtime.plan.operator import StateKind
from holdfast.runtime.plan.plan import SourceSpec, Vertex
from holdfast.runtime.plan.task_messages import EpochAssignment, JobSetup, TaskReport
from holdfast.runtime.records.frames import Frame
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.sorted_input import sorted_frames
from holdfast.runtime.records.spill import FrameStore
from holdfast.runtime.records.user_code import OperatorName
from holdfast.runtime.task.chain import Chain
from holdfast.runtime.task.keyed_states import KeyedStates
from holdfast.runtime.task.open_chain import TaskResources
from holdfast.runtime.task.split_merge import SplitMerge, with_location
from holdfast.runtime.task.time_slices import Slices

__all__ = ["ChannelInput", "InputEnd", "SourceInput", "TaskInput", "Tick"]

_LARGER = 8
"""Factor for the size of column batches: a call on one costs as much as on a few hundred records."""
_FRAME_MEMORY = 256 << 20
"""Frames of an epoch beyond this many bytes are kept on disk."""


Tick = Callable[[], None]
"""Advances processing time."""


class InputEnd(NamedTuple):
    """How a subtask's input ends in an epoch."""

    idle: bool
    """Whether no records are expected, so that the subtask does not hold back event time downstream."""
    held: bool = False
    """Whether records for a later epoch are held back here or upstream."""


class TaskInput(Protocol):
    """Feeds a chain with the input of each epoch."""

    def feed(self, assignment: EpochAssignment, frames: Iterable[bytes], tick: Tick, report: TaskReport) -> InputEnd:
        """Process the epoch's input: batches, late records and watermarks, in event-time order.

        Args:
            assignment: The epoch, with the ranges of a source.
            frames: The frames from other tasks.
            tick: Called before each batch.
            report: Gets the input's figures.

        Returns:
            How the input ends in this epoch.
        """

    @property
    def waits(self) -> bool:
        """Whether there is unprocessed input of earlier epochs."""

    def start_early(self, slices: Slices, tick: Tick, report: TaskReport) -> None:
        """Process input of earlier epochs, before the frames of the epoch arrive.

        Args:
            slices: Tells when to stop.
            tick: Called before each batch.
            report: Gets the input's figures.
        """

    def restore(self, channel_state: Sequence[ListPart]) -> None:
        """Restore the unprocessed input of the checkpoint's epochs."""

    def snapshot(self, new_path: Callable[[], str]) -> list[ListPart] | None:
        """Write the unprocessed input; None if there can be none."""

    def close(self) -> None:
        """Release connections."""


def _by_columns(vertex: Vertex) -> bool:
    """Whether a source's records stay columns until the end of its task, and in the next task."""
    taken = all(each.factory.by_columns for each in vertex.chain)
    return taken and all(channel.columns is not None for each in vertex.chain for channel in each.channels)


class SourceInput:
    """Reads the ranges of a source's splits into a chain. Keyed state stays within its memory bound between batches."""

    def __init__(
        self, setup: JobSetup, vertex: Vertex, source: SourceSpec, subtask: int, chain: Chain, keyed: KeyedStates
    ) -> None:
        self._plan = setup.plan
        self._vertex = vertex
        self._source = source
        self._chain = chain
        self._keyed = keyed
        batch_records = setup.plan.settings.batch_records
        self._batch_records = batch_records * _LARGER if _by_columns(vertex) else batch_records
        self._reader = source.source.create_reader(ReaderContext(setup.job, source.uid, subtask, vertex.parallelism))

    def feed(self, assignment: EpochAssignment, frames: Iterable[bytes], tick: Tick, report: TaskReport) -> InputEnd:
        """Read the epoch's ranges; see `TaskInput`."""
        source, chain = self._source, self._chain
        merge = SplitMerge(
            self._reader,
            assignment.sources[report.task],
            source.watermark_strategy,
            deadlines(self._plan, self._vertex, (0,), ()),
            assignment.processing_time,
            1 if assignment.trace else self._batch_records,
            OperatorName(source.name, source.uid),
            self._plan.settings.watermark_interval_ms,
        )
        process, bound = chain.process, self._keyed.bound
        location = ""
        chain.traced = assignment.trace
        if assignment.trace:
            chain.finish_pending()
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
                    chain.finish_pending()
                chain.advance_watermark(watermark)
                bound()
                del batch, timestamps  # free their memory for the next batch
        except UserCodeError as error:
            raise (with_location(error, location) if location else error) from error.__cause__
        chain.advance_watermark(merge.watermark)
        report.splits = merge.splits
        report.watermark = merge.watermark
        report.next_timer = merge.next_processing_time
        report.phases["read"] = merge.read_seconds
        return InputEnd(merge.idle)

    @property
    def waits(self) -> bool:
        """False: a source leaves no input unprocessed."""
        return False

    def start_early(self, slices: Slices, tick: Tick, report: TaskReport) -> None:
        """Do nothing: a source leaves no input unprocessed."""

    def restore(self, channel_state: Sequence[ListPart]) -> None:
        """Do nothing: `check_resumable` refuses channel state for a source."""
        assert not channel_state

    def snapshot(self, new_path: Callable[[], str]) -> list[ListPart] | None:
        """None: a source leaves no input unprocessed."""
        return None

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class ChannelInput:
    """Merges the channels from other tasks into a chain, until the epoch's deadline, if any.

    Args:
        setup: The job.
        vertex: The receiving vertex.
        subtask: The receiving subtask.
        chain: The subtask's operators.
        keyed: The subtask's keyed state, kept within its memory limit between frames.
        directory: A local directory for frames beyond the memory limit.
        resources: The resources of the process.
    """

    def __init__(
        self,
        setup: JobSetup,
        vertex: Vertex,
        subtask: int,
        chain: Chain,
        keyed: KeyedStates,
        directory: str,
        resources: TaskResources,
    ) -> None:
        self._plan = setup.plan
        self._vertex = vertex
        self._subtask = subtask
        self._chain = chain
        self._keyed = keyed
        self._directory = directory
        self._slices = resources.slices
        self._waiting = ChannelState(
            resources.storage,
            vertex,
            subtask,
            lambda: FrameStore(self._directory, _FRAME_MEMORY),
            setup.plan.settings.frame_records,
        )
        self._has_channel_state = setup.plan.settings.aligned_timeout_ms is not None

    def restore(self, channel_state: Sequence[ListPart]) -> None:
        """Restore the unprocessed input of the checkpoint's epochs."""
        self._has_channel_state = self._has_channel_state or bool(channel_state)
        self._waiting.restore(channel_state)

    def snapshot(self, new_path: Callable[[], str]) -> list[ListPart] | None:
        """Write the unprocessed input; see `TaskInput`."""
        return self._waiting.snapshot(new_path) if self._has_channel_state else None

    def feed(self, assignment: EpochAssignment, frames: Iterable[bytes], tick: Tick, report: TaskReport) -> InputEnd:
        """Process the epoch's frames, after the remaining frames of earlier epochs; see `TaskInput`."""
        chain, waiting = self._chain, self._waiting
        start = chain.clock.watermark
        merge = InputMerge.of(self._plan, self._vertex, self._subtask, start, self._directory, _FRAME_MEMORY)
        for frame in frames:
            merge.add(frame)
        report.seen = merge.verify(assignment.epoch)
        chain.traced = assignment.trace
        if assignment.trace:
            chain.finish_pending()
        behind, deadline = bool(waiting), assignment.deadlines.get(self._vertex.id)
        slices = None if deadline is None else self._slices(deadline.behind if behind else deadline.seconds)
        waiting.add(assignment.epoch, merge, chain.clock.watermark)
        if slices is None or not behind or self._in_rounds(slices, tick, report):
            self._in_order(assignment.trace, slices, tick, report)
        report.input_seconds = None if slices is None else slices.spent
        report.watermark = chain.clock.watermark
        if not waiting:
            return InputEnd(waiting.idle, waiting.held)
        if not behind:
            waiting.sort(chain.clock.watermark)
        report.input_waits, report.channel_state = True, waiting.size
        return InputEnd(idle=False, held=True)

    @property
    def waits(self) -> bool:
        """Whether there is unprocessed input of earlier epochs."""
        return bool(self._waiting)

    def start_early(self, slices: Slices, tick: Tick, report: TaskReport) -> None:
        """Process input of earlier epochs; see `TaskInput`."""
        if self._in_rounds(slices, tick, report):
            self._in_order(False, slices, tick, report)

    def _in_order(self, trace: bool, slices: Slices | None, tick: Tick, report: TaskReport) -> None:
        """Process waiting input, epoch by epoch, until the deadline."""
        waiting = self._waiting
        while waiting:
            merge = waiting.oldest(self._chain.clock.watermark)
            if not self._merged(merge, trace, slices, tick, report):
                return
            waiting.processed()

    def _merged(self, merge: InputMerge, trace: bool, slices: Slices | None, tick: Tick, report: TaskReport) -> bool:
        """Process the input of an epoch; False if the deadline stopped it."""
        chain, bound = self._chain, self._keyed.bound
        settings, received = self._plan.settings, merge.frames()
        if settings.batch and StateKind.KEYED in self._vertex.chain[0].factory.state:
            received = sorted_frames(received, self._directory, _FRAME_MEMORY, settings.frame_records)
        for content, index, watermark in received:
            tick()
            if content is not None:
                count = processed = len(content.values)
                if trace and content.locations is not None:
                    self._process_traced(content, content.locations, index)
                elif slices is None:
                    chain.process(content.batch(), index, content.late)
                else:
                    processed = self._process_slices(content, index, slices, tick)
                report.records_in += processed
                if processed < count:
                    merge.cut(processed)
                    return False
            chain.advance_watermark(watermark)
            bound()
        return True

    def _in_rounds(self, slices: Slices, tick: Tick, report: TaskReport) -> bool:
        """Process waiting records round by round, unless they advance event time; False if the deadline stopped it."""
        watermark, since, keys = self._chain.clock.watermark, 0, 0
        merge = self._waiting.in_rounds(watermark)
        while (taken := merge.take()) is not None:
            tick()
            if 2 * merge.keys < keys:
                slices.begin_small()  # the remaining keys may be slow ones
            keys = merge.keys
            records, index = taken
            processed = self._process_slices(records, index, slices, tick)
            merge.processed(processed)
            report.records_in += processed
            since += processed
            if since >= self._plan.settings.frame_records:
                since = 0
                self._keyed.bound()
            if processed < len(records.values):
                break
        self._keyed.bound()
        self._waiting.processed_in_rounds(watermark)
        return taken is None

    def _process_slices(self, frame: Frame, index: int, slices: Slices, tick: Tick) -> int:
        """Process the records of a frame until the deadline; returns the number of processed records."""
        done, count = 0, len(frame.values)
        while done < count and (size := slices.take(count - done)):
            part = frame if size == count else frame.part(done, done + size)
            self._chain.process(part.batch(), index, part.late)
            done += size
            tick()
        return done

    def _process_traced(self, frame: Frame, locations: list[str], index: int) -> None:
        """Process one element at a time, so that a failure names the origin of its record."""
        batch, chain = frame.batch(), self._chain
        watermarks = [each for first, end, each in pieces(len(batch.values), frame.late) for _ in range(first, end)]
        for position, (location, watermark) in enumerate(zip(locations, watermarks)):
            late = [(0, 1, watermark)] if watermark > MIN_TIMESTAMP else []
            for router in chain.routers:
                router.location = lambda: location  # noqa: B023  (called before the next one is set)
            try:
                chain.process(batch.part(position, position + 1), index, late)
                chain.finish_pending()
                if batch.keys is not None:
                    self._keyed.check(batch.keys[position])
            except UserCodeError as error:
                raise with_location(error, location) from error

    def close(self) -> None:
        """Drop the unprocessed input."""
        self._waiting.close()
