"""Checks of user functions when the program is built, instead of at the first record."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.values.callables import check_arguments, check_kind
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.datastream.functions import AsyncFunction, Function
from holdfast.errors import ConfigurationError
from holdfast.functions.declared_states import declared_states

__all__ = [
    "check_strategy",
    "check_async",
    "check_function",
    "check_lookup",
    "check_object",
    "check_type",
    "selector_callable",
]


def check_function(func: Any, method: str, arguments: Sequence[str], where: str) -> Any:
    """Check a plain callable, or an object of the matching Function class.

    Args:
        func: The user's argument.
        method: The method of the Function class, e.g. ``map``.
        arguments: The names of the function's arguments, for messages.
        where: The API call, for messages, e.g. ``map()``.

    Returns:
        ``func`` itself.

    Raises:
        TypeError: ``func`` is neither.
        ConfigurationError: ``func`` does not take these arguments.
    """
    _check_life_cycle(func, where)
    target = getattr(func, method, None)
    if not callable(target):
        if isinstance(func, Function) or not callable(func):
            raise TypeError(
                f"{where} takes a function ({', '.join(arguments)}) -> ... or an object with a method {method}(), "
                f"not {_describe(func)}."
            )
        target = func
    check_kind(target, method, where)
    check_arguments(target, arguments, where)
    return func


def check_object(func: Any, wanted: type, methods: Mapping[str, Sequence[str]], where: str, hint: str = "") -> Any:
    """Check an object of a Function class and its methods.

    Args:
        func: The user's argument.
        wanted: The required class.
        methods: The methods that are called, with their arguments.
        where: The API call, for messages.
        hint: Advice for the message if it is of another class.

    Returns:
        ``func`` itself.

    Raises:
        TypeError: ``func`` is of another class.
        ConfigurationError: a method does not take these arguments.
    """
    _check_life_cycle(func, where)
    if not isinstance(func, wanted):
        raise TypeError(f"{where} takes a {wanted.__name__}, not {_describe(func)}.{' ' + hint if hint else ''}")
    for method, arguments in methods.items():
        check_kind(getattr(func, method), method, where)
        check_arguments(getattr(func, method), arguments, where)
    return func


def check_async(func: Any, where: str) -> None:
    """Check an AsyncFunction and its methods.

    Raises:
        TypeError: ``func`` has another class.
        ConfigurationError: ``async_invoke`` is not a coroutine function, or a method does not take its arguments.
    """
    _check_coroutine(func, AsyncFunction, "async_invoke", "value", where)
    check_kind(func.timeout, "timeout", where)
    check_arguments(func.timeout, ("value",), where)


def check_lookup(func: Any, wanted: type, where: str) -> None:
    """Check an AsyncLookupFunction, the class ``wanted``, and its methods.

    Raises:
        TypeError: ``func`` has another class.
        ConfigurationError: ``async_lookup`` is not a coroutine function, or does not take a key.
    """
    _check_coroutine(func, wanted, "async_lookup", "key", where)


def _check_coroutine(func: Any, wanted: type, method: str, argument: str, where: str) -> None:
    _check_life_cycle(func, where)
    if not isinstance(func, wanted):
        raise TypeError(f"{where} takes an {wanted.__name__}, not {_describe(func)}. Derive it from {wanted.__name__}.")
    target = getattr(func, method)
    if not inspect.iscoroutinefunction(target):
        name = f"{type(func).__qualname__}.{method}"
        raise ConfigurationError(
            f"The function given to {where}: {name} is not a coroutine function; write it with async def, and await in it."
        )
    check_arguments(target, (argument,), where)


def check_strategy(strategy: WatermarkStrategy, where: str) -> None:
    """Check the functions of a watermark strategy.

    Raises:
        ConfigurationError: the timestamp assigner does not take a value and its timestamp, or the supplier of generators
            needs arguments.
    """
    if strategy.timestamp_assigner is not None:
        check_arguments(strategy.timestamp_assigner, ("value", "record_timestamp"), where)
    if strategy.generator_supplier is not None:
        check_arguments(strategy.generator_supplier, (), where)


def check_type(given: Any, where: str) -> TypeInformation | None:
    """Check a declared type; a list of types stands for ``Types.ROW`` of them.

    Raises:
        TypeError: the value is not a type.
    """
    if isinstance(given, list):
        given = Types.ROW(given)
    if given is not None and not isinstance(given, TypeInformation):
        raise TypeError(f"{where} takes a type such as Types.STRING(), not {given!r}.")
    return given


def selector_callable(func: Any, method: str) -> Callable[..., Any]:
    """Return the callable of a checked function that runs outside any operator.

    Raises:
        ConfigurationError: the function defines ``open`` or ``close``, which only operators call, or declares a state.
    """
    own_life = isinstance(func, Function) and (
        type(func).open is not Function.open or type(func).close is not Function.close
    )
    if own_life or declared_states(func):
        raise ConfigurationError(
            f"{type(func).__name__} has an open() or close() of its own, or a declared state, but {method}() is called "
            "between operators, where there is no runtime context: prepare what it needs in __init__."
        )
    target: Callable[..., Any] = getattr(func, method, func)
    return target


def _check_life_cycle(func: Any, where: str) -> None:
    if isinstance(func, type) and issubclass(func, Function):
        raise TypeError(f"{where} got the class {func.__name__}; give it an object: {func.__name__}(...).")
    if isinstance(func, Function):
        check_arguments(func.open, ("runtime_context",), where)
        check_arguments(func.close, (), where)


def _describe(thing: Any) -> str:
    if isinstance(thing, type) or inspect.isroutine(thing):
        return f"{thing.__qualname__}"
    return f"a {type(thing).__qualname__}" + (f" ({thing!r})" if isinstance(thing, (str, int, float, bool)) else "")
