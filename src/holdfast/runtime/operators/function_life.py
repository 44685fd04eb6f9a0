"""FunctionLife: opens a user's function in an operator, and keeps its operator state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from holdfast.checkpoint.metadata import BROADCAST, SPLIT, UNION
from holdfast.errors import IncompatibleState
from holdfast.functions.checkpointed_function import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from holdfast.runtime.plan.context import OperatorContext, UserRuntimeContext
from holdfast.runtime.plan.listed_states import ListedStates
from holdfast.runtime.plan.operator import StateKind
from holdfast.runtime.records.user_code import open_function, user_error
from holdfast.state.api.descriptors import ListStateDescriptor, MapStateDescriptor, StateDescriptor
from holdfast.state.api.interfaces import ListState, OperatorStateStore
from holdfast.state.cells.broadcast import BroadcastMap
from holdfast.state.cells.typed import checker
from holdfast.state.rows.space import StateSpace
from holdfast.state.stored.elements import ElementForm

__all__ = ["FunctionLife", "OperatorStates", "state_kinds"]


def state_kinds(func: Any, others: StateKind = StateKind.NONE) -> StateKind:
    """The kinds of state of an operator: its own, and operator state if its function has any."""
    return others | StateKind.LISTED if isinstance(func, CheckpointedFunction) else others


class _OperatorList(ListState[Any]):
    """A list in memory, and the stored form of its elements."""

    def __init__(self, descriptor: ListStateDescriptor, form: ElementForm, elements: Iterable[Any], changed: bool) -> None:
        self._fit = checker(descriptor.element_type_info, descriptor.name)
        self._form = form
        self._elements = list(elements)
        self._stored = None if changed else list(map(form.encode, self._elements))
        self._changed = changed

    @staticmethod
    def form_of(descriptor: ListStateDescriptor) -> ElementForm:
        """The stored form of the elements."""
        return ElementForm(descriptor.element_type_info)

    def get(self) -> Iterator[Any]:
        """Iterate over the elements. Those added during the iteration are not included."""
        return islice(self._elements, len(self._elements))

    def add(self, value: Any) -> None:
        """Append an element."""
        self._elements.append(self._fit(value))
        self._changed = True

    def add_all(self, values: list[Any]) -> None:
        """Append elements."""
        for value in values:
            self.add(value)

    def update(self, values: list[Any]) -> None:
        """Replace all elements."""
        self._elements = [self._fit(value) for value in values]
        self._changed = True

    def clear(self) -> None:
        """Remove all elements."""
        self.update([])

    def drain(self) -> list[bytes] | None:
        """All elements in stored form; None if they are unchanged since the last call.

        Raises:
            TypeError: an element cannot be pickled.
        """
        if not self._changed:
            return None
        self._changed = False
        stored = list(map(self._form.encode, self._elements))
        if stored == self._stored:
            return None
        self._stored = stored
        return stored


class OperatorStates(OperatorStateStore):
    """The operator state of one operator in one subtask."""

    def __init__(self, lists: ListedStates, where: str) -> None:
        self._lists = lists
        self._where = where
        self._states: dict[str, tuple[str, _OperatorList | BroadcastMap]] = {}
        """The mode and the state, by name."""

    @property
    def restored(self) -> bool:
        """Whether the operator was restored from a checkpoint."""
        return self._lists.restored

    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list whose elements are split among the subtasks when the parallelism changes."""
        return self._get(state_descriptor, ListStateDescriptor, SPLIT, _OperatorList)  # type: ignore[no-any-return]

    def get_union_list_state(self, state_descriptor: ListStateDescriptor) -> ListState[Any]:
        """A list whose elements all go to every subtask when the parallelism changes."""
        return self._get(state_descriptor, ListStateDescriptor, UNION, _OperatorList)  # type: ignore[no-any-return]

    def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastMap:
        """A map with the same content in every subtask."""
        return self._get(state_descriptor, MapStateDescriptor, BROADCAST, BroadcastMap)  # type: ignore[no-any-return]

    def _get(
        self,
        descriptor: StateDescriptor,
        kind: type[StateDescriptor],
        mode: str,
        kept: type[_OperatorList | BroadcastMap],
    ) -> Any:
        if not isinstance(descriptor, kind):
            raise TypeError(f"operator state needs a {kind.__name__} here, not {descriptor!r}")
        if descriptor.ttl_config is not None:
            raise ValueError(f"operator state {descriptor.name!r} has a time-to-live, but only keyed state expires")
        known = self._states.get(descriptor.name)
        if known is None:
            form = kept.form_of(descriptor)  # type: ignore[arg-type]
            stored, before = self._lists.typed(descriptor.name, mode, form)
            read = form.reader(before, f"state {descriptor.name!r} of operator {self._where}") if stored else None
            changed = bool(stored) and not form.keeps(before)
            state = kept(descriptor, form, () if read is None else map(read, stored), changed)  # type: ignore[arg-type]
            self._states[descriptor.name] = known = (mode, state)
        elif known[0] != mode:
            raise ValueError(f"operator state {descriptor.name!r} has mode {known[0]!r} already, and cannot have {mode!r}")
        return known[1]

    def find(self, name: str) -> ListState[Any] | BroadcastMap | None:
        """The state of this name; None if the function has not asked for it."""
        known = self._states.get(name)
        return None if known is None else known[1]

    def store(self) -> None:
        """Store the changed state, at the barrier."""
        for name, (_, state) in self._states.items():
            pickles = state.drain()
            if pickles is not None:
                self._lists.store(name, pickles)


