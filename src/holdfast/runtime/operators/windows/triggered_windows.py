"""Windows with a trigger per key: a row and timers for each key and window.

Supports any assigner, trigger and evictor, like Flink's WindowOperator. For windows that fire for all keys at once,
`holdfast.runtime.operators.windows.window` chooses faster operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.common.typeinfo import Types
from holdfast.common.windows import CountWindow, GlobalWindow, TimeWindow, Window
from holdfast.runtime.operators.last_timers import last_rounds
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.operators.windows.former_windows import FormerWindows
from holdfast.runtime.operators.windows.trigger_context import TriggerContext
from holdfast.runtime.operators.windows.window_base import WindowsBase, WindowSpec
from holdfast.runtime.operators.windows.window_content import Elements, WindowContent
from holdfast.runtime.plan.context import UserRuntimeContext
from holdfast.runtime.records.copies import Copy, same
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import not_iterable, user_error
from holdfast.state.cells.entries import LARGE
from holdfast.state.cells.row import DIRTY, Row
from holdfast.state.rows.space import StateSpace
from holdfast.state.timers.timers import TimerQueue
from holdfast.windowing.assigners import GlobalWindows, PeriodicWindows, WindowAssigner
from holdfast.windowing.continuous_triggers import ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger
from holdfast.windowing.element_triggers import CountTrigger, NeverTrigger, PurgingTrigger
from holdfast.windowing.evictors import TimestampedValue
from holdfast.windowing.sessions import SessionWindows
from holdfast.windowing.triggers import EventTimeTrigger, ProcessingTimeTrigger, Trigger, TriggerResult

__all__ = ["Namespace", "Owner", "TriggeredWindows", "namespace_of", "window_of"]

Namespace = Any
"""The stored form of a window: ``(start, end)`` of a time window, the number of a count window, None for the global one."""

Owner = tuple[Any, Namespace]
"""Key and window: the key of a row, and the owner of timers."""

_CONTINUE = TriggerResult.CONTINUE


def namespace_of(window: Any) -> Namespace:
    """The stored form of a window.

    Raises:
        TypeError: the window is of an unknown kind.
    """
    kind = type(window)
    if kind is TimeWindow:
        return window.start, window.end
    if kind is CountWindow:
        return window.id
    if kind is GlobalWindow:
        return None
    raise TypeError(f"the assigner returned {window!r:.200}; windows are TimeWindow, CountWindow and GlobalWindow objects")


def window_of(namespace: Namespace) -> Window:
    """The window with this stored form."""
    if namespace is None:
        return GlobalWindow.get()
    return TimeWindow(*namespace) if type(namespace) is tuple else CountWindow(namespace)


class _AssignerContext(WindowAssigner.WindowAssignerContext):
    """The clock and the runtime context; state is by key."""

    def __init__(self, operator: TriggeredWindows) -> None:
        self._operator = operator
        self._runtime_context: UserRuntimeContext | None = None
        self.space: StateSpace | None = None

    def get_current_processing_time(self) -> int:
        return self._operator.context.clock.processing_time

    def get_current_key(self) -> Any:
        return None if self.space is None else self.space.key

    def get_runtime_context(self) -> UserRuntimeContext:
        if self._runtime_context is None:
            self._runtime_context = UserRuntimeContext(self._operator.context, self.space)
        return self._runtime_context


class _OfInput(TimestampedValue):
    """An element of a window join, for the evictor."""

    input: int
    """The number of the stream that it belongs to."""

    @classmethod
    def made(cls, number: int, value: Any, timestamp: int) -> _OfInput:
        """Wrap an element of the input with this number."""
        made = cls(value, timestamp)
        made.input = number
        return made


_BLIND = frozenset(
    {
        *(CountTrigger, NeverTrigger, EventTimeTrigger, ProcessingTimeTrigger),
        *(ContinuousEventTimeTrigger, ContinuousProcessingTimeTrigger),
    }
)
"""Triggers that only count elements, or depend on time alone."""


def _looks_at_elements(trigger: Trigger[Any, Any]) -> bool:
    """Whether a trigger may decide by the elements, and keep references to them."""
    while isinstance(trigger, PurgingTrigger):
        trigger = trigger.nested
    return type(trigger) not in _BLIND


class TriggeredWindows(WindowsBase):
    """Windows that do not merge."""

    def __init__(self, spec: WindowSpec) -> None:
        super().__init__(spec)
        self._trigger = spec.trigger
        self._evictor = spec.evictor
        self._passed = MIN_TIMESTAMP
        """The watermark that decides whether the current elements are late."""

    def open(self) -> None:
        """Declare the state and open the functions."""
        state = self.context.state
        assert state is not None
        self._space = state.space("windows")
        self._space.expire_by(self.context.clock, None)
        self._held = self._held_content()
        self._cell = 1 + self._space.register(self._held.column(), grows=self._held.keeps_elements)
        self._event_timers = state.timer_queue("window-event")
        self._processing_timers = state.timer_queue("window-processing")
        self._cleanup_timers = self._event_timers if self._event_time else self._processing_timers
        self._ctx = TriggerContext(self.context, self._space, self._event_timers, self._processing_timers)
        self._assigner_ctx = _AssignerContext(self)
        if not isinstance(self._spec.assigner, (PeriodicWindows, SessionWindows, GlobalWindows)):
            self._assigner_ctx.space = state.space("assigner")
            self._assigner_ctx.space.expire_by(self.context.clock, state.timer_queue("ttl"))
        former = self._spec.former
        self._former = None if former is None else FormerWindows(state, former, self._content, self._space)
        super().open()
        self._add = self._held.adder(self._cell)
        self._shown: Copy = self.context.copied if _looks_at_elements(self._trigger) else same
        """Gives the trigger a copy of an element if it may keep it: the window's function may change the original."""
        self._result = self._content.result() if self._evictor is None else None
        self._table = self._space.table()

    def _held_content(self) -> WindowContent:
        """The content of a window; for an evictor, all elements with their timestamps."""
        if self._evictor is None:
            return self._content
        declared = self._content.declared if self._content.keeps_elements else None
        return Elements(None if declared is None or declared.is_pickled else Types.TUPLE([declared, Types.LONG()]))

    def window_state(self) -> StateSpace:
        """The window function's state of the current key and window."""
        return self._space

    # windows of a checkpoint

    def begin_epoch(self, epoch: Epoch, attempt: str, committed: CheckpointId) -> None:
        """Convert a checkpoint's windows of another form, once."""
        former, self._former = self._former, None
        if former is not None:
            self._convert(former)

    def _convert(self, former: FormerWindows) -> None:
        """Give each window in the checkpoint a row for each key, and the timers it would have here.

        A window keeps its span: it gets new elements only if the program has the same window.
        """
        self.context.warn(
            "windows",
            f"the windows of {self.context.where} have changed since the checkpoint. Those with contents keep their "
            "spans; all go on with a row for each key and window, which takes more processor time",
        )
        clock, event_time = self.context.clock, self._event_time
        for number, windows in former.windows():
            for key, stored in former.rows(number):
                fired = clock.reached(key) if event_time else MIN_TIMESTAMP
                left = [each for each in windows if not event_time or self._cleanup_time(each) > fired]
                for window, row in zip(left, self._table.load([(key, each) for each in left])):
                    content = former.content(stored)
                    held = row[self._cell]
                    row[self._cell] = content if held is None else self._held.merged(held, content)
                    former.move_states(stored, row)
                    row[0] |= DIRTY
                    self._register_cleanup((key, window))
                    last = min(window[1] - 1, MAX_TIMESTAMP)
                    if last > fired:
                        self._cleanup_timers.register(last, (key, window))
            former.drop(number)

    # elements

    def process(self, batch: RecordBatch) -> None:
        """Add elements to their windows."""
        keys, values = batch.keys, batch.values
        assert keys is not None
        own, least = self.context.copied, MIN_TIMESTAMP + 1
        stamps = self._timestamps(batch, least) if self._event_time else batch.stamps()
        self._passed = self.context.clock.passed
        out = Collector(self.context.copied)
        key = value = None
        try:
            assigned = self._assign_all(keys, values, stamps)
            rows = iter(self._load(keys, assigned))
            late: tuple[list[Any], list[int]] = ([], [])
            for key, value, stamp, windows in zip(keys, values, stamps, assigned):
                left = len(windows)
                for namespace in windows:
                    left -= 1
                    owner = key, namespace
                    # Each window gets a copy of the element, because functions may change it.
                    self._add_element(out, own(value) if left else value, stamp, owner, owner, next(rows))
                if not windows and self._event_time and stamp + self._lateness <= self._passed:
                    late[0].append(value)
                    late[1].append(stamp)
        except (Exception, SystemExit) as error:
            raise self._failure(error, self._bare(value), key) from error
        if late[0]:
            self._emit_late(*late)
        out.emit(self.context)

    def _failure(self, error: BaseException, value: Any, key: Any) -> Exception:
        return user_error(error, self.context.name, self.context.uid, value, key)

    def _assign_all(self, keys: list[Any], values: list[Any], stamps: Sequence[int]) -> list[list[Namespace]]:
        """The windows of each element, except those for which it is too late."""
        assigner = self._spec.assigner
        if isinstance(assigner, PeriodicWindows):
            if not self._event_time:
                stamps = [self.context.clock.processing_time] * len(values)
            known: dict[int, list[Namespace]] = {}
            assigned = []
            for stamp in stamps:
                pane = assigner.pane_of(stamp)
                windows = known.get(pane)
                if windows is None:
                    windows = known[pane] = [each for each in reversed(assigner.windows(pane)) if not self._is_late(each)]
                assigned.append(windows)
            return assigned
        space, assign, context = self._assigner_ctx.space, assigner.assign_windows, self._assigner_ctx
        rows = [None] * len(keys) if space is None else space.table().load(keys)
        assigned = []
        key = value = None
        made: Any = ()
        try:
            for key, value, stamp, row in zip(keys, map(self._bare, values), stamps, rows):
                if space is not None:
                    space.row, space.key = row, key  # type: ignore[assignment]
                made = assign(value, stamp, context)
                windows = [namespace_of(each) for each in made]
                assigned.append([each for each in windows if not self._is_late(each)])
        except (Exception, SystemExit) as error:
            told: BaseException = error
            if not isinstance(made, Iterable):
                told = TypeError(
                    f"assign_windows() of {assigner!r:.200} returned {made!r:.200}; it must return a list of windows"
                )
            raise self._failure(told, value, key) from error
        return assigned

    def _load(self, keys: list[Any], assigned: list[list[Namespace]]) -> list[Row]:
        return self._table.load([(key, each) for key, windows in zip(keys, assigned) for each in windows])

    def _cleanup_time(self, namespace: Namespace) -> int:
        """The time at which a window is removed; the end of time for a window that stays."""
        if type(namespace) is not tuple:
            return MAX_TIMESTAMP
        last: int = namespace[1] - 1
        return min(last + self._lateness, MAX_TIMESTAMP) if self._event_time else last

    def _is_over(self, namespace: Namespace) -> bool:
        """Whether the window has expired for the current elements."""
        return self._event_time and self._cleanup_time(namespace) <= self._passed

    def _is_late(self, namespace: Namespace) -> bool:
        """Whether the current elements are too late for the window."""
        return self._is_over(namespace)

    def _add_element(self, out: Collector, value: Any, stamp: int, owner: Owner, row_key: Any, row: Row) -> None:
        """Add an element to a window, and ask the trigger."""
        namespace = owner[1]
        shown = self._shown(value[1] if self._spec.two_inputs else value)
        self._add([row], [value if self._evictor is None else (value, stamp)])
        window = window_of(namespace)
        self._ctx.enter(owner, row_key, row)
        result = self._trigger.on_element(shown, stamp, window, self._ctx)
        if result is not _CONTINUE:
            self._act(result, "on_element", out, owner[0], window, row, stamp)
        self._register_cleanup(owner)

    def _register_cleanup(self, owner: Owner) -> None:
        time = self._cleanup_time(owner[1])
        if time < MAX_TIMESTAMP:
            self._cleanup_timers.register(time, owner)

    def _delete_cleanup(self, owner: Owner) -> None:
        time = self._cleanup_time(owner[1])
        if time < MAX_TIMESTAMP:
            self._cleanup_timers.delete(time, owner)

    # what the trigger decides

    def _act(
        self, result: Any, method: str, out: Collector, key: Any, window: Window, row: Row, at: int, *, goes: bool = False
    ) -> None:
        """Carry out the trigger's decision; ``goes``: the window is removed afterwards."""
        if type(result) is not TriggerResult:
            raise TypeError(
                f"{method}() of the trigger {self._trigger!r:.200} returned {result!r:.200}; it must return a TriggerResult"
            )
        if result.is_fire() and row[self._cell] is not None:
            stamp = at if window.max_timestamp() == MAX_TIMESTAMP else window.max_timestamp()
            self._fire(out, key, window, row, stamp, stays=not (goes or result.is_purge()))
        if result.is_purge():
            self._purge(row)

    def _purge(self, row: Row) -> None:
        if type(row[self._cell]) in LARGE:
            row[self._cell].drop()
        row[self._cell] = None
        row[0] |= DIRTY

    def _fire(self, out: Collector, key: Any, window: Window, row: Row, stamp: int, *, stays: bool) -> None:
        own = self._own if stays else same
        if self._evictor is None:
            content = row[self._cell]
            if self._result is not None:
                content = self._result(own(content))
            elif self._content.keeps_elements:
                content = own(list(content))
            elif self._process is not None or self._apply is not None:
                content = own(content)
            self._call(out, key, window, content, stamp)
            return
        elements = self._timestamped(row[self._cell])
        self._evictor.evict_before(elements, len(elements), window, self._ctx)
        content = self._content.of([own(each) for each, _ in self._stored(elements)])
        if content is not None:
            self._call(out, key, window, content, stamp)
        self._evictor.evict_after(elements, len(elements), window, self._ctx)
        self._purge(row)
        row[self._cell] = self._stored(elements) or None

    def _timestamped(self, content: Iterable[tuple[Any, int]]) -> list[TimestampedValue]:
        """The elements of a window, for its evictor."""
        if not self._spec.two_inputs:
            return [TimestampedValue(*each) for each in content]
        return [_OfInput.made(side, value, stamp) for (side, value), stamp in content]

    def _stored(self, elements: list[TimestampedValue]) -> list[tuple[Any, int]]:
        """The elements that the evictor has left of `_timestamped`."""
        if not self._spec.two_inputs:
            return [tuple(each) for each in elements]
        stored = []
        for each in elements:
            if not isinstance(each, _OfInput):
                raise TypeError(
                    f"the evictor {self._evictor!r:.200} added {each!r:.200} to a window; it may only remove elements"
                )
            stored.append(((each.input, each.value), each.timestamp))
        return stored

    def _call(self, out: Collector, key: Any, window: Window, content: Any, stamp: int) -> None:
        """Call the window function."""
        results: Any = None
        elements = content if self._content.keeps_elements else [content]
        context = self._window_context
        context.at, context.key = window, key
        if self._global is not None:
            self._bring_global(key)
        try:
            if self._process is not None:
                results = self._process(key, context, elements)
            elif self._apply is not None:
                results = self._apply(key, window, elements)
            else:
                out.values.append(out.copied(content))
                out.stamps.append(stamp)
            if results is not None:
                out.take(results, stamp)
        except (Exception, SystemExit) as error:
            raise self._failure(not_iterable(error, results), window, key) from error

    # time

    def advance_watermark(self, watermark: int) -> None:
        """Fire the event-time timers that are due."""
        self._fire_timers(self._event_timers, watermark, self._trigger.on_event_time, "on_event_time")

    def advance_processing_time(self, now: int) -> None:
        """Fire the processing-time timers that are due."""
        super().advance_processing_time(now)
        if self._assigner_ctx.space is not None:
            self._assigner_ctx.space.sweep()
        # More elements may arrive in this millisecond.
        self._fire_timers(self._processing_timers, now - 1, self._trigger.on_processing_time, "on_processing_time")

    def next_processing_time(self) -> int | None:
        """The time of the next timer."""
        time = self._processing_timers.next_time()
        return None if time is None else time + 1

    def _fire_timers(self, timers: TimerQueue, time: int, on_time: Callable[..., TriggerResult], method: str) -> None:
        """Fire the timers that are due."""
        if time < MAX_TIMESTAMP:
            self._fire_until(timers, time, on_time, method)
            return
        for _ in last_rounds(timers, self.context.where, "the trigger"):
            self._fire_until(timers, timers.last_time(), on_time, method)

    def _fire_until(self, timers: TimerQueue, time: int, on_time: Callable[..., TriggerResult], method: str) -> None:
        cleans = timers is self._cleanup_timers
        restore_key = self._restore_key
        out = Collector(self.context.copied)
        when, key, namespace = 0, None, None
        try:
            for when, owner in timers.due(time, self._prefetch):
                key, namespace = owner
                found = self._row_of(owner)
                if found is None:  # the window was merged or removed
                    continue
                row_key, row = found
                if restore_key is not None:
                    key = restore_key(key)
                window = window_of(namespace)
                self._ctx.enter(owner, row_key, row)
                result = on_time(when, window, self._ctx)
                goes = cleans and when >= self._cleanup_time(namespace)
                if result is not _CONTINUE:
                    self._act(result, method, out, key, window, row, when, goes=goes)
                if goes:
                    self._remove(owner, key, window, row)
                elif cleans and self._lateness and row[self._cell] is not None:
                    self._register_cleanup(owner)  # the window may have begun with another allowed lateness
        except (Exception, SystemExit) as error:
            raise self._failure(error, f"timer {when} of {window_of(namespace)!r}", key) from error
        out.emit(self.context)

    def _prefetch(self, owners: list[Owner]) -> None:
        self._table.load(owners)

    def _row_of(self, owner: Owner) -> tuple[Any, Row] | None:
        """The row of a window with its key; None if the window does not exist."""
        row = self._table.rows.get(owner)
        return owner, self._table.load_one(owner) if row is None else row

    def _remove(self, owner: Owner, key: Any, window: Window, row: Row) -> None:
        """Remove an expired window."""
        self._trigger.clear(window, self._ctx)
        if self._clear is not None:
            context = self._window_context
            context.at, context.key = window, key
            if self._global is not None:
                self._bring_global(key)
            self._clear(context)
        self._empty(row)

    def _empty(self, row: Row) -> None:
        for cell in range(1, len(row)):
            if type(row[cell]) in LARGE:
                row[cell].drop()
            row[cell] = None
        row[0] |= DIRTY
