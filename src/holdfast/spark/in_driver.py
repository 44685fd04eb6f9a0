"""InDriver, what stays in the driver while the program that has it is copied and pickled."""

from __future__ import annotations

import uuid
import weakref
from typing import Any, Generic, TypeVar

__all__ = ["InDriver"]

T = TypeVar("T")


class InDriver(Generic[T]):
    """Holds an object of the process that builds the program. Copies that are unpickled there hold it, too.

    Args:
        value: The object.
    """

    def __init__(self, value: T) -> None:
        self._value: T | None = value
        self._token = uuid.uuid4().hex
        _kept[self._token] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _found, (self._token,)

    @property
    def value(self) -> T:
        """The object; only in the process that builds the program."""
        assert self._value is not None, "it is where the program is built"
        return self._value


_kept: weakref.WeakValueDictionary[str, InDriver[Any]] = weakref.WeakValueDictionary()


def _found(token: str) -> InDriver[Any]:
    """The one with this token; in another process, an empty one."""
    kept = _kept.get(token)
    if kept is None:
        kept = InDriver(None)
        kept._token = token
    return kept
