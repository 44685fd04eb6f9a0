"""Windows that are aligned for all keys: one table of rows per window, fired as a whole when time passes its end.

A window that opens and closes within an epoch never touches the store, and needs no timer per key: all keys of a window
fire together, in the order of the windows' ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from operator import length_hint
from typing import Any

from holdfast.common.output_tag import OutputTag
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.typeinfo.base import shown
from holdfast.common.typeinfo.batches import Misfit
from holdfast.common.windows import TimeWindow
from holdfast.errors import ConfigurationError
from holdfast.functions.window_functions import ProcessWindowFunction
from holdfast.runtime.context import UserRuntimeContext
from holdfast.runtime.operators.base import Operator, OperatorFactory, StateKind
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.operators.window_content import CONTENTS, WindowContent
from holdfast.runtime.records import RecordBatch
from holdfast.runtime.user_code import close_function, not_iterable, open_function, user_callable, user_error
from holdfast.state.declared_keys import key_restorer
from holdfast.state.row import Row
from holdfast.state.space import StateSpace
from holdfast.windowing.assigners import TumblingWindows
from holdfast.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger

__all__ = ["WindowOperator"]

_CHUNK = 20_000
"""Results are handed on in batches of about this size."""


class _WindowContext(ProcessWindowFunction.Context[TimeWindow]):
    """The key and window at hand, which the operator sets."""

    __slots__ = ("_key", "_operator", "_window")

    def __init__(self, operator: _AlignedWindows) -> None:
        self._operator = operator
        self._window = TimeWindow(0, 0)
        self._key: Any = None

    def window(self) -> TimeWindow:
        return self._window

    def current_processing_time(self) -> int:
        return self._operator.context.clock.processing_time

    def current_watermark(self) -> int:
        return self._operator.context.clock.watermark

    def window_state(self) -> StateSpace:
        return self._operator.window_space

    def global_state(self) -> StateSpace:
        return self._operator.global_state_of(self._key)


class _AggregationRuntimeContext(UserRuntimeContext):
    def _keyed(self) -> StateSpace:
        raise RuntimeError(
            f"functions that reduce or aggregate windows have no state of their own, in {self._context.where}: what they "
            "return is the window's state; a window function beside them may have some"
        )


class _WindowRuntimeContext(UserRuntimeContext):
    """Its states are those of `ProcessWindowFunction.Context.global_state`."""

    def __init__(self, operator: _AlignedWindows) -> None:
        super().__init__(operator.context, None)
        self._operator = operator

    def _keyed(self) -> StateSpace:
        return self._operator.open_global_space()


class _AlignedWindows(Operator):
    """Windows that begin and end at the same times for all keys, and fire at their ends."""

    def __init__(self, spec: WindowOperator) -> None:
        self._spec = spec
        self._content = spec.content
        self._size, self._offset = spec.assigner.size, spec.assigner.offset
        self._least = MIN_TIMESTAMP + self._size
        """The least timestamp whose window begins within 64 bits."""
        self._event_time = spec.assigner.is_event_time()
        self._lateness = spec.allowed_lateness_ms
        self._tag = spec.late_tag
        self._time = MIN_TIMESTAMP
        """Up to where windows have fired, in the operator's time domain."""
        self._late_by = MIN_TIMESTAMP
        """The watermark by which the elements at hand are late or not."""

    def open(self) -> None:
        assert self.context.state is not None
        content = self._content
        self.window_space = self.context.state.space("window")
        self.window_space.expire_by(self.context.clock, None)
        self._slot = 1 + self.window_space.register(content.column())
        self._time = self.context.clock.watermark if self._event_time else MIN_TIMESTAMP
        self._global: StateSpace | None = None
        if content.function is not None:
            open_function(content.function, _AggregationRuntimeContext(self.context, None))
        if self._window_function() is not None:
            open_function(self._window_function(), _WindowRuntimeContext(self))
        self._add = content.adder(self._slot)
        self._result = content.result()
        self._checks_at_firing = content.checks_at_firing()
        style = self._spec.window_function[0] if self._spec.window_function else None
        self._apply = user_callable(self._window_function(), "apply") if style == "apply" else None
        self._process = user_callable(self._window_function(), "process") if style == "process" else None
        self._clear = self._window_function().clear if self._spec.clears else None
        self._window_context = _WindowContext(self)
        self._restore_key = key_restorer(self.context.key_type)
        if "global" in self.context.state.spaces:  # a checkpoint has some
            self.open_global_space()

    def _window_function(self) -> Any:
        return self._spec.window_function[1] if self._spec.window_function else None

    def close(self) -> None:
        for each in self._spec.functions():
            close_function(each)

    def global_state_of(self, key: Any) -> StateSpace:
        """The function's state of a key, across windows. From the first call on every key that fires brings its own."""
        if self._global is not None:
            return self._global
        space = self.open_global_space()
        space.key = key
        (space.row,) = space.table().load((key,))
        return space

    def open_global_space(self) -> StateSpace:
        """The function's state across windows, of the key that fires."""
        if self._global is not None:
            return self._global
        assert self.context.state is not None
        self._global = self.context.state.space("global")
        self._global.expire_by(self.context.clock, self.context.state.timer_queue("ttl"))
        return self._global

    # adding elements

    def process(self, batch: RecordBatch) -> None:
        values, timestamps, keys = batch.values, batch.timestamps, batch.keys
        assert keys is not None
        if self._event_time:
            if timestamps is None or min(timestamps) < self._least:
                raise user_error(
                    ValueError(
                        "the element has no timestamp (Java Long.MIN_VALUE stands for that), which a window of event time "
                        "needs: give from_source() or assign_timestamps_and_watermarks() a WatermarkStrategy with a "
                        "timestamp assigner, or take a window of processing time"
                    ),
                    self.context.name,
                    self.context.uid,
                    values[0 if timestamps is None else timestamps.index(min(timestamps))],
                )
            times: list[int] = timestamps
        else:
            times = [self.context.clock.processing_time] * len(values)
        self._late_by = max(self._time, self.context.clock.late_by)
        size, offset = self._size, self._offset
        low, high = min(times), max(times)
        first = low - (low - offset) % size
        if high < first + size:
            self._add_to(first, keys, values, times)
            return
        groups: dict[int, list[int]] = {}
        for position, time in enumerate(times):
            start = time - (time - offset) % size
            group = groups.get(start)
            if group is None:
                groups[start] = [position]
            else:
                group.append(position)
        for start in sorted(groups):
            members = groups[start]
            self._add_to(start, [keys[i] for i in members], [values[i] for i in members], [times[i] for i in members])

    def _last(self, start: int) -> int:
        """The last millisecond of a window: what begins before the end of time fires at it."""
        return min(start + self._size - 1, MAX_TIMESTAMP)

    def _add_to(self, start: int, keys: list[Any], values: list[Any], times: list[int]) -> None:
        last = self._last(start)
        if self._event_time and last + self._lateness <= self._late_by:
            self._late(values, times)
            return
        rows = self.window_space.table(start).load(keys)
        if last > self._time:
            self._add_rows(rows, values, keys)
            return
        # Fired already: every element within the allowed lateness fires it again, with what has come up to then.
        out = Collector(self.context.copied)
        for key, row, value in zip(keys, rows, values):
            self._add_rows([row], [value], [key])
            self._fire_rows(out, [(key, row)], start)
        out.emit(self.context)

    def _add_rows(self, rows: list[Row], values: list[Any], keys: list[Any]) -> None:
        rest = iter(values)
        try:
            self._add(rows, rest)
        except (Exception, SystemExit) as error:
            at = len(values) - length_hint(rest) - 1
            raise user_error(error, self.context.name, self.context.uid, values[at], keys[at]) from error

    def _late(self, values: list[Any], times: list[int]) -> None:
        if self._tag is not None:
            self.context.emit_side(self._tag.tag_id, RecordBatch(values, times))
        else:
            self.context.clock.late_dropped += len(values)

    # firing

    def advance_watermark(self, watermark: int) -> None:
        if self._event_time:
            self._advance(watermark)

    def advance_processing_time(self, now: int) -> None:
        if self._global is not None:
            self._global.sweep()
        if not self._event_time:
            self._advance(now - 1)  # elements of this millisecond may come yet

    def _advance(self, time: int) -> None:
        before, self._time = self._time, time
        for start in sorted(start for start in self.window_space.tables if start is not None):
            last = self._last(start)
            if last > time:
                break
            if last > before:
                self._fire(start)
            if min(last + self._lateness, MAX_TIMESTAMP) <= time:
                self._purge(start)

    def next_processing_time(self) -> int | None:
        if self._event_time or not self.window_space.tables:
            return None
        return min(start for start in self.window_space.tables if start is not None) + self._size

    def _rows(self, start: int) -> Iterator[tuple[Any, Row]]:
        """All rows of a window, those in the store included."""
        table = self.window_space.table(start)
        yield from [(key, row) for key, row in table.rows.items() if row[self._slot] is not None]
        if table.in_store:
            for key, row in table.stored_rows():
                if key not in table.rows and row[self._slot] is not None:
                    yield key, row

    def _fire(self, start: int) -> None:
        for chunk in self._chunks(start):
            out = Collector(self.context.copied)
            self._fire_rows(out, chunk, start)
            out.emit(self.context)

    def _chunks(self, start: int) -> Iterator[list[tuple[Any, Row]]]:
        """A window's rows in pieces, with the keys' state across windows at hand if the function uses it."""
        rows, table = self._rows(start), self.window_space.table(start)
        while chunk := list(islice(rows, _CHUNK)):
            if self._restore_key is not None:
                chunk = [(self._restore_key(key), row) for key, row in chunk]
            if self._global is not None:
                self._global.table().load([key for key, _ in chunk])
            # The function may declare states of the window, and change them: also in rows that come from the store.
            read = [(key, row) for key, row in chunk if key not in table.rows] if table.in_store else []
            table.take_in(read)
            yield chunk
            table.let_go(read)
            if self._process is not None and self._lateness:
                table.claim(chunk)

    def _fire_rows(self, out: Collector, rows: list[tuple[Any, Row]], start: int) -> None:
        """Call the window function for these keys."""
        slot, last, window = self._slot, self._last(start), TimeWindow(start, start + self._size)
        result, apply, process, kept = self._result, self._apply, self._process, self._content.keeps_elements
        take, context = out.take_one, self._window_context
        purged = not self._lateness
        if self._checks_at_firing:
            self._fit_contents(rows, start)
        key = results = None
        try:
            for key, row in rows:
                content = row[slot] if result is None else result(row[slot])
                if process is not None:
                    self._make_current(key, row, window)
                    results = process(key, context, content if kept else [content])
                elif apply is not None:
                    if self._global is not None:
                        self._make_current(key, row, window)
                    results = apply(key, window, content if kept else [content])
                else:
                    out.values.append(content if purged else out.copied(content))
                    out.stamps.append(last)
                    continue
                if results is not None:
                    for each in results:
                        take(each, last)
        except (Exception, SystemExit) as error:
            failure = not_iterable(error, results)
            raise user_error(failure, self.context.name, self.context.uid, f"window {start}", key) from error

    def _fit_contents(self, rows: list[tuple[Any, Row]], start: int) -> None:
        """Check what fires: no barrier may have seen it."""
        slot = self._slot
        if self._content.keeps_elements:
            for key, row in rows:
                row[slot] = self._fitted(row[slot], lambda _: key, start)  # noqa: B023  (called at once)
            return
        contents = self._fitted([row[slot] for _, row in rows], lambda position: rows[position][0], start)
        for (_, row), content in zip(rows, contents):
            row[slot] = content

    def _fitted(self, values: list[Any], key_of: Callable[[int], Any], start: int) -> list[Any]:
        try:
            return self._content.fitted(values)
        except Misfit as error:
            value, key = values[error.position], key_of(error.position)
            refusal = TypeError(
                f"the value {shown(value)} does not fit state {CONTENTS!r} of {self._content.declared}: {error}"
            )
            raise user_error(refusal, self.context.name, self.context.uid, f"window {start}", key) from error

    def _make_current(self, key: Any, row: Row, window: TimeWindow) -> None:
        context = self._window_context
        context._window = window
        context._key = key
        space = self.window_space
        space.row, space.key, space.namespace = row, key, window.start
        if self._global is not None:
            self._global.key = key
            (self._global.row,) = self._global.table().load((key,))

    def _purge(self, start: int) -> None:
        if self._clear is not None:
            window = TimeWindow(start, start + self._size)
            for chunk in self._chunks(start):
                for key, row in chunk:
                    self._make_current(key, row, window)
                    self._clear(self._window_context)
        self.window_space.drop(start)


