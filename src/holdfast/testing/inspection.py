"""Reads the state and the timers of a harness's operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.common.typeinfo.batches import fitted
from holdfast.runtime.plan.operator import Operator
from holdfast.state.api.descriptors import StateDescriptor
from holdfast.state.keys.key_groups import group_assigner
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.rows.space import StateSpace
from holdfast.testing.dataflow import Dataflow

__all__ = ["keyed_content", "operator_content", "timers"]

_SPACE = "keyed"
"""The name of the state space of user functions' keyed state."""


def keyed_content(dataflow: Dataflow, descriptor: StateDescriptor, key: Any) -> Any:
    """The content of a keyed state for a key: a value, a list or a dict; None if there is none.

    Raises:
        LookupError: no function has such a state.
    """
    for operator, state in dataflow.operators():
        space = None if state is None else _space_with(state, descriptor.name)
        if space is not None and (own := _own_key(operator, key)) is not None:
            return _content(space, descriptor, own[0])
    raise LookupError(f"no function has a keyed state {descriptor.name!r}; it exists once open() has asked for it")


def _space_with(state: KeyedState, name: str) -> StateSpace | None:
    space = state.spaces.get(_SPACE)
    columns = state.schema.states[_SPACE].columns if space is not None else ()
    return space if any(column.name == name for column in columns) else None


def _own_key(operator: Operator, key: Any) -> list[Any] | None:
    """The key in the form of its declared type; None if it belongs to another subtask."""
    context = operator.context
    keys = [key] if context.key_type is None else fitted(context.key_type, [key])
    return keys if group_assigner(context.max_parallelism, context.parallelism)(keys) == [context.subtask] else None


def _content(space: StateSpace, descriptor: StateDescriptor, key: Any) -> Any:
    handle, _ = space.state_of(descriptor)
    row, current = space.row, space.key
    (space.row,), space.key = space.table().load([key]), key
    try:
        if descriptor.kind == "value":
            return handle.value()
        if descriptor.kind == "map":
            return dict(handle.items())
        return list(handle.get()) if descriptor.kind == "list" else handle.get()
    finally:
        space.row, space.key = row, current


def operator_content(dataflow: Dataflow, name: str) -> list[Any]:
    """The content of an operator state in each subtask: lists or dicts.

    Raises:
        LookupError: no function has such a state.
    """
    contents: list[Any] = []
    for operator, _ in dataflow.operators():
        life = getattr(operator, "life", None)
        state = None if life is None or life.states is None else life.states.find(name)
        if state is not None:
            contents.append(dict(state.items()) if hasattr(state, "items") else list(state.get()))
    if not contents:
        raise LookupError(f"no function has an operator state {name!r}; it exists once initialize_state() has asked for it")
    return contents


def timers(dataflow: Dataflow, service: str) -> Iterator[tuple[int, Any]]:
    """The pending timers of a service: time and key."""
    for _, state in dataflow.operators():
        if state is not None and service in state.timers:
            yield from state.timers[service].all()
