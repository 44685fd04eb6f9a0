"""PySpark's ``StatefulProcessor`` as a function of a keyed stream."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any

from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues

from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.time_domain import TimeDomain
from holdfast.common.types import Row, RowKind
from holdfast.common.values.pickling import dumps_program
from holdfast.errors import ConfigurationError
from holdfast.functions.function import RuntimeContext
from holdfast.functions.process_functions import KeyedProcessFunction
from holdfast.runtime.operators.calls import call_each
from holdfast.runtime.operators.function_factory import FunctionFactory
from holdfast.runtime.operators.keyed import KeyedProcess
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.records.records import RecordBatch
from holdfast.spark.processor_handle import EVENT_TIME, NONE, PROCESSING_TIME, DeclaringHandle, ProcessorHandle
from holdfast.spark.state_schemas import Schema, parse_schema

__all__ = ["ProcessorFunction", "declared_states", "processor_factory"]

_LOADED_AT_ONCE = 1024
_MODES = {"none": "None", "processingtime": "ProcessingTime", "eventtime": "EventTime"}


def processor_factory(
    processor: StatefulProcessor,
    output_schema: Any,
    time_mode: str,
    output_mode: str,
    call_mode: str,
    function: type[ProcessorFunction],
    *,
    initial: bool,
) -> ProcessorFactory:
    """Check the arguments of ``transform_with_state()``, and make the operator's factory.

    Raises:
        TypeError: the processor is no StatefulProcessor.
        ConfigurationError: a mode or schema is not known, or is refused, or ``init`` fails.
    """
    given: Any = processor
    if not isinstance(given, StatefulProcessor):
        kind = given.__name__ if isinstance(given, type) else type(given).__name__
        remedy = f" Call it: {kind}()." if isinstance(given, type) else " Derive it from pyspark.sql.streaming's."
        raise TypeError(f"transform_with_state() takes a StatefulProcessor, not {kind}.{remedy}")
    mode = str(time_mode).lower()
    if mode not in _MODES:
        raise ConfigurationError(
            f"transform_with_state(): time_mode is one of {', '.join(_MODES.values())}, not {time_mode!r}"
        )
    if str(output_mode).lower() not in ("append", "update"):
        raise ConfigurationError(
            f"transform_with_state(): output_mode is append or update, which emit the same rows, not {output_mode!r}"
        )
    if call_mode not in _OPERATORS:
        raise ConfigurationError(f"transform_with_state(): call_mode is record or epoch, not {call_mode!r}")
    schema = parse_schema(output_schema, "output_schema of transform_with_state()")
    declared_states(processor, mode)
    return ProcessorFactory(_OPERATORS[call_mode], function(processor, schema, mode, initial))


def declared_states(processor: StatefulProcessor, time_mode: str) -> DeclaringHandle:
    """Call ``init`` and ``close`` of a copy, as Spark does in its driver: states are refused before the job starts.

    Returns:
        The handle that ``init`` got.

    Raises:
        ConfigurationError: a state is refused, or a call fails.
    """
    name = type(processor).__name__
    try:
        copy = pickle.loads(dumps_program(processor))
    except Exception as error:
        raise ConfigurationError(f"the StatefulProcessor {name} cannot be sent to the workers: {error}") from error
    handle = DeclaringHandle(time_mode)
    try:
        copy.init(handle)
        copy.close()
    except ConfigurationError as error:
        raise ConfigurationError(f"StatefulProcessor {name}: {error}") from error
    except Exception as error:
        raise ConfigurationError(
            f"init() of the StatefulProcessor {name} failed: {type(error).__name__}: {error}"
        ) from error
    return handle


class ProcessorFunction(KeyedProcessFunction[Any, Any, Row]):
    """Calls a processor with each row, and with each timer."""

    def __init__(self, processor: StatefulProcessor, schema: Schema, time_mode: str, initial: bool) -> None:
        self.processor = processor
        self.schema = schema
        self.event_time = time_mode == EVENT_TIME
        self.initial = initial
        """Whether a second input has the initial state."""
        self._mode = time_mode

    def open(self, runtime_context: RuntimeContext) -> None:
        """Call ``init``."""
        self._handle = ProcessorHandle(self._mode, runtime_context)
        self.processor.init(self._handle)
        self._handle.in_init = False
        self._rows: dict[tuple[str, ...], Callable[..., Any]] = {}
        self._names = list(self.schema.names)

    def close(self) -> None:
        """Call the processor's ``close``."""
        self.processor.close()

    def _times(self, ctx: KeyedProcessFunction.Context[Any]) -> TimerValues:
        if self._mode == NONE:
            return TimerValues(-1, -1)
        service = self._handle.timers.service = ctx.timer_service()
        now = service.current_processing_time()
        if self._mode == PROCESSING_TIME:
            return TimerValues(now, -1)
        watermark = service.current_watermark()
        return TimerValues(now, 0 if watermark == MIN_TIMESTAMP else min(watermark, MAX_TIMESTAMP - 1) + 1)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context[Any]) -> Iterable[Row]:
        """Call ``handleInputRows`` with one row."""
        times = self._times(ctx)
        return self._results(self.processor.handleInputRows(_key(ctx), iter([self._row(value)]), times), "handleInputRows")

    def process_rows(self, values: Sequence[Any], ctx: KeyedProcessFunction.Context[Any]) -> Iterable[Row]:
        """Call ``handleInputRows`` with all rows of an epoch."""
        times = self._times(ctx)
        return self._results(self.processor.handleInputRows(_key(ctx), self._given(values), times), "handleInputRows")

    def process_initial(self, value: Any, ctx: KeyedProcessFunction.Context[Any]) -> None:
        """Call ``handleInitialState`` with one row."""
        self.processor.handleInitialState(_key(ctx), self._initial([value]), self._times(ctx))

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext[Any]) -> Iterable[Row]:
        """Call ``handleExpiredTimer``; the timer is there until it returns."""
        times, expired = self._times(ctx), timestamp + 1 if self.event_time else timestamp
        results = self.processor.handleExpiredTimer(_key(ctx), times, ExpiredTimerInfo(expired))
        rows = list(self._results(results, "handleExpiredTimer"))
        self._handle.timers.delete(expired)
        return rows

    def _given(self, values: Sequence[Any]) -> Iterator[Any]:
        """Rows as ``handleInputRows`` takes them."""
        return map(self._row, values)

    def _initial(self, values: Sequence[Any]) -> Any:
        """One row as ``handleInitialState`` takes it."""
        return self._row(values[0])

    def _row(self, value: Any) -> Any:
        if type(value) is Row and value._fields is not None and value._row_kind is RowKind.INSERT:
            names, values = value._fields, value._values
        elif type(value) is dict:
            names, values = list(value), list(value.values())
        elif isinstance(value, SparkRow):
            return value
        else:
            raise TypeError(
                "transform_with_state() takes Rows with names, or dicts, as the rows of a DataFrame have columns, not "
                f"{value!r:.200}: map(...) them before key_by(...)"
            )
        make = self._rows.get(tuple(names))
        if make is None:
            make = self._rows[tuple(names)] = SparkRow(*names)
        return make(*[_inner(each) if type(each) is Row else each for each in values])

    def _results(self, results: Any, method: str) -> Iterator[Row]:
        if not hasattr(results, "__iter__"):
            raise TypeError(f"{method}() returned {results!r}; it must return an iterator of Rows, or yield them")
        names, known = self._names, set(self._names)
        for row in results:
            fields = getattr(row, "__fields__", None) if isinstance(row, SparkRow) else None
            if fields is None:
                raise TypeError(
                    f"{method}() gave {row!r:.200}; results are pyspark.sql.Rows with names: Row(id=..., count=...)"
                )
            if fields == names:
                yield Row.of_values(list(row), names)
            elif len(fields) == len(names) and set(fields) == known:
                yield Row.of_values([row[name] for name in names], names)
            else:
                raise TypeError(f"{method}() gave a Row of {', '.join(fields)}; the output_schema has {', '.join(names)}")


