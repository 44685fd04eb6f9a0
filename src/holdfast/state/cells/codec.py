"""Rows and their stored form: all states of one operator and key, side by side.

A row is a list: its flags, then one cell per state (None: empty). Stored, it is a msgpack array: the id of the schema
that wrote it (`holdfast.state.stored.schema`), then the cells. Many rows together are stored as an array of their cells, and
the enclosing file names the schema once. A state with a declared type is checked and stored in that type's plain form, which
every version of the program can read. Other states are pickled.

At the barrier each value is converted to its declared type if the conversion is lossless (a tuple becomes the Row that
it stands for). A value that is its own stored form is only checked, and converted if the check fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import itemgetter
from types import GenericAlias
from typing import Annotated, Any, Literal, NamedTuple, Optional

import msgspec

from holdfast.checkpoint.stores.storage import Data
from holdfast.common.typeinfo.base import shown
from holdfast.common.values.pickling import dumps
from holdfast.errors import IncompatibleState, UserCodeError
from holdfast.state.cells import entries
from holdfast.state.cells.column import TOLERANT, Column, unreadable_cell
from holdfast.state.cells.footprint import Footprint
from holdfast.state.cells.large_values import LargeValue
from holdfast.state.cells.row import Row
from holdfast.state.stored.registry import OperatorSchemaRegistry

__all__ = ["RowCodec", "packed_array"]

_pack = msgspec.msgpack.Encoder().encode
_values_of = msgspec.structs.astuple
_unpack = msgspec.msgpack.Decoder().decode
_unpack_head = msgspec.msgpack.Decoder(list[Any]).decode
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, IndexError, TypeError)
"""Errors of decoding bytes that are not a row of the schema."""
_WITHOUT_TEXT = (bytes, bytearray, memoryview)
"""Types that have no text form in msgpack."""
_AT_ONCE = 512
"""Rows checked and encoded at a time: few enough that their copies reuse the same memory."""
_LARGE_VALUE = 512
"""Mean stored size of values that may leave their rows, in bytes."""
_SAMPLED = 16
"""Rows whose values are measured."""


_Decoders = list[tuple[int, Callable[[Any], Any]]]
"""Pairs of a position in the row and the function that decodes the cell there."""


class _Reader(NamedTuple):
    """Decoders for the rows of one schema."""

    width: int
    one: Callable[[bytes], Any]
    many: Callable[[Data], Any]
    decoders: _Decoders


class RowCodec:
    """Encodes and decodes the rows of one state. Columns are only ever added, so positions never change."""

    def __init__(self, registry: OperatorSchemaRegistry, state: str) -> None:
        """``state``: the name of a row state in the registry."""
        self._registry = registry
        self._name = state
        self.footprint = Footprint()
        self.columns: list[Column | None] = [None] * len(registry.schema.states[state].columns)
        self.large: set[int] = set()
        """Columns with maps or lists outside of their rows."""
        self.outside: dict[int, LargeValue] = {}
        """Columns with values outside of their rows, and what stands in for the values."""
        self.leaving: set[int] = set()
        """Columns of large values that leave their rows at the barrier."""
        self.growing: set[int] = set()
        """Columns whose maps and lists leave their rows once they are large; see `grow`."""
        self._compile()

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def register(self, column: Column) -> int:
        """Return the column's position; a known name keeps its position.

        Raises:
            IncompatibleState: the name exists with another kind or type.
        """
        again = any(known is not None and known.name == column.name for known in self.columns)
        position = self._registry.column(self._name, column.schema, again=again)
        if position == self.width:
            self.columns.append(column)
        elif self.columns[position] is None:
            self.columns[position] = self._with_content_outside(position, column)
        else:
            return position
        self._compile()
        return position

    def enlarge(self, position: int) -> None:
        """Let maps or lists of a column leave their rows; the row then stores a marker in their place."""
        self.large.add(position)
        self._enlarged(position)

    def let_out(self, position: int, value: LargeValue) -> None:
        """Let values of a column leave their rows; ``value`` stands in for them there, and the row stores its marker."""
        self.outside[position] = value
        self._enlarged(position)

    def _enlarged(self, position: int) -> None:
        column = self.columns[position]
        if column is not None:
            self.columns[position] = self._with_content_outside(position, column)
        self._compile()

    def _with_content_outside(self, position: int, column: Column, *, declared: bool = True) -> Column:
        """The column's variant whose content may lie outside of rows; ``declared``: whether the program declares it."""
        if position in self.outside:
            return column.outside(self.outside[position] if declared else None)
        return column.large() if position in self.large else column

    def grow(self, position: int, large: bool = True) -> None:
        """Let maps or lists of a column leave their rows once they are large; ``large=False``: not any more."""
        if large != (position in self.growing):
            self.growing ^= {position}
            self._compile()

    def _compile(self) -> None:
        schema = self._registry.schema
        self._state = schema.states[self._name]
        self.schema_id = self._state.version(schema.version)
        """The schema of newly written rows."""
        self._readers: dict[int, _Reader] = {}
        _, self._one, _, self._decoders = self._reader(self.schema_id)
        annotations = [Optional[self._annotation(i)] for i in range(self.width)]  # noqa: UP045
        self._getters = [itemgetter(i + 1) for i in range(self.width)]
        self._fitting = _columns_type(annotations)
        bounded = [i for i in self.growing if getattr(self._annotation(i), "__origin__", None) is list]
        limit = msgspec.Meta(max_length=entries.MOST_IN_ROW)
        self._bounded = _columns_type(
            [
                Optional[Annotated[self._annotation(i), limit]] if i in bounded else annotation  # noqa: UP045
                for i, annotation in enumerate(annotations)
            ]
        )
        self._unbounded = [itemgetter(i + 1) for i in self.growing.difference(bounded)]
        declared = [(i + 1, column) for i, column in enumerate(self.columns) if column is not None]
        self._encoders = [(i, c.encode) for i, c in declared if c.encode]
        self._conformers = [(i, c.conform) for i, c in declared if c.conform]
        self._converted = [(i, c.conform) for i, c in declared if c.conform and c.encode and c.encode not in TOLERANT]

    def _annotation(self, position: int) -> Any:
        """The type of a column's stored cells, which the barrier checks; Any for pickles."""
        column = self.columns[position]
        return Any if column is None or column.encode is dumps else column.annotation

    def _reader(self, schema_id: int) -> _Reader:
        known = self._readers.get(schema_id)
        if known is not None:
            return known
        if not self._state.since <= schema_id <= self._registry.schema.version:
            raise IncompatibleState(
                f"state of {self._registry.where} was written by schema {schema_id}; the checkpoint has schemas up to "
                f"{self._registry.schema.version}"
            )
        width = self._state.width(schema_id)
        columns = [self._column(position, schema_id) for position in range(width)]
        cells = [Optional[Any if c is None else c.annotation] for c in columns]  # noqa: UP045
        stored = GenericAlias(tuple, (Literal[schema_id], *cells))
        one = msgspec.msgpack.Decoder(stored).decode
        many = msgspec.msgpack.Decoder(GenericAlias(list, (GenericAlias(tuple, tuple(cells)),))).decode
        decoders = [(i, c.decode) for i, c in enumerate(columns, 1) if c is not None and c.decode is not None]
        reader = self._readers[schema_id] = _Reader(width, one, many, decoders)
        return reader

    def _column(self, position: int, schema_id: int) -> Column | None:
        """The column that reads cells written with a schema; None: they keep their stored form."""
        declared, schema = self.columns[position], self._state.columns[position]
        history = schema.history(schema_id)
        if len(history) == 1:
            return declared
        column = Column(schema).undecoded(history) if declared is None else declared.reading(history)
        return self._with_content_outside(position, column, declared=declared is not None)

    def encode(self, row: Row) -> bytes:
        """Encode one row."""
        row = [self.schema_id, *row[1:]]
        for position, encode in self._encoders:
            if row[position] is not None:
                row[position] = encode(row[position])
        return self._packed(row)

    def are_large(self, position: int, rows: Sequence[Row]) -> bool:
        """Whether a column's values are large and share their rows with another state, judged by a sample of these rows."""
        column = self.columns[position]
        cells = [row[position + 1] for row in rows[:: len(rows) // _SAMPLED + 1]]
        held = [cell for cell in cells if cell is not None and type(cell) not in entries.LARGE]
        if column is None or not held or self.width == 1:
            return False
        try:
            size = sum(len(_pack(cell if column.encode is None else column.encode(cell))) for cell in held)
        except Exception:  # pickle and users' classes may raise anything; the barrier will name the value that does not fit
            return False
        return size >= _LARGE_VALUE * len(held)

    def committed_encoder(self) -> Callable[[Row], bytes]:
        """An encoder for rows of the last completed checkpoint, by its schema.

        The local store outlives a failed epoch, but states first declared in that epoch are forgotten.
        """
        completed = self._state.version(self._registry.completed)
        if completed == self.schema_id or self._registry.evolution_pending:
            return self.encode  # a store with rows of new types is not reused if the epoch fails
        return partial(self._encode_by, completed)

    def _encode_by(self, completed: int, row: Row) -> bytes:
        kept = row[: self._state.width(completed) + 1]
        kept[0] = completed
        for position, encode in self._encoders:
            if position < len(kept) and kept[position] is not None:
                kept[position] = encode(kept[position])
        return self._packed(kept)

    def _packed(self, row: Row) -> bytes:
        try:
            return _pack(row)
        except OverflowError:  # a list of DOUBLE has an integer beyond 64 bits: the barrier converts only what it stores
            types = [Optional[self._annotation(i)] for i in range(len(row) - 1)]  # noqa: UP045
            return _pack([row[0], *(msgspec.convert(*each, builtin_types=_WITHOUT_TEXT) for each in zip(row[1:], types))])

    def decode(self, key: Any, data: bytes, flags: int) -> Row:
        """Decode the row of ``key``, written by `encode`.

        Raises:
            IncompatibleState: a cell cannot be read as the program declares it; names the state and the key.
        """
        decoders = self._decoders
        try:
            row = list(self._one(data))
        except _UNREADABLE:  # a row of an earlier schema
            row, decoders = self._decode_earlier(data)
        schema = row[0]
        row[0] = flags
        self._decode_cells([key], [row], decoders, schema)
        return row

    def _decode_earlier(self, data: bytes) -> tuple[Row, _Decoders]:
        """Decode a row of an earlier schema except for its cells; also returns the decoders of the cells."""
        schema = None
        try:
            schema = _unpack_head(data)[0]
            reader = self._reader(schema)
            return [*reader.one(data), *[None] * (self.width - reader.width)], reader.decoders
        except _UNREADABLE as error:
            raise self._unreadable(error, schema) from error

    def _unreadable(self, error: Exception, schema: int | None) -> IncompatibleState:
        state = f"{self._name!r} of {self._registry.where}"
        return IncompatibleState(f"a row of state {state} was not written by the schema that it names, {schema}: {error}")

    def _decode_cells(self, keys: Sequence[Any], rows: list[Row], decoders: _Decoders, schema_id: int) -> None:
        """Decode in place the cells of rows written with a schema.

        Raises:
            IncompatibleState: a cell cannot be read as the program declares it; names the state and the key.
        """
        position, row = 0, None
        try:
            for position, decode in decoders:
                for row in rows:
                    if row[position] is not None:
                        row[position] = decode(row[position])
        except Exception as error:  # pickle and users' classes may raise anything
            key = next(key for key, each in zip(keys, rows) if each is row)
            schema = self._state.columns[position - 1]
            raise unreadable_cell(schema, schema.history(schema_id)[0], error, self._registry.where, key) from error

    @property
    def has_former_types(self) -> bool:
        """Whether any column had other types before."""
        return any(column.former for column in self._state.columns)

    def migrated(self, key: Any, data: bytes) -> bytes | None:
        """The stored row of ``key`` with the present types; None if it has them already.

        Raises:
            IncompatibleState: a cell cannot be read as the program declares it; names the state and the key.
        """
        if _unpack(data)[0] >= max(column.changed for column in self._state.columns):
            return None
        row = self.decode(key, data, 0)
        return self.encode(row)

    def decode_all(self, keys: Sequence[Any], stored: Sequence[bytes], flags: int) -> list[Row]:
        """Decode the rows of ``keys``, written by `encode`, all at once.

        Raises:
            IncompatibleState: a cell cannot be read as the program declares it; names the state and the key.
        """
        try:
            rows = list(map(list, map(self._one, stored)))
        except _UNREADABLE:  # a row of an earlier schema is among them
            return [self.decode(key, data, flags) for key, data in zip(keys, stored)]
        for row in rows:
            row[0] = flags
        self._decode_cells(keys, rows, self._decoders, self.schema_id)
        return rows

    def encode_each(self, keys: Sequence[Any], rows: Sequence[Row], where: str) -> list[bytes]:
        """Encode the cells of many rows, checked against the declared types; `schema_id` is their schema.

        Converted values replace the originals in the rows.

        Raises:
            UserCodeError: a value does not fit its declared type; names the state and the key.
        """
        encoded: list[bytes] = []
        for at in range(0, len(rows), _AT_ONCE):
            part = rows[at : at + _AT_ONCE]
            try:
                _conform(part, self._converted)
                encoded += map(_pack, self._cells(part, self._fitting))
            except Exception:  # pickle and users' classes may raise anything
                encoded += self._encoded_after_conversion(keys[at : at + _AT_ONCE], part, where)
        return encoded

    def encode_small(self, rows: Sequence[Row]) -> list[bytes]:
        """Encode the cells of rows like `encode_each`, if none needs a conversion and no map or list is large.

        Raises:
            Exception: otherwise.
        """
        for get in self._unbounded:
            if any(type(cell) in (dict, list) and len(cell) > entries.MOST_IN_ROW for cell in map(get, rows)):
                raise ValueError("a map or list is large")
        _conform(rows, self._converted)
        return list(map(_pack, self._cells(rows, self._bounded)))

    def _cells(self, rows: Sequence[Row], types: type[msgspec.Struct]) -> Iterable[tuple[Any, ...]]:
        """The rows' cells in stored form, converted to the columns' types: what converts to a type also decodes as it.

        Checking by conversion takes half as long as decoding.

        Raises:
            Exception: a cell does not fit.
        """
        columns = [list(map(get, rows)) for get in self._getters]
        for position, encode in self._encoders:
            columns[position - 1] = [None if cell is None else encode(cell) for cell in columns[position - 1]]
        if not columns:
            return [()] * len(rows)
        return zip(*_values_of(msgspec.convert(columns, types, builtin_types=_WITHOUT_TEXT)))

    def _encoded_after_conversion(self, keys: Sequence[Any], rows: Sequence[Row], where: str) -> list[bytes]:
        """Encode the cells of rows whose values have other types than declared, such as NumPy numbers."""
        try:
            _conform(rows, self._conformers)
            return list(map(_pack, self._cells(rows, self._fitting)))
        except Exception:
            self._blame(keys, rows, where)
            raise

    def check(self, key: Any, row: Row, where: str) -> None:
        """Check that a row can be stored, without changing it.

        Raises:
            UserCodeError: a value does not fit its declared type; names the state and the key.
        """
        self.encode_each([key], [row.copy()], where)

    def decode_many(self, keys: Sequence[Any], data: Data, schema_id: int, flags: int) -> list[Row]:
        """Decode the rows of ``keys``, the `packed_array` of their `encode_each` with this schema.

        Raises:
            IncompatibleState: a cell cannot be read as the program declares it; names the state and the key.
        """
        reader = self._reader(schema_id)
        try:
            rows = [[flags, *cells] for cells in reader.many(data)]
        except _UNREADABLE as error:
            raise self._unreadable(error, schema_id) from error
        if reader.width < self.width:
            for row in rows:
                row.extend([None] * (self.width - reader.width))
        self._decode_cells(keys, rows, reader.decoders, schema_id)
        self.footprint.sample(rows, self.encode)
        self.footprint.count(len(rows), len(data))
        return rows

    def stored_head(self, schema_id: int) -> tuple[bytes, int]:
        """The first bytes of a row by `encode`, and how many bytes of a row by `encode_each` they replace."""
        width = self._reader(schema_id).width
        row = _pack([schema_id] + [None] * width)
        return row[: len(row) - width], len(_pack([None] * width)) - width

    def _blame(self, keys: Sequence[Any], rows: Sequence[Row], where: str) -> None:
        """Find the value that cannot be stored and raise an error that names it."""
        for key, row in zip(keys, rows, strict=True):
            for column, cell in zip(self.columns, row[1:], strict=True):
                if cell is None or column is None:
                    continue
                try:
                    value = column.conform(cell) if column.conform else cell
                    stored = column.encode(value) if column.encode else value
                    msgspec.msgpack.decode(_pack(stored), type=column.annotation)
                except Exception as error:
                    raise UserCodeError(
                        f"the value {shown(cell)} of state {column.name!r} cannot be stored as {column.schema} ({error}); "
                        f"operator {where}, key {key!r:.200}. Nothing of this epoch was committed.",
                        operator=where,
                        key=repr(key),
                    ) from error


def packed_array(items: Sequence[bytes]) -> bytes:
    r"""A msgpack array of encoded items.

    >>> packed_array([b"\x01", b"\x02"]) == _pack([1, 2])
    True
    """
    count = len(items)
    header = bytes((0x90 | count,)) if count < 16 else b"\xdd" + count.to_bytes(4, "big")
    return header + b"".join(items)


def _columns_type(annotations: Sequence[Any]) -> type[msgspec.Struct]:
    """A struct type with one field per column, since msgspec analyses a struct type only once."""
    fields = [(f"column{i}", GenericAlias(list, (each,))) for i, each in enumerate(annotations)]
    return msgspec.defstruct("Columns", fields, array_like=True, gc=False)


def _conform(rows: Sequence[Row], conformers: Sequence[tuple[int, Callable[[Any], Any]]]) -> None:
    for position, conform in conformers:
        for row in rows:
            if row[position] is not None:
                row[position] = conform(row[position])
