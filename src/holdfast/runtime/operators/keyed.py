"""Operators on a keyed stream: functions of single elements, with the state and timers of the element's key."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.time_domain import TimeDomain
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.types import Row
from holdfast.functions.process_functions import KeyedProcessFunction
from holdfast.functions.timer_service import TimerService
from holdfast.runtime.operators.calls import call_each, reduce_each, take_each
from holdfast.runtime.operators.function_life import FunctionLife
from holdfast.runtime.operators.last_timers import last_rounds
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.plan.operator import Operator, StateKind
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import close_function, not_iterable, user_callable, user_error
from holdfast.runtime.time.clock import Clock
from holdfast.state.cells.column import Column
from holdfast.state.cells.row import DIRTY
from holdfast.state.cells.typed import fitter
from holdfast.state.keys.declared_keys import key_restorer
from holdfast.state.rows.space import StateSpace
from holdfast.state.timers.timers import TimerQueue

__all__ = [
    "ChangelogProcess",
    "KeyedFilter",
    "KeyedFlatMap",
    "KeyedMap",
    "KeyedProcess",
    "KeyedReduce",
]


_REDUCED = "_op_state"
"""The name of a rolling reduction's state, as in Flink."""
_STAMP = "_op_stamp"
_EMITTED_AT_ONCE = 1024


class _KeyTimers(TimerService):
    """The clocks, and the timers of the current key."""

    __slots__ = ("_clock", "_event", "_processing", "_space")

    def __init__(self, clock: Clock, event: TimerQueue, processing: TimerQueue, space: StateSpace) -> None:
        self._clock = clock
        self._event = event
        self._processing = processing
        self._space = space

    def current_processing_time(self) -> int:
        return self._clock.processing_time

    def current_watermark(self) -> int:
        return self._clock.watermark

    def register_event_time_timer(self, timestamp: int) -> None:
        self._event.register(timestamp, self._space.key)

    def register_processing_time_timer(self, timestamp: int) -> None:
        self._processing.register(timestamp, self._space.key)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self._event.delete(timestamp, self._space.key)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self._processing.delete(timestamp, self._space.key)


class ElementContext(KeyedProcessFunction.Context):
    """The current element or timer; the operator sets ``stamp``, and the key in the space."""

    __slots__ = ("_space", "_timers", "stamp")

    def __init__(self, clock: Clock, event: TimerQueue, processing: TimerQueue, space: StateSpace) -> None:
        self.stamp = MIN_TIMESTAMP
        self._space = space
        self._timers = _KeyTimers(clock, event, processing, space)

    def get_current_key(self) -> Any:
        return self._space.key

    def timestamp(self) -> int:
        return self.stamp

    def timer_service(self) -> TimerService:
        return self._timers


class TimerContext(ElementContext, KeyedProcessFunction.OnTimerContext):
    """The current timer."""

    __slots__ = ("domain",)

    domain: TimeDomain

    def time_domain(self) -> TimeDomain:
        return self.domain


class KeyedOperator(Operator):
    """An operator with a row of state and timers for each key."""

    state = StateKind.KEYED
    passes_timestamps = False

    def __init__(self, function: Any) -> None:
        self.function = function

    def open(self) -> None:
        context = self.context
        assert context.state is not None
        self.space = context.state.space("keyed")
        self.space.expire_by(context.clock, context.state.timer_queue("ttl"))
        self.table = self.space.table()
        self.event_timers = context.state.timer_queue("event")
        self.processing_timers = context.state.timer_queue("processing")
        self.life = FunctionLife(self.function, context, self.space)
        self.life.open()

    def begin_epoch(self, epoch: int, attempt: str, committed: int) -> None:
        self.life.epoch = epoch

    def end_epoch(self) -> None:
        self.life.end_epoch()

    def close(self) -> None:
        close_function(self.function)

    def advance_processing_time(self, now: int) -> None:
        self.space.sweep()

    def next_processing_time(self) -> int | None:
        return self.processing_timers.next_time()

    def fail(self, error: BaseException, value: Any, key: Any) -> Exception:
        """The user error that names the element and its key."""
        return user_error(error, self.context.name, self.context.uid, value, key)


