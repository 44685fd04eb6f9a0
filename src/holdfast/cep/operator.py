"""The operator of patterns: keeps a key's events until their time has come, and the matcher's state between them.

The function stands on the public API: a KeyedProcessFunction with keyed state and timers. In event time it holds elements
back by timestamp and gives them to the matcher when the watermark has reached them, so that these come in order of time
between all watermarks. One more timer of a key tells when its next partial match is over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.cep.automaton import Automaton
from holdfast.cep.buffer import SharedBuffer
from holdfast.cep.functions import PatternProcessFunction, TimedOutPartialMatchHandler
from holdfast.cep.matcher import Match, Matcher, MatchState, TimedOut
from holdfast.cep.skip import AfterMatchSkipStrategy
from holdfast.common.output_tag import OutputTag
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.datastream.functions import KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.errors import IncompatibleState
from holdfast.functions.defined_state import DefinedState
from holdfast.functions.timer_service import TimerService
from holdfast.runtime.operators.function_factory import FunctionFactory
from holdfast.runtime.operators.keyed import KeyedProcess
from holdfast.runtime.records.copies import Copy, copied
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import open_function

__all__ = ["CepFactory", "CepOperator", "PatternFunction"]

_LONG = Types.LONG()
_NODE = Types.TUPLE([_LONG] * 4)
_PARTIAL = Types.TUPLE([*[_LONG] * 5, Types.BOOLEAN()])
_FOUND = Types.TUPLE([_LONG] * 2)
_MATCHER = Types.TUPLE([Types.LIST(_PARTIAL), Types.LIST(_FOUND), _LONG, _LONG])
_NO_TIMER = -1


class _Context(PatternProcessFunction.Context):
    """The context of a match; the function sets ``stamp``."""

    __slots__ = ("_function", "stamp")

    stamp: int

    def __init__(self, function: PatternFunction) -> None:
        self._function = function

    def timestamp(self) -> int:
        return self.stamp

    def current_processing_time(self) -> int:
        return self._function.timers.current_processing_time()


class PatternFunction(KeyedProcessFunction, DefinedState):
    """Looks for the matches of a pattern among the elements of each key."""

    timers: TimerService
    """The timer service of the current call."""
    element: Any = None
    """The element with the matcher, for messages."""
    own: Copy = copied
    """Makes an event the function's own: other matches have it, too."""

    def __init__(
        self,
        automaton: Automaton,
        skip: AfterMatchSkipStrategy,
        function: PatternProcessFunction,
        event_time: bool,
        event_type: TypeInformation | None,
        comparator: Callable[[Any, Any], int] | None,
    ) -> None:
        self._automaton = automaton
        self._skip = skip
        self.function = function
        self.event_time = event_time
        self._type = event_type
        self._comparator = comparator

    def definition(self) -> dict[str, Any]:
        """The pattern's parts, as partial matches have their numbers; and what decides which of its states are in use."""
        automaton = self._automaton
        return {
            "of": "a pattern",
            "patterns": list(automaton.names),
            "structure": automaton.fingerprint,
            "skips": self._skip.is_skip_strategy(),
            "event time": self.event_time,
        }

    def continuing(self, stored: Mapping[str, Any]) -> PatternFunction:
        """The partial matches of another pattern are refused; other conditions and times apply to events that come.

        Raises:
            IncompatibleState: the pattern has other parts.
        """
        own = self.definition()
        before, now = (" -> ".join(each["patterns"]) for each in (stored, own))
        if before != now:
            raise IncompatibleState(f"it has partial matches of the pattern {before}, and the program's is {now}")
        for name, what in (("structure", "structure"), ("skips", "skip strategy"), ("event time", "time domain")):
            if stored[name] != own[name]:
                raise IncompatibleState(f"it has partial matches of the pattern {now} with another {what}")
        return self

    def open(self, runtime_context: RuntimeContext) -> None:
        """Open the user's function and get the states."""
        declared = self._type
        list_type = None if declared is None else Types.LIST(declared)
        held_type = None if declared is None else Types.TUPLE([declared, _LONG])
        self._waiting = runtime_context.get_map_state(MapStateDescriptor("waiting", _LONG, list_type))
        self._nodes = runtime_context.get_map_state(MapStateDescriptor("nodes", _LONG, _NODE))
        self._events = runtime_context.get_map_state(MapStateDescriptor("events", _LONG, held_type))
        self._partial = runtime_context.get_state(ValueStateDescriptor("partial", _MATCHER))
        self._buffer = SharedBuffer(self._nodes, self._events)
        self._matcher = Matcher(self._automaton, self._skip, lambda: self.timers.current_processing_time())
        self._context = _Context(self)
        handler = self.function if isinstance(self.function, TimedOutPartialMatchHandler) else None
        self._time_out = None if handler is None else handler.process_timed_out_match
        self._order = None if self._comparator is None else functools.cmp_to_key(self._comparator)
        open_function(self.function, runtime_context)

    def close(self) -> None:
        """Close the user's function."""
        self.function.close()

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Any] | None:
        """Hold an element back until its time has come; in processing time that is now."""
        if self.event_time:
            stamp = ctx.timestamp()
            waiting = self._waiting.get(stamp)
            if waiting is None:
                ctx.timer_service().register_event_time_timer(stamp)
                self._waiting.put(stamp, [value])
            else:
                waiting.append(value)
                self._waiting.put(stamp, waiting)
            return None
        self.timers = ctx.timer_service()
        return self._process(self.timers.current_processing_time(), [value])

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Iterable[Any] | None:
        """Process the elements of this time, and end the partial matches whose time is over."""
        self.timers = ctx.timer_service()
        if not self.event_time:
            return self._process(timestamp, ())
        elements = self._waiting.get(timestamp)
        if elements is None:
            return self._process(timestamp, ())
        self._waiting.remove(timestamp)
        if self._order is not None and len(elements) > 1:
            elements = sorted(elements, key=self._order)
        return self._process(timestamp, elements)

    def _process(self, now: int, elements: Iterable[Any]) -> list[Any] | None:
        """Advance the key's time, and give the elements of this time to the matcher."""
        stored = self._partial.value()
        if stored is None:
            state, timer = MatchState(), _NO_TIMER
        else:
            partial, found, number, timer = stored
            state = MatchState(partial, found, number)
        matcher, buffer = self._matcher, self._buffer
        matches, over, changed = matcher.advance(state, buffer, now)
        results: list[Any] = []
        if over:
            self._tell_timed_out(over, results)
        if matches:
            self._tell(matches, now, results)
        for element in elements:
            self.element = element
            matches, moved = matcher.process(state, buffer, element, now)
            changed = changed or moved
            if matches:
                self._tell(matches, now, results)
        self.element = None
        if changed or timer == now:
            self._store(state, now, timer)
        return results or None

    def _store(self, state: MatchState, now: int, timer: int) -> None:
        if not state:
            self._partial.clear()
            return
        deadline = self._matcher.deadline(state)
        if deadline is not None and not now < timer <= deadline:
            timer = deadline
            if self.event_time:
                self.timers.register_event_time_timer(deadline)
            else:
                self.timers.register_processing_time_timer(deadline)
        self._partial.update((state.partial, state.found, state.next_number, timer))

    def _tell(self, matches: list[Match], now: int, results: list[Any]) -> None:
        self._context.stamp = now
        for match in matches:
            made = self.function.process_match(self._own(match), self._context)
            if made is not None:
                results.extend(made)

    def _own(self, match: Match) -> Match:
        return {name: list(map(self.own, events)) for name, events in match.items()}

    def _tell_timed_out(self, over: list[TimedOut], results: list[Any]) -> None:
        if self._time_out is None:
            return
        for match, timestamp in over:
            self._context.stamp = timestamp
            for result in self._time_out(self._own(match), self._context) or ():
                if not (type(result) is tuple and len(result) == 2 and isinstance(result[0], OutputTag)):
                    raise TypeError(
                        f"process_timed_out_match() gave {result!r:.200}, but partial matches have no main output: yield "
                        "(tag, value) with an OutputTag"
                    )
                results.append(result)


