"""Checks of functions by their source: timers and state without keys, writes to broadcast state, coroutines that block.

The runtime refuses all of these when an element reaches the call. These checks report them earlier, when the program is
built, if the function's source shows them. Functions without source (typed into a shell, created by `exec`) are skipped.
"""

from __future__ import annotations

import ast
import inspect
import os
import textwrap
from collections.abc import Iterator
from typing import Any

from holdfast.errors import ConfigurationError
from holdfast.functions.async_functions import AsyncFunction
from holdfast.functions.broadcast_functions import BaseBroadcastProcessFunction
from holdfast.functions.declared_states import declared_states
from holdfast.functions.function import Function
from holdfast.graph.stream_graph import StreamGraph
from holdfast.graph.transformations import OperatorTransformation

__all__ = ["check_functions"]

_TIMERS = frozenset(
    (
        "register_event_time_timer",
        "register_processing_time_timer",
        "delete_event_time_timer",
        "delete_processing_time_timer",
    )
)
_STATES = frozenset(("get_state", "get_list_state", "get_map_state", "get_reducing_state", "get_aggregating_state"))
_CHANGES = frozenset(("put", "put_all", "remove", "clear"))
_OF_ELEMENTS = ("process_element", "process_element1", "process_element2")


def check_functions(graph: StreamGraph) -> None:
    """Refuse functions whose source shows that they cannot work on their stream.

    Raises:
        ConfigurationError: a function misuses timers or state; names its operator and the line.
    """
    for operator in graph.operators:
        if isinstance(operator, OperatorTransformation):
            for _, func in operator.functions:
                _check_declared_states(operator, func)
                if isinstance(func, AsyncFunction):
                    _check_no_blocking(operator, func)
                if isinstance(func, BaseBroadcastProcessFunction):
                    _check_broadcast_is_read(operator, func)
                if isinstance(func, Function) and not operator.keyed:
                    _check_no_timers(operator, func)
                    _check_no_keyed_state(operator, func)


def _check_no_timers(operator: OperatorTransformation, func: Function) -> None:
    for method in _OF_ELEMENTS:
        for node in _nodes(func, method):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _TIMERS:
                raise ConfigurationError(
                    f"{operator} works on a stream without keys, but {_place(func, method, node)} calls {node.func.attr}(): "
                    "timers belong to keys. Call key_by(...) before it."
                )


def _check_declared_states(operator: OperatorTransformation, func: Any) -> None:
    for attribute, descriptor in declared_states(func).items():
        if not operator.keyed:
            raise ConfigurationError(
                f"{operator} works on a stream without keys, but {type(func).__name__} declares the state "
                f"{descriptor.name!r} ({attribute}): the state belongs to keys. Call key_by(...) before it, or "
                "derive the function from CheckpointedFunction for state of the operator."
            )


def _check_no_keyed_state(operator: OperatorTransformation, func: Function) -> None:
    argument = _argument(func, "open")
    for node in _nodes(func, "open", unconditional=True):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=attr)) if name == argument and attr in _STATES:
                raise ConfigurationError(
                    f"{operator} works on a stream without keys, but {_place(func, 'open', node)} calls {attr}(): the state "
                    "belongs to keys. Call key_by(...) before it, or derive the function from CheckpointedFunction for "
                    "state of the operator."
                )


def _check_no_blocking(operator: OperatorTransformation, func: AsyncFunction[Any, Any]) -> None:
    for node in _nodes(func, "async_invoke"):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr="sleep")):
                raise ConfigurationError(
                    f"In {operator}, {_place(func, 'async_invoke', node)} calls time.sleep(), which stops all requests of "
                    "the subtask: write await asyncio.sleep()."
                )


def _check_broadcast_is_read(operator: OperatorTransformation, func: Function) -> None:
    for method in ("process_element", "on_timer"):
        nodes = list(_nodes(func, method))
        names = {target.id for node in nodes if _is_state(_value(node)) for target in _targets(node)}
        for node in nodes:
            if any(_is_state(state) or (isinstance(state, ast.Name) and state.id in names) for state in _changed(node)):
                raise ConfigurationError(
                    f"In {operator}, {_place(func, method, node)} changes broadcast state: each element of this stream "
                    "reaches one subtask only, so the subtasks' maps would differ. Change it in process_broadcast_element()."
                )


def _is_state(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get_broadcast_state"


def _value(node: ast.AST) -> ast.AST | None:
    return node.value if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) else None


def _targets(node: ast.AST) -> Iterator[ast.Name]:
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    yield from (target for target in targets if isinstance(target, ast.Name))


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """The object that a node changes by a method call, an assignment or a deletion, if any."""
    match node:
        case ast.Call(func=ast.Attribute(value=changed, attr=attr)) if attr in _CHANGES:
            yield changed
        case ast.Subscript(value=changed, ctx=ast.Store() | ast.Del()):
            yield changed


def _nodes(func: Any, method: str, unconditional: bool = False) -> Iterator[ast.AST]:
    """The nodes of a method's source except those in ``try`` (``unconditional``: nor in ``if``); empty without source."""
    source = _source(func, method)
    if source is None:
        return
    try:
        waiting: list[ast.AST] = [ast.parse(textwrap.dedent("".join(source[0])))]
    except SyntaxError:  # a lambda, or a part of an expression
        return
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Try) or (unconditional and isinstance(node, (ast.If, ast.IfExp))):
            continue
        yield node
        waiting[:0] = ast.iter_child_nodes(node)


def _source(func: Any, method: str) -> tuple[list[str], int] | None:
    target = getattr(type(func), method, None)
    if not inspect.isfunction(target):
        return None
    try:
        return inspect.getsourcelines(target)
    except (OSError, TypeError):
        return None


def _argument(func: Any, method: str) -> str:
    """The name of a method's first argument after ``self``; empty if there is none."""
    target = getattr(type(func), method, None)
    names = target.__code__.co_varnames[1:2] if inspect.isfunction(target) else ()
    return names[0] if names else ""


def _place(func: Any, method: str, node: ast.AST) -> str:
    """The method and the line of a node, e.g. ``Count.open() (job.py:12)``."""
    source = _source(func, method)
    assert source is not None
    file = inspect.getsourcefile(getattr(type(func), method)) or ""
    line = source[1] + getattr(node, "lineno", 1) - 1
    return f"{type(func).__name__}.{method}() ({os.path.basename(file)}:{line})"
