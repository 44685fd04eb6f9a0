"""A subtask: what runs in a task slot for one vertex, epoch after epoch."""

from __future__ import annotations

import gc
import logging
import os
import socket
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from holdfast.checkpoint.ids import LogPosition
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.metadata import KeyedHandle, SubtaskState
from holdfast.checkpoint.paths import JobPaths, new_attempt, safe_name
from holdfast.checkpoint.storage import NotFound, Storage
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.base import ReaderContext, SourceReader
from holdfast.errors import ConfigurationError, HoldfastError, UserCodeError
from holdfast.runtime.chain import Chain
from holdfast.runtime.channels import InputMerge
from holdfast.runtime.keyed_states import KeyedStates
from holdfast.runtime.lateness import deadlines, pieces
from holdfast.runtime.listed_states import ListedStates
from holdfast.runtime.operators.base import StateKind
from holdfast.runtime.plan import Vertex
from holdfast.runtime.processing_time import ProcessingTime
from holdfast.runtime.records import RecordBatch
from holdfast.runtime.redistribution import OperatorSnapshot, assigned, watermark_of
from holdfast.runtime.split_merge import SplitMerge, with_location
from holdfast.runtime.task_messages import EpochAssignment, JobSetup, TaskReport
from holdfast.runtime.user_code import OperatorName

__all__ = ["Subtask"]

log = logging.getLogger(__name__)

_FRAME_MEMORY = 256 << 20
"""Frames of an epoch beyond this many bytes wait on disk."""


