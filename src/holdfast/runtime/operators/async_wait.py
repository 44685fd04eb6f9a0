"""The async operator: an AsyncFunction waits for the results of many elements at a time.

A subtask's requests run in an event loop (`EventLoop`); the queue (`ResultQueue`) keeps their order. A request without
results at the epoch's end does not hold the epoch up: its element goes into the operator's list state, and the results are
emitted in a later epoch. After a restore, the requests in the list state are sent again. If the parallelism has changed,
elements that followed them may come to another subtask; to keep the order, their results are then emitted in the opening
epoch, before any input.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.metadata import WHOLE
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.values import pickling
from holdfast.functions.async_functions import AsyncFunction, AsyncRetryStrategy
from holdfast.functions.checkpointed_function import CheckpointedFunction
from holdfast.runtime.async_io.event_loop import BlockedLoop, EventLoop
from holdfast.runtime.async_io.result_queue import OrderedQueue, Request, ResultQueue, UnorderedQueue
from holdfast.runtime.operators.function_life import FunctionLife
from holdfast.runtime.plan.operator import Operator, OperatorFactory, StateKind
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import close_function, user_error

__all__ = ["AsyncWaitOperator"]

_IN_FLIGHT = "_async_wait_operator_state_"
"""The list of the elements without results; the name is Flink's."""
_EMITTED_AT_ONCE = 1024
_FIRST_LOOK_MS, _LAST_LOOK_MS = 10, 1000
"""Bounds of the interval, in ms, at which an idle job looks for answers: it grows with the age of the oldest request."""


