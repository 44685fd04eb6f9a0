"""A vertex's operators in one subtask, wired to each other and to the channels that leave the vertex."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import length_hint
from typing import Any

from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.metrics.user import MetricGroup
from holdfast.runtime.channels import Router, Send
from holdfast.runtime.context import Clock, OperatorContext
from holdfast.runtime.copies import Copy, copied, same
from holdfast.runtime.lateness import Run, deadlines, pieces
from holdfast.runtime.operators.base import MIN_TIMESTAMP, Emit, Operator
from holdfast.runtime.operators.stateless import SinkRunner
from holdfast.runtime.order import JobSetup
from holdfast.runtime.plan import Chained, Vertex
from holdfast.runtime.user_code import user_error
from holdfast.state.operator_state import OperatorState

__all__ = ["Chain"]


class _Node:
    """One operator with what follows it."""

    def __init__(self, operator: Operator, makes_watermarks: bool, clock: Clock) -> None:
        self.operator = operator
        self.makes_watermarks = makes_watermarks
        self.clock = clock
        # What comes behind an operator with watermarks of its own lives in that operator's time.
        self.output_clock = Clock() if makes_watermarks else clock
        self.children: list[_Node] = []
        self.routers: list[Router] = []

    def advance(self, watermark: int) -> None:
        """Event time has reached ``watermark``: the operator first, then what follows."""
        self.clock.watermark = watermark
        self.operator.advance_watermark(watermark)
        if not self.makes_watermarks:
            self.forward(watermark)

    def forward(self, watermark: int) -> None:
        for child in self.children:
            child.advance(watermark)
        for router in self.routers:
            router.watermark = watermark

    def resume(self, watermark: int) -> None:
        """Event time goes on from ``watermark``, at which an earlier attempt has fired all that was due."""
        self.clock.watermark = watermark
        if not self.makes_watermarks:
            self.resume_outputs(watermark)

    def resume_outputs(self, watermark: int) -> None:
        for child in self.children:
            child.resume(watermark)
        for router in self.routers:
            router.watermark = watermark

    def forward_idle(self, idle: bool) -> None:
        for router in self.routers:
            router.idle = idle
        for child in self.children:
            if not child.makes_watermarks:
                child.forward_idle(idle)


def _fan_out(outputs: list[Emit], copied: Copy) -> Emit:
    *others, last = outputs
    if not others:
        return last

    def emit(values: list[Any], timestamps: list[int] | None) -> None:
        # Each gets elements of its own: what one of them changes is not changed for the others.
        for output in others:
            output(list(map(copied, values)), timestamps)
        last(values, timestamps)

    return emit


def _typed(chained: Chained, declared: TypeInformation | None, emit: Emit) -> Emit:
    """``emit`` for what the operator's function makes, checked against the declared type and made to fit it."""
    if declared is None:
        return emit
    conform = declared.conform
    text = declared == Types.STRING()

    def emit_typed(values: list[Any], timestamps: list[int] | None) -> None:
        if text and set(map(type, values)) == {str} and all(map(str.isascii, values)):  # the usual case: they fit
            emit(values, timestamps)
            return
        rest = iter(values)
        try:
            fitting = [conform(value) for value in rest]
        except (TypeError, ValueError, OverflowError) as error:
            value = values[len(values) - length_hint(rest) - 1]
            refusal = TypeError(f"a result does not fit the declared type {declared}: {error}")
            raise user_error(refusal, chained.name, chained.uid, value) from error
        emit(fitting, timestamps)

    return emit_typed


