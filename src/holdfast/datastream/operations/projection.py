"""The function of ``project``: some fields of each tuple."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation, Types
from holdfast.errors import ConfigurationError
from holdfast.runtime.operators.function_factory import FunctionFactory
from holdfast.runtime.operators.stateless import Map

__all__ = ["projection"]


class _Fields:
    def __init__(self, indexes: Sequence[int]) -> None:
        self._indexes = tuple(indexes)

    def __call__(self, value: Any) -> tuple[Any, ...]:
        return tuple([value[index] for index in self._indexes])


def projection(
    indexes: Sequence[int], declared: TypeInformation | None
) -> tuple[FunctionFactory, _Fields, TypeInformation | None]:
    """Return the operator, its function and the type of its results.

    Args:
        indexes: The fields to keep.
        declared: The declared type of the elements.

    Raises:
        TypeError: the declared type has no fields.
        ConfigurationError: an index is not that of a field.
    """
    known = declared is not None and not declared.is_pickled
    if known and not isinstance(declared, (TupleTypeInfo, RowTypeInfo)):
        raise TypeError(f"project() takes fields of tuples, but the elements of the stream are {declared!r}.")
    fields = declared.get_field_types() if isinstance(declared, (TupleTypeInfo, RowTypeInfo)) else None
    if not indexes:
        raise ConfigurationError("project() takes the positions of the fields to keep, e.g. project(0, 2).")
    for index in indexes:
        whole = isinstance(index, int) and not isinstance(index, bool)
        if not whole or index < 0 or (fields is not None and index >= len(fields)):
            limits = "from 0" if fields is None else f"from 0 to {len(fields) - 1}"
            raise ConfigurationError(f"project() takes the positions of fields, {limits}, not {index!r}.")
    function = _Fields(indexes)
    types = None if fields is None else Types.TUPLE([fields[index] for index in indexes])
    return FunctionFactory(Map, function), function, types