@dataclass(frozen=True)
class WindowOperator(OperatorFactory):
    """Windows of a keyed stream: which (assigner), when they fire (trigger), and what they hold (content)."""

    state = StateKind.KEYED

    assigner: TumblingWindows[Any]
    trigger: Trigger[Any, TimeWindow]
    content: WindowContent
    window_function: tuple[str, Any] | None = None
    """``('process', f)`` or ``('apply', f)``."""
    allowed_lateness_ms: int = 0
    late_tag: OutputTag | None = None
    clears: bool = False
    """Whether the window function has something to do when a window goes."""

    def create(self) -> Operator:
        """A fresh operator.

        Raises:
            ConfigurationError: there is no operator for windows with this trigger.
        """
        if type(self.trigger) not in (EventTimeTrigger, ProcessingTimeTrigger):
            raise ConfigurationError(f"windows fire at their ends only: there is no operator for {self.trigger!r}")
        return _AlignedWindows(self)

    @property
    def needs_timestamps(self) -> bool:  # type: ignore[override]
        """Windows of event time do."""
        return self.assigner.is_event_time()

    def deadline(self) -> Callable[[int], int] | None:
        """An element is late when its window is gone."""
        if not self.assigner.is_event_time():
            return None
        size, offset = self.assigner.size, self.assigner.offset
        kept = size - 1 + self.allowed_lateness_ms
        return lambda timestamp: timestamp - (timestamp - offset) % size + kept

    def functions(self) -> Sequence[Any]:
        """The user's functions."""
        called = None if self.window_function is None else self.window_function[1]
        return [function for function in (self.content.function, called) if function is not None]
