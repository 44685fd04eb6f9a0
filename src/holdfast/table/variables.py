"""Type variables of tables. Each stands for any type unless it is given."""

from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    K = TypeVar("K", default=Any)
    V = TypeVar("V", default=Any)
else:
    K = typing.TypeVar("K")
    V = typing.TypeVar("V")

__all__ = ["K", "V"]
