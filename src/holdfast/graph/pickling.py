"""Checks that user functions can be pickled for the workers, and finds the part that cannot."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType
from typing import Any

from holdfast.common.values.pickling import dumps_program
from holdfast.errors import ConfigurationError
from holdfast.graph.transformations import OperatorTransformation, Partitioned, Physical, SourceTransformation
from holdfast.runtime.plan.operator import OperatorFactory

__all__ = ["check_picklable", "own_copy"]

_DEPTH = 6
"""Depth of the search for the part that cannot be pickled."""


def check_picklable(operator: Physical) -> None:
    """Check that the operator, with all user objects in it, can be pickled for the workers.

    Raises:
        ConfigurationError: it cannot; names the operator, the function, the part that fails, and the cause.
    """
    for role, thing in _parts(operator):
        try:
            dumps_program(thing)
        except Exception as error:
            path, culprit, reason = _blame(thing, error)
            where = f" because of {path}, {_describe(culprit)}" if path else ""
            raise ConfigurationError(
                f"The {role} of operator {operator} cannot be sent to the workers{where}: {reason}. Objects that a "
                "function refers to are pickled with it: create connections, locks, sessions and the like in its open() "
                "instead, and refer to plain data only."
            ) from error


def own_copy(operator: OperatorTransformation) -> OperatorFactory:
    """Return a copy of the operator's factory with its own functions, as a worker would receive it.

    Two operators given the same function object must not share it: the state handles that one gets in ``open`` would
    replace the other's.

    Raises:
        ConfigurationError: the pickled factory cannot be unpickled.
    """
    pickled = dumps_program(operator.factory)
    try:
        factory: OperatorFactory = pickle.loads(pickled)
    except Exception as error:
        raise ConfigurationError(
            f"Operator {operator} can be pickled but not unpickled, so it cannot be sent to the workers: "
            f"{type(error).__name__}: {error}."
        ) from error
    return factory


def _parts(operator: Physical) -> Iterator[tuple[str, Any]]:
    if isinstance(operator, SourceTransformation):
        yield "source", operator.source
        yield "watermark strategy", operator.watermark_strategy
    if isinstance(operator, OperatorTransformation):
        yield from operator.functions
        waiting = list(operator.inputs)
        while waiting:
            node = waiting.pop()
            if isinstance(node, Physical):
                continue
            if isinstance(node, Partitioned):
                yield "key selector before the input", node.key_selector
                yield "partitioner before the input", node.partitioner
            waiting.extend(node.inputs)


def _blame(thing: Any, error: Exception) -> tuple[str, Any, str]:
    """Find the innermost part that cannot be pickled: its path, the part, and the error."""
    path, reason = "", str(error) or type(error).__name__
    seen = {id(thing)}
    for _ in range(_DEPTH):
        for step, part in _inside(thing):
            if id(part) in seen:
                continue
            try:
                dumps_program(part)
            except Exception as inner:
                seen.add(id(part))
                path = f"{step} of {path}" if path else step
                thing, reason = part, str(inner) or type(inner).__name__
                break
        else:
            break
    return path, thing, reason


def _inside(thing: Any) -> Iterator[tuple[str, Any]]:
    if inspect.ismethod(thing):
        yield "its object", thing.__self__
    elif inspect.isfunction(thing):
        for name, value in _variables(thing):
            yield f"the variable '{name}'", value
        for default in thing.__defaults__ or ():
            yield "a default argument", default
    elif isinstance(thing, dict):
        for key, value in thing.items():
            yield f"the entry {key!r}", value
    elif isinstance(thing, (list, tuple, set, frozenset)):
        for i, value in enumerate(thing):
            yield f"element {i}", value
    elif isinstance(thing, type):
        for name, value in vars(thing).items():
            if inspect.isfunction(value):
                yield f"the method '{name}'", value
    elif not inspect.isbuiltin(thing) and not inspect.ismodule(thing):
        for name, value in getattr(thing, "__dict__", {}).items():
            yield f"the attribute '{name}'", value
        if type(thing).__module__ == "__main__":
            yield "its class", type(thing)


def _variables(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Return a function's external references: variables of enclosing functions and of its module."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # an empty cell
            yield name, cell.cell_contents
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]


def _describe(thing: Any) -> str:
    kind = type(thing)
    return f"a {kind.__qualname__}" if kind.__module__ == "builtins" else f"a {kind.__module__}.{kind.__qualname__}"
