"""Operators without keyed state: map, flat map, filter, process, sink, and timestamps in the middle of a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import length_hint
from typing import Any

from holdfast.common.output_tag import OutputTag
from holdfast.connectors.base import Sink, SinkWriter, WriterContext
from holdfast.runtime.context import UserRuntimeContext
from holdfast.runtime.copies import FIXED, Copy, fixed
from holdfast.runtime.lateness import LateRecords, Run, pieces
from holdfast.runtime.operators.base import MAX_TIMESTAMP, MIN_TIMESTAMP, Operator, OperatorFactory, whole_timestamps
from holdfast.runtime.user_code import close_function, method_of, not_iterable, open_function, user_error

__all__ = [
    "FilterOperator",
    "FlatMapOperator",
    "IdentityOperator",
    "MapOperator",
    "ProcessOperator",
    "SinkOperator",
    "TimestampsAndWatermarksOperator",
]


class FunctionOperator(Operator):
    """An operator around one user function."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def open(self) -> None:
        open_function(self.function, UserRuntimeContext(self.context, None))

    def close(self) -> None:
        close_function(self.function)

    def failed_at(self, error: BaseException, values: list[Any], rest: Iterator[Any]) -> Exception:
        """The user's error with the element at which ``rest``, an iterator over ``values``, stopped."""
        position = len(values) - length_hint(rest) - 1
        return user_error(error, self.context.name, self.context.uid, values[max(position, 0)])


class _Map(FunctionOperator):
    def open(self) -> None:
        super().open()
        self._map = method_of(self.function, "map")

    def process(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None, input_index: int) -> None:
        rest = iter(values)
        function = self._map
        try:
            mapped = [function(value) for value in rest]
        except (Exception, SystemExit) as error:
            raise self.failed_at(error, values, rest) from error
        self.context.emit(mapped, timestamps)


class _Filter(FunctionOperator):
    def open(self) -> None:
        super().open()
        self._filter = method_of(self.function, "filter")

    def process(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None, input_index: int) -> None:
        rest = iter(values)
        function = self._filter
        try:
            if timestamps is None:
                passed = [value for value in rest if function(value)]
            else:
                kept = [(value, stamp) for value, stamp in zip(rest, timestamps) if function(value)]
                passed = [value for value, _ in kept]
        except (Exception, SystemExit) as error:
            raise self.failed_at(error, values, rest) from error
        if passed:
            self.context.emit(passed, None if timestamps is None else [stamp for _, stamp in kept])


class Collector:
    """Takes what process functions emit: elements for the main output, tagged ones for side outputs."""

    def __init__(self, copied: Copy) -> None:
        self.copied = copied
        self.values: list[Any] = []
        self.stamps: list[int] = []
        self.tagged: dict[str, tuple[list[Any], list[int]]] = {}

    def take(self, results: Any, stamp: int) -> None:
        """Take the results of one call: any iterable."""
        for result in results:
            self.take_one(result, stamp)

    def take_one(self, result: Any, stamp: int) -> None:
        """Take one result: an element, or a side output's tag with one."""
        if type(result) is tuple:
            if not fixed(map(type, result)):
                if isinstance(result[0], OutputTag):
                    self._take_tagged(result, stamp)
                    return
                result = self.copied(result)
        elif type(result) not in FIXED:
            result = self.copied(result)
        self.values.append(result)
        self.stamps.append(stamp)

    def _take_tagged(self, result: tuple[Any, ...], stamp: int) -> None:
        if len(result) != 2:
            raise TypeError(f"a side output takes pairs (tag, value), got {result!r:.200}")
        tag, value = result
        values, stamps = self.tagged.setdefault(tag.tag_id, ([], []))
        values.append(self.copied(value))
        stamps.append(stamp)

    def emit(self, context: Any) -> None:
        """Hand everything on."""
        if self.values:
            context.emit(self.values, self.stamps)
        for tag_id, (values, stamps) in self.tagged.items():
            context.emit_side(tag_id, values, stamps)


