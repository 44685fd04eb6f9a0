"""Event-time windows that overlap and fire at their ends for all keys: each element is kept once, in its pane.

A pane is a span of time that lies in the same windows. It has a table of rows, like a tumbling window. A window's result is
merged from its panes: reduced values and accumulators incrementally (`holdfast.runtime.operators.windows.pane_sums`), so
that the cost does not grow with the number of panes; elements are concatenated.

An element may be late for some of its pane's windows that have not fired yet. It is kept apart, in a table that only the
later windows read. A table's namespace is the number of its pane times a stride, plus the number of windows that do not read
it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from heapq import heappop, heappush
from itertools import islice
from typing import Any

from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.typeinfo.batches import Misfit
from holdfast.common.windows import Bounds, TimeWindow
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.operators.windows.pane_namespaces import PaneNamespaces
from holdfast.runtime.operators.windows.pane_sums import PaneSums
from holdfast.runtime.operators.windows.periodic_base import PeriodicWindowsBase
from holdfast.runtime.operators.windows.window_base import CHUNK, WindowSpec
from holdfast.runtime.records.copies import FIXED, copied
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import not_iterable, user_error
from holdfast.state.cells.row import DIRTY, Row
from holdfast.state.keys.key_groups import KeyGroupRange, key_grouper
from holdfast.state.rows.space import StateSpace
from holdfast.windowing.assigners import PeriodicWindows

__all__ = ["PanedWindows"]

_PARTS = 16
"""Number of parts, by key group, in which a window fires if some of its rows are in the store."""
_REMEMBERED = 1000

_Pairs = Iterable[tuple[Any, Any]]
"""Keys with contents."""


class PanedWindows(PeriodicWindowsBase):
    """Windows that consist of several panes."""

    def __init__(self, spec: WindowSpec, assigner: PeriodicWindows[Any]) -> None:
        super().__init__(spec, assigner)
        namespaces = PaneNamespaces(assigner)
        self._namespace, self._pane, self._stride = namespaces.namespace, namespaces.pane, namespaces.stride
        self._least = MIN_TIMESTAMP + 2 * assigner.size
        """The lowest timestamp whose windows begin within 64 bits."""
        self._known: set[int] | None = None
        """The existing namespaces; None before the first call of `_namespaces`."""
        self._apart: set[int] = set()
        """The namespaces of elements that are late for some windows."""
        self._waiting: set[Bounds] = set()
        self._fires: list[tuple[int, Bounds]] = []
        """The waiting windows as a heap, by their last millisecond."""
        self._goes: list[tuple[int, int]] = []
        """The namespaces as a heap, by the time at which their last window is removed."""
        self._summed = MIN_TIMESTAMP
        """Panes before this one are in the sums."""
        self._stale: set[Any] = set()
        """Keys whose panes have changed since they were summed up."""

    def open(self) -> None:
        """Declare the state and open the functions."""
        assert self.context.state is not None
        content = self._content
        self._space = self.context.state.space("window")
        self._space.expire_by(self.context.clock, None)
        self._cell = 1 + self._space.register(content.column(), grows=content.keeps_elements)
        super().open()
        self._add = content.adder(self._cell)
        self._result = content.result()
        self._fits = content.declared is not None and not content.declared.is_pickled
        self._merge = self._merger()
        self._sums = PaneSums(self._merge)
        self._scratch: list[Row] = []
        self._groups_of = key_grouper(self.context.max_parallelism)
        self._windows_of: dict[int, list[Bounds]] = {}
        """The windows of panes with recent elements."""

    def _merger(self) -> Callable[[Any, Any], Any]:
        """A function that merges two contents and leaves both unchanged."""
        merged = self._content.merged

        def merge(content: Any, other: Any) -> Any:
            if type(content) in FIXED:
                return merged(content, other)
            return merged(copied(content), copied(other))

        return merge

    # namespaces

    def _namespaces(self) -> set[int]:
        """The existing namespaces; the first call registers those of the checkpoint."""
        if self._known is None:
            self._known = set()
            for namespace in self._space.tables:
                if namespace is not None:
                    self._note(namespace)
        return self._known

    def _note(self, namespace: int) -> None:
        """Register a namespace: its windows will fire, and it is removed after the last one."""
        assert self._known is not None
        self._known.add(namespace)
        pane, after = self._pane(namespace)
        if after:
            self._apart.add(namespace)
        windows = self._assigner.windows(pane)
        for window in windows[after:]:
            if self._last(window) > self.context.clock.fired and window not in self._waiting:
                self._waiting.add(window)
                heappush(self._fires, (self._last(window), window))
        heappush(self._goes, (self._cleanup_time(windows[-1]), namespace))

    def _last(self, window: Bounds) -> int:
        return min(window[1] - 1, MAX_TIMESTAMP)

    def _cleanup_time(self, window: Bounds) -> int:
        return min(window[1] - 1 + self._lateness, MAX_TIMESTAMP)

    # adding elements

    def process(self, batch: RecordBatch) -> None:
        """Add elements to their panes."""
        times = self._timestamps(batch, self._least)
        for pane, keys, values, stamps in self._cut(batch, times):
            self._add_to(pane, keys, values, stamps)

    def _windows_at(self, pane: int) -> list[Bounds]:
        """The windows that contain a pane."""
        windows = self._windows_of.get(pane)
        if windows is None:
            if len(self._windows_of) > _REMEMBERED:
                self._windows_of.clear()
            windows = self._windows_of[pane] = self._assigner.windows(pane)
        return windows

    def _alive(self, pane: int) -> tuple[list[Bounds], int]:
        """A pane's windows for which the current elements are in time, and the number of windows before those."""
        windows, passed = self._windows_at(pane), self.context.clock.passed
        if not windows or self._cleanup_time(windows[0]) > passed:
            return windows, 0
        alive = [each for each in windows if self._cleanup_time(each) > passed]
        return alive, len(windows) - len(alive)

    def _note_added(self, namespace: int, pane: int, keys: Iterable[Any]) -> None:
        """Record that elements of these keys enter a namespace."""
        if namespace not in self._namespaces():
            self._note(namespace)
        if pane < self._summed:
            self._stale.update(keys)

    def _add_to(self, pane: int, keys: Sequence[Any], values: Sequence[Any], times: Sequence[int]) -> None:
        alive, after = self._alive(pane)
        if not alive:
            windows, passed = self._windows_at(pane), self.context.clock.passed
            late = [i for i, time in enumerate(times) if windows or time + self._lateness <= passed]
            if late:
                self._emit_late([values[i] for i in late], [times[i] for i in late])
            return
        namespace = self._namespace(pane, after)
        if not MIN_TIMESTAMP <= namespace <= MAX_TIMESTAMP:
            told = ValueError(f"the timestamp {times[0]} is too far from 1970 for {self._assigner!r}")
            raise user_error(told, self.context.name, self.context.uid, self._bare(values[0]), keys[0])
        rows = self._space.table(namespace).load(keys)
        self._note_added(namespace, pane, keys)
        time = self.context.clock.watermark
        fired = [] if self._last(alive[0]) > time else [each for each in alive if self._last(each) <= time]
        if not fired:
            self._add_rows(rows, values, keys)
            return
        # Each element within the allowed lateness fires these windows again, with the content up to then.
        out = Collector(self.context.copied)
        for key, row, value in zip(keys, rows, values):
            self._add_rows([row], [value], [key])
            for window in fired:
                contents = self._contents_of(key, window)
                self._emit(out, [(key, self._total(contents))], window)
        out.emit(self.context)

    # firing

    def advance_watermark(self, watermark: int) -> None:
        """Fire what is due."""
        self._advance(watermark)

    def _advance(self, time: int) -> None:
        known = self._namespaces()
        while self._fires and self._fires[0][0] <= time:
            window = heappop(self._fires)[1]
            self._waiting.discard(window)
            self._fire(window)
            self._drop_until(min(window[1] - 1, time))
        self._drop_until(time)
        if not known:
            self._sums.clear()

    def _drop_until(self, time: int) -> None:
        """Drop the namespaces whose last window is over."""
        known = self._namespaces()
        while self._goes and self._goes[0][0] <= time:
            namespace = heappop(self._goes)[1]
            known.discard(namespace)
            self._apart.discard(namespace)
            self._space.drop(namespace)

    def _of_window(self, window: Bounds) -> list[int]:
        """The namespaces that a window reads, in the order of their panes."""
        known, length = self._namespaces(), self._assigner.pane
        panes = range(self._namespace(window[0], 0), self._namespace(window[1], 0), self._stride)
        found = [namespace for namespace in panes if namespace in known]
        for namespace in self._apart:
            pane, after = self._pane(namespace)
            if window[0] <= pane < window[1] - length + 1 and self._assigner.windows(pane).index(window) >= after:
                found.append(namespace)
        return sorted(found) if self._apart else found

    def _fire(self, window: Bounds) -> None:
        namespaces = self._of_window(window)
        if any(self._space.table(namespace).in_store for namespace in namespaces):
            groups = self.context.max_parallelism
            size = -(-groups // _PARTS)
            held = [self._by_part(namespace, size) for namespace in namespaces]
            for part, first in enumerate(range(0, groups, size)):
                stored = KeyGroupRange(first, min(first + size, groups) - 1)
                self._emit_all(self._gathered(namespaces, [rows.get(part, ()) for rows in held], stored), window)
            self._forget_sums()
        elif self._content.keeps_elements:
            rows = [self._space.table(namespace).rows.items() for namespace in namespaces]
            self._emit_all(self._gathered(namespaces, rows, None), window)
        else:
            self._emit_all(self._summed_up(namespaces, window), window)

    def _by_part(self, namespace: int, size: int) -> dict[int, list[tuple[Any, Row]]]:
        """A namespace's rows in memory, by ``size`` key groups."""
        rows = self._space.table(namespace).rows
        found: dict[int, list[tuple[Any, Row]]] = {}
        for group, item in zip(self._groups_of(list(rows)), rows.items()):
            found.setdefault(group // size, []).append(item)
        return found

    def _gathered(
        self, namespaces: list[int], held: Sequence[Iterable[tuple[Any, Row]]], stored: KeyGroupRange | None
    ) -> _Pairs:
        """Keys with their contents in all of these namespaces.

        Args:
            namespaces: The namespaces.
            held: For each, its rows in memory.
            stored: The key groups whose rows to read from the store; None: none.
        """
        found: dict[Any, list[Any]] = {}
        cell = self._cell
        for namespace, rows in zip(namespaces, held):
            for key, row in rows:
                if row[cell] is not None:
                    found.setdefault(key, []).append(row[cell])
            table = self._space.table(namespace)
            if stored is not None and table.in_store:
                for key, row in table.stored_rows(stored):
                    if key not in table.rows and row[cell] is not None:
                        found.setdefault(key, []).append(row[cell])
        return ((key, self._total(contents)) for key, contents in found.items())

    def _contents_of(self, key: Any, window: Bounds) -> list[Any]:
        """The contents of one key's panes."""
        cell = self._cell
        rows = [self._space.table(namespace).load((key,))[0] for namespace in self._of_window(window)]
        return [row[cell] for row in rows if row[cell] is not None]

    def _total(self, contents: list[Any]) -> Any:
        if self._content.keeps_elements:
            return [element for each in contents for element in each]
        return contents[0] if len(contents) == 1 else reduce(self._merge, contents)

    def _summed_up(self, namespaces: list[int], window: Bounds) -> Iterator[tuple[Any, Any]]:
        """Keys with the sums of their panes in this window. All panes must be in memory."""
        cell, sums, tables = self._cell, self._sums, {namespace: self._space.table(namespace) for namespace in namespaces}
        apart = [namespace for namespace in namespaces if namespace in self._apart]
        for namespace in apart:
            self._stale.update(tables[namespace].rows)
        start = max(window[0], self._summed)
        for namespace in namespaces:
            pane = self._pane(namespace)[0]
            if pane >= start and namespace not in apart:
                sums.add(pane, [(key, row[cell]) for key, row in tables[namespace].rows.items() if row[cell] is not None])
        self._summed = max(self._summed, window[1])
        stale, self._stale = self._stale, set()
        for key in stale:
            sums.forget(key)
        totals: dict[Any, list[Any]] = {}
        for namespace in namespaces if stale else ():
            pane, rows = self._pane(namespace)[0], tables[namespace].rows
            for key in stale.intersection(rows) if len(stale) < len(rows) else [key for key in rows if key in stale]:
                content = rows[key][cell]
                if content is not None:
                    totals.setdefault(key, []).append(content)
                    sums.add(pane, [(key, content)])
        if apart:  # elements kept apart belong to some of the windows only, so they must not enter the sums
            for key in stale:
                sums.forget(key)
            self._stale = stale
            yield from ((key, self._total(contents)) for key, contents in totals.items())
        yield from sums.of(window[0])

    def _forget_sums(self) -> None:
        self._sums.clear()
        self._stale.clear()
        self._summed = MIN_TIMESTAMP

    # results

    def _emit_all(self, pairs: _Pairs, window: Bounds) -> None:
        waiting = iter(self.context.clock.unfired(pairs, self._last(window)))
        while chunk := list(islice(waiting, CHUNK)):
            if self._restore_key is not None:
                chunk = [(self._restore_key(key), content) for key, content in chunk]
            if self._global is not None:
                self._global.table().load([key for key, _ in chunk])
            out = Collector(self.context.copied)
            self._emit(out, chunk, window)
            out.emit(self.context)

    def _emit(self, out: Collector, pairs: list[tuple[Any, Any]], span: Bounds) -> None:
        """Call the window function for these keys."""
        last, window = self._last(span), TimeWindow(*span)
        result, apply, process, kept = self._result, self._apply, self._process, self._content.keeps_elements
        take, context, own = out.take_one, self._window_context, self._own
        if self._fits:
            pairs = self._fitted(pairs, window)
        context.at = window
        key = results = None
        try:
            for key, content in pairs:
                if result is not None:
                    content = result(own(content))
                if process is None and apply is None:
                    out.values.append(out.copied(content))
                    out.stamps.append(last)
                    continue
                if result is None:
                    content = own(content)  # a copy: later windows read these panes again
                context.key = key
                if self._global is not None:
                    self._bring_global(key)
                elements = content if kept else [content]
                results = process(key, context, elements) if process is not None else apply(key, window, elements)  # type: ignore[misc]
                if results is not None:
                    for each in results:
                        take(each, last)
                if self._scratch:
                    self._wipe()
        except (Exception, SystemExit) as error:
            failure = not_iterable(error, results)
            raise user_error(failure, self.context.name, self.context.uid, window, key) from error

    def _fitted(self, pairs: list[tuple[Any, Any]], window: TimeWindow) -> list[tuple[Any, Any]]:
        """Check contents when they fire: no barrier may have checked them yet."""
        fit: Callable[[list[Any]], list[Any]] = self._content.fitted
        key = None
        try:
            if self._content.keeps_elements:
                fitting = []
                for key, content in pairs:
                    fitting.append((key, fit(content)))
                return fitting
            contents = fit([content for _, content in pairs])
            return [(key, content) for (key, _), content in zip(pairs, contents)]
        except Misfit as error:
            if not self._content.keeps_elements:
                key, value = pairs[error.position]
            else:
                value = dict(pairs)[key][error.position]
            raise self._misfit(error, value, window, key) from error

    def window_state(self) -> StateSpace:
        """The window function's state. A window fires once per key, so it does not outlive the call."""
        assert self.context.state is not None
        space = self.context.state.space("windows")
        context = self._window_context
        space.key = context.key, (context.at.start, context.at.end)
        (space.row,) = space.table().load((space.key,))
        if not any(each is space.row for each in self._scratch):
            self._scratch.append(space.row)
        return space

    def _wipe(self) -> None:
        for row in self._scratch:
            row[1:] = [None] * (len(row) - 1)
            row[0] &= ~DIRTY
        self._scratch.clear()