class Subtask:
    """One subtask of one vertex. Operators, state and connections live as long as epochs follow each other here."""

    def __init__(
        self,
        load: Callable[[], JobSetup],
        vertex_id: int,
        subtask: int,
        storage: Storage,
        directory: str,
        uploads: ThreadPoolExecutor,
    ) -> None:
        """``load`` gives a copy of the job with user functions that nobody has used yet."""
        self._load = load
        self._setup = load()
        self._vertex = self._find(vertex_id)
        self._fresh = True
        """Whether the functions in `_vertex` are still unused."""
        self._subtask = subtask
        self._storage = storage
        self._paths = JobPaths.of(self._setup.job.job_name)
        self._root = directory
        self._directory = self._own(self._vertex.chain[0].uid)
        self._uploads = uploads
        self._chain: Chain | None = None
        self._keyed: KeyedStates | None = None
        self._lists: dict[str, ListedStates] = {}
        self._reader: SourceReader | None = None
        self._token = ""
        """Names the state in memory, which includes the last epoch run here."""
        self._send: Callable[[int, bytes], None] = lambda partition, frame: None
        self._watermark = MIN_TIMESTAMP
        self._time = ProcessingTime(0, lambda now: None)
        self._found_state: bool | None = None

    def _own(self, uid: str) -> str:
        """This subtask's directory for an operator."""
        return os.path.join(self._root, f"{safe_name(uid)}-{self._subtask}")

    def _find(self, vertex_id: int) -> Vertex:
        return next(vertex for vertex in self._setup.plan.vertices if vertex.id == vertex_id)

    def run(self, assignment: EpochAssignment, frames: Iterable[bytes], send: Callable[[int, bytes], None]) -> TaskReport:
        """Run the epoch: read the input, feed the operators, write the state; send frames, return the report.

        A failure is told in the report, not raised; whatever it left half done is thrown away before the next epoch.
        """
        started = time.perf_counter()
        task = (self._vertex.id, self._subtask)
        report = TaskReport(task, new_attempt())
        self._send = send
        try:
            self._run(assignment, frames, report)
        except Exception as error:
            log.debug("task %s failed", task, exc_info=True)
            report.error = _portable(error)
            self.close()
        report.busy_seconds = time.perf_counter() - started
        return report

    def _run(self, assignment: EpochAssignment, frames: Iterable[bytes], report: TaskReport) -> None:
        clock = time.perf_counter
        at = clock()
        chain = self._prepare(assignment)
        chain.metrics.drain()  # what an abandoned attempt counted does not count
        report.found_state = self._found_state
        report.phases["prepare"] = clock() - at
        late_before = chain.late_dropped
        written_before = chain.records_written
        chain.begin_epoch(assignment.epoch, report.attempt, assignment.committed)
        self._time = ProcessingTime(max(assignment.processing_time, self._time.reached), chain.advance_processing_time)
        at = clock()
        if self._vertex.source is not None:
            idle = self._read(assignment, chain, report)
        else:
            idle = self._receive(assignment, frames, chain, report)
        report.phases["process"] = clock() - at
        at = clock()
        self._time.tick()
        report.committables = chain.end_epoch(assignment.epoch, report.attempt, idle)
        report.processing_time = self._time.reached
        report.records_out = sum(router.records for router in chain.routers)
        report.records_written = chain.records_written - written_before
        report.phases["output"] = clock() - at
        at = clock()
        self._snapshot(assignment, chain, report)
        report.phases["state"] = clock() - at
        report.next_timer = chain.next_processing_time()
        report.late_dropped = chain.late_dropped - late_before
        report.user_metrics = chain.metrics.drain()
        report.warnings = dict(chain.warnings)

    # the epoch's input

    def _read(self, assignment: EpochAssignment, chain: Chain, report: TaskReport) -> bool:
        source = self._vertex.source
        assert source is not None
        assert self._reader is not None
        max_batch = 1 if assignment.trace else self._setup.plan.settings.batch_records
        merge = SplitMerge(
            self._reader,
            assignment.sources[report.task],
            source.watermark_strategy,
            deadlines(self._setup.plan, self._vertex, (0,), ()),
            assignment.processing_time,
            max_batch,
            OperatorName(source.name, source.uid),
        )
        process, tick = chain.process, self._time.tick
        location = ""
        if assignment.trace:
            for router in chain.routers:
                router.location = lambda: location
        try:
            for batch, timestamps, late, watermark in merge.batches():
                report.records_in += len(batch.values)
                if assignment.trace:
                    location = batch.locate(0)
                tick()
                process(RecordBatch(batch.values, timestamps), 0, late)
                self._advance(chain, watermark)
        except UserCodeError as error:
            raise (with_location(error, location) if location else error) from error.__cause__
        self._advance(chain, merge.watermark)
        report.splits = merge.splits
        report.watermark = merge.watermark
        report.phases["read"] = merge.read_seconds
        return merge.idle

    def _receive(self, assignment: EpochAssignment, frames: Iterable[bytes], chain: Chain, report: TaskReport) -> bool:
        plan = self._setup.plan
        merge = InputMerge(plan, self._vertex, self._subtask, self._watermark, self._directory, _FRAME_MEMORY)
        for frame in frames:
            merge.add(frame)
        report.seen = merge.verify(assignment.epoch)
        assert self._keyed is not None
        process, tick, bound = chain.process, self._time.tick, self._keyed.bound
        for content, index, watermark in merge.frames():
            tick()
            if content is not None:
                report.records_in += len(content.values)
                if assignment.trace and content.locations is not None:
                    self._process_traced(chain, content, index)
                else:
                    process(content.batch(), index, content.late)
            self._advance(chain, watermark)
            bound()
        report.watermark = self._watermark
        return merge.idle

    def _process_traced(self, chain: Chain, frame: Any, index: int) -> None:
        """Element by element, so that a failure can be told with its record's origin."""
        batch = frame.batch()
        watermarks = [each for first, end, each in pieces(len(batch.values), frame.late) for _ in range(first, end)]
        for position, (location, watermark) in enumerate(zip(frame.locations, watermarks)):
            late = [(0, 1, watermark)] if watermark > MIN_TIMESTAMP else []
            for router in chain.routers:
                router.location = lambda: location  # noqa: B023  (called before the next one is set)
            try:
                chain.process(batch.part(position, position + 1), index, late)
                if self._keyed is not None and batch.keys is not None:
                    self._keyed.check(batch.keys[position])
            except UserCodeError as error:
                raise with_location(error, location) from error

    def _advance(self, chain: Chain, watermark: int) -> None:
        if watermark > self._watermark:
            self._watermark = watermark
            chain.advance_watermark(watermark)

    # the subtask's life

    def _prepare(self, assignment: EpochAssignment) -> Chain:
        """Bring operators and state to the checkpoint that the epoch continues."""
        expected = assignment.tokens.get((self._vertex.id, self._subtask), "")
        if self._chain is not None and self._keyed is not None and self._token == expected:
            self._keyed.committed()
            self._found_state = True if expected and self._keyed.reused is not None else None
            return self._chain
        self.close()
        return self._start(assignment, expected)

    def _start(self, assignment: EpochAssignment, expected: str) -> Chain:
        if not self._fresh:
            if not gc.isenabled():
                gc.collect()  # in a slot, where nobody else looks through what is old: the abandoned state and its rows
            # The functions of an abandoned attempt may hold anything.
            self._setup = self._load()
            self._vertex = self._find(self._vertex.id)
        self._fresh = False
        setup, vertex = self._setup, self._vertex
        self._check_storage(setup.takeover)
        stored, watermark = self._stored(assignment, expected)
        keyed = self._keyed = KeyedStates(
            self._storage, self._paths, vertex, self._subtask, setup.plan.settings.state_backend, self._own, self._uploads
        )
        states = keyed.open(stored)
        self._found_state = keyed.reused if expected else None
        self._lists = {
            chained.uid: ListedStates(self._storage, stored.get(chained.uid))
            for chained in vertex.chain
            if StateKind.LISTED in chained.factory.state
        }

        def send(partition: int, frame: bytes) -> None:
            self._send(partition, frame)

        chain = Chain(setup, vertex, self._subtask, states, self._lists, send, assignment.restarts)
        self._chain = chain
        self._watermark = watermark
        chain.clock.watermark = self._watermark
        chain.open()
        keyed.replay()
        if expected:
            generators = {uid: snapshot.generator for uid, snapshot in stored.items() if snapshot.generator is not None}
            chain.resume(watermark, generators)
        if vertex.source is not None:
            context = ReaderContext(setup.job, vertex.source.uid, self._subtask, vertex.parallelism)
            self._reader = vertex.source.source.create_reader(context)
        self._token = expected
        return chain

    def _check_storage(self, takeover: LogPosition) -> None:
        """Make sure that this is the driver's storage before anything is written: each host has a disk of the same name."""
        if not takeover:
            return
        path = self._paths.log_entry(takeover)
        try:
            self._storage.get(path)
        except NotFound:
            raise ConfigurationError(
                f"{self._storage.locate(path)}, which the driver has written, is not there on host {socket.gethostname()}: "
                "execution.checkpointing.dir must be storage that the driver and all executors share, such as s3:// or the "
                "same mounted file system"
            ) from None

    def _stored(self, assignment: EpochAssignment, expected: str) -> tuple[dict[str, OperatorSnapshot], int]:
        """What the checkpoint has for this subtask, by the operators' uids; and the watermark that it goes on from."""
        if not expected:
            return {}, MIN_TIMESTAMP
        operators = read_checkpoint(self._storage, self._paths, assignment.base).operators
        vertex, subtask = self._vertex, self._subtask
        head = operators.get(vertex.chain[0].uid)
        stored = {
            chained.uid: assigned(operators[chained.uid], vertex.parallelism, subtask)
            for chained in vertex.chain
            if chained.uid in operators
        }
        return stored, MIN_TIMESTAMP if head is None else watermark_of(head, vertex.parallelism, subtask)

    def _snapshot(self, assignment: EpochAssignment, chain: Chain, report: TaskReport) -> None:
        assert self._keyed is not None
        keyed = self._keyed.snapshot(assignment.generation, assignment.epoch)
        generators = chain.snapshot_generators()
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
        report.state_rows = self._keyed.rows
        report.event_time = self._watermark
        self._token = report.attempt

    def close(self) -> None:
        """End the operators and close everything; what was not committed is forgotten."""
        chain, self._chain = self._chain, None
        reader, self._reader = self._reader, None
        keyed, self._keyed = self._keyed, None
        self._token = ""
        self._time = ProcessingTime(self._time.reached, lambda now: None)  # the old one holds the chain
        if chain is not None:
            for operator in chain.opened:
                _quietly("abort the epoch's output", operator.abort_epoch)
            _quietly("close the operators", chain.close)
        if reader is not None:
            _quietly("close the reader", reader.close)
        if keyed is not None:
            _quietly("close the local store", keyed.close)


def _quietly(what: str, action: Callable[[], None]) -> None:
    """Clean up after a failure: a second failure is logged, so that it does not hide the first."""
    try:
        action()
    except Exception:
        log.warning("could not %s", what, exc_info=True)


def _portable(error: Exception) -> BaseException:
    """The error in a form that can travel to the driver."""
    if isinstance(error, HoldfastError):
        return error
    return HoldfastError("".join(traceback.format_exception(error)).rstrip())
