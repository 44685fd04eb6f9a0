"""Aligned windows, the same for all keys: a table of rows per window, which fires as a whole when time passes its end.

A window that opens and closes within an epoch never touches the store, and needs no timer per key: all keys of a window fire
together, in order of the windows' ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any

from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.typeinfo.batches import Misfit
from holdfast.common.windows import TimeWindow
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.operators.windows.periodic_base import PeriodicWindowsBase
from holdfast.runtime.operators.windows.window_base import CHUNK, WindowContext, WindowSpec
from holdfast.runtime.operators.windows.window_calls import call_windows, filled_rows
from holdfast.runtime.records.copies import same
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import user_error
from holdfast.state.cells.entries import LARGE, LargeList
from holdfast.state.cells.row import Row
from holdfast.state.rows.space import StateSpace
from holdfast.windowing.assigners import TumblingWindows

__all__ = ["AlignedWindows"]


class AlignedWindows(PeriodicWindowsBase):
    """Windows that begin and end at the same times for all keys, and fire at their ends."""

    def __init__(self, spec: WindowSpec, assigner: TumblingWindows[Any]) -> None:
        super().__init__(spec, assigner)
        self._size = assigner.size
        self._least = MIN_TIMESTAMP + self._size
        """The lowest timestamp whose window begins within 64 bits."""

    def open(self) -> None:
        assert self.context.state is not None
        content = self._content
        self.window_space = self.context.state.space("window")
        self.window_space.expire_by(self.context.clock, None)
        self._cell = 1 + self.window_space.register(content.column(), grows=content.keeps_elements)
        super().open()
        self._add = content.adder(self._cell)
        result = content.result()
        # Within the allowed lateness, a content fires again, so it must not change.
        self._result = self._of_a_copy(result) if self._lateness and self._calls(result) else result
        self._checks_at_firing = content.checks_at_firing()

    def window_state(self) -> StateSpace:
        return self.window_space

    def _calls(self, result: Any) -> bool:
        return result is not None or self._process is not None or self._apply is not None

    def _of_a_copy(self, result: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        own = self._own

        def given(content: Any) -> Any:
            content = content if type(content) in LARGE else own(content)
            return content if result is None else result(content)

        return given

    # adding elements

    def process(self, batch: RecordBatch) -> None:
        if self._event_time:
            times = self._timestamps(batch, self._least)
        else:
            times = [self.context.clock.processing_time] * len(batch.values)
        for start, keys, values, stamps in self._cut(batch, times):
            self._add_to(start, keys, values, stamps)

    def _last(self, start: int) -> int:
        """The last millisecond of a window, limited to the end of time."""
        return min(start + self._size - 1, MAX_TIMESTAMP)

    def _add_to(self, start: int, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> None:
        last = self._last(start)
        if self._event_time and last + self._lateness <= self.context.clock.passed:
            self._emit_late(list(values), list(times))
            return
        rows = self.window_space.table(start).load(keys)
        if not (self._event_time and last <= self.context.clock.watermark):
            self._add_rows(rows, values, keys)
            return
        # The window has fired: each element within the allowed lateness fires it again.
        out = Collector(self.context.copied)
        for key, row, value in zip(keys, rows, values):
            self._add_rows([row], [value], [key])
            self._fire_rows(out, [(key, row)], start)
        out.emit(self.context)

    # firing

    def advance_watermark(self, watermark: int) -> None:
        if self._event_time:
            self._advance(watermark)

    def advance_processing_time(self, now: int) -> None:
        super().advance_processing_time(now)
        if not self._event_time:
            self._advance(now - 1)  # more elements may arrive in this millisecond

    def _advance(self, time: int) -> None:
        # In processing time, a window is removed when it fires.
        before = self.context.clock.fired if self._event_time else MIN_TIMESTAMP
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
        """All rows of a window, including those in the store."""
        table, cell = self.window_space.table(start), self._cell
        held = filled_rows(table.rows, cell)
        if not table.in_store:
            return iter(held)
        stored = (each for each in table.stored_rows() if each[0] not in table.rows and each[1][cell] is not None)
        return chain(held, stored)

    def _fire(self, start: int) -> None:
        last = self._last(start)
        for chunk in self._chunks(start):
            out = Collector(self.context.copied)
            self._fire_rows(out, list(self.context.clock.unfired(chunk, last)), start)
            out.emit(self.context)

    def _chunks(self, start: int) -> Iterator[list[tuple[Any, Row]]]:
        """A window's rows in chunks; also loads the keys' global state if the function uses it."""
        rows, table = self._rows(start), self.window_space.table(start)
        while chunk := list(islice(rows, CHUNK)):
            if self._restore_key is not None:
                chunk = [(self._restore_key(key), row) for key, row in chunk]
            if self._global is not None:
                self._global.table().load([key for key, _ in chunk])
            # The function may declare and change states of the window, in rows from the store as well.
            read = [(key, row) for key, row in chunk if key not in table.rows] if table.in_store else []
            table.take_in(read)
            yield chunk
            table.let_go(read)
            if self._process is not None and self._lateness:
                table.claim(chunk)

    def _fire_rows(self, out: Collector, rows: list[tuple[Any, Row]], start: int) -> None:
        """Call the window function for these keys."""
        cell, last, window = self._cell, self._last(start), TimeWindow(start, start + self._size)
        result, process, apply = self._result, self._process, self._apply
        context = self._enter(window)
        if self._checks_at_firing:
            self._fit_contents(rows, start)

        def fail(error: BaseException, key: Any) -> Exception:
            return user_error(error, self.context.name, self.context.uid, f"window {start}", key)

        function: Any = apply if process is None else process
        if function is not None:
            call_windows(
                function,
                window if process is None else context,
                rows,
                cell,
                self._content.keeps_elements,
                result,
                lambda key, content: self._elements_of(key, content, start),
                context,
                None if process is None else self.window_space,
                out,
                last,
                fail,
            )
            return
        key = None
        copied = same if not self._lateness else out.copied
        try:
            for key, row in rows:
                content = row[cell] if result is None else result(row[cell])
                if type(content) in LARGE:
                    content = self._elements_of(key, content, start)
                out.values.append(copied(content))
                out.stamps.append(last)
        except (Exception, SystemExit) as error:
            raise fail(error, key) from error

    def _fit_contents(self, rows: list[tuple[Any, Row]], start: int) -> None:
        """Check contents when they fire: no barrier may have checked them yet."""
        cell = self._cell
        if self._content.keeps_elements:
            for key, row in rows:
                if type(row[cell]) not in LARGE:
                    row[cell] = self._fitted(row[cell], lambda _: key, start)  # noqa: B023  (called at once)
            return
        contents = self._fitted([row[cell] for _, row in rows], lambda position: rows[position][0], start)
        for (_, row), content in zip(rows, contents):
            row[cell] = content

    def _elements_of(self, key: Any, content: LargeList, start: int) -> list[Any]:
        """The elements of a window whose list is stored outside of its row."""
        elements = self._own(list(content)) if self._lateness else list(content)
        return self._fitted(elements, lambda _: key, start) if self._checks_at_firing else elements

    def _fitted(self, values: list[Any], key_of: Callable[[int], Any], start: int) -> list[Any]:
        try:
            return self._content.fitted(values)
        except Misfit as error:
            raise self._misfit(error, values[error.position], f"window {start}", key_of(error.position)) from error

    def _enter(self, window: TimeWindow) -> WindowContext:
        self._window_context.at = window
        self.window_space.namespace = window.start
        return self._window_context

    def _make_current(self, key: Any, row: Row) -> None:
        space = self.window_space
        self._window_context.key = space.key = key
        space.row = row
        if self._global is not None:
            self._bring_global(key)

    def _purge(self, start: int) -> None:
        if self._clear is not None:
            context = self._enter(TimeWindow(start, start + self._size))
            for chunk in self._chunks(start):
                for key, row in chunk:
                    self._make_current(key, row)
                    self._clear(context)
        self.window_space.drop(start)
