"""Rows and their stored form: all states of one operator and key, side by side.

A row is a list: its flags, then one slot a state (None: empty). Stored, it is a msgpack array of the slots. States with
a declared type are stored in that type's plain form, checked, so they can be read by any version; the others are pickled.

At the barrier a value is brought to its declared type where nothing is lost (a tuple becomes the Row it stands for);
what is its own stored form already is only checked, and converted if it fails the check.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Any, Optional

import msgspec

from holdfast.common.pickling import dumps, loads
from holdfast.common.typeinfo.base import shown
from holdfast.errors import IncompatibleState, UserCodeError
from holdfast.state.footprint import Footprint

__all__ = ["Column", "Row", "RowCodec"]

Row = list[Any]

_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode


@dataclass(frozen=True)
class Column:
    """One state: its name, its kind (Flink's five) and how a slot of it is stored."""

    name: str
    kind: str
    type: dict[str, Any]
    """The declared types' snapshots, or empty: compared when a job resumes."""
    annotation: Any = bytes
    encode: Callable[[Any], Any] | None = dumps
    """From a conforming slot to its stored form; None: the slot is its own."""
    decode: Callable[[Any], Any] | None = loads
    conform: Callable[[Any], Any] | None = None
    """Brings a slot to the declared type."""

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
        ttl = {"ttl": True} if expires(descriptor) else {}
        if any(part is None or part.is_pickled for part in parts):
            return Column(descriptor.name, kind, ttl)
        types = {"types": [part.to_dict() for part in parts], **ttl}
        if ttl:
            parts[-1] = Stamped(parts[-1])
        if kind == "map":
            return Column(descriptor.name, kind, types, *_map_of(*parts))
        (part,) = parts
        if kind == "list":
            return Column(descriptor.name, kind, types, *_list_of(part))
        if part.is_plain:
            return Column(descriptor.name, kind, types, part.annotation, None, None, part.conform)
        return Column(descriptor.name, kind, types, part.annotation, part.encode, part.decode, part.conform)

    def restored(self, stored: Any) -> Any:
        """The slot's value, from what an undeclared column gives: its plain stored form."""
        slot = msgspec.convert(stored, self.annotation)
        return slot if self.decode is None else self.decode(slot)

    def snapshot(self) -> dict[str, Any]:
        """What the checkpoint keeps of the column."""
        return {"name": self.name, "kind": self.kind, **self.type}


_Stored = tuple[Any, Any, Any, Any]
"""Annotation, encode, decode and conform of a column."""


def _items(entries: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(entries.items())


def _nullable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _map_of(key: Any, value: Any) -> _Stored:
    """How a map state is stored: as pairs, since keys may be of any type. Its values may be None."""
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


class RowCodec:
    """Turns rows into their stored form and back. Columns are only ever added, so a row's positions never change."""

    def __init__(self, stored: Sequence[dict[str, Any]] = ()) -> None:
        """``stored``: the column snapshots of the checkpoint that the rows come from."""
        self._stored = list(stored)
        self.columns: list[Column | None] = [None] * len(self._stored)
        self.footprint = Footprint()
        self._compile()

    @property
    def width(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def register(self, column: Column, where: str) -> int:
        """The column's position; the same name gives the same position.

        Raises:
            IncompatibleState: the name is known with another kind or type. ``where`` names the operator.
        """
        new = column.snapshot()
        for position, old in enumerate(self._stored):
            if old["name"] == column.name:
                if old != new and self.columns[position] is not None:
                    raise IncompatibleState(
                        f"state {column.name!r} of {where} is declared twice, as {_describe(old)} and as {_describe(new)}; "
                        "give each state a name of its own"
                    )
                if old != new:
                    raise IncompatibleState(
                        f"state {column.name!r} of {where} was stored as {_describe(old)} and is now declared as "
                        f"{_describe(new)}; give the new state another name, or restore the old declaration"
                    )
                if self.columns[position] is None:
                    self.columns[position] = column
                    self._compile()
                return position
        self._stored.append(new)
        self.columns.append(column)
        self._compile()
        return self.width - 1

    def snapshot(self) -> list[dict[str, Any]]:
        """The columns as the checkpoint keeps them."""
        return list(self._stored)

    def _compile(self) -> None:
        # A column that the program no longer declares keeps its stored form.
        annotations = [Optional[Any if c is None else c.annotation] for c in self.columns]  # noqa: UP045
        row_type = GenericAlias(tuple, tuple(annotations))
        self._one: Callable[[bytes], Any] = msgspec.msgpack.Decoder(row_type).decode
        self._many: Callable[[bytes], Any] = msgspec.msgpack.Decoder(GenericAlias(list, (row_type,))).decode
        declared = [(i + 1, column) for i, column in enumerate(self.columns) if column is not None]
        self._encoders = [(i, c.encode) for i, c in declared if c.encode]
        self._decoders = [(i, c.decode) for i, c in declared if c.decode]
        self._conformers = [(i, c.conform) for i, c in declared if c.conform]
        self._converted = [(i, c.conform) for i, c in declared if c.conform and c.encode and c.encode is not _items]

    def encode(self, row: Row) -> bytes:
        """One row's stored form."""
        if self._encoders:
            row = row.copy()
            for position, encode in self._encoders:
                if row[position] is not None:
                    row[position] = encode(row[position])
        return _pack(row[1:])

    def decode(self, data: bytes, flags: int) -> Row:
        """The row that `encode` stored."""
        try:
            slots = self._one(data)
        except msgspec.ValidationError:
            slots = self._one(_pack(self._padded(_unpack(data))))
        row = [flags, *slots]
        for position, decode in self._decoders:
            if row[position] is not None:
                row[position] = decode(row[position])
        return row

    def encode_many(self, keys: Sequence[Any], rows: Sequence[Row], where: str) -> bytes:
        """The stored form of many rows, checked against the declared types. What had to be converted is, in the rows.

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

    def _measure(self, rows: Sequence[Row], data: bytes) -> None:
        self.footprint.sample(rows, self.encode)
        self.footprint.count(len(rows), len(data))

    def _conform_each(self, keys: Sequence[Any], rows: Sequence[Row], where: str) -> None:
        """Convert what is not of its declared type, numbers of NumPy for instance."""
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

    def decode_many(self, data: bytes, flags: int) -> list[Row]:
        """The rows that `encode_many` stored."""
        try:
            many = self._many(data)
        except msgspec.ValidationError:
            many = self._many(_pack([self._padded(slots) for slots in _unpack(data)]))
        rows = [[flags, *slots] for slots in many]
        for position, decode in self._decoders:
            for row in rows:
                if row[position] is not None:
                    row[position] = decode(row[position])
        self._measure(rows, data)
        return rows

    def _padded(self, slots: list[Any]) -> list[Any]:
        return slots + [None] * (self.width - len(slots))

    def _blame(self, keys: Sequence[Any], rows: Sequence[Row], where: str) -> None:
        """Find the value that cannot be stored, and say so."""
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
                        f"the value {shown(slot)} of state {column.name!r} cannot be stored as "
                        f"{_describe(column.snapshot())} ({error}); operator {where}, key {key!r:.200}. "
                        "Nothing of this epoch was committed.",
                        operator=where,
                        key=repr(key),
                    ) from error


def _conform(rows: Sequence[Row], conformers: Sequence[tuple[int, Callable[[Any], Any]]]) -> None:
    for position, conform in conformers:
        for row in rows:
            if row[position] is not None:
                row[position] = conform(row[position])


def expires(descriptor: Any) -> bool:
    """Whether a state has a time-to-live."""
    return descriptor.ttl_config is not None and bool(descriptor.ttl_config.is_enabled())


class Stamped:
    """The stored form of a part of a state that expires: the time of its last write, and the part."""

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


def _describe(column: dict[str, Any]) -> str:
    types = column.get("types")
    kind = f"a {column['kind']} state" + (" with time-to-live" if column.get("ttl") else "")
    if not types:
        return f"{kind} without declared type"
    return f"{kind} of " + ", ".join(str(t.get("type", t)) for t in types)