class KeyedProcess(KeyedOperator):
    """A function with timers."""

    method = "process_element"
    own: type[Any] | None = None
    """A class of results that the function creates only for this output; only their fields may be shared."""

    def open(self) -> None:
        super().open()
        self._element_context, self._timer_context = self.contexts()
        self._process = user_callable(self.function, self.method)
        self._on_timer = getattr(self.function, "on_timer", None)
        self.restore_key = key_restorer(self.context.key_type)

    def contexts(self) -> tuple[ElementContext, TimerContext]:
        """The contexts for the function's calls with elements and with timers."""
        timers = (self.context.clock, self.event_timers, self.processing_timers, self.space)
        return ElementContext(*timers), TimerContext(*timers)

    def process(self, batch: RecordBatch) -> None:
        self.process_by(self._process, batch)

    def process_by(self, function: Callable[[Any, Any], Any], batch: RecordBatch) -> None:
        """Call a method of the function with each element."""
        keys = batch.keys
        assert keys is not None
        out = Collector(self.context.copied)
        elements = zip(keys, batch.values, batch.stamps(), self.space.load(keys))
        call_each(function, self._element_context, elements, self.space, out, self.own, self.fail)
        out.emit(self.context)

    def advance_watermark(self, watermark: int) -> None:
        self._fire(self.event_timers, watermark, TimeDomain.EVENT_TIME)

    def advance_processing_time(self, now: int) -> None:
        super().advance_processing_time(now)
        self._fire(self.processing_timers, now, TimeDomain.PROCESSING_TIME)

    def _fire(self, timers: TimerQueue, time: int, domain: TimeDomain) -> None:
        if time < MAX_TIMESTAMP:
            self._fire_until(timers, time, domain)
            return
        # At the end of the input, timers set by timers also fire, however late they are. There may be endlessly many.
        for _ in last_rounds(timers, self.context.where, "on_timer"):
            self._fire_until(timers, timers.last_time(), domain)

    def _fire_until(self, timers: TimerQueue, time: int, domain: TimeDomain) -> None:
        on_timer, restore_key = self._on_timer, self.restore_key
        table, space, context = self.table, self.space, self._timer_context
        rows = table.rows
        context.domain = domain
        out = Collector(self.context.copied)
        when, key, results = 0, None, None
        try:
            for when, key in timers.due(time, table.load):
                if on_timer is None:
                    continue
                space.row = rows[key]
                space.key = key if restore_key is None else restore_key(key)
                context.stamp = when
                results = on_timer(when, context)
                if results is not None:
                    out.take(results, when)
        except (Exception, SystemExit) as error:
            raise self.fail(not_iterable(error, results), f"timer {when}", key) from error
        out.emit(self.context)


class ChangelogProcess(KeyedProcess):
    """A built-in function that creates a Row for each change."""

    own = Row


class KeyedEach(KeyedOperator):
    """map, flat_map and filter on a keyed stream; their functions may use keyed state."""

    method: str
    """The name of the method."""
    take: staticmethod[[Collector, Any, Any, int], None]
    """Takes the result of a call, the element and its timestamp."""

    def process(self, batch: RecordBatch) -> None:
        self.process_by(user_callable(self.function, self.method), batch)

    def process_by(self, function: Callable[[Any], Any], batch: RecordBatch) -> None:
        """Call a method of the function with each element."""
        keys = batch.keys
        assert keys is not None
        out, take = Collector(self.context.copied), self.take
        elements = zip(keys, batch.values, batch.stamps(), self.space.load(keys))
        take_each(function, elements, self.space, out, take, take is _take_many, self.fail)
        out.emit(self.context)