class _FlatMap(FunctionOperator):
    def open(self) -> None:
        super().open()
        self._flat_map = method_of(self.function, "flat_map")

    def process(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None, input_index: int) -> None:
        rest = iter(values)
        function = self._flat_map
        out = Collector(self.context.copied)
        take = out.take
        stamps = [MIN_TIMESTAMP] * len(values) if timestamps is None else timestamps
        results = None
        try:
            for value, stamp in zip(rest, stamps):
                results = function(value)
                if results is None:
                    raise TypeError("flat_map returned None; it must return an iterable (an empty one for nothing)")
                take(results, stamp)
        except (Exception, SystemExit) as error:
            raise self.failed_at(not_iterable(error, results), values, rest) from error
        out.emit(self.context)


class TimerlessService:
    """A timer service on a plain stream: it tells the time and refuses timers."""

    def __init__(self, operator: Operator) -> None:
        self._clock = operator.context.clock
        self._where = operator.context.where

    def current_processing_time(self) -> int:
        """Processing time in ms since the epoch; stands still within an epoch of the job."""
        return self._clock.processing_time

    def current_watermark(self) -> int:
        """The watermark; -2**63 before the first one."""
        return self._clock.watermark

    def _refuse(self, timestamp: int) -> None:
        raise RuntimeError(f"timers are only supported on a keyed stream; put key_by() before operator {self._where}")

    register_event_time_timer = _refuse
    register_processing_time_timer = _refuse
    delete_event_time_timer = _refuse
    delete_processing_time_timer = _refuse


class _ProcessContext:
    __slots__ = ("_service", "stamp")

    def __init__(self, service: TimerlessService) -> None:
        self._service = service
        self.stamp = MIN_TIMESTAMP

    def timestamp(self) -> int:
        """The element's timestamp."""
        return self.stamp

    def timer_service(self) -> TimerlessService:
        """The timer service."""
        return self._service


class _Process(FunctionOperator):
    def open(self) -> None:
        super().open()
        self._process = method_of(self.function, "process_element")
        self._user_context = _ProcessContext(TimerlessService(self))

    def process(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None, input_index: int) -> None:
        rest = iter(values)
        function = self._process
        context = self._user_context
        out = Collector(self.context.copied)
        take = out.take
        stamps = [MIN_TIMESTAMP] * len(values) if timestamps is None else timestamps
        results = None
        try:
            for value, stamp in zip(rest, stamps):
                context.stamp = stamp
                results = function(value, context)
                if results is not None:
                    take(results, stamp)
        except (Exception, SystemExit) as error:
            raise self.failed_at(not_iterable(error, results), values, rest) from error
        out.emit(self.context)


class _Identity(Operator):
    def process(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None, input_index: int) -> None:
        self.context.emit(values, timestamps)


