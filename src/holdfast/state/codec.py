"""Rows and their stored form: all states of one operator and key, side by side.

A row is a list: its flags, then one slot per state (None: empty). Stored, it is a msgpack array: the id of the schema
that wrote it (`holdfast.state.schema`), then the slots. Many rows together are stored as an array of their slots, and the
enclosing file names the schema once. A state with a declared type is checked and stored in that type's plain form, which
every version of the program can read. Other states are pickled.

At the barrier each value is converted to its declared type if the conversion is lossless (a tuple becomes the Row that
it stands for). A value that is its own stored form is only checked, and converted if the check fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import GenericAlias
from typing import Any, Literal, NamedTuple, Optional, Union

import msgspec

from holdfast.common.pickling import dumps, loads
from holdfast.common.typeinfo.base import TypeInformation, shown
from holdfast.errors import IncompatibleState, UserCodeError
from holdfast.state.entries import LARGE
from holdfast.state.footprint import Footprint
from holdfast.state.registry import SchemaRegistry
from holdfast.state.row import Row
from holdfast.state.schema import ColumnSchema

__all__ = ["Column", "PartCodec", "RowCodec"]

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True)
class Column:
    """One state: its schema, and the encoding of its slots."""

    schema: ColumnSchema
    annotation: Any = bytes
    encode: Callable[[Any], Any] | None = dumps
    """Turns a conforming slot into its stored form. None: the slot is stored as it is."""
    decode: Callable[[Any], Any] | None = loads
    conform: Callable[[Any], Any] | None = None
    """Converts a slot to the declared type."""

    @property
    def name(self) -> str:
        """The state's name."""
        return self.schema.name

    @staticmethod
    def of(descriptor: Any) -> Column:
        """The column for a state descriptor."""
        kind: str = descriptor.kind
        if kind == "map":
            parts = [descriptor.key_type_info, descriptor.value_type_info]
        elif kind == "list":
            parts = [descriptor.element_type_info]
        else:
            parts = [descriptor.type_info]
        return Column.declared(descriptor.name, kind, parts, expires(descriptor))

    @staticmethod
    def declared(name: str, kind: str, types: Sequence[TypeInformation | None], ttl: bool = False) -> Column:
        """The column of a state with these types (two for a map). It is pickled unless all types are declared."""
        declared: list[Any] = [each for each in types if each is not None and not each.is_pickled]
        if len(declared) < len(types):
            return Column(ColumnSchema(name, kind, ttl=ttl))
        schema = ColumnSchema(name, kind, tuple(each.to_dict() for each in declared), ttl)
        if ttl:
            declared[-1] = Stamped(declared[-1])
        if kind == "map":
            return Column(schema, *_map_of(*declared))
        (part,) = declared
        if kind == "list":
            return Column(schema, *_list_of(part))
        if part.is_plain:
            return Column(schema, part.annotation, None, None, part.conform)
        return Column(schema, part.annotation, part.encode, part.decode, part.conform)

    def restored(self, stored: Any) -> Any:
        """Decode a slot that was read as an undeclared column, in its plain stored form."""
        slot = msgspec.convert(stored, self.annotation)
        return slot if self.decode is None else self.decode(slot)


_Stored = tuple[Any, Any, Any, Any]
"""Annotation, encode, decode and conform of a column."""


