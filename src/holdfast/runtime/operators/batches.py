"""Operators for functions of batches: map_batch and filter_batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.columns import ColumnForm, Columns, columns_of, packed_stamps, stamp_array
from holdfast.common.typeinfo import TypeInformation
from holdfast.runtime.operators.stateless import FunctionOperator
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.records.user_code import user_callable, user_error

__all__ = ["FilterBatch", "MapBatch"]


class _OfBatches(FunctionOperator):
    """A function of batches. An error names the batch; the traced run that follows names the record.

    Args:
        function: The user's function.
        declared: The type of the input, by which rows become columns; None: the input must be columns.
    """

    by_columns = True
    _method: str

    def __init__(self, function: Any, declared: TypeInformation | None) -> None:
        super().__init__(function)
        self._form = ColumnForm.of(declared)

    def open(self) -> None:
        super().open()
        self._call: Callable[[Any], Any] = user_callable(self.function, self._method)

    def process(self, batch: RecordBatch) -> None:
        columns = columns_of(batch.values)
        try:
            if columns is None:
                columns = self._columns(batch.values)
            values, timestamps = self._applied(columns, batch.timestamps)
        except (Exception, SystemExit) as error:
            alone = [batch.values[0]] if len(batch.values) == 1 else []
            raise user_error(error, self.context.name, self.context.uid, *alone) from error
        if len(values):
            self.context.emit(RecordBatch(values.as_list(), timestamps))

    def _columns(self, rows: list[Any]) -> Columns:
        columns = None if self._form is None else self._form.columns(rows)
        if columns is None:
            raise TypeError(
                f"{self._method}() takes columns, and these elements of class {type(rows[0]).__name__} have none: declare "
                "their type as Types.ROW_NAMED(...) of numbers, strings, booleans and bytes where they are made "
                "(output_type, or the type of the source's schema). Rows of a changelog have no columns"
            )
        return columns

    def _applied(self, columns: Columns, timestamps: list[int] | None) -> tuple[Columns, list[int] | None]:
        """The function's results with their timestamps."""
        raise NotImplementedError


class MapBatch(_OfBatches):
    """Converts batches, row by row."""

    _method = "map_batch"

    def _applied(self, columns: Columns, timestamps: list[int] | None) -> tuple[Columns, list[int] | None]:
        result = self._call(columns.batch)
        if not isinstance(result, pyarrow().RecordBatch):
            raise TypeError(f"map_batch() returned a {type(result).__name__}; it must return a pyarrow.RecordBatch")
        if result.num_rows != len(columns):
            raise ValueError(
                f"map_batch() returned {result.num_rows} rows for {len(columns)}: each row keeps its timestamp, so there "
                "must be as many; drop rows with filter_batch()"
            )
        names = result.schema.names
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"map_batch() returned two columns named {twice!r}: give each a name of its own")
        return Columns(result), timestamps


class FilterBatch(_OfBatches):
    """Keeps rows of batches."""

    _method = "filter_batch"

    def _applied(self, columns: Columns, timestamps: list[int] | None) -> tuple[Columns, list[int] | None]:
        library = pyarrow()
        mask = self._call(columns.batch)
        if isinstance(mask, library.ChunkedArray):
            mask = mask.combine_chunks()
        if not isinstance(mask, library.Array):
            mask = library.array(mask)
        if mask.type != library.bool_() or len(mask) != len(columns):
            raise TypeError(
                f"filter_batch() returned {len(mask)} values of {mask.type} for {len(columns)} rows; it must return one "
                "boolean for each"
            )
        kept = columns.of(columns.batch.filter(mask))
        if timestamps is None:
            return kept, None
        chosen = mask.fill_null(False).to_numpy(zero_copy_only=False)
        return kept, packed_stamps(stamp_array(timestamps)[chosen])
