"""Columns: records held as a record batch of Arrow, and as rows only where a function asks for rows.

Columns stand in for the list of the rows wherever the runtime passes values. Code that knows columns works on the record
batch; any other code iterates, and so makes the rows, once.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache
from importlib.util import find_spec
from operator import attrgetter
from typing import Any, cast

from holdfast import compiled
from holdfast.common.formats.arrow import arrow_schema, pyarrow
from holdfast.common.formats.scans import highest
from holdfast.common.system.optional_library import optional_library
from holdfast.common.typeinfo import (
    BasicType,
    BasicTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    SqlTimeTypeInfo,
    TypeInformation,
)
from holdfast.common.types import Row, RowKind

__all__ = [
    "ColumnForm",
    "ColumnKeys",
    "Columns",
    "Fields",
    "as_dicts",
    "as_rows",
    "col",
    "column_schema",
    "column_values",
    "columns_available",
    "columns_of",
    "in_microseconds",
    "key_columns",
    "latest",
    "numpy",
    "packed_stamps",
    "stamp_array",
]

MakeRows = Callable[[Any], list[Any]]
"""Makes the records of a ``pyarrow.RecordBatch``; a function of a module, since it is pickled by name."""


@cache
def numpy() -> Any:
    """The library.

    Raises:
        ConfigurationError: it is not installed.
    """
    return optional_library("numpy", "functions of batches need NumPy", "'holdfast[arrow]'")


@cache
def columns_available() -> bool:
    """Whether the libraries are installed."""
    return find_spec("pyarrow") is not None and find_spec("numpy") is not None


def column_values(column: Any) -> list[Any]:
    """The values of a ``pyarrow.Array`` as Python objects, those of ``to_pylist``, in half the time or less."""
    types = pyarrow().types
    kind = column.type
    quick = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if types.is_string(kind) or (quick and column.null_count == 0 and not types.is_float16(kind)):
        values: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return values
    values = in_microseconds(column).to_pylist()
    return values


def in_microseconds(column: Any) -> Any:
    """A ``pyarrow.Array`` without nanoseconds, which Python's times do not hold: Arrow makes pandas' of them."""
    kind = _without_nanoseconds(column.type)
    return column if kind is column.type else column.cast(kind, safe=False)


@lru_cache(256)
def _without_nanoseconds(kind: Any) -> Any:
    """A type in which times have microseconds; the type itself if it has no nanoseconds."""
    library = pyarrow()
    types = library.types
    if types.is_timestamp(kind) and kind.unit == "ns":
        return library.timestamp("us", kind.tz)
    if types.is_duration(kind) and kind.unit == "ns":
        return library.duration("us")
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        made = library.struct([each.with_type(_without_nanoseconds(each.type)) for each in fields])
    elif types.is_map(kind):
        made = library.map_(_without_nanoseconds(kind.key_type), _without_nanoseconds(kind.item_type), kind.keys_sorted)
    elif types.is_large_list(kind):
        made = library.large_list(kind.value_field.with_type(_without_nanoseconds(kind.value_type)))
    elif types.is_list(kind):
        made = library.list_(kind.value_field.with_type(_without_nanoseconds(kind.value_type)))
    else:
        return kind
    return kind if made.equals(kind) else made


def as_rows(batch: Any) -> list[Any]:
    """The records of a ``pyarrow.RecordBatch`` as Rows."""
    if not batch.num_columns:
        return [Row.of_values([], []) for _ in range(batch.num_rows)]
    names, of_values = batch.schema.names, Row.of_values
    return [of_values(list(fields), names) for fields in zip(*map(column_values, batch.columns), strict=True)]


def as_dicts(batch: Any) -> list[Any]:
    """The records of a ``pyarrow.RecordBatch`` as dicts."""
    columns = list(map(in_microseconds, batch.columns))
    records: list[Any] = pyarrow().RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist()
    return records


class Columns(Sequence[Any]):
    """The records of a ``pyarrow.RecordBatch``.

    Args:
        batch: The record batch.
        make_rows: Makes the records from it.
    """

    def __init__(self, batch: Any, make_rows: MakeRows = as_rows) -> None:
        self._batch = batch
        self._make_rows = make_rows
        self._rows: list[Any] | None = None

    @property
    def batch(self) -> Any:
        """The record batch."""
        return self._batch

    @property
    def form(self) -> tuple[Any, MakeRows]:
        """What other columns must have in common with these to be joined: the schema, and the form of the records."""
        return self.batch.schema, self._make_rows

    def rows(self) -> list[Any]:
        """The records, made on the first call."""
        if self._rows is None:
            self._rows = self._make_rows(self.batch)
        return self._rows

    def as_list(self) -> list[Any]:
        """These columns, for code that takes the list of the rows."""
        return cast("list[Any]", self)

    def fresh(self) -> Columns:
        """The same records, whose rows are shared with nobody."""
        return Columns(self.batch, self._make_rows)

    def of(self, batch: Any) -> Columns:
        """Records of another record batch, in the form of these."""
        return Columns(batch, self._make_rows)

    def take(self, positions: Any) -> Columns:
        """The records at these positions, an array."""
        return self.of(self.batch.take(pyarrow().array(positions)))

    def joined(self, others: Sequence[Columns]) -> Columns | None:
        """These records, followed by others; None if those have other columns, or another form."""
        if any(each.form != self.form for each in others):
            return None
        table = pyarrow().Table.from_batches([self.batch, *(each.batch for each in others)])
        batches = table.combine_chunks().to_batches()
        return self if not batches else self.of(batches[0])

    def fits(self, declared: TypeInformation) -> bool:
        """Whether these are Rows of a declared type, without a look at each."""
        if self._make_rows is not as_rows or not isinstance(declared, RowTypeInfo):
            return False
        schema = column_schema(declared)
        return schema is not None and bool(schema.equals(self.batch.schema))

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.rows())

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            first, end, step = at.indices(len(self))
            return self.part(first, max(first, end)) if step == 1 else self.rows()[at]
        return self.rows()[at]

    def part(self, first: int, end: int) -> Columns:
        """The records from ``first`` up to ``end``."""
        part = self.of(self.batch.slice(first, end - first))
        part._rows = None if self._rows is None else self._rows[first:end]
        return part

    def __reduce__(self) -> tuple[Any, ...]:
        library, batch = pyarrow(), self.batch
        out = library.BufferOutputStream()
        with library.ipc.new_stream(out, batch.schema) as writer:
            writer.write_batch(batch)
        return _read, (out.getvalue().to_pybytes(), self._make_rows)


def _read(stream: bytes, make_rows: MakeRows) -> Columns:
    library = pyarrow()
    with library.ipc.open_stream(library.py_buffer(stream)) as reader:
        return Columns(reader.read_next_batch(), make_rows)


def columns_of(values: Any) -> Columns | None:
    """The values, if they are columns."""
    return values if isinstance(values, Columns) else None


def packed_stamps(stamps: Any) -> list[int]:
    """Timestamps of columns, a NumPy array, as a packed array in the place of the list."""
    packed = array("q")
    packed.frombytes(stamps.astype("int64", copy=False).tobytes())
    return cast("list[int]", packed)


def stamp_array(timestamps: Any) -> Any:
    """Timestamps as a NumPy array; that of packed ones costs nothing."""
    return numpy().asarray(timestamps, dtype="int64")


def latest(timestamps: Sequence[int]) -> int:
    """The highest of some timestamps."""
    if isinstance(timestamps, array):
        return int(stamp_array(timestamps).max())
    return highest(timestamps) if compiled.IN_USE and type(timestamps) is list else max(timestamps)


class Fields:
    """Reads fields of a record by name; as a key selector and as a timestamp assigner it needs no call per record."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def __call__(self, value: Any, record_timestamp: int | None = None) -> Any:
        """The field's value; of several fields, the tuple of their values."""
        if len(self.names) == 1:
            return _field(value, self.names[0])
        return tuple([_field(value, name) for name in self.names])

    def arrays(self, batch: Any) -> list[Any] | None:
        """The columns of these fields in a record batch; None if it lacks one."""
        if not set(self.names) <= set(batch.schema.names):
            return None
        return [batch.column(name) for name in self.names]

    def stamps(self, values: Any) -> list[int] | None:
        """The timestamps of columns; None if they must be read record by record."""
        columns = columns_of(values)
        arrays = None if columns is None else self.arrays(columns.batch)
        if arrays is None or len(arrays) > 1 or arrays[0].null_count:
            return None
        signed = pyarrow().types.is_signed_integer(arrays[0].type)
        return packed_stamps(arrays[0].to_numpy()) if signed else None

    def __repr__(self) -> str:
        return f"col({', '.join(map(repr, self.names))})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fields) and self.names == other.names

    def __hash__(self) -> int:
        return hash(self.names)


