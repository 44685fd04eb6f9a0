"""Questions about all elements of a list, answered in one loop. Compiled (`holdfast.compiled`)."""

from __future__ import annotations

from typing import Any

__all__ = ["are_timestamps", "has_none", "highest"]


def are_timestamps(values: list[Any]) -> bool:
    """Whether all elements are whole numbers of 64 bits, and of no subclass.

    >>> are_timestamps([7, -1 << 63]), are_timestamps([7, True]), are_timestamps([1 << 63])
    (True, False, False)
    """
    try:
        for value in values:
            if type(value) is not int:
                return False
            whole = value  # compiled: raises an OverflowError beyond 64 bits
            sign = whole >> 63
            if sign != 0 and sign != -1:
                return False
    except OverflowError:
        return False
    return True


def highest(timestamps: list[int]) -> int:
    """The highest of some timestamps.

    >>> highest([3, 8, 5])
    8
    """
    found = timestamps[0]
    for timestamp in timestamps:
        stamp = timestamp
        if stamp > found:
            found = stamp
    return found


def has_none(values: list[Any]) -> bool:
    """Whether an element is None.

    >>> has_none([0, None]), has_none([])
    (True, False)
    """
    for value in values:  # noqa: SIM110, a loop in C; `in` would compare other elements with None
        if value is None:
            return True
    return False
