"""Dataflow: the operators of a small program in this process, through which every record passes at once.

Operators, routers, state backends and checkpoints are the job's own. Instead of epochs and Spark's shuffle there is a queue:
a frame with one record goes from task to task until nothing is left to do.
"""

from __future__ import annotations

import pickle
import tempfile
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.paths import new_attempt
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.common.values.pickling import dumps_program
from holdfast.connectors.base import JobInfo
from holdfast.runtime.channels.channels import Router, first_partition, receivers
from holdfast.runtime.plan.event_time import combined
from holdfast.runtime.plan.operator import Operator
from holdfast.runtime.plan.plan import Channel, JobPlan, Vertex
from holdfast.runtime.plan.task_messages import JobSetup, OperatorReport, TaskId, TaskReport
from holdfast.runtime.protocol.completion import operator_states
from holdfast.runtime.protocol.resumption import check_resumable
from holdfast.runtime.records.frames import DATA, HEADER_SIZE, decode_data, unpack_header
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.task.open_chain import OpenChain, TaskResources, restored
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.testing.memory_store import MemoryStore
from holdfast.testing.recorder import Recorder, SideOutputs

__all__ = ["Dataflow", "HarnessSnapshot"]


@dataclass(frozen=True)
class HarnessSnapshot:
    """A checkpoint of a harness; another harness of the same program starts from it, at any parallelism."""

    checkpoint: CheckpointMetadata
    storage: Storage