def _key(ctx: KeyedProcessFunction.Context[Any]) -> tuple[Any, ...]:
    key = ctx.get_current_key()
    return key if type(key) is tuple else (key,)


def _inner(row: Row) -> Any:
    names, values = row._names(), [_inner(each) if type(each) is Row else each for each in row]
    return SparkRow(*names)(*values)


class ProcessorFactory(FunctionFactory):
    """Makes the operators of a processor."""

    func: ProcessorFunction

    @property
    def needs_timestamps(self) -> bool:  # type: ignore[override]
        """Whether rows can be late."""
        return self.func.event_time

    @property
    def first_input(self) -> int | None:  # type: ignore[override]
        """The initial state."""
        return 1 if self.func.initial else None

    @property
    def holds_watermarks(self) -> bool:  # type: ignore[override]
        """Whether results come at the end of the epoch, and the watermark behind them."""
        return self.operator is TransformEpochs

    def deadline(self) -> Callable[[int], int] | None:
        """In event time, a row is late when the watermark has reached it; with calls by epoch, that of the epoch before."""
        return int if self.func.event_time and not self.holds_watermarks else None


class TransformWithState(KeyedProcess):
    """Calls a processor; in event time, late rows are dropped first, as in Spark, by the watermark of their own split."""

    function: ProcessorFunction
    own = Row

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        return (self.process, partial(self.process_by, self.function.process_initial))

    def process(self, batch: RecordBatch) -> None:
        """Process the rows that are not late."""
        if self.function.event_time:
            keys, passed = batch.keys, self.context.clock.passed
            assert keys is not None
            stamps = batch.stamps()
            late = [at for at, stamp in enumerate(stamps) if stamp <= passed]
            if late:
                self.context.emit_late(None, [batch.values[at] for at in late], [stamps[at] for at in late])
                kept = [at for at, stamp in enumerate(stamps) if stamp > passed]
                values, times = [batch.values[at] for at in kept], [stamps[at] for at in kept]
                batch = RecordBatch(values, times, [keys[at] for at in kept])
        super().process(batch)


