"""Chain: the operators of a vertex in one subtask, connected to each other and to the outgoing channels."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast import compiled
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.metadata import plain_copy
from holdfast.common.formats.columns import columns_of
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.batches import Misfit, fitted
from holdfast.connectors.base import Committable
from holdfast.metrics.stats import LateRecord
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.channels.channels import Router, Send
from holdfast.runtime.host.local_directory import host_name
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.plan.event_time import Run, deadlines, pieces, steps
from holdfast.runtime.plan.listed_states import ListedStates
from holdfast.runtime.plan.operator import Operator, OperatorFactory, StateKind
from holdfast.runtime.plan.plan import Chained, ChainEdge, Vertex
from holdfast.runtime.plan.task_messages import SENDING, JobSetup
from holdfast.runtime.records.copies import Copy, copied, same
from holdfast.runtime.records.getters import getter
from holdfast.runtime.records.owned_keys import OwnedKeys
from holdfast.runtime.records.records import Emit, RecordBatch, select_keys
from holdfast.runtime.records.user_code import OperatorName, user_error
from holdfast.runtime.task.stopwatch import Stopwatch
from holdfast.runtime.time.clock import Clock, EventTime, Passing
from holdfast.state.rows.keyed_state import KeyedState

__all__ = ["Chain"]


class _Node:
    """An operator with its successors."""

    def __init__(
        self,
        operator: Operator,
        factory: OperatorFactory,
        passing: Passing,
        batch: bool,
        stopwatch: Stopwatch,
        position: int,
    ) -> None:
        """``passing``: the records given to the operator, with their lateness."""
        self.operator = operator
        self.advance_operator: Callable[[int], None] = stopwatch.timed(position, operator.advance_watermark)
        self.advance_processing_time: Callable[[int], None] = stopwatch.timed(position, operator.advance_processing_time)
        self.batch = batch
        self.makes_watermarks = factory.makes_watermarks
        self.holds_watermarks = factory.holds_watermarks
        self.clock = Clock(passing=passing)
        # After an operator that generates or holds watermarks, records are late by its own watermarks.
        self.emitted = Passing() if self.makes_watermarks or self.holds_watermarks else passing
        self.children: list[_Node] = []
        self.routers: list[Router] = []
        self.is_keyed = StateKind.KEYED in factory.state
        self.by_steps = False
        """Whether a window downstream may end at the time of one of its results, and so without that result."""
        self.fires = False
        """Whether it is advancing in event time at the moment."""

    def _fire(self, watermark: int) -> None:
        self.fires = True
        self.advance_operator(watermark)
        self.fires = False

    def emitting(self, emit: Emit) -> Emit:
        """Emit the results of an advance as if event time had reached each of their times in turn, if that matters.

        How far event time advances at once depends on the cut of the input. Whether a session ends before such a result must
        not.
        """
        if not self.by_steps:
            return emit

        def emit_each(batch: RecordBatch) -> None:
            stamps = batch.timestamps
            if not self.fires or stamps is None:
                emit(batch)
                return
            for first, end, self.emitted.late_by in steps(stamps):
                emit(batch.part(first, end))
            self.emitted.late_by = MIN_TIMESTAMP

        return emit_each

    def advance(self, watermark: int) -> None:
        """Advance event time to ``watermark``, if it has not been reached: in the operator, then in its successors."""
        if not self.clock.advance(watermark, self._fire):
            return
        if self.batch and watermark == MAX_TIMESTAMP:
            self.advance_processing_time(MAX_TIMESTAMP + 1)  # processing time ends with the input, its last ms included
        if not (self.makes_watermarks or self.holds_watermarks):
            self.forward(watermark)

    def forward(self, watermark: int) -> None:
        for child in self.children:
            child.advance(watermark)
        self.sent(watermark)

    def sent(self, watermark: int) -> None:
        """Set the watermark after all records that leave the chain here."""
        for router in self.routers:
            router.watermark = max(router.watermark, watermark)

    def take_idle(self, idle: bool, held: bool) -> None:
        """Tell the operator whether its input is idle, if it decides about its output; otherwise tell its successors."""
        if self.makes_watermarks or self.holds_watermarks:
            self.operator.take_idle(idle, held)
        else:
            self.forward_idle(idle, held)

    def forward_idle(self, idle: bool, held: bool) -> None:
        for router in self.routers:
            router.idle, router.held = idle, held
        for child in self.children:
            child.take_idle(idle, held)


def _fan_out(outputs: list[Emit], copied: Copy) -> Emit:
    *others, last = outputs
    if not others:
        return last

    def emit(batch: RecordBatch) -> None:
        # Each output gets its own elements: a change by one must not show in the others.
        columns = columns_of(batch.values)
        for output in others:
            if columns is not None:
                values = columns.fresh().as_list()
            else:
                values = list(batch.values) if copied is same else list(map(copied, batch.values))
            output(RecordBatch(values, batch.timestamps))
        last(batch)

    return emit


def _typed(chained: Chained, declared: TypeInformation | None, emit: Emit) -> Emit:
    """Wrap ``emit``: convert the output of the operator's function to its declared type, or fail."""
    if declared is None:
        return emit

    def emit_typed(batch: RecordBatch) -> None:
        values = batch.values
        columns = columns_of(values)
        if columns is not None and columns.fits(declared):
            emit(batch)
            return
        try:
            fitting = fitted(declared, values)
        except Misfit as error:
            refusal = TypeError(f"a result does not fit the declared type {declared!r}: {error}")
            raise user_error(refusal, chained.name, chained.uid, values[error.position]) from error
        emit(batch if fitting is values else RecordBatch(fitting, batch.timestamps))

    return emit_typed


