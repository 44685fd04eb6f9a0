"""Copies a function's results if something else holds them too. Compiled (`holdfast.compiled`)."""

from __future__ import annotations

import sys
from typing import Any

from holdfast.common.types import Row
from holdfast.runtime.records.copies import FIXED, Copy, fixed

__all__ = ["held_before", "list_of", "own_each"]


def list_of(values: list[Any]) -> list[Any]:
    """The elements as a list; columns are converted to rows once."""
    return values if type(values) is list else list(values)


def held_before(values: list[Any]) -> int:
    """The minimum number of references to an element before a function gets it."""
    least = _UNKNOWN
    for value in values:
        if type(value) in FIXED or type(value) is tuple:
            continue
        held = _references(value)
        if held < least:
            least = held
    return least


def own_each(mapped: list[Any], values: list[Any], held: int, copied: Copy) -> None:
    """Replace results that something else holds, entirely or partly, by copies.

    A function may return one object for several elements, or keep an element that it passes on, which a later function may
    change. A fresh object needs no copy. Neither does an element that the function has not kept; its parts are not examined.

    Args:
        mapped: The results; an element is among them if the function returned it.
        values: The elements.
        held: The result of `held_before`.
        copied: Copies a result.
    """
    most = held + _OF_BOTH_LISTS
    position = 0
    for result, value in zip(mapped, values):
        kind = type(result)
        if kind is tuple:
            for each in result:
                if type(each) not in FIXED:
                    each = None  # it would count as a reference
                    if result is not value and not _alone(result):
                        mapped[position] = copied(result)
                    break
        elif kind not in FIXED:
            if result is value:
                if _references(result) > most:
                    mapped[position] = copied(result)
            elif _references(result) > _OF_A_RESULT or not _alone(result):
                mapped[position] = copied(result)
        position += 1  # noqa: SIM113, an integer of C


_references = sys.getrefcount


def _alone(result: Any) -> bool:
    """Whether only this object holds its parts; False also if that is unknown."""
    kind = type(result)
    parts: Any
    if kind is tuple or kind is list:
        parts = result
    elif kind is dict:
        parts = result.values()
    elif kind is Row:
        parts = result._values
    elif isinstance(result, (list, dict, set, tuple)) or hasattr(kind, "__slots__") or not hasattr(result, "__dict__"):
        return False
    else:
        parts = result.__dict__.values()
    if fixed(map(type, parts)):
        return True
    for part in parts:  # noqa: SIM110, `_OF_A_PART` is counted in such a loop
        if type(part) not in FIXED and (_references(part) > _OF_A_PART or not _alone(part)):
            return False
    return True


def _of_a_result() -> int:
    """The reference count of an object that only a list of results holds, in a loop like that of `own_each`."""
    for result, _ in zip([object()], [None]):
        return _references(result)
    raise AssertionError


def _of_both_lists() -> int:
    """How many more references an element has in a loop like that of `own_each`, with both lists, than in `held_before`."""
    values: list[Any] = [[]]
    mapped = values.copy()
    for result, value in zip(mapped, values):
        if result is value:
            found = _references(result)
    del result, value, mapped
    return found - held_before(values)


def _of_a_part() -> int:
    """The same for a part, in a loop like that of `_alone`."""
    for part in [object()]:
        return _references(part)
    raise AssertionError


_UNKNOWN = 1 << 30
_OF_A_RESULT = _of_a_result()
_OF_A_PART = _of_a_part()
_OF_BOTH_LISTS = _of_both_lists()
