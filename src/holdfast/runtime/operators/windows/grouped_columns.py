"""GroupedColumns: the built-in aggregates over columns, by key. Pure.

The accumulators equal those that `holdfast.functions.aggregates` makes record by record, to the last bit: values are added
in the order of the records, starting from the accumulator so far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.columns import Fields, column_values, numpy
from holdfast.functions.aggregates import Aggregate, Aggregates, Avg, Count, CountDistinct, Max, Min, Sum

__all__ = ["GroupedColumns", "Unfit"]

_MOST = 2**63 - 1
_EXACT = 2**53
"""Up to this number, floats represent every integer."""


class Unfit(Exception):
    """The records must be added one by one, because numbers could exceed 64 bits."""


class GroupedColumns:
    """Groups columns by their keys.

    Args:
        keys: The key's fields.
        function: The aggregates.
    """

    def __init__(self, keys: Fields, function: Aggregates) -> None:
        self._fields = list(keys.names)
        self._keys = [f"k{at}" for at in range(len(keys.names))]
        """The names of the key's columns in tables of contributions; those of aggregates are ``a0``, ``n0``, ``a1``, ..."""
        self._each = function.each

    def takes(self, schema: Any) -> bool:
        """Whether columns of this schema can be grouped."""
        types = pyarrow().types
        for name in self._fields:
            kind = schema.field(name).type
            if not (types.is_signed_integer(kind) or types.is_string(kind)):
                return False
        return all(each.field is None or self._takes(each, schema) for each in self._each)

    def _takes(self, each: Aggregate, schema: Any) -> bool:
        types, at = pyarrow().types, schema.get_field_index(each.field)
        if at < 0:
            return False
        kind = schema.field(at).type
        if type(each) is Count:
            return True
        number = types.is_signed_integer(kind) or types.is_float32(kind) or types.is_float64(kind)
        return number or (type(each) in (Min, Max, CountDistinct) and types.is_string(kind))

    def accumulated(self, batch: Any, unique: list[Any], before: Sequence[tuple[Any, ...] | None]) -> list[tuple[Any, ...]]:
        """Add the records of a batch to accumulators.

        Args:
            batch: The record batch.
            unique: Its `unique` keys.
            before: Their accumulators; None for a key without one.

        Returns:
            The accumulators of these keys, in the same order.

        Raises:
            Unfit: the records must be added one by one.
        """
        former = dict(zip(unique, before, strict=True)) if any(each is not None for each in before) else None
        grouped = self._grouped(batch, former)
        places = {key: place for place, key in enumerate(self._keys_of(grouped))}  # Arrow gives groups in any order
        grouped = grouped.take(pyarrow().array([places[key] for key in unique], "int64"))
        parts: list[list[Any]] = []
        for at, each in enumerate(self._each):
            if isinstance(each, CountDistinct):
                parts.append(self._distinct(each, batch, grouped, [None if b is None else b[at] for b in before]))
            elif isinstance(each, Avg):
                totals, counts = column_values(grouped.column(f"a{at}")), column_values(grouped.column(f"n{at}"))
                parts.append(list(zip(totals, counts, strict=True)))
            else:
                parts.append(column_values(grouped.column(f"a{at}")))
        return list(zip(*parts, strict=True))

    def unique(self, batch: Any) -> list[Any]:
        """The distinct keys, in order of first occurrence."""
        if len(self._keys) == 1:
            return column_values(batch.column(self._fields[0]).unique())
        return self._keys_of(_one(self._table(batch, [], []).group_by(self._keys, use_threads=False), []))

    def results(self, batch: Any, before: dict[Any, tuple[Any, ...]]) -> tuple[list[Any], list[Any]]:
        """Return the columns of the distinct keys, and those of the results of all their records.

        Args:
            batch: The record batch.
            before: The accumulators of earlier records; their keys have results, too.

        Raises:
            Unfit: the records must be added one by one.
        """
        grouped = self._grouped(batch, before or None)
        columns = []
        for at, each in enumerate(self._each):
            if isinstance(each, CountDistinct):
                former = [before[key][at] if key in before else None for key in self._keys_of(grouped)] if before else []
                found = self._distinct(each, batch, grouped, former or [None] * grouped.num_rows)
                columns.append(pyarrow().array([each.result(part) for part in found], "int64"))
            elif isinstance(each, Avg):
                columns.append(_mean(grouped.column(f"a{at}"), grouped.column(f"n{at}")))
            else:
                columns.append(grouped.column(f"a{at}"))
        return [grouped.column(name) for name in self._keys], columns

    def _grouped(self, batch: Any, before: Mapping[Any, tuple[Any, ...] | None] | None) -> Any:
        """One row per key, with the parts of all aggregates except the sets."""
        library = pyarrow()
        sums, least = library.compute.ScalarAggregateOptions(min_count=1), {Min: "min", Max: "max"}
        table = self._contributions(batch)
        calls: list[tuple[Any, ...]] = []
        for name in table.schema.names[len(self._keys) :]:
            each = self._each[int(name[1:])]
            call = "sum" if name[0] == "n" else least.get(type(each), "sum")
            calls.append((name, call, sums))
        if before is not None:
            table = self._with_former(table, before)
        self._check_range(table)
        return _one(table.group_by(self._keys, use_threads=False), calls)

    def _contributions(self, batch: Any) -> Any:
        """The contribution of each record."""
        compute, arrow = pyarrow().compute, pyarrow()
        arrays: list[Any] = []
        names: list[str] = []
        for at, each in enumerate(self._each):
            column: Any = None if each.field is None else batch.column(each.field)
            if isinstance(each, Count):
                ones = numpy().ones(batch.num_rows, dtype="int64")
                arrays.append(arrow.array(ones) if column is None else column.is_valid().cast("int64"))
                names.append(f"a{at}")
            elif isinstance(each, (Sum, Avg)):
                arrays.append(column.cast("double" if arrow.types.is_floating(column.type) else "int64"))
                names.append(f"a{at}")
                if isinstance(each, Avg):
                    arrays.append(column.is_valid().cast("int64"))
                    names.append(f"n{at}")
            elif isinstance(each, (Min, Max)):
                arrays.append(_ordered(compute, arrow, column))
                names.append(f"a{at}")
        return self._table(batch, arrays, names)

    def _table(self, batch: Any, arrays: list[Any], names: list[str]) -> Any:
        """A table of the key's columns and these."""
        keys = [batch.column(name) for name in self._fields]
        return pyarrow().Table.from_arrays([*keys, *arrays], names=[*self._keys, *names])

    def _with_former(self, table: Any, before: Mapping[Any, tuple[Any, ...] | None]) -> Any:
        """The table, preceded by the accumulators so far."""
        library = pyarrow()
        known = {key: parts for key, parts in before.items() if parts is not None}
        columns: list[Any] = [list(known)] if len(self._keys) == 1 else list(zip(*known, strict=True))
        former = list(known.values())
        for name in table.schema.names[len(self._keys) :]:
            at = int(name[1:])
            parts = [each[at] for each in former]
            if isinstance(self._each[at], Avg):
                parts = [part[name[0] == "n"] for part in parts]
            columns.append(parts)
        if not all(_is_of(column, field.type) for column, field in zip(columns, table.schema, strict=True)):
            raise Unfit
        try:
            arrays = [library.array(column, field.type) for column, field in zip(columns, table.schema, strict=True)]
        except (library.ArrowInvalid, library.ArrowTypeError, OverflowError) as error:
            raise Unfit from error
        return library.concat_tables([library.Table.from_arrays(arrays, schema=table.schema), table])

    def _check_range(self, table: Any) -> None:
        library = pyarrow()
        for name in table.schema.names[len(self._keys) :]:
            each = self._each[int(name[1:])]
            if isinstance(each, (Sum, Avg)) and library.types.is_int64(table.schema.field(name).type):
                bounds = library.compute.min_max(table.column(name)).as_py()
                largest = max(abs(bounds["min"] or 0), abs(bounds["max"] or 0))
                if largest * table.num_rows > _MOST:
                    raise Unfit

    def _distinct(self, each: CountDistinct, batch: Any, grouped: Any, before: list[Any]) -> list[Any]:
        """The sets of distinct values, by key."""
        library = pyarrow()
        column = _ordered(library.compute, library, batch.column(each.field))
        pairs = self._table(batch, [column], ["value"])
        pairs = _one(pairs.group_by([*self._keys, "value"], use_threads=False), [])
        found: dict[Any, set[Any]] = {}
        for key, value in zip(self._tuples(pairs), column_values(pairs.column("value")), strict=True):
            if value is not None:
                found.setdefault(key, set()).add(value)
        some = self._table(batch, [batch.column(each.field).is_valid().cast("int64")], ["n"])
        some = _one(some.group_by(self._keys, use_threads=False), [("n", "sum", None)])
        given = dict(zip(self._tuples(some), column_values(some.column("n")), strict=True))
        return [
            (set() if former is None else former) | found.get(key, set()) if given.get(key) else former
            for key, former in zip(self._tuples(grouped), before, strict=True)
        ]

    def _keys_of(self, grouped: Any) -> list[Any]:
        """The keys of groups."""
        return column_values(grouped.column("k0")) if len(self._keys) == 1 else self._tuples(grouped)

    def _tuples(self, batch: Any) -> list[tuple[Any, ...]]:
        return list(zip(*[column_values(batch.column(name)) for name in self._keys], strict=True))