def _field(value: Any, name: str) -> Any:
    return value[name] if isinstance(value, (Row, dict)) else getattr(value, name)


def col(*names: str) -> Fields:
    """Read a field by name: a key selector for ``key_by``, and a timestamp assigner; several names make a tuple.

    Elements are Rows, dicts, or objects with attributes. Of batches it reads whole columns.

    Examples:
        >>> from holdfast.common import Row
        >>> col("user")(Row(user="Asha", amount=3)), col("user", "amount")({"user": "Asha", "amount": 3})
        ('Asha', ('Asha', 3))

    Raises:
        TypeError: a name is not a string, or there is none.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"col() takes names of fields, not {', '.join(map(repr, names)) or 'nothing'}")
    return Fields(names)


class ColumnKeys(Sequence[Any]):
    """The keys of columns: fields of theirs."""

    def __init__(self, columns: Columns, fields: Fields) -> None:
        self.columns = columns
        self.fields = fields
        self._keys: list[Any] | None = None

    @property
    def arrays(self) -> list[Any]:
        """The columns of the keys' fields."""
        return [self.columns.batch.column(name) for name in self.fields.names]

    def as_list(self) -> list[Any]:
        """These keys, for code that takes a list of them."""
        return cast("list[Any]", self)

    def keys(self) -> list[Any]:
        """The keys, made on the first call."""
        if self._keys is None:
            lists = list(map(column_values, self.arrays))
            self._keys = lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))
        return self._keys

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys())

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            first, end, step = at.indices(len(self))
            if step == 1:
                return ColumnKeys(self.columns.part(first, max(first, end)), self.fields)
        return self.keys()[at]

    def __reduce__(self) -> tuple[Any, ...]:
        return ColumnKeys, (self.columns, self.fields)


