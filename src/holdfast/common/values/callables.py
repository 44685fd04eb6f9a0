"""Checks of a user's callables before they run: kind and arguments."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from holdfast.errors import ConfigurationError

__all__ = ["check_arguments", "check_kind"]

_SEVERAL = frozenset(
    (
        *("flat_map", "flat_map1", "flat_map2", "process_element", "process_element1", "process_element2"),
        *("process_broadcast_element", "on_timer", "process", "apply", "co_group"),
        *("process_match", "process_timed_out_match", "flat_select"),
    )
)
"""Methods that return any number of results, and so may be generators."""


def check_kind(target: Any, method: str, where: str) -> None:
    """Refuse coroutine functions, and generator functions where one result is expected: a call would run nothing.

    Raises:
        ConfigurationError: it is one.
    """
    name = getattr(target, "__qualname__", type(target).__qualname__)
    if inspect.iscoroutinefunction(target) or inspect.isasyncgenfunction(target):
        raise ConfigurationError(
            f"The function given to {where}: {name} is a coroutine function, which nothing awaits; write it with def."
        )
    if inspect.isgeneratorfunction(target) and method not in _SEVERAL:
        raise ConfigurationError(
            f"The function given to {where}: {name} is a generator function, but {method}() gives one result; return it, "
            "or use flat_map() for any number."
        )


def check_arguments(target: Any, arguments: Sequence[str], where: str) -> None:
    """Refuse a callable that does not take these arguments.

    Raises:
        ConfigurationError: it does not.
    """
    try:
        signature = inspect.signature(target)
    except (ValueError, TypeError):  # some builtins have no signature
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        name = getattr(target, "__qualname__", type(target).__qualname__)
        raise ConfigurationError(
            f"The function given to {where} is called with ({', '.join(arguments)}), but {name}{signature} does not "
            f"fit: {error}."
        ) from None