class _AsyncWait(Operator):
    def __init__(self, spec: AsyncWaitOperator) -> None:
        self._spec = spec
        self._queue: ResultQueue = OrderedQueue() if spec.ordered else UnorderedQueue()
        self._loop: EventLoop | None = None
        self._emitted = MIN_TIMESTAMP
        """The last watermark sent downstream."""
        self._idle = self._held = self._finishes = False
        self._values: list[Any] = []
        self._stamps: list[int] = []
        self._late_by = MIN_TIMESTAMP

    # life

    def open(self) -> None:
        spec, context = self._spec, self.context
        assert context.lists is not None
        self._life = FunctionLife(spec.func, context, None)
        name = f"async-{context.uid}-{context.subtask}"
        self._loop = EventLoop(spec.func, spec.timeout_ms, spec.strategy, spec.capacity, context.copied, name)
        self._loop.call(self._open_function)
        self._finishes = spec.ordered and context.lists.moved
        self._stored = context.lists.stored(_IN_FLIGHT, WHOLE)
        self._send([_restored(stored) for stored in self._stored])

    async def _open_function(self) -> None:
        try:
            opened = self._life.open()
            if inspect.isawaitable(opened):
                await opened
        except (Exception, SystemExit) as error:
            raise user_error(error, self.context.name, self.context.uid) from error

    def close(self) -> None:
        if self._loop is not None:
            self._loop.close(lambda: close_function(self._spec.func))

    @property
    def loop(self) -> EventLoop:
        assert self._loop is not None
        return self._loop

    def begin_epoch(self, epoch: int, attempt: str, committed: int) -> None:
        self._life.epoch = epoch

    def end_epoch(self) -> None:
        if self._finishes:
            self.finish_pending()
            self._finishes = False
        self._take()
        self._emit()
        self.context.forward_idle(self._idle and not len(self._queue), self._held or len(self._queue) > 0)
        if isinstance(self._spec.func, CheckpointedFunction):
            self.loop.call(self._life.end_epoch)  # in the loop, so that the function's coroutines do not interfere
        stored = list(map(self._storable, self._queue.requests()))
        if stored != self._stored:
            self._stored = stored
            assert self.context.lists is not None
            self.context.lists.store(_IN_FLIGHT, stored)

    def _storable(self, request: Request) -> bytes:
        if request.stored is None:
            try:
                request.stored = pickling.dumps((request.value, request.stamp, request.late_by))
            except TypeError as error:
                told = TypeError(f"the element waits for results when the epoch ends, but cannot be stored: {error}")
                raise user_error(told, self.context.name, self.context.uid, request.value) from error
        return request.stored

    # elements and results

    def process(self, batch: RecordBatch) -> None:
        late_by = self.context.clock.passing.late_by
        self._send([Request(value, stamp, late_by) for value, stamp in zip(batch.values, batch.stamps())])
        self._take()
        queue, capacity = self._queue, self._spec.capacity
        while (over := len(queue) - capacity) > 0:
            # Each wake-up of this thread stops the event loop for a moment, so it waits for many answers at once.
            self._take(1 if queue.held else min(over, capacity // 4 + 1))
        self._emit()

    def _send(self, requests: list[Request]) -> None:
        for request in requests:
            self._queue.add(request)
        self.loop.send(requests)

    def _take(self, wait: int = 0) -> None:
        """Take the answers that have arrived, or wait for this many, and collect the results whose turn it is."""
        queue = self._queue
        try:
            answers = self.loop.answers(wait)
        except BlockedLoop as error:
            blocking = () if error.request is None else (error.request.value,)
            raise user_error(error, self.context.name, self.context.uid, *blocking) from None
        for request, results, failure in answers:
            if failure is not None:
                raise user_error(failure, self.context.name, self.context.uid, request.value) from failure
            request.results = results
            queue.answered(request)
        for each in queue.take():
            if isinstance(each, int):
                self._forward(each)
            else:
                self._collect(each)
        self.loop.hold(queue.held)

    def _collect(self, request: Request) -> None:
        results = request.results
        if not results:
            return
        if request.late_by != self._late_by:
            self._emit()
            self._late_by = request.late_by
        copied = self.context.copied
        self._values += map(copied, results)
        self._stamps += [request.stamp] * len(results)
        if len(self._values) >= _EMITTED_AT_ONCE:
            self._emit()

    def _emit(self) -> None:
        """Emit the collected results."""
        values, stamps = self._values, self._stamps
        if values:
            self._values, self._stamps = [], []
            emitted = self.context.emitted
            emitted.late_by = self._late_by
            self.context.emit(RecordBatch(values, stamps))
            emitted.late_by = MIN_TIMESTAMP

    def finish_pending(self) -> None:
        while len(self._queue):
            self._take(1)
        self._emit()

    # time

    def advance_watermark(self, watermark: int) -> None:
        self._queue.add_watermark(watermark)
        if watermark == MAX_TIMESTAMP:
            self.finish_pending()  # the input has ended, so there may be no later epoch
        self._take()
        self._emit()

    def _forward(self, watermark: int) -> None:
        self._emit()
        if watermark > self._emitted:
            self._emitted = watermark
            self.context.forward_watermark(watermark)

    def take_idle(self, idle: bool, held: bool) -> None:
        self._idle, self._held = idle, held

    def next_processing_time(self) -> int | None:
        if not len(self._queue):
            return None
        now = self.context.clock.processing_time
        if self.loop.answered:
            return now
        oldest = next(self._queue.requests())
        age = round(1000 * (time.monotonic() - oldest.sent)) if oldest.sent else 0
        look = min(max(age, _FIRST_LOOK_MS), _LAST_LOOK_MS)
        left = self._spec.timeout_ms - age
        return now + (min(look, left + 1) if left > 0 else look)

    def snapshot_generator(self) -> dict[str, Any]:
        return {"emitted": self._emitted}

    def restore_generator(self, stored: dict[str, Any]) -> None:
        self._emitted = stored["emitted"]
        if self.context.clock.watermark > self._emitted:
            self._queue.add_watermark(self.context.clock.watermark)


def _restored(stored: bytes) -> Request:
    value, stamp, late_by = pickling.loader()(stored)
    return Request(value, stamp, late_by, stored=stored)


@dataclass(frozen=True)
class AsyncWaitOperator(OperatorFactory):
    """Makes operators around an AsyncFunction."""

    state = StateKind.LISTED
    holds_watermarks = True
    passes_timestamps = True

    func: AsyncFunction[Any, Any]
    timeout_ms: int
    """The timeout of a request, retries included."""
    capacity: int
    """Limit of concurrent requests of a subtask."""
    ordered: bool
    """Whether results keep the order of the input."""
    strategy: AsyncRetryStrategy[Any]

    def create(self) -> Operator:
        """Create an operator."""
        return _AsyncWait(self)

    def functions(self) -> Sequence[Any]:
        """The user's function, and the retry strategy with its predicates."""
        return (self.func, self.strategy)
