"""Pickle that other processes can read: quick where it suffices, by value where it must.

What a program defines in ``__main__`` (or in a function) cannot be found by name in a worker, so it travels by value,
which plain pickle does not do and cloudpickle does, at several times the price.
"""

from __future__ import annotations

import pickle
from typing import Any

import cloudpickle

__all__ = ["dumps", "loads"]

_MAIN = b"__main__"
_PROTOCOL = 5
"""Fixed, for what is stored must be readable by every supported version of Python."""


def dumps(value: Any) -> bytes:
    """The pickled value, readable in any process that has the libraries it uses.

    Raises:
        TypeError: the value cannot be pickled; the message names its type.
    """
    try:
        data = pickle.dumps(value, _PROTOCOL)
        if _MAIN not in data:
            return data
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # a class or a function that is not found by its name: cloudpickle below tells whether it can be done
    try:
        return bytes(cloudpickle.dumps(value))
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise TypeError(f"a value of type {type(value).__qualname__} cannot be pickled: {e}") from e


loads = pickle.loads
"""The value of what `dumps` returned."""