def _by_key(node: _Node, process: Emit) -> Emit:
    """Process each element at the event time of its key: after a restore, keys may be ahead of their operator."""
    if node.clock.ahead is None:
        return process
    return partial(node.clock.process_by_key, process)


def _into(node: _Node, edge: ChainEdge, sender: OperatorName, traced: Callable[[], bool]) -> Emit:
    """The receiver of an edge in the chain, after the edge's key selector.

    ``traced``: whether to check the changes of each element, so that a failure names its record.
    """
    operator, select, declared = node.operator, edge.key_selector, edge.key_type
    if select is None:
        return operator.process
    context = operator.context
    process = _by_key(node, operator.process)
    read = getter(select)
    owned = OwnedKeys(context.max_parallelism, context.parallelism, context.subtask, sender)

    def process_keyed(batch: RecordBatch) -> None:
        keys = select_keys(select, declared, batch.values, sender, read)
        owned.check(keys, batch.values)
        process(RecordBatch(batch.values, batch.timestamps, keys))
        if traced() and context.state is not None:
            for key in keys:
                context.state.check(key)

    return process_keyed


def _of_plain_python() -> dict[str, str]:
    """The warning, by subject, that this process uses no compiled modules although plain Python was not requested."""
    if compiled.IN_USE or os.environ.get(compiled.PURE):
        return {}
    host = host_name()
    text = f"plain Python runs on host {host} in place of compiled modules, which need less processor time"
    return {f"plain Python on {host}": f"{text}: {compiled.use.reason}"}


