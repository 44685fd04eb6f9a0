"""Operators without keyed state: map, flat map, filter, process, and sink."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import length_hint
from typing import Any

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.common.formats.columns import columns_of
from holdfast.common.output_tag import OutputTag
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.connectors.base import Sink, SinkWriter, StatefulSink, StatefulWriter, WriterContext, takes_columns
from holdfast.errors import HoldfastError
from holdfast.functions.process_functions import ProcessFunction
from holdfast.functions.timer_service import TimerService
from holdfast.runtime.operators.function_life import FunctionLife
from holdfast.runtime.operators.writer_states import ListedWriterState
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.plan.operator import Operator, OperatorFactory, StateKind
from holdfast.runtime.records.copies import FIXED, Copy, fixed, same
from holdfast.runtime.records.getters import getter, read_all
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.shared_results import held_before, list_of, own_each
from holdfast.runtime.records.user_code import close_function, not_iterable, user_callable, user_error

__all__ = [
    "Filter",
    "FlatMap",
    "IdentityOperator",
    "Map",
    "Process",
    "SinkOperator",
]


class FunctionOperator(Operator):
    """An operator around one user function."""

    state = StateKind.NONE
    passes_timestamps = True

    def __init__(self, function: Any) -> None:
        self.function = function

    def open(self) -> None:
        self.life = FunctionLife(self.function, self.context, None)
        self.life.open()

    def begin_epoch(self, epoch: int, attempt: str, committed: int) -> None:
        self.life.epoch = epoch

    def end_epoch(self) -> None:
        self.life.end_epoch()

    def close(self) -> None:
        close_function(self.function)

    def failed_at(self, error: BaseException, values: list[Any], rest: Iterator[Any]) -> Exception:
        """The user error with its element, at which ``rest``, an iterator over ``values``, has stopped."""
        position = len(values) - length_hint(rest) - 1
        return user_error(error, self.context.name, self.context.uid, values[max(position, 0)])


class Map(FunctionOperator):
    """map on a plain stream."""

    def open(self) -> None:
        super().open()
        self._map = user_callable(self.function, "map")
        self._read = getter(self._map)
        self._copies = self.context.copied is not same

    def process(self, batch: RecordBatch) -> None:
        mapped = read_all(self._read, batch.values)
        if mapped is None:
            mapped = self._mapped(list_of(batch.values))
        self.context.emit(RecordBatch(mapped, batch.timestamps))

    def _mapped(self, values: list[Any]) -> list[Any]:
        held = held_before(values) if self._copies else 0
        rest = iter(values)
        function = self._map
        try:
            mapped = [function(value) for value in rest]
        except (Exception, SystemExit) as error:
            raise self.failed_at(error, values, rest) from error
        if self._copies:
            own_each(mapped, values, held, self.context.copied)
        return mapped


class Filter(FunctionOperator):
    """Passes elements on if the function returns a true value."""

    def open(self) -> None:
        super().open()
        self._filter = user_callable(self.function, "filter")
        self._copies = self.context.copied is not same

    def process(self, batch: RecordBatch) -> None:
        values, timestamps = list_of(batch.values), batch.timestamps
        rest = iter(values)
        function = self._filter
        held = held_before(values) if self._copies else 0
        try:
            # Filtering pairs of element and timestamp would take half as long again.
            passes = [True if function(value) else False for value in rest]  # noqa: SIM210, without a call
        except (Exception, SystemExit) as error:
            raise self.failed_at(error, values, rest) from error
        passed = list(compress(values, passes))
        if passed:
            if self._copies:
                own_each(passed, passed, held, self.context.copied)
            self.context.emit(RecordBatch(passed, None if timestamps is None else list(compress(timestamps, passes))))


class Collector:
    """Collects the results of process functions, for the main output and the side outputs."""

    def __init__(self, copied: Copy) -> None:
        self.copied = copied
        self.values: list[Any] = []
        self.stamps: list[int] = []
        self.tagged: dict[str, tuple[list[Any], list[int]]] = {}

    def take(self, results: Any, stamp: int) -> None:
        """Collect the results of a call, which are an iterable."""
        append, append_stamp = self.values.append, self.stamps.append
        for result in results:
            if type(result) is tuple:  # the usual cases, inlined
                for each in result:
                    if type(each) not in FIXED:
                        self.take_one(result, stamp)
                        break
                else:
                    append(result)
                    append_stamp(stamp)
            elif type(result) in FIXED:
                append(result)
                append_stamp(stamp)
            else:
                self.take_one(result, stamp)

    def take_one(self, result: Any, stamp: int) -> None:
        """Collect a result: an element, or a pair of a side output's tag and an element."""
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

    def emit(self, context: OperatorContext) -> None:
        """Emit all collected elements."""
        if self.values:
            context.emit(RecordBatch(self.values, self.stamps))
        for tag_id, (values, stamps) in self.tagged.items():
            context.emit_side(tag_id, RecordBatch(values, stamps))


class FlatMap(FunctionOperator):
    """flat_map on a plain stream."""

    def open(self) -> None:
        super().open()
        self._flat_map = user_callable(self.function, "flat_map")

    def process(self, batch: RecordBatch) -> None:
        values = batch.values
        rest = iter(values)
        function = self._flat_map
        out = Collector(self.context.copied)
        take = out.take
        results = None
        try:
            for value, stamp in zip(rest, batch.stamps()):
                results = function(value)
                if results is None:
                    raise TypeError("flat_map returned None; it must return an iterable (an empty one for nothing)")
                take(results, stamp)
        except (Exception, SystemExit) as error:
            raise self.failed_at(not_iterable(error, results), values, rest) from error
        out.emit(self.context)


