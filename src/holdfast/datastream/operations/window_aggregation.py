"""What ``WindowedStream.agg`` adds to a program: the names and types of its results, and the columns that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from holdfast.common.formats.columns import ColumnForm, Fields, columns_available
from holdfast.common.typeinfo import BasicType, BasicTypeInfo, RowTypeInfo, TypeInformation, Types
from holdfast.datastream.window import CountSlidingWindowAssigner, CountTumblingWindowAssigner, GlobalWindows
from holdfast.errors import ConfigurationError
from holdfast.functions.aggregates import Aggregate, Avg, Count, CountDistinct, Max, Min, Sum
from holdfast.graph.transformations import Partitioned
from holdfast.runtime.operators.windows.column_windows import Summary
from holdfast.runtime.plan.plan import Partitioning
from holdfast.windowing.assigners import PeriodicWindows, TumblingWindows

__all__ = ["WindowAggregation", "window_aggregation"]

_WHOLE = frozenset({BasicType.BYTE, BasicType.SHORT, BasicType.INT, BasicType.LONG})
_REAL = frozenset({BasicType.FLOAT, BasicType.DOUBLE})


class WindowAggregation(NamedTuple):
    """The window function, the type of the results, and the form of the columns that the windows read (None: rows)."""

    summary: Summary
    output_type: TypeInformation | None
    form: ColumnForm | None


def window_aggregation(
    partitioned: Partitioned, assigner: Any, aggregates: Mapping[str, Any], keeps_late: bool
) -> WindowAggregation:
    """Check the aggregates, and find out what they need.

    Args:
        partitioned: The stream, partitioned by key.
        assigner: Its windows.
        aggregates: The aggregates by the names of their results.
        keeps_late: Whether late elements go to a side output, and so need all their fields.

    Raises:
        TypeError: one is no aggregate.
        ConfigurationError: they cannot be computed of this stream.
    """
    if not aggregates:
        raise ConfigurationError("agg() takes aggregates by name, e.g. agg(total=Sum('amount'), payments=Count()).")
    for name, each in aggregates.items():
        if not isinstance(each, Aggregate):
            raise TypeError(f"agg() takes aggregates such as Sum('amount') or Count(); {name} is {each!r}.")
    if isinstance(assigner, (GlobalWindows, CountTumblingWindowAssigner, CountSlidingWindowAssigner)):
        raise ConfigurationError(
            f"agg() names the start and the end of each window, which those of {type(assigner).__name__} do not have; use "
            "aggregate(...)."
        )
    selector = partitioned.key_selector
    fields = selector.names if isinstance(selector, Fields) else ("key",)
    summary = Summary(fields, len(fields) == 1, list(aggregates))
    twice = sorted(name for name in set(summary.names) if summary.names.count(name) > 1)
    if twice:
        raise ConfigurationError(f"agg() would give Rows with two fields {twice[0]!r}; name the aggregate otherwise.")
    declared = partitioned.output_type
    if not isinstance(declared, RowTypeInfo) or not isinstance(selector, Fields):
        return WindowAggregation(summary, None, None)
    types = dict(zip(declared.get_field_names(), declared.get_field_types()))
    read = [*fields, *(each.field for each in aggregates.values() if each.field is not None)]
    missing = [name for name in read if name not in types]
    if missing:
        raise ConfigurationError(f"agg() reads the field {missing[0]!r}, but the elements are {declared!r}.")
    results = [_result_type(name, each, types) for name, each in aggregates.items()]
    keys = [types[name] for name in fields] if partitioned.key_type is None or len(fields) > 1 else [partitioned.key_type]
    output_type = Types.ROW_NAMED(summary.names, [*keys, Types.LONG(), Types.LONG(), *results])
    aligned = isinstance(assigner, PeriodicWindows) and (assigner.is_event_time() or isinstance(assigner, TumblingWindows))
    columnar = aligned and partitioned.partitioning is Partitioning.HASH
    form = ColumnForm.of(declared, None if keeps_late else read) if columnar and columns_available() else None
    return WindowAggregation(summary, output_type, form)


def _result_type(name: str, each: Aggregate, types: Mapping[str, TypeInformation]) -> TypeInformation:
    if isinstance(each, (Count, CountDistinct)):
        return Types.LONG()
    assert each.field is not None
    given = types[each.field]
    if isinstance(each, (Min, Max)):
        return given
    kind = given.basic_type if isinstance(given, BasicTypeInfo) else None
    if isinstance(each, Avg) and (kind in _WHOLE or kind in _REAL):
        return Types.DOUBLE()
    if isinstance(each, Sum) and kind in _WHOLE:
        return Types.LONG()
    if isinstance(each, Sum) and kind in _REAL:
        return Types.DOUBLE()
    if kind in (BasicType.BIG_INT, BasicType.BIG_DEC):
        return given
    raise ConfigurationError(
        f"agg({name}={each!r}): {each.field} is of the type {given!r}, which has no {type(each).__name__}."
    )
