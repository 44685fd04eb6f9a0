"""OpenSubtask: the operators of a subtask, opened with the state of a checkpoint."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.ids import LogPosition
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.metadata import KeyedHandle, SubtaskState
from holdfast.checkpoint.paths import JobPaths, new_attempt, safe_name
from holdfast.checkpoint.storage import NotFound, Storage
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.errors import ConfigurationError
from holdfast.runtime.chain import Chain
from holdfast.runtime.channels import Send
from holdfast.runtime.keyed_states import KeyedStates
from holdfast.runtime.listed_states import ListedStates
from holdfast.runtime.operators.base import StateKind
from holdfast.runtime.plan import Vertex
from holdfast.runtime.processing_time import ProcessingTime
from holdfast.runtime.redistribution import OperatorSnapshot, assigned, watermark_of
from holdfast.runtime.task_input import ChannelInput, SourceInput, TaskInput
from holdfast.runtime.task_messages import EpochAssignment, JobSetup, TaskReport

__all__ = ["OpenSubtask", "TaskResources"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskResources:
    """What the subtasks of a process share."""

    storage: Storage
    """The checkpoint storage."""
    directory: str
    """The job's local directory for state."""
    uploads: ThreadPoolExecutor
    """Runs background uploads."""


class OpenSubtask:
    """Operators, state and input of a subtask, restored from the checkpoint that an epoch continues.

    Args:
        setup: The job, with functions that have not been used yet.
        vertex: The subtask's vertex, out of ``setup``.
        subtask: Its number.
        resources: Of the process that it runs in.
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
        self._send: Send = lambda partition, frame: None
        self._check_storage(setup.takeover)
        restores = bool(assignment.tokens.get((vertex.id, subtask)))
        stored, watermark = self._stored(assignment) if restores else ({}, MIN_TIMESTAMP)
        with ExitStack() as stack:
            self._keyed = KeyedStates(
                resources.storage,
                self._paths,
                vertex,
                subtask,
                setup.plan.settings.state_backend,
                self._directory,
                resources.uploads,
            )
            stack.callback(_quietly, "close the local store", self._keyed.close)
            states = self._keyed.open(stored)
            self._lists = {
                chained.uid: ListedStates(resources.storage, stored.get(chained.uid))
                for chained in vertex.chain
                if StateKind.LISTED in chained.factory.state
            }
            self._chain = Chain(
                setup,
                vertex,
                subtask,
                states,
                self._lists,
                lambda partition, frame: self._send(partition, frame),
                assignment.restarts,
            )
            stack.callback(_quietly, "close the operators", self._chain.close)
            stack.callback(self._abort_epoch)
            self._chain.clock.watermark = watermark
            self._chain.open()
            self._keyed.replay()
            if restores:
                generators = {uid: each.generator for uid, each in stored.items() if each.generator is not None}
                self._chain.resume(watermark, generators)
            self._input = self._open_input(setup)
            stack.callback(_quietly, "close the reader", self._input.close)
            self._closing = stack.pop_all()
        self._found_state = self._keyed.reused if restores else None
        self._time = ProcessingTime(0, lambda now: None)

    def _directory(self, uid: str) -> str:
        """This subtask's local directory for an operator."""
        return os.path.join(self._resources.directory, f"{safe_name(uid)}-{self._subtask}")

    def _check_storage(self, takeover: LogPosition) -> None:
        """Refuse a storage that is not the driver's before anything is written: each host has a disk of the same name."""
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

    def _stored(self, assignment: EpochAssignment) -> tuple[dict[str, OperatorSnapshot], int]:
        """The state that the checkpoint has for this subtask, by operator uid, and its watermark."""
        operators = read_checkpoint(self._resources.storage, self._paths, assignment.base).operators
        vertex, subtask = self._vertex, self._subtask
        head = operators.get(vertex.chain[0].uid)
        stored = {
            chained.uid: assigned(operators[chained.uid], vertex.parallelism, subtask)
            for chained in vertex.chain
            if chained.uid in operators
        }
        return stored, MIN_TIMESTAMP if head is None else watermark_of(head, vertex.parallelism, subtask)

    def _open_input(self, setup: JobSetup) -> TaskInput:
        vertex = self._vertex
        if vertex.source is not None:
            return SourceInput(setup, vertex, vertex.source, self._subtask, self._chain)
        return ChannelInput(setup, vertex, self._subtask, self._chain, self._keyed, self._directory(vertex.chain[0].uid))

    def completed(self) -> None:
        """The epoch that was run last is complete."""
        self._keyed.committed()
        if self._keyed.reused is not None:
            self._found_state = True

    def run(
        self, assignment: EpochAssignment, frames: Iterable[bytes], send: Send, earliest: int, report: TaskReport
    ) -> None:
        """Run the epoch: process its input up to the barrier, write the state, and fill in the report.

        Args:
            assignment: The epoch.
            frames: The frames from other tasks.
            send: Takes the frames for other tasks.
            earliest: The processing time that the subtask has reached before, in ms.
            report: Gets the results and figures.
        """
        clock = time.perf_counter
        chain = self._chain
        self._send = send
        report.found_state = self._found_state
        chain.metrics.drain()  # the counts of an abandoned attempt
        late_before = chain.late_dropped
        written_before = chain.records_written
        chain.begin_epoch(assignment.epoch, report.attempt, assignment.committed)
        now = self._time = ProcessingTime(max(assignment.processing_time, earliest), chain.advance_processing_time)
        at = clock()
        idle = self._input.feed(assignment, frames, now.tick, report)
        report.phases["process"] = clock() - at
        at = clock()
        now.tick()
        report.committables = chain.end_epoch(assignment.epoch, report.attempt, idle)
        report.processing_time = now.reached
        report.records_out = sum(router.records for router in chain.routers)
        report.records_written = chain.records_written - written_before
        report.phases["output"] = clock() - at
        at = clock()
        self._snapshot(assignment, report)
        report.phases["state"] = clock() - at
        report.next_timer = chain.next_processing_time()
        report.late_dropped = chain.late_dropped - late_before
        report.user_metrics = chain.metrics.drain()
        report.warnings = dict(chain.warnings)

    @property
    def processing_time(self) -> int:
        """The processing time that the latest epoch has reached, in ms."""
        return self._time.reached

    def _snapshot(self, assignment: EpochAssignment, report: TaskReport) -> None:
        keyed = self._keyed.snapshot(assignment.generation, assignment.epoch)
        generators = self._chain.snapshot_generators()
        for uid in {**keyed, **self._lists, **generators}:
            handles: list[KeyedHandle] = []
            schemas: dict[str, Any] = {}
            if uid in keyed:
                handles, schema = keyed[uid]
                schemas = {schema.fingerprint: schema.plain()}

            def new_path(uid: str = uid) -> str:
                return self._paths.state_file(
                    assignment.generation, assignment.epoch, uid, self._subtask, new_attempt(), "list"
                )

            lists, listed = self._lists[uid].snapshot(new_path) if uid in self._lists else ({}, {})
            state = SubtaskState(handles, lists)
            report.state[uid] = OperatorSnapshot(state, schemas, listed, generators.get(uid))
        report.delta_bytes = self._keyed.delta_bytes
        report.uploading = self._keyed.uploading
        report.event_time = self._chain.clock.watermark

    def _abort_epoch(self) -> None:
        for operator in self._chain.opened:
            _quietly("abort the epoch's output", operator.abort_epoch)

    def close(self) -> None:
        """Abort the epoch's output and close everything; uncommitted state is dropped."""
        self._closing.close()


def _quietly(what: str, action: Callable[[], None]) -> None:
    """Clean up; a failure is logged and does not hide the one before."""
    try:
        action()
    except Exception:
        log.warning("could not %s", what, exc_info=True)