class Clocks(TimerService):
    """The clocks on a plain stream, which has no timers."""

    def __init__(self, operator: Operator) -> None:
        self._clock = operator.context.clock
        self._where = operator.context.where

    def current_processing_time(self) -> int:
        return self._clock.processing_time

    def current_watermark(self) -> int:
        return self._clock.watermark

    def _refuse(self, timestamp: int) -> None:
        raise RuntimeError(f"timers are only supported on a keyed stream; put key_by() before operator {self._where}")

    register_event_time_timer = _refuse
    register_processing_time_timer = _refuse
    delete_event_time_timer = _refuse
    delete_processing_time_timer = _refuse


class ProcessContext(ProcessFunction.Context):
    """The current element; the operator sets ``stamp``."""

    __slots__ = ("_clocks", "stamp")

    def __init__(self, clocks: TimerService) -> None:
        self._clocks = clocks
        self.stamp = MIN_TIMESTAMP

    def timestamp(self) -> int:
        return self.stamp

    def timer_service(self) -> TimerService:
        return self._clocks


class Process(FunctionOperator):
    """A ProcessFunction on a plain stream."""

    def open(self) -> None:
        super().open()
        self._process = user_callable(self.function, "process_element")
        self._user_context = self.user_context()

    def user_context(self) -> Any:
        """The context of the function's calls."""
        return ProcessContext(Clocks(self))

    def process(self, batch: RecordBatch) -> None:
        values = batch.values
        rest = iter(values)
        function = self._process
        context = self._user_context
        out = Collector(self.context.copied)
        take = out.take
        results = None
        try:
            for value, stamp in zip(rest, batch.stamps()):
                context.stamp = stamp
                results = function(value, context)
                if results is not None:
                    take(results, stamp)
        except (Exception, SystemExit) as error:
            raise self.failed_at(not_iterable(error, results), values, rest) from error
        out.emit(self.context)


class _Identity(Operator):
    def process(self, batch: RecordBatch) -> None:
        self.context.emit(batch)


class _Sink(Operator):
    """Feeds a sink's writer."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._takes_columns = takes_columns(sink)
        self._writer: SinkWriter | None = None
        self._waiting: StatefulWriter | None = None
        """The writer, if it may keep output back for a later checkpoint."""
        self._state: ListedWriterState | None = None

    def open(self) -> None:
        context = self.context
        if context.lists is not None:
            self._state = ListedWriterState(context.lists, context)
        self._writer = self._sink.create_writer(
            WriterContext(
                context.job,
                context.uid,
                context.subtask,
                context.parallelism,
                context.warn,
                self._state,
                lambda: context.clock.processing_time,
            )
        )
        if self._state is not None and isinstance(self._writer, StatefulWriter):
            self._waiting = self._writer

    @property
    def writer(self) -> SinkWriter:
        assert self._writer is not None
        return self._writer

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        if self._state is not None:
            self._state.epoch = epoch
        self.writer.begin_epoch(epoch, attempt, committed)

    def advance_watermark(self, watermark: int) -> None:
        if watermark == MAX_TIMESTAMP and self._waiting is not None:
            self._waiting.end_input()

    def next_processing_time(self) -> int | None:
        return None if self._waiting is None else self._waiting.next_commit()

    def process(self, batch: RecordBatch) -> None:
        values, timestamps = batch.values, batch.timestamps
        if not self._takes_columns and columns_of(values) is not None:
            values, timestamps = list(values), None if timestamps is None else list(timestamps)
        self.records_written += len(values)
        try:
            self.writer.write(values, timestamps)
        except HoldfastError:  # a ConfigurationError is a ValueError, too, but no record is to blame
            raise
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise user_error(error, self.context.name, self.context.uid, values[0]) from error

    def prepare_commit(self) -> Sequence[Any]:
        return self.writer.prepare_commit()

    def abort_epoch(self) -> None:
        if self._writer is not None:
            self._writer.abort_epoch()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


@dataclass(frozen=True)
class IdentityOperator(OperatorFactory):
    """Forwards its input: the head of a source or a union."""

    passes_timestamps = True

    def create(self) -> Operator:
        """Create the operator."""
        return _Identity()


@dataclass(frozen=True)
class SinkOperator(OperatorFactory):
    """The end of a stream."""

    sink: Sink

    @property
    def state(self) -> StateKind:  # type: ignore[override]
        """Lists, if the sink's writers keep state."""
        return StateKind.LISTED if isinstance(self.sink, StatefulSink) and self.sink.keeps_state else StateKind.NONE

    @property
    def by_columns(self) -> bool:  # type: ignore[override]
        """Whether the sink's writers take columns."""
        return takes_columns(self.sink)

    def create(self) -> Operator:
        """Create the operator."""
        return _Sink(self.sink)

    @property
    def written_sink(self) -> Sink:
        """The sink."""
        return self.sink

    def functions(self) -> Sequence[Any]:
        """The sink."""
        return (self.sink,)
