"""Copies of emitted elements.

A function may keep an emitted object, for instance in its state, and change it later; the emitted element must not change
with it. Like Flink, Holdfast copies elements unless object reuse is enabled (``pipeline.object-reuse``). Most elements are
immutable and need no copy.
"""

from __future__ import annotations

import copy
import datetime
import decimal
import logging
import uuid
from collections.abc import Callable
from typing import Any

from holdfast.common.types import Row

__all__ = ["FIXED", "Copy", "copied", "fixed", "same"]

log = logging.getLogger(__name__)

Copy = Callable[[Any], Any]

FIXED = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, range, type, decimal.Decimal, uuid.UUID),
        *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta, datetime.timezone),
    }
)
"""Types whose values are immutable."""
fixed = FIXED.issuperset
"""Whether all given types are immutable."""


def same(value: Any) -> Any:
    """Return the value itself, for jobs with object reuse."""
    return value


def copied(value: Any) -> Any:
    """Return the value if it is immutable, else a copy.

    >>> items = [1, 2]
    >>> emitted = copied(("a", items))
    >>> items.append(3)
    >>> emitted
    ('a', [1, 2])
    """
    kind = type(value)
    if kind in FIXED or (kind is tuple and fixed(map(type, value))):
        return value
    try:
        return _copy(value)
    except RecursionError:  # it contains itself
        return copy.deepcopy(value)


def _copy(value: Any) -> Any:
    kind = type(value)
    return value if kind in FIXED else _COPIES.get(kind, _of_object)(value)


def _of_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    return value if fixed(map(type, value)) else tuple(map(_copy, value))


def _of_list(value: list[Any]) -> list[Any]:
    return value.copy() if fixed(map(type, value)) else list(map(_copy, value))


def _of_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    if fixed(map(type, value.values())):
        return value.copy()
    return {key: _copy(each) for key, each in value.items()}


def _of_row(value: Row) -> Row:
    return Row.of_values(_of_list(value._values), value._fields, value._row_kind)


_COPIES: dict[type, Copy] = {
    tuple: _of_tuple,
    list: _of_list,
    dict: _of_dict,
    Row: _of_row,
    set: set.copy,
    frozenset: same,
    bytearray: bytearray.copy,
}


def _of_object(value: Any) -> Any:
    if isinstance(value, tuple) and fixed(map(type, value)):  # a named tuple
        return value
    try:
        return copy.deepcopy(value)
    except RecursionError:
        raise
    except Exception:  # a class's __copy__ may raise anything
        log.debug("an element of %s cannot be copied and is emitted without a copy", type(value))
        return value
