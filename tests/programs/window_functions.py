"""The functions of drawn windows, and the user's own assigners, triggers and evictors; see `functions`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.common import Types
from holdfast.datastream import (
    AllWindowFunction,
    EventTimeTrigger,
    Evictor,
    MergingWindowAssigner,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    TimeWindow,
    Trigger,
    TriggerResult,
    ValueStateDescriptor,
    WindowAssigner,
    WindowFunction,
)

from .functions import END, digest, made

AFTER_ALL = 10**7
"""How much later the second session of an element is."""


def place(window: Any) -> int:
    """What tells a window from others of its key, beside its end."""
    return window.start if isinstance(window, TimeWindow) else getattr(window, "id", 0)


class Whole(ProcessWindowFunction):
    """Which elements a window has; if `counted`, after how many windows of the key; with 2, that the window is new, too."""

    def __init__(self, ordered: bool | str, counted: int = 0, in_place: bool = False) -> None:
        self.ordered, self.counted, self.in_place = ordered, counted, in_place

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        elements = list(elements)
        result = len(elements) * 10_000 + digest(elements, self.ordered)
        if self.counted:
            fired = context.global_state().get_state(ValueStateDescriptor("fired", Types.LONG()))
            fired.update((fired.value() or 0) + 1)
            result = result * 100 + fired.value() * 10
        if self.counted == 2:
            here = context.window_state().get_state(ValueStateDescriptor("here", Types.LONG()))
            here.update((here.value() or 0) + 1)
            result += here.value()
        if self.in_place:
            for element in elements:
                if type(element) is list:
                    element[2] = -999
        yield made(self.in_place, key, place(context.window()), result)


class Cleared(Whole):
    """The same, and a `clear` that frees the window's state."""

    def clear(self, context: Any) -> None:
        context.window_state().get_state(ValueStateDescriptor("here", Types.LONG())).clear()


class Applied(WindowFunction):
    def __init__(self, ordered: bool | str, in_place: bool = False) -> None:
        self.ordered, self.in_place = ordered, in_place

    def apply(self, key: Any, window: Any, inputs: Any) -> Iterator[Any]:
        elements = list(inputs)
        result = len(elements) * 10_000 + digest(elements, self.ordered)
        if self.in_place:
            for element in elements:
                if type(element) is list:
                    element[2] = -999
        yield made(self.in_place, key, place(window), result)


class WholeOfAll(ProcessAllWindowFunction):
    def __init__(self, ordered: bool | str, in_place: bool = False) -> None:
        self.ordered, self.in_place = ordered, in_place

    def process(self, context: Any, elements: Any) -> Iterator[Any]:
        yield from Applied(self.ordered, self.in_place).apply("all", context.window(), elements)


class AppliedToAll(AllWindowFunction):
    def __init__(self, ordered: bool | str, in_place: bool = False) -> None:
        self.ordered, self.in_place = ordered, in_place

    def apply(self, window: Any, inputs: Any) -> Iterator[Any]:
        yield from Applied(self.ordered, self.in_place).apply("all", window, inputs)


class Contents(WindowFunction):
    """The elements of a window, by its key."""

    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def apply(self, key: Any, window: Any, inputs: Any) -> Iterator[Any]:
        for element in inputs:
            yield made(self.in_place, key, element[1], element[2])
            if self.in_place and type(element) is list:
                element[2] = -999


class ContentsOfKey(ProcessWindowFunction):
    def __init__(self, in_place: bool = False) -> None:
        self.in_place = in_place

    def process(self, key: Any, context: Any, elements: Any) -> Iterator[Any]:
        yield from Contents(self.in_place).apply(key, context.window(), elements)


class Placed(WindowFunction):
    """The one value of a window, with its key and place."""

    def apply(self, key: Any, window: Any, inputs: Any) -> Iterator[Any]:
        for value in inputs:
            yield key, place(window), value[2]


class EvenAndOdd(WindowAssigner):
    """The user's own windows: even numbers in windows of one size, odd ones in windows of another."""

    def __init__(self, size: int) -> None:
        self.size = size

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[TimeWindow]:
        size = self.size * (1 + element[2] % 2)
        start = timestamp - timestamp % size
        return [TimeWindow(start, start + size)]

    def get_default_trigger(self, env: Any) -> Trigger:
        return EventTimeTrigger.create()

    def is_event_time(self) -> bool:
        return True


class OwnSessions(MergingWindowAssigner):
    """The user's own sessions."""

    def __init__(self, gap: int) -> None:
        self.gap = gap

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[TimeWindow]:
        return [TimeWindow(timestamp, timestamp + self.gap)]

    def merge_windows(self, windows: Any, callback: Any) -> None:
        TimeWindow.merge_windows(windows, callback.merge)

    def get_default_trigger(self, env: Any) -> Trigger:
        return EventTimeTrigger.create()

    def is_event_time(self) -> bool:
        return True


class TwoSessions(OwnSessions):
    """Each element is in two sessions, of which one is long after all others."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> list[TimeWindow]:
        return [TimeWindow(start, start + self.gap) for start in (timestamp, timestamp + AFTER_ALL)]


class WithOddAtEnd(Trigger):
    """The user's own trigger: at the end of windows that have an odd number."""

    odd = ValueStateDescriptor("odd", Types.BOOLEAN())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        if element[2] % 2:
            ctx.get_partitioned_state(self.odd).update(True)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if ctx.get_partitioned_state(self.odd).value() else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        raise NotImplementedError

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self.odd).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


class EarlyAndAtEnd(Trigger):
    """The user's own trigger: at each n-th element by a state of its own, and at the end."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.seen = ValueStateDescriptor("seen", Types.LONG())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        seen = ctx.get_partitioned_state(self.seen)
        seen.update((seen.value() or 0) + 1)
        return TriggerResult.FIRE if seen.value() % self.n == 0 else TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        raise NotImplementedError

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self.seen).clear()
        ctx.delete_event_time_timer(window.max_timestamp())


class AtEndToo(Trigger):
    """The user's own trigger: another one, and the end of all time."""

    def __init__(self, inner: Trigger) -> None:
        self.inner = inner

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> TriggerResult:
        ctx.register_event_time_timer(END)
        return self.inner.on_element(element, timestamp, window, ctx)

    def on_event_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE if time == END else self.inner.on_event_time(time, window, ctx)

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> TriggerResult:
        return self.inner.on_processing_time(time, window, ctx)

    def can_merge(self) -> bool:
        return self.inner.can_merge()

    def on_merge(self, window: Any, ctx: Any) -> None:
        ctx.register_event_time_timer(END)
        self.inner.on_merge(window, ctx)

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.delete_event_time_timer(END)
        self.inner.clear(window, ctx)


class NoMultipleLeft(Evictor):
    """The user's own evictor: before the function, all but the last element whose number is a multiple."""

    def __init__(self, of: int) -> None:
        self.of = of

    def evict_before(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        elements[:-1] = [each for each in elements[:-1] if each.value[2] % self.of]

    def evict_after(self, elements: Any, size: int, window: Any, evictor_context: Any) -> None:
        pass
