"""AvroColumns: Avro values of one schema, decoded into columns without a Python object for each.

Values with known ends, as Kafka's, are decoded field by field, by NumPy: each field of all values at once. The blocks of
container files have no ends of records; Polars reads them, where it is installed.

What is not decoded here is decoded record by record, which gives the same records or names the wrong one.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any

from holdfast.common.formats.arrow import pyarrow
from holdfast.common.formats.avro import AvroSchema, row_type
from holdfast.common.formats.avro_values import kind_of
from holdfast.common.formats.columns import Columns, MakeRows, as_rows, column_schema, columns_available, numpy
from holdfast.common.typeinfo import RowTypeInfo

__all__ = ["AvroColumns"]

_FEW = 16
"""So few values are decoded faster one by one."""
_WHOLE = {
    **{"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)},
    # What Python's dates and times can hold.
    **{"date": (-719162, 2932896), "time-millis": (0, 86_399_999)},
    **dict.fromkeys(("timestamp-millis", "local-timestamp-millis"), (-62135596800000, 253402300799999)),
}
"""The kinds that are stored as integers, with the least and the greatest one."""
_BYTES = frozenset({"string", "bytes"})
_REAL = {"float": "<f4", "double": "<f8"}
_WIDER = {"int": {"long", "float", "double"}, "long": {"float", "double"}, "float": {"double"}}
"""What a reader's schema may make of a number."""
_SYNC = b"one block follows"[:16]


@dataclass(frozen=True)
class _Field:
    """A field of the writer's schema."""

    name: str
    kind: str
    null: int | None
    """The branch of the union that is null; None without one."""
    branches: int
    """The branches of the union; 0 without one."""
    symbols: tuple[str, ...] = ()
    """Those of an enum."""
    size: int = 0
    """That of fixed bytes."""


class _Damaged(Exception):
    """The values are not of the schema, or must be decoded one by one to find out."""


class AvroColumns:
    """Decodes values of one schema into columns.

    Args:
        writer: The schema that wrote them.
        fields: Its fields.
        chosen: For each field of the result the writer's field of that name, or a constant.
        schema: The ``pyarrow.Schema`` of the result.
        make_rows: Makes the records from columns.
    """

    def __init__(
        self, writer: AvroSchema, fields: Sequence[_Field], chosen: Sequence[Any], schema: Any, make_rows: MakeRows
    ) -> None:
        self._writer = writer
        self._fields = fields
        self._chosen = chosen
        self._schema = schema
        self._make_rows = make_rows

    @staticmethod
    def of(writer: AvroSchema, reader: AvroSchema | None = None, make_rows: MakeRows = as_rows) -> AvroColumns | None:
        """The decoder for a schema; None if its values must be decoded one by one.

        Args:
            writer: The schema that wrote the values.
            reader: The schema of the result; None: the writer's.
            make_rows: Makes the records from columns.
        """
        if not columns_available():
            return None
        wanted = reader or writer
        if any(not isinstance(each.parsed, dict) or each.parsed["type"] != "record" for each in (writer, wanted)):
            return None
        known = {declared["name"]: _field(declared) for declared in writer.parsed["fields"]}
        fields = [each for each in known.values() if each is not None]
        declared = None if not fields or len(fields) < len(known) else row_type(wanted)
        schema = column_schema(declared) if isinstance(declared, RowTypeInfo) else None
        if schema is None:
            return None
        chosen = fields if writer == wanted else _chosen(writer.parsed, wanted.parsed, known)
        return None if chosen is None else AvroColumns(writer, fields, chosen, schema, make_rows)

    def of_values(self, values: Sequence[bytes], prefix: bytes = b"") -> Columns | None:
        """The columns of values.

        Args:
            values: The values.
            prefix: Bytes with which each one begins.

        Returns:
            The columns; None if the values must be decoded one by one.
        """
        if len(values) < _FEW:
            return None
        try:
            return self._result(_decoded(self._fields, values, prefix), len(values))
        except (_Damaged, pyarrow().ArrowInvalid):
            return None

    def of_block(self, block: bytes, count: int) -> Columns | None:
        """The columns of a block of a container file; None if it must be decoded otherwise.

        Args:
            block: Its records, one behind the other.
            count: Their number.
        """
        polars = _polars()
        if polars is None or not count:
            return None
        header = b"Obj\x01" + _long(1) + _text(b"avro.schema") + _text(self._writer.text.encode()) + _long(0) + _SYNC
        try:
            table = polars.read_avro(io.BytesIO(header + _long(count) + _text(block) + _SYNC)).to_arrow()
            if table.num_rows != count:
                return None
            arrays = {field.name: table.column(field.name).combine_chunks() for field in self._fields}
            columns = self._result(arrays, count)
            for field in self._fields:
                _check_range(arrays[field.name], field.kind)
            return columns
        except (
            _Damaged,
            polars.exceptions.PolarsError,
            polars.exceptions.PanicException,
            pyarrow().ArrowException,
            ValueError,
            KeyError,
        ):
            return None

    def _result(self, arrays: Mapping[str, Any], count: int) -> Columns:
        library = pyarrow()
        made = []
        for chosen, field in zip(self._chosen, self._schema, strict=True):
            if isinstance(chosen, _Field):
                array = arrays[chosen.name]
                made.append(array if array.type == field.type else array.cast(field.type))
            else:
                made.append(library.array([chosen] * count, field.type))
        return Columns(library.RecordBatch.from_arrays(made, schema=self._schema), self._make_rows)


