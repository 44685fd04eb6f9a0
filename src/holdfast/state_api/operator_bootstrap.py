"""Operator state and broadcast state made by functions from the rows of a DataFrame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.checkpoint.metadata import BROADCAST, ListedState, ListPart, OperatorCheckpoint, SubtaskState
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.typeinfo.batches import fitted
from holdfast.errors import ConfigurationError
from holdfast.runtime.host.shipping import portable, ship_package
from holdfast.runtime.operators.function_life import FunctionLife, OperatorStates
from holdfast.runtime.plan.context import OperatorContext
from holdfast.runtime.plan.listed_states import ListedStates
from holdfast.runtime.records.user_code import close_function, user_error
from holdfast.state_api.bootstrap_functions import BroadcastStateBootstrapFunction, StateBootstrapFunction
from holdfast.state_api.bootstrap_task import Target
from holdfast.state_api.function_reading import copy_of, function_context
from holdfast.state_api.spark_jobs import on_spark

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["FunctionTransformation"]

_AT_ONCE = 1_000
Made = tuple[dict[str, list[ListPart]], dict[str, ListedState]]
"""The parts and the description of each state, by name."""


@dataclass(frozen=True)
class FunctionTransformation:
    """Makes operator state by a function of elements; replaces the states that the function makes.

    A StateBootstrapFunction runs in each partition of the DataFrame; the job's subtasks share the elements of all. A
    BroadcastStateBootstrapFunction sees all elements in one task.
    """

    data: DataFrame | None
    to_element: Callable[[Any], Any] | None
    element_type: TypeInformation[Any] | None
    function: StateBootstrapFunction[Any] | BroadcastStateBootstrapFunction[Any]

    @property
    def _broadcasts(self) -> bool:
        return isinstance(self.function, BroadcastStateBootstrapFunction)

    def check(self, uid: str, operator: OperatorCheckpoint, target: Target) -> None:
        """Run a copy of the function without elements, before anything is read.

        Raises:
            ConfigurationError: the function cannot be pickled, or makes a state that the savepoint has with another kind.
            UserCodeError: the function failed.
        """
        self._task(uid, operator, target).check()

    def _task(self, uid: str, operator: OperatorCheckpoint, target: Target) -> _Task:
        bare = msgspec.structs.replace(operator, subtasks=[], schemas={})
        return _Task(uid, bare, target, replace(self, data=None), self._broadcasts)

    def write(self, uid: str, operator: OperatorCheckpoint, target: Target) -> OperatorCheckpoint:
        """Run the function over the elements, on Spark; returns the operator with its state."""
        assert self.data is not None
        context = self.data.sparkSession.sparkContext
        ship_package(context)
        rows = (self.data.coalesce(1) if self._broadcasts else self.data).rdd
        task = self._task(uid, operator, target)
        tasks = rows.getNumPartitions()
        made = on_spark(context, lambda: rows.mapPartitionsWithIndex(portable(_Run(task, max(1, tasks)))).collect())
        return with_made(operator, made)


def with_made(operator: OperatorCheckpoint, made: Iterable[Made]) -> OperatorCheckpoint:
    """The operator with the states that the tasks have made, instead of those of the same names."""
    parts: dict[str, list[ListPart]] = {}
    listed: dict[str, ListedState] = {}
    for by_name, described in made:
        listed.update(described)
        for name in described:
            parts.setdefault(name, []).extend(by_name.get(name, []))

    def lists(subtask: int, name: str) -> list[ListPart]:
        return parts[name] if subtask == 0 or listed[name].mode == BROADCAST else []

    subtasks = [
        msgspec.structs.replace(state, lists={**state.lists, **{name: lists(n, name) for name in listed}})
        for n, state in enumerate(operator.subtasks or [SubtaskState()])
    ]
    return msgspec.structs.replace(operator, subtasks=subtasks, listed={**operator.listed, **listed})


@dataclass(frozen=True)
class _Run:
    """Runs the task of a partition."""

    task: _Task
    parallelism: int

    def __call__(self, subtask: int, rows: Iterable[Any]) -> Iterator[Made]:
        yield self.task.run(subtask, self.parallelism, rows)


@dataclass(frozen=True)
class _Task:
    """Makes the state from the rows of one partition. Pickled: it runs in any process."""

    uid: str
    operator: OperatorCheckpoint
    """Without its state."""
    target: Target
    elements: FunctionTransformation
    broadcasts: bool

    def check(self) -> None:
        """Open a copy of the function, and let it make its state of no elements."""
        with_context = self._context(0, 1)
        life, function = self._opened(with_context)
        life.end_epoch()
        assert with_context.lists is not None
        self._refuse_other_kinds(with_context.lists.described())
        close_function(function)

    def run(self, subtask: int, parallelism: int, rows: Iterable[Any]) -> Made:
        """The state of some rows.

        Raises:
            ConfigurationError: the savepoint has a state with another kind.
            UserCodeError: the function failed.
            StorageError: the storage refused a call, or the retry budget ran out.
        """
        context = self._context(subtask, parallelism)
        life, function = self._opened(context)
        assert life.states is not None
        given = _Broadcasting(context, life.states) if self.broadcasts else _Times(context)
        process, elements = function.process_element, self.elements
        waiting = iter(rows)
        while batch := list(islice(waiting, _AT_ONCE)):
            values = batch if elements.to_element is None else list(map(elements.to_element, batch))
            if elements.element_type is not None:
                values = fitted(elements.element_type, values)
            for value in values:
                try:
                    process(value, given)
                except (Exception, SystemExit) as error:
                    raise user_error(error, context.name, context.uid, value) from error
        life.end_epoch()
        close_function(function)
        assert context.lists is not None
        parts, listed = context.lists.snapshot(lambda: self.target.path(self.uid, "list"))
        self._refuse_other_kinds(listed)
        return parts, listed

    def _context(self, subtask: int, parallelism: int) -> OperatorContext:
        context = function_context(self.uid, self.operator, self.target.now_ms, subtask, parallelism)
        return replace(context, lists=ListedStates(self.target.storage(), None))

    def _opened(self, context: OperatorContext) -> tuple[FunctionLife, Any]:
        function = copy_of(self.elements.function, context.where)
        life = FunctionLife(function, context, None)
        life.open()
        return life, function

    def _refuse_other_kinds(self, listed: dict[str, ListedState]) -> None:
        for name, state in listed.items():
            where = f"state {name!r} of operator {self.operator.name!r} (uid {self.uid!r})"
            known = self.operator.listed.get(name)
            if known is not None and known.mode != state.mode:
                raise ConfigurationError(f"{where} is a {known.mode} state in the savepoint, not a {state.mode} state")
            if (state.mode == BROADCAST) != self.broadcasts:
                needed = "BroadcastStateBootstrapFunction" if state.mode == BROADCAST else "StateBootstrapFunction"
                raise ConfigurationError(f"{where} is a {state.mode} state: make it by a {needed}")


class _Times(StateBootstrapFunction.Context):
    def __init__(self, context: OperatorContext) -> None:
        self._context = context

    def current_processing_time(self) -> int:
        return self._context.clock.processing_time


class _Broadcasting(_Times, BroadcastStateBootstrapFunction.Context):
    def __init__(self, context: OperatorContext, states: OperatorStates) -> None:
        super().__init__(context)
        self._states = states

    def get_broadcast_state(self, state_descriptor: Any) -> Any:
        return self._states.get_broadcast_state(state_descriptor)
