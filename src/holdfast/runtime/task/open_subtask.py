"""OpenSubtask: a subtask's open operators and their input, epoch after epoch."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, LogPosition
from holdfast.checkpoint.layers import subtask_change
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.metadata import SubtaskState
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import NotFound
from holdfast.errors import ConfigurationError
from holdfast.runtime.channels.channels import Send
from holdfast.runtime.plan.plan import JobPlan, Vertex
from holdfast.runtime.plan.redistribution import OperatorSnapshot
from holdfast.runtime.plan.task_messages import EpochAssignment, JobSetup, OperatorReport, TaskReport
from holdfast.runtime.protocol.completion import committables_of
from holdfast.runtime.records.samples import EdgeSample
from holdfast.runtime.task.keyed_states import KeyedStates, KeyedSubtask
from holdfast.runtime.task.open_chain import OpenChain, RestoredSubtask, TaskResources, quietly, restored
from holdfast.runtime.task.processing_time import ProcessingTime
from holdfast.runtime.task.task_input import ChannelInput, SourceInput, TaskInput
from holdfast.runtime.task.time_slices import Slices

__all__ = ["OpenSubtask"]


class OpenSubtask:
    """Operators, state and input of a subtask, restored from the checkpoint that an epoch continues.

    Args:
        setup: The job, with functions that have not been used yet.
        vertex: The subtask's vertex, from ``setup``.
        subtask: The subtask's number.
        resources: The resources of the process.
        assignment: The first epoch that it will run.

    Raises:
        ConfigurationError: the storage is not the driver's.
    """

    def __init__(
        self, setup: JobSetup, vertex: Vertex, subtask: int, resources: TaskResources, assignment: EpochAssignment
    ) -> None:
        self._vertex = vertex
        self._subtask = subtask
        self._resources = resources
        self._paths = JobPaths.of(setup.job.job_name)
        self._head = vertex.chain[0].uid
        self._batch = setup.plan.settings.batch
        self._send: Send = lambda partition, frame: None
        self._reported: dict[str, tuple[SubtaskState, int]] = {}
        """The states in the last report, and the sizes of their files, by uid."""
        self._check_storage(setup.takeover)
        restores = bool(assignment.tokens.get((vertex.id, subtask)))
        state = self._restored(setup.plan, assignment) if restores else None
        channel_state = () if state is None else state.channel_state
        with ExitStack() as stack:
            opened = self._opened = OpenChain(
                setup,
                vertex,
                subtask,
                resources,
                state,
                lambda partition, frame: self._send(partition, frame),
                assignment.restarts,
                self._early(assignment.base if restores else NO_CHECKPOINT),
            )
            stack.callback(opened.close)
            self._chain, self._keyed = opened.chain, opened.keyed
            self._input = self._open_input(setup)
            stack.callback(quietly, "close the reader", self._input.close)
            self._input.restore(channel_state)
            self._closing = stack.pop_all()
        self._found_state = self._keyed.reused if restores else None
        self._time = ProcessingTime(0, lambda now: None)
        self._samples: dict[int, EdgeSample] = {}
        self._before = (0, 0)
        """The chain's dropped and written records before the epoch."""

    def _check_storage(self, takeover: LogPosition) -> None:
        """Refuse a storage that is not the driver's before writing to it: a path may exist on each host's own disk."""
        if not takeover:
            return
        path = self._paths.log_entry(takeover)
        storage = self._resources.storage
        try:
            storage.get(path)
        except NotFound:
            raise ConfigurationError(
                f"{storage.locate(path)}, which the driver has written, is not there on host {socket.gethostname()}: "
                "execution.checkpointing.dir must be storage that the driver and all executors share, such as s3:// or the "
                "same mounted file system"
            ) from None

    def _restored(self, plan: JobPlan, assignment: EpochAssignment) -> RestoredSubtask:
        """The subtask's state in the checkpoint."""
        checkpoint = read_checkpoint(self._resources.storage, self._paths, assignment.base)
        found = restored(plan, checkpoint.operators, self._vertex, self._subtask)
        return found if assignment.committed >= assignment.base else replace(found, uncommitted=committables_of(checkpoint))

    def _early(self, checkpoint: CheckpointId) -> KeyedStates | None:
        early = self._resources.early
        return None if early is None else early.take(KeyedSubtask.of(self._vertex, self._subtask), checkpoint)

    def _open_input(self, setup: JobSetup) -> TaskInput:
        vertex = self._vertex
        if vertex.source is not None:
            return SourceInput(setup, vertex, vertex.source, self._subtask, self._chain, self._keyed)
        return ChannelInput(
            setup,
            vertex,
            self._subtask,
            self._chain,
            self._keyed,
            self._keyed.directory(vertex.chain[0].uid),
            self._resources,
        )

    @property
    def running(self) -> str:
        """The name of the running operator; empty if none runs. Thread-safe."""
        return self._chain.running

    def completed(self) -> None:
        """The last epoch is complete."""
        self._keyed.completed()
        if self._keyed.reused is not None:
            self._found_state = True

    def begin(self, assignment: EpochAssignment, send: Send, earliest: int, report: TaskReport) -> None:
        """Start an epoch.

        Args:
            assignment: The epoch.
            send: Takes the frames for other tasks.
            earliest: The processing time that the subtask has already reached, in ms.
            report: Gets the results and figures.
        """
        chain = self._chain
        self._send = send
        report.found_state = self._found_state
        chain.drain_seconds()
        chain.drain_late()
        self._samples = self._begin_samples(assignment)
        self._before = chain.late_dropped, chain.records_written
        self._keyed.begin_epoch(assignment.epoch, assignment.committed)
        chain.begin_epoch(assignment.epoch, report.attempt, assignment.committed, assignment.asked)
        began = max(assignment.processing_time, earliest)
        self._time = ProcessingTime(began, chain.advance_processing_time, self._resources.seconds, assignment.speed)
        self._time.tick()

    @property
    def has_channel_state(self) -> bool:
        """Whether it has input of earlier epochs."""
        return self._input.waits

    def start_early(self, slices: Slices, report: TaskReport) -> None:
        """Process channel state in the current epoch, before its frames arrive; see `TaskInput`."""
        at = time.perf_counter()
        self._time.tick()
        self._input.start_early(slices, self._time.tick, report)
        report.phases["early"] = report.phases.get("early", 0.0) + time.perf_counter() - at

    def send_to(self, send: Send, frames: Iterable[tuple[int, bytes]]) -> None:
        """Send the frames of a task that started early; ``send`` takes later ones."""
        self._send = send
        for partition, frame in frames:
            send(partition, frame)

    def run(self, assignment: EpochAssignment, frames: Iterable[bytes], report: TaskReport) -> None:
        """Run the current epoch: process its input up to the barrier, write the state, and fill in the report.

        Args:
            assignment: The epoch.
            frames: The frames from other tasks.
            report: Gets the results and figures.
        """
        clock = time.perf_counter
        chain, now = self._chain, self._time
        late_before, written_before = self._before
        at = clock()
        now.tick()
        end = self._input.feed(assignment, frames, _stand_still if self._batch else now.tick, report)
        report.phases["process"] = clock() - at
        at = clock()
        now.tick()
        report.committables = chain.end_epoch(assignment.epoch, report.attempt, *end)
        report.processing_time = now.reached
        report.records_out = sum(router.records for router in chain.routers)
        report.records_written = chain.records_written - written_before
        report.phases["output"] = clock() - at
        at = clock()
        if not self._batch:  # in BATCH mode, state ends with the input
            self._snapshot(assignment, report)
        report.phases["state"] = clock() - at
        timers = (report.next_timer, chain.next_processing_time())
        report.next_timer = min((timer for timer in timers if timer is not None), default=None)
        report.late_dropped = chain.late_dropped - late_before
        report.late = chain.drain_late()
        report.samples = {target: sample.packed() for target, sample in self._samples.items()}
        report.user_metrics = chain.metrics.drain()
        report.operator_seconds = chain.drain_seconds()
        report.warnings = dict(chain.warnings)

    def _begin_samples(self, assignment: EpochAssignment) -> dict[int, EdgeSample]:
        """Start the output samples that the epoch's assignment asks for; returns them by receiving vertex."""
        samples: dict[int, EdgeSample] = {}
        for router in self._chain.routers:
            wanted = (self._vertex.id, router.target) in assignment.sampled
            router.sample = samples.setdefault(router.target, EdgeSample()) if wanted else None
        return samples

    @property
    def processing_time(self) -> int:
        """The processing time that the latest epoch has reached, in ms."""
        return self._time.reached

    def _snapshot(self, assignment: EpochAssignment, report: TaskReport) -> None:
        snapshots = self._opened.snapshot(assignment.generation, assignment.epoch)
        waiting = self._input.snapshot(
            partial(self._opened.new_path, assignment.generation, assignment.epoch, self._head, "channel")
        )
        if waiting is not None:
            snapshots[self._head] = snapshots.get(self._head, OperatorSnapshot()).with_channel_state(waiting)
        for uid, snapshot in snapshots.items():
            before, size = self._reported.get(uid, (None, 0))
            change = subtask_change(before, snapshot.state)
            replaced = change is not None and change.state is not None
            added = {file.path: file.size for file in (() if change is None else change.contents())}
            size = sum(added.values(), 0 if replaced else size)
            self._reported[uid] = snapshot.state, size
            schemas = snapshot.schemas if replaced else {}
            report.state[uid] = OperatorReport(change, schemas, snapshot.listed, snapshot.generator, size)
        report.committables += self._keyed.prepare_commit()
        report.delta_bytes = self._keyed.delta_bytes
        report.uploading = self._keyed.uploading
        report.event_times = self._chain.event_times

    def close(self) -> None:
        """Abort the epoch's output and close everything; uncommitted state is dropped."""
        self._closing.close()


def _stand_still() -> None:
    """Do nothing: in BATCH mode, processing time does not advance before the end of the input."""
