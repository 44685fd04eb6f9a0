"""Batches of values of a declared type: in the usual case all values fit, and the cost per value is small."""

from __future__ import annotations

from typing import Any

from holdfast.common.typeinfo.base import TypeInformation

__all__ = ["Misfit", "fitted"]

_BITS = {"BYTE": 7, "SHORT": 15, "INT": 31, "LONG": 63}
_EXACT = {"DOUBLE": float, "BOOLEAN": bool, "BIG_INT": int}


class Misfit(TypeError):
    """A value does not fit the declared type."""

    def __init__(self, position: int, error: Exception) -> None:
        super().__init__(str(error))
        self.position = position
        """The position of the value in the batch."""


def fitted(declared: TypeInformation, values: list[Any]) -> list[Any]:
    """Convert the values to the type if the conversion is lossless.

    Raises:
        Misfit: one does not fit.
    """
    if _fit_as_they_are(declared._identity[0], values):
        return values
    conform = declared.conform
    result: list[Any] = []
    try:
        for value in values:
            result.append(conform(value))
    except (TypeError, ValueError, OverflowError) as error:
        raise Misfit(len(result), error) from error
    return result


def _fit_as_they_are(kind: str, values: list[Any]) -> bool:
    types = set(map(type, values))
    if kind == "STRING":
        return types == {str} and all(map(str.isascii, values))
    bits = _BITS.get(kind)
    if bits is not None:
        return types == {int} and -(1 << bits) <= min(values) and max(values) < 1 << bits
    exact = _EXACT.get(kind)
    return exact is not None and types == {exact}