class Chain:
    """The operators of one subtask. The first, the head, receives the input of the vertex."""

    def __init__(
        self,
        setup: JobSetup,
        vertex: Vertex,
        subtask: int,
        states: Mapping[str, KeyedState],
        lists: Mapping[str, ListedStates],
        send: Send,
        attempt: int,
        times: Mapping[str, EventTime],
    ) -> None:
        """``states``, ``lists`` and ``times``: the keyed and listed state, and the event time, of the operators by uid."""
        plan = setup.plan
        self.metrics = MetricGroup()
        self.warnings: dict[str, str] = _of_plain_python()
        """Warnings for the user, by subject."""
        self._uids = [*(chained.uid for chained in vertex.chain), SENDING]
        self._stopwatch = stopwatch = Stopwatch(len(self._uids))
        self.traced = False
        """Whether the epoch is traced: batches have one element, and its changes of state are checked."""
        self._nodes: list[_Node] = []
        self.routers: list[Router] = []
        copies = same if plan.settings.object_reuse else copied
        passing = {0: Passing()}
        for position, chained in enumerate(vertex.chain):
            operator = chained.factory.create()
            makes_watermarks = chained.factory.makes_watermarks
            node = _Node(operator, chained.factory, passing[position], plan.settings.batch, stopwatch, position)
            node.clock.restore(times.get(chained.uid, EventTime()), vertex.max_parallelism)
            behind = ([edge.target for edge in chained.edges], [channel.target for channel in chained.channels])
            decided = deadlines(plan, vertex, *behind) if makes_watermarks or node.is_keyed else ()
            operator.context = OperatorContext(
                job=setup.job,
                uid=chained.uid,
                name=chained.name,
                subtask=subtask,
                parallelism=vertex.parallelism,
                max_parallelism=vertex.max_parallelism,
                clock=node.clock,
                state=states.get(chained.uid),
                key_type=chained.restored_key_type,
                lists=lists.get(chained.uid),
                metrics=self.metrics.add_group(chained.name),
                job_parameters=plan.settings.job_parameters,
                attempt=attempt,
                copied=copies,
                deadlines=decided if makes_watermarks else (),
                watermark_interval=plan.settings.watermark_interval_ms,
                emitted=node.emitted,
                forward_watermark=node.forward,
                forward_idle=node.forward_idle,
                warnings=self.warnings,
            )
            node.by_steps = node.is_keyed and any(deadline(0) < 0 for deadline in decided)
            self._nodes.append(node)
            for edge in chained.edges:
                passing[edge.target] = node.emitted
            sender = OperatorName(chained.name, chained.uid)
            for channel in chained.channels:
                node.routers.append(Router(plan, vertex, channel, subtask, send, sender, node.emitted))
        for node, chained in zip(self._nodes, vertex.chain):
            node.children = [self._nodes[edge.target] for edge in chained.edges]
            main: list[Emit] = []
            side: dict[str, list[Emit]] = {}
            for edge in chained.edges:
                outputs = main if edge.side_output is None else side.setdefault(edge.side_output, [])
                sender = OperatorName(chained.name, chained.uid)
                into = _into(self._nodes[edge.target], edge, sender, lambda: self.traced)
                outputs.append(stopwatch.timed(edge.target, into))
            for channel, router in zip(chained.channels, node.routers):
                outputs = main if channel.side_output is None else side.setdefault(channel.side_output, [])
                outputs.append(stopwatch.timed(len(vertex.chain), router.process))
            if main:
                node.operator.context.emit = node.emitting(_typed(chained, chained.output_type, _fan_out(main, copies)))
            node.operator.context.side_outputs = {
                tag: node.emitting(_typed(chained, chained.side_types.get(tag), _fan_out(outputs, copies)))
                for tag, outputs in side.items()
            }
            self.routers.extend(node.routers)
        self._head = self._nodes[0]
        self.clock = self._head.clock
        """The head's clock."""
        self._inputs = [stopwatch.timed(0, _by_key(self._head, process)) for process in self._head.operator.inputs()]
        self._operators = [node.operator for node in self._nodes]
        self._clocks = [node.clock for node in self._nodes]
        self._opened = 0

    def open(self) -> None:
        """Open the operators, the last of the chain first, as Flink does."""
        for operator in reversed(self._operators):
            self._opened += 1
            operator.open()

    def close(self) -> None:
        """Close the operators that were opened, the head first."""
        opened = self.opened
        self._opened = 0
        for operator in opened:
            operator.close()

    def process(self, batch: RecordBatch, index: int = 0, late: Sequence[Run] = ()) -> None:
        """Process a batch of an input of the vertex; runs of late records are processed separately, in order."""
        process, passing = self._inputs[index], self.clock.passing
        if not late:
            process(batch)
            return
        for first, end, passing.late_by in pieces(len(batch.values), late):
            process(batch.part(first, end))
        passing.late_by = MIN_TIMESTAMP

    def resume(self, stored: Mapping[str, Any]) -> None:
        """Restore the state of watermark generators by uid, and the watermarks that have left the chain."""
        for node in self._nodes:
            state = stored.get(node.operator.context.uid)
            if state is not None:
                node.operator.restore_generator(state)
                node.sent(state["emitted"])
            elif not (node.makes_watermarks or node.holds_watermarks):
                node.sent(node.clock.watermark)

    @property
    def event_times(self) -> dict[str, EventTime]:
        """The event time of the operators, by uid."""
        return {node.operator.context.uid: node.clock.event_time for node in self._nodes}

    def snapshot_generators(self) -> dict[str, Any]:
        """The state of the watermark generators, by uid."""
        states = {operator.context.uid: operator.snapshot_generator() for operator in self._operators}
        return {uid: state for uid, state in states.items() if state is not None}

    def advance_watermark(self, watermark: int) -> None:
        """Advance event time to ``watermark``; no effect if it is not later."""
        self._head.advance(watermark)

    def advance_processing_time(self, now: int) -> None:
        """Advance processing time to ``now``."""
        for clock in self._clocks:
            clock.processing_time = now
        for node in self._nodes:
            node.advance_processing_time(now)

    def finish_pending(self) -> None:
        """Finish the work on all records so far."""
        for operator in self._operators:
            operator.finish_pending()

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId, asked: int | None = None) -> None:
        """Start an epoch.

        Args:
            epoch: The epoch.
            attempt: The attempt at it.
            committed: The last checkpoint whose output is committed.
            asked: When the sources were last asked for input; see `EpochAssignment`.
        """
        for router in self.routers:
            router.begin()
        for operator in self._operators:
            operator.context.asked = asked
            operator.begin_epoch(epoch, attempt, committed)

    def end_epoch(self, epoch: Epoch, attempt: str, idle: bool, held: bool = False) -> list[Committable]:
        """Handle the barrier; returns the epoch's prepared output. ``idle``, ``held``: see `Operator.take_idle`."""
        self._head.take_idle(idle, held)
        for position, operator in enumerate(self._operators):
            self._stopwatch.timed(position, operator.end_epoch)()
        for router in self.routers:
            router.end(epoch, attempt)
        return [
            Committable(uid, operator.context.subtask, plain_copy(data, f"a committable of the sink with uid {uid!r}"))
            for position, (uid, operator) in enumerate(zip(self._uids, self._operators))
            for data in self._stopwatch.timed(position, operator.prepare_commit)()
        ]

    @property
    def running(self) -> str:
        """The name of the operator that is running; empty if none is. Thread-safe."""
        position = self._stopwatch.running
        return self._operators[position].context.name if position < len(self._operators) else ""

    def drain_seconds(self) -> dict[str, float]:
        """The seconds that each operator took since the last call, by uid; those of its outputs under `SENDING`."""
        return dict(zip(self._uids, self._stopwatch.drain()))

    @property
    def opened(self) -> list[Operator]:
        """The open operators, the head first."""
        return self._operators[len(self._operators) - self._opened :]

    def next_processing_time(self) -> int | None:
        """The next processing time at which an operator has work; None without one."""
        times = [operator.next_processing_time() for operator in self._operators]
        return min((time for time in times if time is not None), default=None)

    @property
    def records_written(self) -> int:
        """Records given to sinks so far."""
        return sum(operator.records_written for operator in self._operators)

    @property
    def late_dropped(self) -> int:
        """Late records dropped so far."""
        return sum(clock.late_dropped for clock in self._clocks)

    def drain_late(self) -> list[LateRecord]:
        """Some of the late records dropped since the last call."""
        drained: list[LateRecord] = []
        for clock in self._clocks:
            drained += clock.late
            clock.late = []
        return drained