def _check_range(array: Any, kind: str) -> None:
    """Check that Python can hold the dates and times of an array."""
    if kind in _WHOLE and kind not in ("int", "long"):
        least, most = _WHOLE[kind]
        bounds = pyarrow().compute.min_max(array.cast("int32").cast("int64") if kind == "date" else array.cast("int64"))
        found = bounds.as_py()
        if found["min"] is not None and (found["min"] < least or found["max"] > most):
            raise _Damaged


@cache
def _polars() -> Any:
    if find_spec("polars") is None:
        return None
    import polars

    return polars


def _field(declared: Mapping[str, Any]) -> _Field | None:
    """A field; None if it cannot be a column."""
    node, null, branches = declared["type"], None, 0
    if isinstance(node, list):
        branches, others = len(node), [each for each in node if each != "null"]
        if len(others) != 1 or branches > 2:
            return None
        null = node.index("null") if branches == 2 else None
        node = others[0]
    while isinstance(node, dict) and isinstance(node["type"], dict):
        node = node["type"]
    kind = kind_of(node)
    name = declared["name"]
    if kind in _WHOLE or kind in _BYTES or kind in _REAL or kind == "boolean":
        return _Field(name, kind, null, branches)
    if kind == "fixed":
        return _Field(name, kind, null, branches, size=node["size"])
    return _Field(name, kind, null, branches, tuple(node["symbols"])) if kind == "enum" else None


def _chosen(writer: Any, reader: Any, known: Mapping[str, _Field | None]) -> list[Any] | None:
    """What a reader's schema takes for each of its fields, by Avro's rules; None if that needs a look at each record."""
    if writer["name"] != reader["name"] or "aliases" in reader:
        return None
    chosen: list[Any] = []
    for declared in reader["fields"]:
        wanted, given = _field(declared), known.get(declared["name"])
        if wanted is None or "aliases" in declared:
            return None
        if given is None:
            default = declared.get("default", ...)
            simple = default is None or (wanted.kind in _SIMPLE and isinstance(default, _SIMPLE[wanted.kind]))
            if not simple:
                return None
            chosen.append(default)
            continue
        same = given.kind == wanted.kind and given.symbols == wanted.symbols and given.size == wanted.size
        if not (same or wanted.kind in _WIDER.get(given.kind, ())) or (given.null is not None and wanted.null is None):
            return None
        chosen.append(given)
    return chosen


_SIMPLE: dict[str, Any] = {"int": int, "long": int, "double": (int, float), "string": str, "boolean": bool}
"""Kinds whose defaults in a schema are the values themselves."""


# values with known ends


def _decoded(fields: Sequence[_Field], values: Sequence[bytes], prefix: bytes) -> dict[str, Any]:
    """The arrays of the fields of all values."""
    library = numpy()
    text = b"".join(values)
    data = _Data(library.frombuffer(text + bytes(16), "uint8"), pyarrow().py_buffer(text))
    ends = library.cumsum(library.fromiter(map(len, values), "int64", len(values)))
    if len(text) >= 2**31:
        raise _Damaged
    at = ends - library.diff(ends, prepend=0)
    for byte in prefix:
        data.check(at, ends)
        if not (data.bytes[at] == byte).all():
            raise _Damaged
        at = at + 1
    arrays = {}
    for field in fields:
        arrays[field.name], at = _decoded_field(field, data, at, ends)
        data.check(at, ends + 1)
    if not (at == ends).all():
        raise _Damaged
    return arrays