def _items(entries: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(entries.items())


def _nullable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _map_of(key: Any, value: Any) -> _Stored:
    """The stored form of a map state: a list of pairs, since keys may have any type. Values may be None."""
    annotation = list[tuple[key.annotation, Optional[value.annotation]]]  # noqa: UP045
    to_key, to_value = key.conform, _nullable(value.conform)

    def conform(entries: Any) -> dict[Any, Any]:
        return {to_key(k): to_value(v) for k, v in entries.items()}

    if key.is_plain and value.is_plain:
        return annotation, _items, dict, conform
    encode_value, decode_value = _nullable(value.encode), _nullable(value.decode)
    return (
        annotation,
        lambda entries: [(key.encode(k), encode_value(v)) for k, v in entries.items()],
        lambda stored: {key.decode(k): decode_value(v) for k, v in stored},
        conform,
    )


def _list_of(element: Any) -> _Stored:
    annotation = list[element.annotation]

    def conform(elements: Any) -> list[Any]:
        return [element.conform(e) for e in elements]

    if element.is_plain:
        return annotation, None, None, conform
    return (
        annotation,
        lambda elements: [element.encode(e) for e in elements],
        lambda stored: [element.decode(e) for e in stored],
        conform,
    )


class _Reader(NamedTuple):
    """Decoders for the rows of one schema."""

    width: int
    one: Callable[[bytes], Any]
    all: Callable[[bytes], Any]
    many: Callable[[bytes], Any]


class RowCodec:
    """Encodes and decodes the rows of one state. Columns are only ever added, so positions never change."""

    def __init__(self, registry: SchemaRegistry, state: str) -> None:
        """``state``: the name of a row state in the registry."""
        self._registry = registry
        self._name = state
        self.footprint = Footprint()
        self.columns: list[Column | None] = [None] * len(registry.schema.states[state].columns)
        self.large: set[int] = set()
        """Columns with some maps or lists stored outside their rows."""
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
            self.columns[position] = _with_large(column) if position in self.large else column
        else:
            return position
        self._compile()
        return position

    def enlarge(self, position: int) -> None:
        """Allow large maps or lists in a column; the row then stores a marker in place of the content."""
        column = self.columns[position]
        if position not in self.large and column is not None:
            self.columns[position] = _with_large(column)
        self.large.add(position)
        self._compile()

    def _compile(self) -> None:
        schema = self._registry.schema
        self._state = schema.states[self._name]
        self.schema_id = self._state.version(schema.version)
        """The schema of newly written rows."""
        self._readers: dict[int, _Reader] = {}
        self._one, self._all, self._many = self._reader(self.schema_id)[1:]
        declared = [(i + 1, column) for i, column in enumerate(self.columns) if column is not None]
        self._encoders = [(i, c.encode) for i, c in declared if c.encode]
        self._decoders = [(i, c.decode) for i, c in declared if c.decode]
        self._conformers = [(i, c.conform) for i, c in declared if c.conform]
        self._converted = [(i, c.conform) for i, c in declared if c.conform and c.encode and c.encode is not _items]

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
        # A column that the program no longer declares keeps its stored form.
        slots = [Optional[Any if c is None else c.annotation] for c in self.columns[:width]]  # noqa: UP045
        stored = GenericAlias(tuple, (Literal[schema_id], *slots))
        one = msgspec.msgpack.Decoder(stored).decode
        all = msgspec.msgpack.Decoder(GenericAlias(list, (stored,))).decode
        many = msgspec.msgpack.Decoder(GenericAlias(list, (GenericAlias(tuple, tuple(slots)),))).decode
        reader = self._readers[schema_id] = _Reader(width, one, all, many)
        return reader

    def encode(self, row: Row) -> bytes:
        """Encode one row."""
        row = [self.schema_id, *row[1:]]
        for position, encode in self._encoders:
            if row[position] is not None:
                row[position] = encode(row[position])
        return _pack(row)

    def committed_encoder(self) -> Callable[[Row], bytes]:
        """An encoder for the last completed checkpoint's rows, by that checkpoint's schema.

        The local store outlives a failed epoch, but states first declared in that epoch are forgotten.
        """
        committed = self._state.version(self._registry.committed)
        return self.encode if committed == self.schema_id else partial(self._encode_by, committed)

    def _encode_by(self, committed: int, row: Row) -> bytes:
        kept = row[: self._state.width(committed) + 1]
        kept[0] = committed
        for position, encode in self._encoders:
            if position < len(kept) and kept[position] is not None:
                kept[position] = encode(kept[position])
        return _pack(kept)

    def decode(self, data: bytes, flags: int) -> Row:
        """Decode a row written by `encode`."""
        try:
            row = list(self._one(data))
        except msgspec.ValidationError:  # a row of an earlier schema
            reader = self._reader(_unpack(data)[0])
            row = [*reader.one(data), *[None] * (self.width - reader.width)]
        row[0] = flags
        for position, decode in self._decoders:
            if row[position] is not None:
                row[position] = decode(row[position])
        return row

    def decode_all(self, stored: Sequence[bytes], flags: int) -> list[Row]:
        """Decode rows written by `encode`, all at once."""
        try:
            rows = list(map(list, self._all(_pack(list(map(msgspec.Raw, stored))))))
        except msgspec.ValidationError:  # a row of an earlier schema is among them
            return [self.decode(data, flags) for data in stored]
        for row in rows:
            row[0] = flags
        for position, decode in self._decoders:
            for row in rows:
                if row[position] is not None:
                    row[position] = decode(row[position])
        return rows

    def encode_many(self, keys: Sequence[Any], rows: Sequence[Row], where: str) -> bytes:
        """Encode many rows with the schema `schema_id`, checked against the declared types.

        Converted values replace the originals in the rows.

        Raises:
            UserCodeError: a value does not fit its declared type; names the state and the key.
        """
        try:
            _conform(rows, self._converted)
            data = self._encode_many(rows)
            self._many(data)
            self._measure(rows, data)
            return data
        except Exception:  # pickle and users' classes may raise anything
            self._conform_each(keys, rows, where)
        try:
            data = self._encode_many(rows)
            self._many(data)
        except Exception:
            self._blame(keys, rows, where)
            raise
        self._measure(rows, data)
        return data

    def check(self, key: Any, row: Row, where: str) -> None:
        """Check that a row can be stored, without changing it.

        Raises:
            UserCodeError: a value does not fit its declared type; names the state and the key.
        """
        self.encode_many([key], [row.copy()], where)

    def _measure(self, rows: Sequence[Row], data: bytes) -> None:
        self.footprint.sample(rows, self.encode)
        self.footprint.count(len(rows), len(data))

    def _conform_each(self, keys: Sequence[Any], rows: Sequence[Row], where: str) -> None:
        """Convert values of other types than declared, such as NumPy numbers."""
        try:
            _conform(rows, self._conformers)
        except Exception:
            self._blame(keys, rows, where)
            raise

    def _encode_many(self, rows: Sequence[Row]) -> bytes:
        if not self._encoders or not rows:
            return _pack([row[1:] for row in rows])
        columns = [list(column) for column in zip(*rows, strict=True)]
        for position, encode in self._encoders:
            columns[position] = [None if slot is None else encode(slot) for slot in columns[position]]
        return _pack(list(zip(*columns[1:], strict=True)))

    def decode_many(self, data: bytes, schema_id: int, flags: int) -> list[Row]:
        """Decode rows written by `encode_many` with this schema."""
        reader = self._reader(schema_id)
        rows = [[flags, *slots] for slots in reader.many(data)]
        if reader.width < self.width:
            for row in rows:
                row.extend([None] * (self.width - reader.width))
        for position, decode in self._decoders:
            for row in rows:
                if row[position] is not None:
                    row[position] = decode(row[position])
        self._measure(rows, data)
        return rows

    def _blame(self, keys: Sequence[Any], rows: Sequence[Row], where: str) -> None:
        """Find the value that cannot be stored and raise an error that names it."""
        for key, row in zip(keys, rows, strict=True):
            for column, slot in zip(self.columns, row[1:], strict=True):
                if slot is None or column is None:
                    continue
                try:
                    value = column.conform(slot) if column.conform else slot
                    stored = column.encode(value) if column.encode else value
                    msgspec.msgpack.decode(_pack(stored), type=column.annotation)
                except Exception as error:
                    raise UserCodeError(
                        f"the value {shown(slot)} of state {column.name!r} cannot be stored as {column.schema} ({error}); "
                        f"operator {where}, key {key!r:.200}. Nothing of this epoch was committed.",
                        operator=where,
                        key=repr(key),
                    ) from error


def _conform(rows: Sequence[Row], conformers: Sequence[tuple[int, Callable[[Any], Any]]]) -> None:
    for position, conform in conformers:
        for row in rows:
            if row[position] is not None:
                row[position] = conform(row[position])


def _with_large(column: Column) -> Column:
    """The column variant for maps or lists that may be large."""

    def outside(apply: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
        """``apply`` for content in the row; the marker of a large map or list (an integer) passes through."""

        def to_slot(slot: Any) -> Any:
            if type(slot) is int or apply is None:
                return slot
            return apply(slot)

        return to_slot

    encode, conform = outside(column.encode), outside(column.conform)
    return replace(
        column,
        annotation=Union[column.annotation, int],
        encode=lambda slot: slot.marker if type(slot) in LARGE else encode(slot),
        decode=outside(column.decode),
        conform=lambda slot: slot if type(slot) in LARGE else conform(slot),
    )


class PartCodec:
    """Encodes and decodes parts of a column's slots: map entries and list chunks."""

    def __init__(self, column: Column, schema_id: int, where: str) -> None:
        self._column = column
        self._schema_id = schema_id
        self._where = where
        self._decode = msgspec.msgpack.Decoder(GenericAlias(tuple, (int, column.annotation))).decode

    def encode(self, key: Any, part: Any) -> bytes:
        """Encode a part of the slot of ``key``.

        Raises:
            UserCodeError: the part does not fit its declared type; names the state and the key.
        """
        column = self._column
        try:
            fitting = column.conform(part) if column.conform else part
            data = _pack((self._schema_id, column.encode(fitting) if column.encode else fitting))
            self._decode(data)
            return data
        except Exception as error:  # pickle and users' classes may raise anything
            raise UserCodeError(
                f"{shown(part)} in state {column.name!r} cannot be stored as {column.schema} ({error}); operator "
                f"{self._where}, key {key!r:.200}. Nothing of this epoch was committed.",
                operator=self._where,
                key=repr(key),
            ) from error

    def decode(self, data: bytes) -> Any:
        """Decode a part written by `encode`."""
        stored = self._decode(data)[1]
        return stored if self._column.decode is None else self._column.decode(stored)


def expires(descriptor: Any) -> bool:
    """Whether a state has a time-to-live."""
    return descriptor.ttl_config is not None and bool(descriptor.ttl_config.is_enabled())


class Stamped:
    """Stored form for a state with time-to-live: the last write's time and the value."""

    is_pickled = False

    def __init__(self, part: Any) -> None:
        self._part = part
        self.is_plain: bool = part.is_plain
        self.annotation: Any = GenericAlias(tuple, (int, Optional[part.annotation]))  # noqa: UP045
        self.encode = self._each(part.encode)
        self.decode = self._each(part.decode)
        self.conform = self._each(part.conform)

    @staticmethod
    def _each(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda stamped: (stamped[0], None if stamped[1] is None else convert(stamped[1]))