class CepOperator(KeyedProcess):
    """Runs a PatternFunction; elements that are late go to a side output, or are dropped."""

    function: PatternFunction

    def __init__(self, function: PatternFunction, late_tag: OutputTag | None) -> None:
        super().__init__(function)
        self._late_tag = late_tag

    def open(self) -> None:
        """Open the function."""
        self.function.own = self.context.copied
        super().open()

    def process(self, batch: RecordBatch) -> None:
        """Give the elements that are not late to the function."""
        if not self.function.event_time:
            super().process(batch)
            return
        stamps = batch.stamps()
        if (at := batch.untimed()) is not None:
            told = ValueError(
                "the element has no timestamp, which a pattern in event time needs: assign timestamps before it, or call "
                "in_processing_time()"
            )
            assert batch.keys is not None
            raise self.fail(told, batch.values[at], batch.keys[at])
        passed = self.context.clock.passed
        if min(stamps) > passed:
            super().process(batch)
            return
        late = [(value, stamp) for value, stamp in zip(batch.values, stamps) if stamp <= passed]
        self.context.emit_late(self._late_tag, [value for value, _ in late], [stamp for _, stamp in late])
        if len(late) < len(stamps):
            assert batch.keys is not None
            on_time = [each for each in zip(batch.values, stamps, batch.keys) if each[1] > passed]
            super().process(RecordBatch(*map(list, zip(*on_time))))

    def fail(self, error: BaseException, value: Any, key: Any) -> Exception:
        """The user's error with the element that the matcher was given."""
        element = self.function.element
        return super().fail(error, value if element is None else element, key)


@dataclass(frozen=True)
class CepFactory(FunctionFactory):
    """Makes the operator around a PatternFunction."""

    @property
    def needs_timestamps(self) -> bool:  # type: ignore[override]
        """Whether the pattern is in event time."""
        return bool(self.func.event_time)

    def deadline(self) -> Callable[[int], int] | None:
        """An element is late when the watermark has reached it: its time has been processed."""
        return _reached if self.func.event_time else None


def _reached(timestamp: int) -> int:
    return timestamp
