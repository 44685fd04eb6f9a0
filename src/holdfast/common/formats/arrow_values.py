"""Conversions of Python's values to those that a column of Arrow holds and gives back without a change."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

from holdfast.common.formats.fitting import Convert, binary, clock_time, fixed, null, real, sequence, timestamp, whole
from holdfast.common.system.optional_library import optional_library
from holdfast.common.typeinfo import Types
from holdfast.common.typeinfo.base import shown
from holdfast.common.types import Row

__all__ = ["Fit", "by_position", "fit"]

_NONE = frozenset({type(None)})
_MICROS = {"s": 1_000_000, "ms": 1000, "us": 1, "ns": 1}
_TEXT, _DATE, _FLAG = Types.STRING().conform, Types.SQL_DATE().conform, Types.BOOLEAN().conform


class Fit(NamedTuple):
    """How values get into a column."""

    as_they_are: frozenset[type] | None
    """The classes of values that Arrow takes as they are, or refuses; None: all."""
    convert: Convert
    """The conversion of any other one that is not None."""

    def column(self, values: Sequence[Any]) -> Sequence[Any]:
        """Values as Arrow takes them.

        Raises:
            Exception: one does not fit.
        """
        if self.as_they_are is None or set(map(type, values)) <= self.as_they_are:
            return values
        return [None if value is None else self.convert(value) for value in values]


def fit(kind: Any) -> Fit:
    """How values get into a column of a ``pyarrow.DataType``; those of other kinds than these are Arrow's to take.

    Whole numbers may stand for floats, and floats without a fraction for whole numbers; ``float`` rounds to 32 bits, and
    times are cut to the column's unit. A column with a zone takes times without one as UTC.
    """
    types = optional_library("pyarrow", "Parquet and Arrow need pyarrow", "'holdfast[arrow]'").types
    for known, make in _KINDS:
        if getattr(types, f"is_{known}")(kind):
            return make(kind)
    return Fit(None, lambda value: value)


def _nested(kind: Any) -> Convert:
    """The conversion of a value within another one."""
    as_they_are, convert = fit(kind)
    if as_they_are is None:
        return convert
    return lambda value: value if value is None or type(value) in as_they_are else convert(value)


def _of(convert: Convert, *as_they_are: type) -> Callable[[Any], Fit]:
    return lambda kind: Fit(frozenset({*as_they_are, type(None)}), convert)


def _stamp(kind: Any) -> Fit:
    at_unit = timestamp(_MICROS[kind.unit], local=kind.tz is None)

    def convert(value: Any) -> Any:
        at = at_unit(value)
        return value if kind.unit == "ns" and hasattr(value, "nanosecond") else at  # pandas' have nanoseconds

    return Fit(_NONE, convert)


def _duration(kind: Any) -> Fit:
    unit = datetime.timedelta(microseconds=_MICROS[kind.unit])

    def convert(value: Any) -> Any:
        if not isinstance(value, datetime.timedelta):
            raise TypeError(f"takes a datetime.timedelta, not {shown(value)}")
        return value // unit * unit

    return Fit(_NONE, convert)


def _decimal(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError(f"takes decimals, not {value!r}")
    return Types.BIG_DEC().conform(value)


def _list(kind: Any) -> Fit:
    item = _nested(kind.value_type)
    return Fit(_NONE, lambda values: [item(each) for each in sequence(values)])


def _map(kind: Any) -> Fit:
    key, entry = _nested(kind.key_type), _nested(kind.item_type)

    def convert(value: Any) -> Any:
        if not isinstance(value, (Mapping, list)):
            raise TypeError(f"a map is written from a dict, or a list of pairs, not from {shown(value)}")
        return [(key(k), entry(v)) for k, v in (value.items() if isinstance(value, Mapping) else value)]

    return Fit(_NONE, convert)


def _struct(kind: Any) -> Fit:
    names = [kind.field(at).name for at in range(kind.num_fields)]
    fields = dict(zip(names, (_nested(kind.field(at).type) for at in range(kind.num_fields))))

    def convert(value: Any) -> Any:
        found = {}
        for (name, field), each in zip(fields.items(), by_position(value, names), strict=True):
            try:
                found[name] = field(each)
            except (TypeError, ValueError, OverflowError) as error:
                raise ValueError(f"field {name}: {error}") from error
        return found

    return Fit(_NONE, convert)


def by_position(value: Any, names: Sequence[str]) -> Sequence[Any]:
    """The fields of a record in the order of these names; None for those that a dict or a named Row has not.

    Raises:
        ValueError: it is no record of these fields.
    """
    if isinstance(value, Mapping) or (isinstance(value, Row) and value._fields is not None):
        given: Mapping[str, Any] = value if isinstance(value, Mapping) else value.as_dict()
        unknown = given.keys() - set(names)
        if unknown:
            raise ValueError(f"{value!r:.80} has the field {min(unknown, key=str)!r}, which the schema has not")
        return [given.get(name) for name in names]
    if not isinstance(value, (Row, tuple, list)) or len(value) != len(names):
        raise ValueError(f"{value!r:.80} is no row of {len(names)} fields: {', '.join(names)}")
    return list(value)


_KINDS: list[tuple[str, Callable[[Any], Fit]]] = [
    ("null", _of(null)),
    ("boolean", _of(_FLAG, bool)),
    ("integer", _of(whole(Types.BIG_INT()), int)),
    ("float64", _of(real(Types.DOUBLE()), float)),
    ("floating", _of(real(Types.FLOAT()))),
    ("decimal", _of(_decimal, int, Decimal)),
    ("string", _of(_TEXT, str)),
    ("large_string", _of(_TEXT, str)),
    ("string_view", _of(_TEXT, str)),
    ("fixed_size_binary", lambda kind: Fit(_NONE, fixed(kind.byte_width))),
    ("binary", _of(binary, bytes)),
    ("large_binary", _of(binary, bytes)),
    ("binary_view", _of(binary, bytes)),
    ("date", _of(_DATE, datetime.date)),
    ("time", lambda kind: Fit(_NONE, clock_time(_MICROS[kind.unit]))),
    ("timestamp", _stamp),
    ("duration", _duration),
    ("list", _list),
    ("large_list", _list),
    ("fixed_size_list", _list),
    ("map", _map),
    ("struct", _struct),
    ("dictionary", lambda kind: fit(kind.value_type)),
]