class Dataflow:
    """The open tasks of a program.

    Args:
        plan: The program; its sources are never read.
        recorder: Gets the side outputs that the program does not read.
        snapshot: The state to start from; None to start without state.

    Raises:
        IncompatibleState: the program cannot resume from the snapshot.
    """

    def __init__(self, plan: JobPlan, recorder: Recorder, snapshot: HarnessSnapshot | None = None) -> None:
        self.plan = replace(plan, settings=replace(plan.settings, frame_records=1))
        self._storage = snapshot.storage if snapshot is not None else Storage(MemoryStore())
        self._epoch = Epoch(snapshot.checkpoint.checkpoint_id if snapshot is not None else 0)
        self._queue: deque[bytes] = deque()
        self._attempt = new_attempt()
        operators = {}
        self._base = None if snapshot is None else snapshot.checkpoint
        if snapshot is not None:
            self.plan = check_resumable(self.plan, snapshot.checkpoint)
            operators = snapshot.checkpoint.operators
        stored = dumps_program(JobSetup(self.plan, JobInfo("harness", plan.name, 1, None), "harness"))
        self.tasks: dict[TaskId, OpenChain] = {}
        self.vertices: dict[int, Vertex] = {vertex.id: vertex for vertex in self.plan.vertices}
        self._channels = {
            channel.id: channel for vertex in self.plan.vertices for chained in vertex.chain for channel in chained.channels
        }
        with ExitStack() as stack:
            directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-harness-"))
            uploads = stack.enter_context(ThreadPoolExecutor(1))
            resources = TaskResources(self._storage, directory, uploads)
            for task in ((vertex.id, n) for vertex in self.plan.vertices for n in range(vertex.parallelism)):
                setup: JobSetup = pickle.loads(stored)  # each subtask has functions of its own
                vertex = next(vertex for vertex in setup.plan.vertices if vertex.id == task[0])
                state = restored(self.plan, operators, vertex, task[1]) if snapshot is not None else None
                opened = OpenChain(setup, vertex, task[1], resources, state, lambda _, frame: self._queue.append(frame))
                stack.callback(opened.close)
                for operator in opened.chain.opened:
                    operator.context.side_outputs = SideOutputs(operator.context.side_outputs, recorder)
                self.tasks[task] = opened
            self._closing = stack.pop_all()
        self._begin()

    def _begin(self) -> None:
        self._epoch = Epoch(self._epoch + 1)
        for task in self.tasks.values():
            task.chain.begin_epoch(self._epoch, self._attempt, CheckpointId(self._epoch - 1))
        self._pass_on_everything()

    def process(self, vertex: int, value: Any, timestamp: int | None) -> None:
        """Process a record of a source, and all that follows from it."""
        chain = self.tasks[(vertex, 0)].chain
        watermark = chain.clock.watermark
        late = [(0, 1, watermark)] if timestamp is not None and MIN_TIMESTAMP < timestamp <= watermark else []
        chain.process(RecordBatch([value], None if timestamp is None else [timestamp]), 0, late)
        self._pass_on_everything()

    def advance_watermark(self, vertex: int, watermark: int) -> None:
        """Advance the event time of a source, and all that follows from it."""
        self.tasks[(vertex, 0)].chain.advance_watermark(watermark)
        self._pass_on_everything()

    def advance_processing_time(self, now: int) -> None:
        """Advance processing time everywhere."""
        for task in self.tasks.values():
            task.chain.advance_processing_time(now)
        self._pass_on_everything()

    def _pass_on_everything(self) -> None:
        """Pass frames and watermarks on, and wait for answers to requests, until nothing is left to do."""
        self._deliver()
        for vertex in sorted(self.plan.vertices, key=lambda each: each.level):
            for subtask in range(vertex.parallelism):
                chain = self.tasks[(vertex.id, subtask)].chain
                if vertex.source is None:
                    chain.advance_watermark(self._watermark(vertex, subtask))
                chain.finish_pending()
                self._deliver()

    def _deliver(self) -> None:
        while self._queue:
            frame = self._queue.popleft()
            header = unpack_header(frame)
            if header.kind == DATA:
                content = decode_data(memoryview(frame)[HEADER_SIZE:])
                channel = self._channels[header.channel]
                subtask = header.partition - first_partition(self.plan, self.vertices[channel.target])
                chain = self.tasks[(channel.target, subtask)].chain
                chain.process(content.batch(), channel.input_index, content.late)

    def _watermark(self, vertex: Vertex, subtask: int) -> int:
        """The watermark of a task: the minimum over its senders."""
        return combined(
            (router.watermark, router.idle)
            for sender in self.plan.vertices
            for n in range(sender.parallelism)
            for channel, router in self._outgoing(sender, n)
            if channel.target == vertex.id
            and subtask in receivers(channel.partitioning, n, sender.parallelism, vertex.parallelism)
        )

    def _outgoing(self, vertex: Vertex, subtask: int) -> Iterator[tuple[Channel, Router]]:
        channels = [channel for chained in vertex.chain for channel in chained.channels]
        return zip(channels, self.tasks[(vertex.id, subtask)].chain.routers, strict=True)

    def snapshot(self) -> HarnessSnapshot:
        """Take a checkpoint; the next epoch begins."""
        reports = []
        for vertex in sorted(self.plan.vertices, key=lambda each: each.level):
            for subtask in range(vertex.parallelism):
                task = self.tasks[(vertex.id, subtask)]
                task.chain.end_epoch(self._epoch, self._attempt, False)
                self._deliver()
        self._pass_on_everything()
        for (vertex_id, subtask), task in self.tasks.items():
            report = TaskReport((vertex_id, subtask), self._attempt, event_times=task.chain.event_times)
            report.state = {uid: OperatorReport.whole(state) for uid, state in task.snapshot(1, self._epoch).items()}
            task.keyed.completed()
            reports.append(report)
        checkpoint = CheckpointMetadata(
            checkpoint_id=CheckpointId(self._epoch),
            generation=1,
            job_id="harness",
            job_name=self.plan.name,
            created_at=0,
            operators=operator_states(self.plan, reports, self._base),
        )
        self._base = checkpoint
        self._begin()
        return HarnessSnapshot(checkpoint, self._storage)

    def operators(self) -> Iterator[tuple[Operator, KeyedState | None]]:
        """The open operators with their keyed state, subtask by subtask."""
        for task in self.tasks.values():
            for operator in task.chain.opened:
                yield operator, task.states.get(operator.context.uid)

    def close(self) -> None:
        """Close the operators, and remove local state."""
        self._closing.close()
