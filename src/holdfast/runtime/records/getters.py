"""Functions that only read a field, as most key selectors do: C reads it for a whole batch, without Python calls."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable
from operator import attrgetter, itemgetter
from types import FunctionType
from typing import Any

__all__ = ["Getter", "getter", "read_all"]

Getter = Callable[[Any], Any]
"""Reads a field of a value: an `itemgetter` or `attrgetter`."""


def getter(function: Any, arguments: int = 1) -> Getter | None:
    """A getter that reads the same field as a function; None if the function does anything else.

    Args:
        function: A function of a value.
        arguments: The number of arguments that it is called with; the value is the first.

    >>> getter(lambda event: event[0]), getter(lambda event: event.user)
    (operator.itemgetter(0), operator.attrgetter('user'))
    >>> getter(lambda event: event[0] % 8)
    """
    if isinstance(function, itemgetter | attrgetter) and arguments == 1:
        return function
    if not isinstance(function, FunctionType):
        return None
    code = function.__code__
    if code.co_argcount != arguments or code.co_kwonlyargcount:
        return None
    read = [(each.opname, each.argval) for each in dis.get_instructions(code) if each.opname not in ("RESUME", "CACHE")]
    match read:
        case [("LOAD_FAST", value), ("LOAD_CONST", item), ("BINARY_SUBSCR", _), ("RETURN_VALUE", _)]:
            found: Getter = itemgetter(item)
        case [("LOAD_FAST", value), ("LOAD_ATTR", str(name)), ("RETURN_VALUE", _)]:
            found = attrgetter(name)
        case _:
            return None
    return found if value == code.co_varnames[0] else None


def read_all(read: Getter | None, values: Iterable[Any]) -> list[Any] | None:
    """The field of each value; None without a getter, or if it fails, in which case calling the function shows the error."""
    if read is None:
        return None
    try:
        return list(map(read, values))
    except Exception:
        return None