class _Timestamps(Operator):
    """Assigns timestamps and makes watermarks of its own; those from upstream end here, but for the last."""

    def __init__(self, strategy: Any) -> None:
        self._assign = strategy.timestamp_assigner
        self._delay = strategy.max_out_of_orderness_ms
        self._idle_timeout: int | None = strategy.idle_timeout_ms
        self.max_timestamp = MIN_TIMESTAMP
        self._last_record: int | None = None
        self._idle = False
        self._emitted = MIN_TIMESTAMP

    def open(self) -> None:
        self._late = LateRecords(self._delay, self.context.deadlines)

    def advance_processing_time(self, now: int) -> None:
        if self._last_record is None:
            self._last_record = now

    def process(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None, input_index: int) -> None:
        if self._assign is not None:
            assign = self._assign
            rest = iter(values)
            before = [MIN_TIMESTAMP] * len(values) if timestamps is None else timestamps
            try:
                timestamps = whole_timestamps([assign(value, stamp) for value, stamp in zip(rest, before)])
            except (Exception, SystemExit) as error:
                position = max(len(values) - length_hint(rest) - 1, 0)
                raise user_error(error, self.context.name, self.context.uid, values[position]) from error
        self._last_record = self.context.clock.processing_time
        late = [] if timestamps is None else self._late.find(timestamps, self.max_timestamp)
        self._emit(values, timestamps, late)
        if self._delay is not None and timestamps:
            self.max_timestamp = max(self.max_timestamp, max(timestamps))
            watermark = self.max_timestamp - self._delay - 1
            if watermark > self._emitted:
                self._emitted = watermark
                self.context.forward_watermark(watermark)

    def _emit(self, values: list[Any], timestamps: list[int] | None, late: list[Run]) -> None:
        if timestamps is None or not late:
            self.context.emit(values, timestamps)
            return
        clock = self.context.output_clock
        for first, end, clock.late_by in pieces(len(values), late):
            self.context.emit(values[first:end], timestamps[first:end])
        clock.late_by = MIN_TIMESTAMP

    def advance_watermark(self, watermark: int) -> None:
        if watermark == MAX_TIMESTAMP:
            self._emitted = watermark
            self.context.forward_watermark(watermark)

    def end_epoch(self) -> None:
        if self._idle_timeout is not None:
            assert self._last_record is not None
            quiet = self.context.clock.processing_time - self._last_record
            self._idle = quiet >= self._idle_timeout
            self.context.forward_idle(self._idle)

    def next_processing_time(self) -> int | None:
        """When the stream will have been quiet for so long that it counts as idle."""
        if self._idle_timeout is None or self._idle or self._last_record is None:
            return None
        return self._last_record + self._idle_timeout

    def snapshot(self) -> dict[str, Any]:
        """Plain data for the checkpoint."""
        return {"max_timestamp": self.max_timestamp, "emitted": self._emitted}

    def restore(self, state: dict[str, Any]) -> int:
        """Resume from `snapshot`'s data; returns the watermark that was emitted last."""
        self.max_timestamp = state["max_timestamp"]
        self._emitted = state["emitted"]
        return self._emitted


class SinkRunner(Operator):
    """Feeds a sink's writer; the task opens and ends its epochs."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.writer: SinkWriter | None = None
        self.records = 0
        """Taken so far."""

    def open(self) -> None:
        context = self.context
        self.writer = self._sink.create_writer(WriterContext(context.job, context.uid, context.subtask, context.parallelism))

    def process(self, values: list[Any], timestamps: list[int] | None, keys: list[Any] | None, input_index: int) -> None:
        assert self.writer is not None
        self.records += len(values)
        try:
            self.writer.write(values, timestamps)
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise user_error(error, self.context.name, self.context.uid, values[0]) from error

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


@dataclass(frozen=True)
class _FunctionFactory(OperatorFactory):
    func: Any

    def functions(self) -> Sequence[Any]:
        """The user's function."""
        return (self.func,)


class MapOperator(_FunctionFactory):
    """One to one."""

    def create(self) -> Operator:
        """A fresh instance."""
        return _Map(self.func)


class FlatMapOperator(_FunctionFactory):
    """One to many."""

    def create(self) -> Operator:
        """A fresh instance."""
        return _FlatMap(self.func)


class FilterOperator(_FunctionFactory):
    """Keeps what the function finds true."""

    def create(self) -> Operator:
        """A fresh instance."""
        return _Filter(self.func)


class ProcessOperator(_FunctionFactory):
    """A ProcessFunction on a plain stream."""

    def create(self) -> Operator:
        """A fresh instance."""
        return _Process(self.func)


@dataclass(frozen=True)
class IdentityOperator(OperatorFactory):
    """Passes everything on: the head of a source or a union."""

    def create(self) -> Operator:
        """A fresh instance."""
        return _Identity()


@dataclass(frozen=True)
class TimestampsAndWatermarksOperator(OperatorFactory):
    """Assigns timestamps and makes watermarks in the middle of a stream."""

    makes_watermarks = True

    strategy: Any

    def create(self) -> Operator:
        """A fresh instance."""
        return _Timestamps(self.strategy)

    def functions(self) -> Sequence[Any]:
        """The timestamp assigner, if any."""
        return () if self.strategy.timestamp_assigner is None else (self.strategy.timestamp_assigner,)


@dataclass(frozen=True)
class SinkOperator(OperatorFactory):
    """The end of a stream."""

    sink: Sink

    def create(self) -> Operator:
        """A fresh instance."""
        return SinkRunner(self.sink)

    def functions(self) -> Sequence[Any]:
        """The sink."""
        return (self.sink,)
