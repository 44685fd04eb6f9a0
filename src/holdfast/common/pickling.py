"""Pickling for other processes: plain pickle where it suffices, cloudpickle where it must.

A worker cannot import a class or function that the program defines in ``__main__`` or inside a function. It must
travel by value, which only cloudpickle does, at several times the cost of pickle.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle

from holdfast.common.class_aliases import aliased_loads

__all__ = ["dumps", "loader", "loads", "use_class_aliases"]

_dumps = pickle.dumps
_MAIN = b"__main__"
_STACK_GLOBAL = 0x93
"""The opcode with which a pickle names a class or function. A number is found at once; to look for bytes, Python first tries
them as a number, and handles the error."""
_PROTOCOL = 5
"""Fixed, so that every supported Python version can read stored pickles."""


def dumps(value: Any) -> bytes:
    """Pickle a value for any process that has the libraries it uses.

    Raises:
        TypeError: the value cannot be pickled; the message names its type.
    """
    try:
        data = _dumps(value, _PROTOCOL)
        if _STACK_GLOBAL not in data or _MAIN not in data:
            return data
    except (pickle.PicklingError, AttributeError, TypeError):
        pass  # a class or function that cannot be imported by name: cloudpickle below decides
    try:
        return bytes(cloudpickle.dumps(value))
    except (pickle.PicklingError, AttributeError, TypeError) as e:
        raise TypeError(f"a value of type {type(value).__qualname__} cannot be pickled: {e}") from e


loads = pickle.loads
"""Unpickle a value from `dumps`."""

_load_state: Callable[[bytes | memoryview], Any] = pickle.loads


def use_class_aliases(aliases: Mapping[str, type[Any]]) -> None:
    """Set the class aliases for all state that this process opens from now on (a process serves one job)."""
    global _load_state
    _load_state = aliased_loads(aliases)


def loader() -> Callable[[bytes | memoryview], Any]:
    """The function that unpickles what a checkpoint may hold; with the aliases of the job's classes, if any."""
    return _load_state
