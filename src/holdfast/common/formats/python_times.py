"""Whether the dates and times of Arrow's columns are within those of Python."""

from __future__ import annotations

import functools
from typing import Any

__all__ = ["fits_python", "times_fit"]

_FIRST_S, _LAST_S = -62135596800, 253402300799
"""The first and the last second that Python's times hold, since 1970."""
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def fits_python(rows: Any) -> bool:
    """Whether all dates and times are known to be within those of Python."""
    return all(times_fit(rows.column(at)) for at in _columns_of_times(rows.schema))


@functools.lru_cache(maxsize=64)
def _columns_of_times(schema: Any) -> tuple[int, ...]:
    return tuple(at for at, field in enumerate(schema) if _has_times(field.type))


def _has_times(kind: Any) -> bool:
    from pyarrow import types

    if types.is_nested(kind):
        return any(_has_times(kind.field(at).type) for at in range(kind.num_fields))
    return bool(types.is_temporal(kind))


def times_fit(column: Any) -> bool:
    """Whether all values of a column of dates or times fit; False for other types."""
    import pyarrow
    from pyarrow import compute, types

    kind = column.type
    if types.is_date32(kind):
        least, most = _FIRST_S // 86400, _LAST_S // 86400
    elif types.is_date64(kind):
        least, most = _FIRST_S * 1000, _LAST_S * 1000
    elif types.is_timestamp(kind):
        within = 86400 if kind.tz else 0  # the zone's clocks may be on another day
        least, most = (_FIRST_S + within) * _PER_SECOND[kind.unit], (_LAST_S + 1 - within) * _PER_SECOND[kind.unit] - 1
    elif types.is_time(kind):
        least, most = 0, 86400 * _PER_SECOND[kind.unit] - 1
    else:
        return False
    found = compute.min_max(column.view(pyarrow.int32() if kind.bit_width == 32 else pyarrow.int64())).as_py()
    return found["min"] is None or (found["min"] >= least and found["max"] <= most)
