"""PySpark's ``StatefulProcessor`` in the form for pandas: DataFrames in and out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pandas

from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.types import Row
from holdfast.functions.process_functions import KeyedProcessFunction
from holdfast.spark.transform_with_state import ProcessorFunction

__all__ = ["PandasProcessorFunction"]

_FRACTIONS = (Types.FLOAT(), Types.DOUBLE())
_WHOLE = (Types.BYTE(), Types.SHORT(), Types.INT(), Types.LONG())


class PandasProcessorFunction(ProcessorFunction):
    """Calls a processor with the rows of a key as a ``pandas.DataFrame``."""

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context[Any]) -> Iterable[Row]:
        """Call ``handleInputRows`` with a DataFrame of one row."""
        return self.process_rows([value], ctx)

    def _given(self, values: Sequence[Any]) -> Iterator[Any]:
        return iter([self._initial(values)])

    def _initial(self, values: Sequence[Any]) -> Any:
        rows = [self._row(value) for value in values]
        names = rows[0].__fields__
        for row in rows:
            if row.__fields__ != names:
                raise TypeError(f"the rows of a key have other fields: {', '.join(names)}, and {', '.join(row.__fields__)}")
        return pandas.DataFrame.from_records([tuple(row) for row in rows], columns=names)

    def _results(self, results: Any, method: str) -> Iterator[Row]:
        if not hasattr(results, "__iter__") or isinstance(results, pandas.DataFrame):
            raise TypeError(
                f"{method}() must return an iterator of pandas.DataFrames, or yield them; it returned {results!r:.200}"
            )
        names = self._names
        for frame in results:
            if not isinstance(frame, pandas.DataFrame):
                raise TypeError(f"{method}() gave {frame!r:.200}; results are pandas.DataFrames")
            if frame.empty:
                continue
            if len(frame.columns) != len(names) or set(frame.columns) != set(names):
                given = ", ".join(map(str, frame.columns))
                raise TypeError(f"{method}() gave a DataFrame of {given}; the output_schema has {', '.join(names)}")
            columns = [_values(frame[name], declared) for name, declared in zip(names, self.schema.types)]
            for values in zip(*columns):
                yield Row.of_values(list(values), names)


def _values(column: Any, declared: TypeInformation | None) -> list[Any]:
    """The values of a column, as Spark converts them: NaN and other missing values are None."""
    values: list[Any] = column.astype(object).where(column.notna(), None).tolist()
    kind = column.dtype.kind
    if kind == "f" and declared in _WHOLE:  # whole numbers become fractions beside a missing one
        return [int(value) if value is not None and value.is_integer() else value for value in values]
    if kind in "iu" and declared in _FRACTIONS:
        return list(map(float, values))
    return [None if value is None else value.to_pydatetime() for value in values] if kind == "M" else values
