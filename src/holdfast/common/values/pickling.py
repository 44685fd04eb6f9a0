"""Pickling for other processes: plain pickle where it suffices, cloudpickle where it must.

A worker cannot import a class or function that the program defines in ``__main__`` or inside a function. It must
travel by value, which only cloudpickle does, at several times the cost of pickle.
"""

from __future__ import annotations

import io
import pickle
from collections import ChainMap
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, ClassVar

import cloudpickle

from holdfast.common.values.class_aliases import aliased_loads

__all__ = ["dumps", "dumps_program", "loader", "loads", "use_class_aliases"]

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
"""Unpickle a value from `dumps` or `dumps_program`."""


def dumps_program(value: Any) -> bytes:
    """Pickle functions of the program with their file names, so that tracebacks in a worker show the source lines.

    From 3.1.3 on, cloudpickle replaces these names by ``<dynamic-code>``.
    """
    with io.BytesIO() as data:
        _ProgramPickler(data).dump(value)
        return data.getvalue()


_reduce_code: Callable[[CodeType], tuple[Any, ...]] = cloudpickle.Pickler.dispatch_table[CodeType]


def _reduce_code_with_file(code: CodeType) -> tuple[Any, ...]:
    make, arguments, *rest = _reduce_code(code)
    if code.co_filename in arguments:
        return make, arguments, *rest
    return _code_with_file, (make, arguments, code.co_filename)


def _code_with_file(make: Callable[..., CodeType], arguments: tuple[Any, ...], file: str) -> CodeType:
    return make(*arguments).replace(co_filename=file)


class _ProgramPickler(cloudpickle.Pickler):  # type: ignore[misc]
    dispatch_table: ClassVar[Any] = ChainMap({CodeType: _reduce_code_with_file}, cloudpickle.Pickler.dispatch_table)


_load_state: Callable[[bytes | memoryview], Any] = pickle.loads


def use_class_aliases(aliases: Mapping[str, type[Any]]) -> None:
    """Set the class aliases for all state that this process opens from now on (a process serves one job)."""
    global _load_state
    _load_state = aliased_loads(aliases)


def loader() -> Callable[[bytes | memoryview], Any]:
    """The function that unpickles what a checkpoint may hold; with the aliases of the job's classes, if any."""
    return _load_state
