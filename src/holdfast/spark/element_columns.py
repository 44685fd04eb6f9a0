"""ElementColumns: the elements of a stream as record batches, whose columns a DataFrame can have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from holdfast.common.formats.arrow import RecordColumns, arrow_schema, pyarrow
from holdfast.common.formats.columns import ColumnForm, columns_of, in_microseconds
from holdfast.common.typeinfo import RowTypeInfo, TupleTypeInfo, TypeInformation
from holdfast.common.types import Row, RowKind
from holdfast.common.values.tabular import KIND_COLUMN, to_arrow
from holdfast.errors import ConfigurationError

__all__ = ["ElementColumns", "fitted", "joined", "united"]


class ElementColumns:
    """Makes record batches of elements: in the columns of the declared type, else in those that the values suggest.

    The columns are those of `as_record`, so that rows of a changelog have another one with their kind.

    Args:
        declared: The elements' type.
    """

    def __init__(self, declared: TypeInformation | None) -> None:
        self.schema: Any = None
        """The ``pyarrow.Schema`` of the declared type; None: there is none, or Arrow has no form for it."""
        self._single = not isinstance(declared, RowTypeInfo | TupleTypeInfo)
        row_type = _row_type(declared)
        if row_type is not None:
            try:
                self.schema = arrow_schema(row_type)
            except ConfigurationError:
                return
            self._form = None if self._single else ColumnForm.of(row_type)
            self._columns = RecordColumns(self.schema, row_type)

    def batch(self, values: Sequence[Any]) -> Any:
        """The ``pyarrow.RecordBatch`` of some elements.

        Raises:
            TypeError: an element is not of the declared type.
            ValueError: the same, or Arrow has no type for a column.
        """
        columns = columns_of(values)
        if columns is not None:
            batch = columns.batch
            return pyarrow().RecordBatch.from_arrays(list(map(in_microseconds, batch.columns)), names=batch.schema.names)
        if self.schema is None:
            return _inferred(values)
        columns = None if self._form is None else self._form.columns(values)
        if columns is not None:
            return columns.batch
        fitting = self._columns.fitting
        batch = self._columns.batch([fitting((value,) if self._single else value) for value in values])
        kinds = [_kind(value) for value in values]
        return batch if not any(kinds) else batch.append_column(KIND_COLUMN, pyarrow().array(kinds, pyarrow().string()))


def _row_type(declared: TypeInformation | None) -> RowTypeInfo | None:
    if declared is None or isinstance(declared, RowTypeInfo):
        return declared
    if isinstance(declared, TupleTypeInfo):
        return RowTypeInfo(list(declared.get_field_types()))
    return RowTypeInfo([declared], ["value"])


def _kind(value: Any) -> str | None:
    if isinstance(value, Row) and value.get_row_kind() is not RowKind.INSERT:
        return value.get_row_kind().name
    return None


def _inferred(values: Sequence[Any]) -> Any:
    table = to_arrow(values)
    if not table.num_columns:
        raise ValueError("the elements have no fields, so they are no rows with columns")
    (batch,) = table.combine_chunks().to_batches(max_chunksize=len(values))
    return batch


def united(schemas: Iterable[Any]) -> Any:
    """The schema of all columns of some schemas, each of a type that holds the values of all.

    Raises:
        ValueError: there is no such type.
    """
    library = pyarrow()
    try:
        return library.unify_schemas(list(schemas), promote_options="permissive")
    except library.ArrowException as error:
        raise ValueError(f"the elements have no columns in common: {error}; declare their type (output_type)") from error


def joined(batches: Sequence[Any]) -> list[Any]:
    """Record batches of one schema that hold the rows of some, in order.

    Raises:
        ValueError: no schema holds all.
    """
    schemas = [batch.schema for batch in batches]
    schema = schemas[0]
    if all(each.equals(schema) for each in schemas):
        return list(batches)
    schema = united(schemas)
    return [fitted(batch, schema) for batch in batches]


def fitted(batch: Any, schema: Any) -> Any:
    """A record batch with the columns of a schema; those that it lacks are null."""
    if batch.schema.equals(schema):
        return batch
    library, names = pyarrow(), batch.schema.names
    columns = [
        batch.column(names.index(field.name)).cast(field.type)
        if field.name in names
        else library.nulls(batch.num_rows, field.type)
        for field in schema
    ]
    return library.RecordBatch.from_arrays(columns, schema=schema)
