"""Rows and their stored form: all states of one operator and key, side by side.

A row is a list: its flags, then one slot a state (None: empty). Stored, it is a msgpack array of the slots. States with
a declared type are stored in that type's plain form, checked, so they can be read by any version; the others are pickled.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

import msgspec

from holdfast.errors import IncompatibleState, UserCodeError

__all__ = ["Column", "Row", "RowCodec"]

Row = list[Any]

_dumps = partial(pickle.dumps, protocol=5)
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
    encode: Callable[[Any], Any] | None = _dumps
    decode: Callable[[Any], Any] | None = pickle.loads

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
        if any(part is None or part.is_pickled for part in parts):
            return Column(descriptor.name, kind, {})
        types = {"types": [part.to_dict() for part in parts]}
        plain = all(part.is_plain for part in parts)
        if kind == "map":
            key, value = parts
            if plain:
                annotation = list[tuple[key.annotation, value.annotation]]  # type: ignore[name-defined]
                return Column(descriptor.name, kind, types, annotation, _items, dict)
            return Column(
                descriptor.name,
                kind,
                types,
                list[tuple[key.annotation, value.annotation]],  # type: ignore[name-defined]
                lambda entries: [(key.encode(k), value.encode(v)) for k, v in entries.items()],
                lambda stored: {key.decode(k): value.decode(v) for k, v in stored},
            )
        (part,) = parts
        if kind == "list":
            annotation = list[part.annotation]  # type: ignore[name-defined]
            if plain:
                return Column(descriptor.name, kind, types, annotation, None, None)
            return Column(
                descriptor.name,
                kind,
                types,
                annotation,
                lambda elements: [part.encode(e) for e in elements],
                lambda stored: [part.decode(e) for e in stored],
            )
        if plain:
            return Column(descriptor.name, kind, types, part.annotation, None, None)
        return Column(descriptor.name, kind, types, part.annotation, part.encode, part.decode)

    def restored(self, stored: Any) -> Any:
        """The slot's value, from what an undeclared column gives: its plain stored form."""
        slot = msgspec.convert(stored, self.annotation)
        return slot if self.decode is None else self.decode(slot)

    def snapshot(self) -> dict[str, Any]:
        """What the checkpoint keeps of the column."""
        return {"name": self.name, "kind": self.kind, **self.type}


def _items(entries: dict[Any, Any]) -> list[tuple[Any, Any]]:
    return list(entries.items())


class RowCodec:
    """Turns rows into their stored form and back. Columns are only ever added, so a row's positions never change."""

    def __init__(self, stored: Sequence[dict[str, Any]] = ()) -> None:
        """``stored``: the column snapshots of the checkpoint that the rows come from."""
        self._stored = list(stored)
        self.columns: list[Column | None] = [None] * len(self._stored)
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
        row_type: Any = tuple[tuple(annotations)] if annotations else tuple[()]  # type: ignore[misc]
        self._one = msgspec.msgpack.Decoder(row_type).decode
        self._many = msgspec.msgpack.Decoder(list[row_type]).decode  # type: ignore[valid-type]
        self._encoders = [(i + 1, c.encode) for i, c in enumerate(self.columns) if c is not None and c.encode]
        self._decoders = [(i + 1, c.decode) for i, c in enumerate(self.columns) if c is not None and c.decode]

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
        """The stored form of many rows, checked against the declared types.

        Raises:
            UserCodeError: a value does not fit its declared type; names the state and the key.
        """
        data = self._encode_many(rows, keys, where)
        try:
            self._many(data)
        except msgspec.ValidationError:
            self._blame(keys, rows, where)
            raise
        return data

    def _encode_many(self, rows: Sequence[Row], keys: Sequence[Any], where: str) -> bytes:
        if not self._encoders:
            try:
                return _pack([row[1:] for row in rows])
            except (TypeError, OverflowError):
                self._blame(keys, rows, where)
                raise
        columns = [list(column) for column in zip(*rows)]
        for position, encode in self._encoders:
            try:
                columns[position] = [None if slot is None else encode(slot) for slot in columns[position]]
            except Exception:
                self._blame(keys, rows, where)
                raise
        try:
            return _pack(list(zip(*columns[1:])))
        except (TypeError, OverflowError):
            self._blame(keys, rows, where)
            raise

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
        return rows

    def _padded(self, slots: list[Any]) -> list[Any]:
        return slots + [None] * (self.width - len(slots))

    def _blame(self, keys: Sequence[Any], rows: Sequence[Row], where: str) -> None:
        """Find the value that cannot be stored, and say so."""
        for key, row in zip(keys, rows):
            for column, slot in zip(self.columns, row[1:]):
                if slot is None or column is None:
                    continue
                try:
                    stored = column.encode(slot) if column.encode else slot
                    msgspec.msgpack.decode(_pack(stored), type=column.annotation)
                except Exception as error:
                    raise UserCodeError(
                        f"the value {slot!r:.200} of state {column.name!r} cannot be stored as {_describe(column.snapshot())}"
                        f" ({error}); operator {where}, key {key!r:.200}. Nothing of this epoch was committed.",
                        operator=where,
                        key=repr(key),
                    ) from error


def _describe(column: dict[str, Any]) -> str:
    types = column.get("types")
    if not types:
        return f"a {column['kind']} state without declared type"
    return f"a {column['kind']} state of " + ", ".join(str(t.get("type", t)) for t in types)
