"""The aggregates of windowed tables, whose rows are the windows of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.common.typeinfo import Types
from holdfast.datastream.functions import KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.errors import IncompatibleState
from holdfast.functions.defined_state import DefinedState
from holdfast.runtime.operators.function_factory import FunctionFactory
from holdfast.runtime.records.copies import copied
from holdfast.table.changes import Change, changed
from holdfast.table.lateness import Lateness, TimedProcess
from holdfast.table.windows import SessionWindows, TimeWindows, Windowed

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AggregateSessions", "AggregateWindows", "WindowAggregate", "WindowedFactory"]


class WindowAggregate(KeyedProcessFunction[Any, Any, Change], DefinedState):
    """Base of the aggregates of windows. Elements are tuples whose second field is the value to add."""

    kind: str
    windows: Any

    def definition(self) -> dict[str, Any]:
        """The windows."""
        return {"of": f"the {self.kind} windows of a table", **self.windows.definition()}

    def continuing(self, stored: Mapping[str, Any]) -> Self:
        """Go on with the same windows, and a grace period that is not longer: windows that it would keep are forgotten.

        Raises:
            IncompatibleState: the windows are others, or the grace period is longer.
        """
        own = self.definition()
        if own | {"grace": 0} != {**stored, "grace": 0}:
            raise IncompatibleState(f"it has aggregates of the windows {dict(stored)}, and the program's are {own} (in ms)")
        if own["grace"] > stored["grace"]:
            raise IncompatibleState(
                f"it has windows that close {stored['grace']} ms after their end, and the program's grace period is "
                f"{own['grace']} ms: a late element would begin a window again that has been forgotten"
            )
        return self


class AggregateWindows(WindowAggregate):
    """Aggregates the values of each key and time window. Each element changes the rows of its windows."""

    kind = "time"

    def __init__(self, windows: TimeWindows, initializer: Callable[[], Any], adder: Callable[[Any, Any, Any], Any]) -> None:
        self.windows = windows
        self._initializer = initializer
        self._adder = adder

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of the open windows: their aggregates by their beginnings."""
        self.lateness = Lateness()
        self._open = runtime_context.get_map_state(MapStateDescriptor("windows", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Change]:
        """Add a value to its windows; one that is closed takes none."""
        stamp, key, after = ctx.timestamp(), value[0], self.windows.closes_after
        late, added = True, value[1]
        windows = self.windows.windows_of(stamp)
        for start, end in windows:
            if self.lateness.passed(end, after):
                continue
            late = False
            old = self._open.get(start)
            aggregate = self._initializer() if old is None else copied(old)  # the adder may change both
            new = self._adder(key, added if len(windows) == 1 else copied(added), aggregate)
            if new is None:
                self._open.remove(start)
            else:
                self._open.put(start, new)
            if old is None:
                ctx.timer_service().register_event_time_timer(end + after)
            yield from changed(Windowed(key, start, end), new, old)
        if late:
            self.lateness.drop(value, stamp)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Change]:
        """Forget the windows that are closed."""
        last = timestamp - self.windows.closes_after - self.windows.size_ms
        for start in [start for start in self._open if start <= last]:
            self._open.remove(start)
        return ()


class AggregateSessions(WindowAggregate):
    """Aggregates the values of each key and session. A session that grows, or is merged, is deleted and comes again."""

    kind = "session"

    def __init__(
        self,
        windows: SessionWindows,
        initializer: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        merger: Callable[[Any, Any, Any], Any],
    ) -> None:
        self.windows = windows
        self._initializer = initializer
        self._adder = adder
        self._merger = merger

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of the open sessions: triples of first and last timestamp and aggregate, in order."""
        self.lateness = Lateness()
        self._sessions = runtime_context.get_state(ValueStateDescriptor("sessions"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterator[Change]:
        """Add a value to the session of all sessions that it belongs to."""
        stamp, key, gap, after = ctx.timestamp(), value[0], self.windows.gap_ms, self.windows.closes_after
        met: list[tuple[int, int, Any]] = []
        others: list[tuple[int, int, Any]] = []
        for session in self._sessions.value() or ():
            near = session[0] - gap <= stamp <= session[1] + gap and not self.lateness.passed(session[1], after)
            (met if near else others).append(session)
        start = min([stamp, *(session[0] for session in met)])
        end = max([stamp, *(session[1] for session in met)])
        if self.lateness.passed(end, after):
            self.lateness.drop(value, stamp)
            return
        new, before = self._initializer(), None
        for _, _, held in met:
            new = self._merger(key, new, copied(held))
        for first, last, held in met:
            if start == end:
                before = held
            else:
                yield from changed(Windowed(key, first, last), None, held)
        new = self._adder(key, value[1], new)
        kept = others if new is None else sorted([*others, (start, end, new)], key=lambda session: session[0])
        self._sessions.update(kept or None)
        ctx.timer_service().register_event_time_timer(end + after)
        yield from changed(Windowed(key, start, end), new, before)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Change]:
        """Forget the sessions that are closed."""
        last = timestamp - self.windows.closes_after
        self._sessions.update([each for each in self._sessions.value() or () if each[1] > last] or None)
        return ()


class _WindowedProcess(TimedProcess):
    needing = "a windowed table"


@dataclass(frozen=True)
class WindowedFactory(FunctionFactory):
    """Makes operators of windowed aggregates."""

    needs_timestamps = True

    @staticmethod
    def of(function: WindowAggregate) -> WindowedFactory:
        """The operator of an aggregate."""
        return WindowedFactory(_WindowedProcess, function)

    def deadline(self) -> Callable[[int], int]:
        """An element is late when one of its windows is closed."""
        deadline: Callable[[int], int] = self.func.windows.deadline
        return deadline