def key_columns(select: Any, declared: TypeInformation | None, values: Any) -> ColumnKeys | None:
    """The keys of columns; None if they must be selected record by record."""
    columns = columns_of(values)
    if columns is None or not isinstance(select, Fields):
        return None
    arrays = select.arrays(columns.batch)
    if arrays is None:
        return None
    if declared is not None:
        kind = _plain_type(declared)
        if len(arrays) > 1 or arrays[0].null_count or kind is None or arrays[0].type != kind:
            return None
    return ColumnKeys(columns, select)


_PLAIN = frozenset(
    {
        *(BasicType.STRING, BasicType.BOOLEAN, BasicType.BYTE, BasicType.SHORT, BasicType.INT, BasicType.LONG),
        *(BasicType.FLOAT, BasicType.DOUBLE),
    }
)
"""Types whose values are the same before and after Arrow."""


def _is_plain(declared: TypeInformation) -> bool:
    if isinstance(declared, BasicTypeInfo):
        return declared.basic_type in _PLAIN
    return isinstance(declared, SqlTimeTypeInfo) or (
        isinstance(declared, PrimitiveArrayTypeInfo) and declared.annotation is bytes
    )


@lru_cache(64)
def column_schema(declared: RowTypeInfo) -> Any:
    """The schema of Rows of the type; None if Arrow cannot hold one of its fields as it is."""
    return arrow_schema(declared) if all(map(_is_plain, declared.get_field_types())) else None


@lru_cache(64)
def _plain_type(declared: TypeInformation) -> Any:
    return arrow_schema(RowTypeInfo([declared])).field(0).type if _is_plain(declared) else None


_kind_of, _values_of = attrgetter("_row_kind"), attrgetter("_values")


class ColumnForm:
    """Rows of a declared type as columns.

    Args:
        schema: The ``pyarrow.Schema`` of all fields.
        names: The fields to keep, in the order of the schema.
    """

    def __init__(self, schema: Any, names: Sequence[str]) -> None:
        self._positions = [schema.get_field_index(name) for name in schema.names if name in set(names)]
        self._schema = pyarrow().schema([schema.field(position) for position in self._positions])

    @staticmethod
    def of(declared: TypeInformation | None, names: Sequence[str] | None = None) -> ColumnForm | None:
        """The form of a declared type; None if Arrow cannot hold its values as they are.

        Args:
            declared: The type.
            names: The fields to keep; None: all.
        """
        schema = column_schema(declared) if isinstance(declared, RowTypeInfo) else None
        return None if schema is None else ColumnForm(schema, schema.names if names is None else names)

    def applied(self, values: list[Any]) -> list[Any]:
        """The columns in place of these values; the values themselves if columns cannot hold them."""
        columns = self.columns(values)
        return values if columns is None else columns.as_list()

    def columns(self, values: Any) -> Columns | None:
        """The columns of Rows that fit the type, or of columns; None for Rows of a changelog, which columns cannot hold."""
        given = columns_of(values)
        if given is not None:
            names = self._schema.names
            narrower = set(names) < set(given.batch.schema.names)
            return given.of(given.batch.select(names)) if narrower else given
        if set(map(type, values)) != {Row} or set(map(_kind_of, values)) != {RowKind.INSERT}:
            return None
        by_field = list(zip(*map(_values_of, values), strict=True))
        library = pyarrow()
        try:
            arrays = [library.array(by_field[at], each.type) for at, each in zip(self._positions, self._schema, strict=True)]
        except (library.ArrowInvalid, library.ArrowTypeError, TypeError, ValueError, OverflowError):
            return None  # a Row was changed after it was checked, or has a string that is no UTF-8
        return Columns(library.RecordBatch.from_arrays(arrays, schema=self._schema))
