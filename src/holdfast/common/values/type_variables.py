"""Type variables of streams, functions, types and states. Each stands for any type unless it is given."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

from holdfast.common.windows import Window

if TYPE_CHECKING:
    from typing_extensions import TypeVar
else:

    def TypeVar(name: str, *, default: Any, **options: Any) -> typing.TypeVar:
        """A type variable without its default, which ``typing`` knows only from Python 3.13 on."""
        return typing.TypeVar(name, **options)


__all__ = ["ACC", "IN", "IN1", "IN2", "KEY", "OUT", "A", "B", "K", "R", "S", "T", "V", "W", "WINDOW", "WINDOWS"]

T = TypeVar("T", covariant=True, default=Any)
"""The elements of a stream."""
K = TypeVar("K", covariant=True, default=Any)
"""The keys of a stream."""
A = TypeVar("A", covariant=True, default=Any)
"""The elements of the first of two streams."""
B = TypeVar("B", covariant=True, default=Any)
"""The elements of the second of two streams."""
W = TypeVar("W", bound=Window, covariant=True, default=Any)
"""The windows of a stream."""

WINDOWS = TypeVar("WINDOWS", bound=Window, default=Any)
"""The windows that an assigner makes or a trigger fires."""

IN = TypeVar("IN", contravariant=True, default=Any)
"""The elements that a function takes."""
IN1 = TypeVar("IN1", contravariant=True, default=Any)
"""The elements that a function takes from the first stream."""
IN2 = TypeVar("IN2", contravariant=True, default=Any)
"""The elements that a function takes from the second stream."""
KEY = TypeVar("KEY", contravariant=True, default=Any)
"""The keys that a function takes."""
WINDOW = TypeVar("WINDOW", bound=Window, contravariant=True, default=Any)
"""The windows that a function takes."""
OUT = TypeVar("OUT", covariant=True, default=Any)
"""The results of a function."""
ACC = TypeVar("ACC", default=Any)
"""The accumulator of an AggregateFunction."""

V = TypeVar("V", default=Any)
"""The values of a type or a state."""
R = TypeVar("R", default=Any)
"""The results of a call."""
S = TypeVar("S", default=Any)
"""The keys of a map, or another value of a call."""
