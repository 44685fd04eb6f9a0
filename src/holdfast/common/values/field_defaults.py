"""Defaults of the fields of dataclasses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

__all__ = ["default_maker"]


def default_maker(field: dataclasses.Field[Any]) -> Callable[[], Any] | None:
    """Return a function that makes the field's default; None for a field without one."""
    if _given(field.default):
        default = field.default
        return lambda: default
    factory: Any = field.default_factory
    return factory if _given(factory) else None


def _given(value: Any) -> bool:
    # Not `is dataclasses.MISSING`: a class that is pickled by value, as those of the main file are, has a copy of it.
    return not isinstance(value, type(dataclasses.MISSING))
