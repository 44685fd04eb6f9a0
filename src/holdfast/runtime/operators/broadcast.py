"""Operators of a stream and a broadcast stream; broadcast elements change the broadcast state of every subtask."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

from holdfast.common.time import MIN_TIMESTAMP
from holdfast.functions.broadcast_functions import BroadcastProcessFunction, KeyedBroadcastProcessFunction
from holdfast.runtime.operators.co import TwoInputs
from holdfast.runtime.operators.function_life import FunctionLife
from holdfast.runtime.operators.keyed import ElementContext, KeyedProcess, TimerContext
from holdfast.runtime.operators.stateless import Process
from holdfast.runtime.plan.operator import StateKind
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import user_error
from holdfast.runtime.time.clock import Clock
from holdfast.state.api.descriptors import MapStateDescriptor, StateDescriptor
from holdfast.state.cells.broadcast import BroadcastMap, ReadOnlyBroadcastMap
from holdfast.state.cells.row import Row
from holdfast.state.rows.table import RowTable

__all__ = ["BroadcastProcess", "KeyedBroadcastProcess", "chunks"]

_CHUNK = 1000
"""Number of rows that `apply_to_keyed_state` loads from the local store at once."""
_MOST_DESCRIPTORS = 64
"""Limit of cached descriptors: a function may create a new one for each element."""


class BroadcastStates:
    """The broadcast states of an operator in one subtask."""

    def __init__(self, life: FunctionLife, where: str, descriptors: Sequence[MapStateDescriptor]) -> None:
        assert life.states is not None
        self._where = where
        self._maps = {each.name: life.states.get_broadcast_state(each) for each in descriptors}
        self._read_only = {name: ReadOnlyBroadcastMap(state, name) for name, state in self._maps.items()}
        self.read_only = _by_descriptor(lambda descriptor: self._read_only[self._known(descriptor)])
        """Returns the state for the other side."""

    def writable(self, descriptor: MapStateDescriptor) -> BroadcastMap:
        """The state for the broadcast side."""
        return self._maps[self._known(descriptor)]

    def _known(self, descriptor: MapStateDescriptor) -> str:
        name = getattr(descriptor, "name", None)
        if not isinstance(name, str) or name not in self._maps:
            raise ValueError(
                f"operator {self._where} has no broadcast state {name or descriptor!r}: pass its descriptor to broadcast()"
            )
        return name


def _by_descriptor(
    find: Callable[[MapStateDescriptor], ReadOnlyBroadcastMap],
) -> Callable[[MapStateDescriptor], ReadOnlyBroadcastMap]:
    """Add a cache to a lookup that is made for each element; a descriptor is equal only to itself."""
    known: dict[MapStateDescriptor, ReadOnlyBroadcastMap] = {}

    def read_only(state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastMap:
        try:
            return known[state_descriptor]
        except (KeyError, TypeError):
            pass  # not cached yet, or not a descriptor
        state = find(state_descriptor)
        if len(known) < _MOST_DESCRIPTORS:
            known[state_descriptor] = state
        return state

    return read_only


class _Side(Process):
    """One input of a function; the operator sets its context."""

    given: _Times

    def user_context(self) -> _Times:
        return self.given


class _Times:
    """The current element and the clocks."""

    def __init__(self, clock: Clock, states: BroadcastStates) -> None:
        self.stamp = MIN_TIMESTAMP
        self.clock = clock
        self.states = states

    def timestamp(self) -> int:
        return self.stamp

    def current_processing_time(self) -> int:
        return self.clock.processing_time

    def current_watermark(self) -> int:
        return self.clock.watermark


class _BroadcastContext(_Times, BroadcastProcessFunction.Context):
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastMap:
        return self.states.writable(state_descriptor)


class _ReadOnlyContext(_Times, BroadcastProcessFunction.ReadOnlyContext):
    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastMap:
        return self.states.read_only(state_descriptor)


class BroadcastProcess(TwoInputs):
    """A BroadcastProcessFunction."""

    state = StateKind.LISTED

    def __init__(self, function: Any, descriptors: Sequence[MapStateDescriptor]) -> None:
        self._side, self._broadcast_side = _Side(function.process_element), _Side(function.process_broadcast_element)
        super().__init__(function, self._side, self._broadcast_side)
        self._descriptors = descriptors

    def open_sides(self) -> None:
        states = BroadcastStates(self.life, self.context.where, self._descriptors)
        self._side.given = _ReadOnlyContext(self.context.clock, states)
        self._broadcast_side.given = _BroadcastContext(self.context.clock, states)
        super().open_sides()


class _KeyedElement(ElementContext):
    """The current element or timer, the clocks, and read-only broadcast state."""

    def __init__(self, states: BroadcastStates, *timers: Any) -> None:
        super().__init__(*timers)
        self._states = states
        self.get_broadcast_state = states.read_only  # type: ignore[assignment, method-assign]  # for each element: one call less

    def current_processing_time(self) -> int:
        return self.timer_service().current_processing_time()

    def current_watermark(self) -> int:
        return self.timer_service().current_watermark()

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastMap:
        return self._states.read_only(state_descriptor)


class _KeyedReadOnlyContext(_KeyedElement, KeyedBroadcastProcessFunction.ReadOnlyContext):
    pass


class _KeyedTimerContext(_KeyedElement, TimerContext, KeyedBroadcastProcessFunction.OnTimerContext):
    pass


class _KeyedBroadcastContext(_Times, KeyedBroadcastProcessFunction.Context):
    def __init__(self, clock: Clock, states: BroadcastStates, apply: _Apply) -> None:
        super().__init__(clock, states)
        self._apply = apply

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastMap:
        return self.states.writable(state_descriptor)

    def apply_to_keyed_state(self, state_descriptor: StateDescriptor, function: Callable[[Any, Any], object]) -> None:
        self._apply(state_descriptor, function)


_Apply = Callable[[StateDescriptor, Callable[[Any, Any], object]], None]


class KeyedBroadcastProcess(KeyedProcess):
    """A KeyedBroadcastProcessFunction."""

    state = StateKind.KEYED | StateKind.LISTED

    def __init__(self, function: Any, descriptors: Sequence[MapStateDescriptor]) -> None:
        super().__init__(function)
        self._descriptors = descriptors
        self._broadcast_side = _Side(function.process_broadcast_element)

    def open(self) -> None:
        super().open()
        side = self._broadcast_side
        side.context = self.context
        side.given = _KeyedBroadcastContext(self.context.clock, self._states, self._apply_to_keyed_state)
        side.open()

    def contexts(self) -> tuple[ElementContext, TimerContext]:
        self._states = BroadcastStates(self.life, self.context.where, self._descriptors)
        timers = (self.context.clock, self.event_timers, self.processing_timers, self.space)
        return _KeyedReadOnlyContext(self._states, *timers), _KeyedTimerContext(self._states, *timers)

    def inputs(self) -> Sequence[Callable[[RecordBatch], None]]:
        return (self.process, self._process_broadcast)

    def _process_broadcast(self, batch: RecordBatch) -> None:
        self.space.leave_key()
        self._broadcast_side.process(batch)

    def _apply_to_keyed_state(self, descriptor: StateDescriptor, function: Callable[[Any, Any], object]) -> None:
        space, table, restore_key = self.space, self.table, self.restore_key
        state, cell = space.state_of(descriptor)
        try:
            for chunk in chunks(table, cell):
                for key, row in chunk:
                    space.row = row
                    space.key = key if restore_key is None else restore_key(key)
                    try:
                        function(space.key, state)
                    except (Exception, SystemExit) as error:
                        raise user_error(error, self.context.name, self.context.uid, key=space.key) from error
        finally:
            space.leave_key()


def chunks(table: RowTable, cell: int) -> Iterator[list[tuple[Any, Row]]]:
    """All rows with state in a cell, in chunks: first those in memory, then those only in the store."""
    held = [(key, row) for key, row in table.rows.items() if row[cell] is not None]
    yield held
    table.claim(held)
    if table.in_store:
        stored = ((key, row) for key, row in table.stored_rows() if key not in table.rows and row[cell] is not None)
        while read := list(islice(stored, _CHUNK)):
            table.take_in(read)
            yield read
            table.let_go(read)
            table.claim(read)