class _Initialization(FunctionInitializationContext):
    def __init__(self, states: OperatorStates, keyed: UserRuntimeContext) -> None:
        self._states = states
        self._keyed = keyed

    def is_restored(self) -> bool:
        return self._states.restored

    def get_operator_state_store(self) -> OperatorStates:
        return self._states

    def get_keyed_state_store(self) -> UserRuntimeContext:
        return self._keyed


class _Snapshot(FunctionSnapshotContext):
    def __init__(self, epoch: int, now: int) -> None:
        self._epoch = epoch
        self._now = now

    def get_checkpoint_id(self) -> int:
        return self._epoch

    def get_checkpoint_timestamp(self) -> int:
        return self._now


class FunctionLife:
    """A user's function from `open` to the last barrier."""

    def __init__(self, function: Any, context: OperatorContext, space: StateSpace | None) -> None:
        self._function = function
        self._context = context
        self._runtime_context = UserRuntimeContext(context, space)
        self.states = None if context.lists is None else OperatorStates(context.lists, context.where)
        """The operator state; None if neither the function nor the operator has any."""
        self.epoch = 0

    def open(self) -> Any:
        """Initialize the function's operator state, and open it; returns the result of ``open``.

        Raises:
            UserCodeError: the function failed.
            IncompatibleState: it declares a state that the checkpoint has with another kind or type.
        """
        function = self._function
        if isinstance(function, CheckpointedFunction):
            assert self.states is not None
            initialization = _Initialization(self.states, self._runtime_context)
            self._call(lambda: function.initialize_state(initialization))
        return open_function(function, self._runtime_context)

    def end_epoch(self) -> None:
        """Let the function snapshot its operator state, and store the changes, at the barrier.

        Raises:
            UserCodeError: the function failed, or an element cannot be stored.
        """
        function = self._function
        if isinstance(function, CheckpointedFunction):
            snapshot = _Snapshot(self.epoch, self._context.clock.processing_time)
            self._call(lambda: function.snapshot_state(snapshot))
        if self.states is not None:
            self._call(self.states.store)

    def _call(self, method: Callable[[], None]) -> None:
        try:
            method()
        except IncompatibleState:
            raise
        except (Exception, SystemExit) as error:
            raise user_error(error, self._context.name, self._context.uid) from error
