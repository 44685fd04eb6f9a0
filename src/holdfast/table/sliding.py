"""The aggregates of tables of sliding windows: one ends at each element of a key, and one begins just after it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from holdfast.common.typeinfo import Types
from holdfast.datastream.functions import KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import MapStateDescriptor
from holdfast.runtime.records.copies import copied
from holdfast.table.changes import Change, changed
from holdfast.table.lateness import Lateness
from holdfast.table.windowed import WindowAggregate
from holdfast.table.windows import SlidingWindows, Windowed

__all__ = ["AggregateSliding"]


class _Window(NamedTuple):
    """What the state has of a window."""

    start: int
    latest: int
    """The latest timestamp of its elements."""
    aggregate: Any


class _Touched(NamedTuple):
    """A window that an element changes or creates."""

    start: int
    latest: int
    """The latest timestamp of its elements, then."""
    old: Any
    """Its aggregate; None if the element creates it."""
    begun: Any
    """The aggregate of the other elements in it; None if there are none."""
    takes: bool
    """Whether the element is in the window."""


def _touched(near: list[_Window], stamp: int, difference: int) -> list[_Touched]:
    """The windows that an element changes or creates.

    Args:
        near: The windows that begin at most twice the time difference before the element, or a millisecond after it; in
            order.
        stamp: The element's timestamp.
        difference: The time difference of the windows.
    """
    left = max(stamp - difference, 0)
    starts = {window.start for window in near}
    found: list[_Touched] = []
    ended = around = previous = None
    for window in near:
        if window.start < left:
            ended, previous = window.aggregate, window.latest
        elif window.start <= stamp:
            around = window
            found.append(_Touched(window.start, max(window.latest, stamp), window.aggregate, window.aggregate, True))
            if window.start == left and window.latest < stamp:
                previous = window.latest
    if previous is not None and previous + 1 not in starts and previous + 1 + difference >= stamp:
        starts.add(previous + 1)
        found.append(_Touched(previous + 1, stamp, None, None, True))
    if left not in starts:
        # The last window that ends before the element has the elements before it that are in its own window, and no others.
        found.append(_Touched(left, stamp, None, ended if previous is not None and left <= previous else None, True))
    if stamp + 1 not in starts and around is not None and around.latest > stamp:
        # Of the windows around the element, the one that begins last has the elements behind it only.
        found.append(_Touched(stamp + 1, around.latest, None, around.aggregate, False))
    return sorted(found, key=_start)


class AggregateSliding(WindowAggregate):
    """Aggregates the values of each key and sliding window. Each element changes the rows of its windows.

    The state has the windows themselves, not their elements. A new window gets what its elements have in common with one
    that is there, as in Kafka Streams: an element that came when only the window after it was open is in none, and is not
    known later. Windows that begin close to each other are stored together, so that an element reads a few values.
    """

    kind = "sliding"

    def __init__(
        self, windows: SlidingWindows, initializer: Callable[[], Any], adder: Callable[[Any, Any, Any], Any]
    ) -> None:
        self.windows = windows
        self._initializer = initializer
        self._adder = adder
        self._difference = windows.difference_ms
        self._together = windows.difference_ms + 1

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of the windows: lists of start, latest timestamp and aggregate."""
        self.lateness = Lateness()
        self._stored = runtime_context.get_map_state(MapStateDescriptor("windows", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Change]:
        """Add a value to the windows that have its timestamp, and create those that it begins or ends."""
        stamp, key, added, after = ctx.timestamp(), value[0], value[1], self.windows.closes_after
        if stamp < 0:
            raise ValueError(f"sliding windows take timestamps from 0 on, and the element has {stamp}")
        if self.lateness.drops(value, stamp, self._difference + after):
            return ()
        stored = self._near(stamp)
        first = max(stamp - 2 * self._difference, 0)
        near = [window for some in stored.values() for window in some if first <= window.start <= stamp + 1]
        changes: list[Change] = []
        for start, latest, old, begun, takes in _touched(near, stamp, self._difference):
            end = start + self._difference
            if takes and self.lateness.passed(end, after):
                continue
            new = copied(begun)  # the adder may change what it is given
            if takes:
                new = self._adder(key, copied(added), self._initializer() if begun is None else new)
            self._put(stored[start // self._together], start, _Window(start, latest, new))
            changes += changed(Windowed(key, start, end), new, old)
        self._store(stored, ctx)
        return changes

    def _near(self, stamp: int) -> dict[int, list[_Window]]:
        """The windows that are stored together with those that an element could touch, by their number."""
        first, last = max(stamp - 2 * self._difference, 0) // self._together, (stamp + 1) // self._together
        return {at: [_Window(*each) for each in self._stored.get(at) or ()] for at in range(first, last + 1)}

    def _put(self, some: list[_Window], start: int, window: _Window) -> None:
        at = bisect_left(some, start, key=_start)
        known = at < len(some) and some[at].start == start
        some[at : at + known] = [] if window.aggregate is None else [window]

    def _store(self, stored: dict[int, list[_Window]], ctx: KeyedProcessFunction.Context) -> None:
        for at, some in stored.items():
            if not some:
                self._stored.remove(at)
                continue
            if not self._stored.contains(at):
                ctx.timer_service().register_event_time_timer(self._forgotten(at))
            self._stored.put(at, [tuple(each) for each in some])

    def _forgotten(self, at: int) -> int:
        """When the windows of a number are closed, and those that could begin with what is in them."""
        grace: int = self.windows.closes_after
        return (at + 1) * self._together + 2 * self._difference + grace

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Change]:
        """Forget windows."""
        for at in [at for at in self._stored if self._forgotten(at) <= timestamp]:
            self._stored.remove(at)
        return ()


def _start(window: _Window | _Touched) -> int:
    return window.start