def _one(grouping: Any, calls: list[tuple[Any, ...]]) -> Any:
    """The groups as one record batch, whose results are named like their columns."""
    library = pyarrow()
    found = grouping.aggregate(calls).combine_chunks()
    renamed = {f"{name}_{call}": name for name, call, _ in calls}
    found = found.rename_columns([renamed.get(name, name) for name in found.schema.names])
    batches = found.to_batches()
    return batches[0] if batches else library.RecordBatch.from_pylist([], schema=found.schema)


def _is_of(values: Any, kind: Any) -> bool:
    """Whether these values, except None, have the class that a column of this type returns."""
    types = pyarrow().types
    own = float if types.is_floating(kind) else str if types.is_string(kind) else int
    return set(map(type, values)) <= {own, type(None)}


def _ordered(compute: Any, arrow: Any, column: Any) -> Any:
    """A column with a single zero, and null in place of NaN."""
    if not arrow.types.is_floating(column.type):
        return column
    column = compute.if_else(compute.is_nan(column), arrow.scalar(None, column.type), column)
    return compute.add(column, arrow.scalar(0.0, column.type))


def _mean(totals: Any, counts: Any) -> Any:
    library = pyarrow()
    if library.types.is_int64(totals.type):
        bounds = library.compute.min_max(totals).as_py()
        if max(abs(bounds["min"] or 0), abs(bounds["max"] or 0)) > _EXACT:
            pairs = zip(column_values(totals), column_values(counts), strict=True)
            return library.array([None if total is None else total / count for total, count in pairs], "double")
    counts = library.compute.if_else(library.compute.equal(counts, 0), None, counts)
    return library.compute.divide(totals.cast("double"), counts.cast("double"))