class _Data:
    """The bytes of all values, one behind the other."""

    def __init__(self, data: Any, buffer: Any) -> None:
        self.bytes = data
        self.buffer = buffer
        """The same bytes, for Arrow."""

    def check(self, at: Any, ends: Any) -> None:
        """Check that a value goes on at these positions."""
        if not (at < ends).all():
            raise _Damaged

    def longs(self, at: Any, ends: Any) -> tuple[Any, Any]:
        """The integers at these positions, and the positions behind them."""
        library = numpy()
        self.check(at, ends)
        byte = self.bytes[at]
        at = at + 1
        found = (byte & 0x7F).astype("uint64")
        more = library.flatnonzero(byte >= 0x80)
        shift = 7
        while len(more):
            if shift > 63:
                raise _Damaged
            places = at[more]
            self.check(places, ends[more])
            byte = self.bytes[places]
            at[more] = places + 1
            found[more] |= (byte & 0x7F).astype("uint64") << library.uint64(shift)
            more, shift = more[byte >= 0x80], shift + 7
        return (found >> library.uint64(1)).view("int64") ^ -(found & library.uint64(1)).view("int64"), at

    def fixed(self, at: Any, size: int, ends: Any) -> Any:
        """The bytes of a size at these positions, as rows."""
        self.check(at + (size - 1), ends)
        return numpy().lib.stride_tricks.sliding_window_view(self.bytes, size)[at]


def _decoded_field(field: _Field, data: _Data, at: Any, ends: Any) -> tuple[Any, Any]:
    """The array of a field, and the positions behind it."""
    library = numpy()
    if not field.branches:
        return _read(field, data, at, ends)
    branch, at = data.longs(at, ends)
    if ((branch < 0) | (branch >= field.branches)).any():
        raise _Damaged
    if field.null is None or not (branch == field.null).any():
        return _read(field, data, at, ends)
    there = library.flatnonzero(branch != field.null)
    if not len(there):
        return pyarrow().nulls(len(at)), at
    array, at[there] = _read(field, data, at[there], ends[there])
    places = library.full(len(at), -1)
    places[there] = library.arange(len(there))
    return array.take(pyarrow().array(places, mask=places < 0)), at


def _read(field: _Field, data: _Data, at: Any, ends: Any) -> tuple[Any, Any]:
    """The array of a field that is not null, and the positions behind it."""
    library, arrow, kind = numpy(), pyarrow(), field.kind
    if kind in _WHOLE:
        found, at = data.longs(at, ends)
        least, most = _WHOLE[kind]
        if found.min() < least or found.max() > most:
            raise _Damaged
        small = kind in ("int", "date", "time-millis")
        return arrow.array(found.astype("int32") if small else found), at
    if kind in _REAL:
        size = int(_REAL[kind][2])
        return arrow.array(data.fixed(at, size, ends).copy().view(_REAL[kind])[:, 0]), at + size
    if kind == "boolean":
        found = data.fixed(at, 1, ends)[:, 0]
        if found.max() > 1:
            raise _Damaged
        return arrow.array(found == 1), at + 1
    if kind == "enum":
        found, at = data.longs(at, ends)
        if found.min() < 0 or found.max() >= len(field.symbols):
            raise _Damaged
        return arrow.array(field.symbols, "string").take(arrow.array(found)), at
    if kind == "fixed":
        length = library.full(len(at), field.size)
    else:
        length, at = data.longs(at, ends)
        if length.min() < 0 or (length > ends - at).any():
            raise _Damaged
    bounds = library.empty(2 * len(at) + 1, "int32")
    bounds[0:-1:2], bounds[1::2] = at, at + length
    bounds[-1] = bounds[-2]
    data.check(at + length, ends + 1)
    # Every other element is a field's bytes; those between are what lies between two fields.
    pieces = arrow.Array.from_buffers(arrow.binary(), 2 * len(at), [None, arrow.py_buffer(bounds), data.buffer])
    array = pieces.take(arrow.array(library.arange(0, 2 * len(at), 2)))
    return array.cast("string") if kind == "string" else array, at + length


# containers


def _long(number: int) -> bytes:
    """An integer in Avro's form."""
    left, out = number << 1, bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _text(data: bytes) -> bytes:
    return _long(len(data)) + data