class TransformEpochs(TransformWithState):
    """Calls a processor once for all rows of a key in an epoch, then for the timers: an epoch is a batch of Spark's.

    The watermark is that of the end of the epoch before; rows at or before it are late. Timers fire by the epoch's own.
    """

    def open(self) -> None:
        super().open()
        self._rows: dict[Any, tuple[list[Any], list[int]]] = {}
        """The values and timestamps of each key in the epoch."""
        self._emitted = MIN_TIMESTAMP
        self._now = 0
        self._input_idle = (False, False)

    def begin_epoch(self, epoch: int, attempt: str, committed: int) -> None:
        super().begin_epoch(epoch, attempt, committed)
        self._before = self.context.clock.watermark

    def process(self, batch: RecordBatch) -> None:
        keys, rows = batch.keys, self._rows
        assert keys is not None
        for key, value, stamp in zip(keys, batch.values, batch.stamps()):
            if (held := rows.get(key)) is None:
                held = rows[key] = ([], [])
            held[0].append(value)
            held[1].append(stamp)

    def advance_watermark(self, watermark: int) -> None:
        pass  # timers fire at the end of the epoch

    def advance_processing_time(self, now: int) -> None:
        self.space.sweep()
        self._now = now

    def take_idle(self, idle: bool, held: bool) -> None:
        self._input_idle = idle, held

    def end_epoch(self) -> None:
        clock = self.context.clock
        reached = clock.watermark
        clock.watermark = self._before
        try:
            clock.process_by_key(self._process_epoch, RecordBatch(list(self._rows.values()), None, list(self._rows)))
        finally:
            clock.watermark = reached
        self._rows = {}
        self._fire(self.event_timers, reached, TimeDomain.EVENT_TIME)
        self._fire(self.processing_timers, self._now, TimeDomain.PROCESSING_TIME)
        if reached > self._emitted:
            self._emitted = reached
            self.context.forward_watermark(reached)
        self.context.forward_idle(*self._input_idle)
        super().end_epoch()

    def _process_epoch(self, batch: RecordBatch) -> None:
        """Process the rows of each key; keys whose rows are all late are left out."""
        assert batch.keys is not None
        elements = zip(batch.keys, self._in_time(batch.values))
        called = ((key, values, max(stamps)) for key, (values, stamps) in elements if values)
        while part := list(islice(called, _LOADED_AT_ONCE)):
            out, keys = Collector(self.context.copied), [key for key, _, _ in part]
            loaded = ((*each, row) for each, row in zip(part, self.space.load(keys)))
            call_each(self.function.process_rows, self._element_context, loaded, self.space, out, self.own, self.fail)
            out.emit(self.context)

    def _in_time(self, held: Sequence[tuple[list[Any], list[int]]]) -> Iterator[tuple[list[Any], list[int]]]:
        """The rows that are not late, with their timestamps."""
        watermark = self.context.clock.watermark
        if not self.function.event_time or watermark == MIN_TIMESTAMP:
            yield from held
            return
        for values, stamps in held:
            if min(stamps) > watermark + 1:
                yield values, stamps
                continue
            late = [(value, stamp) for value, stamp in zip(values, stamps) if stamp <= watermark + 1]
            self.context.emit_late(None, [value for value, _ in late], [stamp for _, stamp in late])
            kept = [(value, stamp) for value, stamp in zip(values, stamps) if stamp > watermark + 1]
            yield [value for value, _ in kept], [stamp for _, stamp in kept]

    def snapshot_generator(self) -> dict[str, Any]:
        return {"emitted": self._emitted}

    def restore_generator(self, stored: dict[str, Any]) -> None:
        self._emitted = stored["emitted"]


_OPERATORS = {"record": TransformWithState, "epoch": TransformEpochs}
