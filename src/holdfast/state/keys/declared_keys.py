"""Restores the declared type of keys read from storage, where equal keys share one canonical form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

from holdfast.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from holdfast.common.types import Row

__all__ = ["key_restorer"]

_Restore = Callable[[Any], Any]
_BASIC: dict[str, _Restore] = {"BOOLEAN": bool, "FLOAT": float, "DOUBLE": float, "BIG_DEC": Decimal}


def key_restorer(declared: TypeInformation | None) -> _Restore | None:
    """Return a function that turns a canonical key into the equal key of the declared type; None if they are the same.

    >>> from holdfast.common.typeinfo import Types
    >>> key_restorer(Types.TUPLE([Types.LONG(), Types.DOUBLE(), Types.BOOLEAN()]))((1, 2, 1))
    (1, 2.0, True)
    >>> key_restorer(Types.TUPLE([Types.LONG(), Types.STRING()]))
    """
    if isinstance(declared, (TupleTypeInfo, RowTypeInfo)):
        restorers = [key_restorer(each) for each in declared.get_field_types()]
        if not any(restorers):
            return None
        return _tuple_of(restorers) if isinstance(declared, TupleTypeInfo) else _row_of(restorers)
    restore = None if declared is None else _BASIC.get(declared.to_dict()["type"])
    return None if restore is None else lambda key: None if key is None else restore(key)


def _tuple_of(restorers: Sequence[_Restore | None]) -> _Restore:
    return lambda key: tuple(_restored(restorers, key))


def _row_of(restorers: Sequence[_Restore | None]) -> _Restore:
    return lambda key: Row.of_values(_restored(restorers, key._values), key._names(), key._row_kind)


def _restored(restorers: Sequence[_Restore | None], values: Sequence[Any]) -> list[Any]:
    pairs = zip(restorers, values, strict=True)
    return [value if restore is None or value is None else restore(value) for restore, value in pairs]