def _take_one(out: Collector, result: Any, value: Any, stamp: int) -> None:
    out.values.append(out.copied(result))
    out.stamps.append(stamp)


def _take_many(out: Collector, result: Any, value: Any, stamp: int) -> None:
    if result is None:
        raise TypeError("flat_map returned None; it must return an iterable (an empty one for nothing)")
    out.take(result, stamp)


def _take_if(out: Collector, result: Any, value: Any, stamp: int) -> None:
    if result:
        _take_one(out, value, value, stamp)


class KeyedMap(KeyedEach):
    """map on a keyed stream."""

    method = "map"
    take = staticmethod(_take_one)


class KeyedFlatMap(KeyedEach):
    """flat_map on a keyed stream."""

    method = "flat_map"
    take = staticmethod(_take_many)


class KeyedFilter(KeyedEach):
    """Filter on a keyed stream."""

    method = "filter"
    take = staticmethod(_take_if)


class KeyedBatchReduce(KeyedOperator):
    """Reduce in BATCH mode: emits the reduced value of each key at the end, with the latest timestamp of the key."""

    def __init__(self, function: Any, value_type: TypeInformation | None) -> None:
        super().__init__(function)
        self._type = value_type

    def open(self) -> None:
        super().open()
        self._fit = fitter(self._type, _REDUCED)
        self._reduce = user_callable(self.function, "reduce")
        self._cell = 1 + self.space.register(Column.declared(_REDUCED, "reducing", [self._type]))
        self._stamp_cell = 1 + self.space.register(Column.declared(_STAMP, "value", [Types.LONG()]))

    def process(self, batch: RecordBatch) -> None:
        keys = batch.keys
        assert keys is not None
        rows, reduce, cell, stamp_cell = self.table.load(keys), self._reduce, self._cell, self._stamp_cell
        fit = self._fit
        key = value = None
        try:
            for key, value, stamp, row in zip(keys, batch.values, batch.stamps(), rows):
                current = row[cell]
                if current is None:
                    self.event_timers.register(MAX_TIMESTAMP, key)
                    row[stamp_cell] = stamp
                else:
                    self.space.row = row
                    self.space.key = key
                    value = reduce(current, value)
                    row[stamp_cell] = max(row[stamp_cell], stamp)
                row[cell] = value if fit is None else fit(value)
                row[0] |= DIRTY
        except (Exception, SystemExit) as error:
            raise self.fail(error, value, key) from error

    def advance_watermark(self, watermark: int) -> None:
        rows, copied = self.table.rows, self.context.copied
        due = self.event_timers.due(watermark, self.table.load)
        while keys := [key for _, key in islice(due, _EMITTED_AT_ONCE)]:
            reduced = [rows[key] for key in keys]
            stamps = [row[self._stamp_cell] for row in reduced]
            known = None if max(stamps) == MIN_TIMESTAMP else stamps
            self.context.emit(RecordBatch([copied(row[self._cell]) for row in reduced], known))


class KeyedReduce(KeyedOperator):
    """Rolling reduce: emits the reduced value after every element."""

    in_batch = KeyedBatchReduce

    def __init__(self, function: Any, value_type: TypeInformation | None) -> None:
        super().__init__(function)
        self._type = value_type

    def open(self) -> None:
        super().open()
        self._fit = fitter(self._type, _REDUCED)
        self._reduce = user_callable(self.function, "reduce")
        self._cell = 1 + self.space.register(Column.declared(_REDUCED, "reducing", [self._type]))

    def process(self, batch: RecordBatch) -> None:
        keys = batch.keys
        assert keys is not None
        elements = zip(keys, batch.values, self.table.load(keys))
        copied = self.context.copied
        reduced = reduce_each(self._reduce, elements, self.space, self._cell, self._fit, copied, self.fail)
        self.context.emit(RecordBatch(reduced, batch.timestamps))