class Chain:
    """The operators of one subtask. The first one is the head: it takes the vertex's input."""

    def __init__(
        self, setup: JobSetup, vertex: Vertex, subtask: int, state: OperatorState | None, send: Send, attempt: int
    ) -> None:
        plan = setup.plan
        self.clock = Clock()
        self.metrics = MetricGroup()
        self._nodes: list[_Node] = []
        self.routers: list[Router] = []
        copies = same if plan.settings.object_reuse else copied
        clocks = {0: self.clock}
        for position, chained in enumerate(vertex.chain):
            operator = chained.factory.create()
            makes_watermarks = chained.factory.makes_watermarks
            node = _Node(operator, makes_watermarks, clocks[position])
            behind = ([edge.target for edge in chained.edges], [channel.target for channel in chained.channels])
            operator.context = OperatorContext(
                job=setup.job,
                uid=chained.uid,
                name=chained.name,
                subtask=subtask,
                parallelism=vertex.parallelism,
                max_parallelism=vertex.max_parallelism,
                clock=node.clock,
                state=state if position == 0 else None,
                metrics=self.metrics.add_group(chained.name),
                job_parameters=plan.settings.job_parameters,
                attempt=attempt,
                copied=copies,
                deadlines=deadlines(plan, vertex, *behind) if makes_watermarks else (),
                output_clock=node.output_clock,
                forward_watermark=node.forward,
                forward_idle=node.forward_idle,
            )
            self._nodes.append(node)
            for edge in chained.edges:
                clocks[edge.target] = node.output_clock
            where = (chained.name, chained.uid)
            for channel in chained.channels:
                node.routers.append(Router(plan, vertex, channel, subtask, send, where, node.output_clock))
        for node, chained in zip(self._nodes, vertex.chain):
            node.children = [self._nodes[edge.target] for edge in chained.edges]
            main: list[Emit] = []
            side: dict[str, list[Emit]] = {}
            for edge in chained.edges:
                target = self._nodes[edge.target].operator.process
                outputs = main if edge.side_output is None else side.setdefault(edge.side_output, [])
                outputs.append(_into(target))
            for channel, router in zip(chained.channels, node.routers):
                outputs = main if channel.side_output is None else side.setdefault(channel.side_output, [])
                outputs.append(router.process)
            if main:
                node.operator.context.emit = _typed(chained, chained.output_type, _fan_out(main, copies))
            node.operator.context.side_outputs = {
                tag: _typed(chained, chained.side_types.get(tag), _fan_out(outputs, copies)) for tag, outputs in side.items()
            }
            self.routers.extend(node.routers)
        self._head = self._nodes[0]
        self._opened = 0

    def open(self) -> None:
        """Open the operators, the last of the chain first, as Flink does."""
        for node in reversed(self._nodes):
            self._opened += 1
            node.operator.open()

    def close(self) -> None:
        """Close the operators that were opened, the head first."""
        opened = self._nodes[len(self._nodes) - self._opened :]
        self._opened = 0
        for node in opened:
            node.operator.close()

    def process(self, values: list[Any], timestamps: Any, keys: Any, input_index: int, late: Sequence[Run] = ()) -> None:
        """Take some of the vertex's input; the late records are handed on apart from the others, in their order."""
        process, clock = self._head.operator.process, self.clock
        if not late:
            process(values, timestamps, keys, input_index)
            return
        for first, end, clock.late_by in pieces(len(values), late):
            process(values[first:end], timestamps[first:end], keys and keys[first:end], input_index)
        clock.late_by = MIN_TIMESTAMP

    def resume(self, watermark: int, generators: dict[str, Any]) -> None:
        """Go on where an earlier attempt ended: at this watermark, and with this state of the chain's generators."""
        self._head.resume(watermark)
        for node in self._nodes:
            stored = generators.get(node.operator.context.uid)
            if stored is not None and node.makes_watermarks:
                node.resume_outputs(node.operator.restore(stored))  # type: ignore[attr-defined]

    def advance_watermark(self, watermark: int) -> None:
        """Event time has reached ``watermark``."""
        self._head.advance(watermark)

    def advance_processing_time(self, now: int) -> None:
        """Processing time has reached ``now``."""
        for clock in {id(node.clock): node.clock for node in self._nodes}.values():
            clock.processing_time = now
        for node in self._nodes:
            node.operator.advance_processing_time(now)

    def end_epoch(self, idle: bool) -> None:
        """The barrier has reached the vertex."""
        self._head.forward_idle(idle)
        for node in self._nodes:
            node.operator.end_epoch()

    def sinks(self) -> list[SinkRunner]:
        """The sinks in the chain."""
        return [node.operator for node in self._nodes if isinstance(node.operator, SinkRunner)]

    def next_timer(self) -> int | None:
        """The processing time of the earliest timer or window."""
        times = []
        for node in self._nodes:
            operator: Any = node.operator
            if hasattr(operator, "next_processing_time"):
                times.append(operator.next_processing_time())
            elif hasattr(operator, "processing_timers"):
                times.append(operator.processing_timers.next_time())
        return min((time for time in times if time is not None), default=None)

    def snapshot_generators(self) -> dict[str, Any]:
        """The state of the watermark generators in the chain, by uid."""
        return {n.operator.context.uid: n.operator.snapshot() for n in self._nodes if n.makes_watermarks}  # type: ignore[attr-defined]

    @property
    def late_dropped(self) -> int:
        """Late records dropped so far."""
        return sum(clock.late_dropped for clock in {id(n.clock): n.clock for n in self._nodes}.values())


def _into(process: Callable[..., None]) -> Emit:
    def emit(values: list[Any], timestamps: list[int] | None) -> None:
        process(values, timestamps, None, 0)

    return emit
