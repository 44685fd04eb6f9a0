"""Columns: the stored form of one state's cells, and conversions from its former types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from types import GenericAlias
from typing import Any, Optional, Union

import msgspec

from holdfast.common.typeinfo.base import TypeInformation
from holdfast.common.typeinfo.evolution import evolution
from holdfast.common.values.pickling import dumps, loader
from holdfast.errors import HoldfastError
from holdfast.state.cells.entries import LARGE
from holdfast.state.cells.large_values import LargeValue
from holdfast.state.cells.packed import UNPACKED
from holdfast.state.cells.typed import container_of, has_one_form
from holdfast.state.stored.elements import unreadable
from holdfast.state.stored.schema import ColumnSchema

__all__ = ["TOLERANT", "Column", "expires", "unreadable_cell"]

Types = tuple[dict[str, Any], ...]
"""The same as `ColumnSchema.types`."""
_Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class Column:
    """One state: its schema, and the encoding of its cells."""

    schema: ColumnSchema
    annotation: Any = bytes
    encode: Callable[[Any], Any] | None = dumps
    """Turns a conforming cell into its stored form. None: the cell is stored as it is."""
    decode: Callable[[Any], Any] | None = field(default_factory=loader)
    conform: Callable[[Any], Any] | None = None
    """Converts a cell to the declared type."""
    keys_vary: bool = True
    """Whether equal keys of a map may differ, like 1 and 1.0."""

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
            return Column(schema, *_map_of(*declared), keys_vary=not has_one_form(declared[0]))
        (part,) = declared
        if kind == "list":
            return Column(schema, *_list_of(part))
        if part.is_plain:
            return Column(schema, part.annotation, None, None, part.conform)
        return Column(schema, part.annotation, part.encode, part.decode, part.conform)

    @staticmethod
    def stored(schema: ColumnSchema, types: Types) -> Column:
        """The column as a program declared it with these types. Reading stored forms needs no class of the values."""
        declared: list[TypeInformation | None] = [TypeInformation.from_dict(each) for each in types]
        return Column.declared(schema.name, schema.kind, declared or [None] * (1 + (schema.kind == "map")), schema.ttl)

    def reading(self, history: Sequence[Types]) -> Column:
        """The column that reads cells of former types as its own.

        Args:
            history: The types of the cells, then each later version up to this column's.
        """
        if len(history) == 1:
            return self
        first = Column.stored(self.schema, history[0])
        steps = [step for old, new in pairwise(history) if (step := _step(self.schema, old, new)) is not None]
        if self.decode is not None:
            steps.append(self.decode)
        return replace(self, annotation=first.annotation, decode=_chained(steps))

    def undecoded(self, history: Sequence[Types]) -> Column:
        """The column that turns cells of former types into the present stored form, for a state that is not declared."""
        return replace(Column.stored(self.schema, history[-1]), decode=None).reading(history)

    def restored(self, cell: Any) -> Any:
        """Decode a cell that was read before the column was declared, and so kept its stored form."""
        cell = msgspec.convert(cell, self.annotation)
        return cell if self.decode is None else self.decode(cell)

    @property
    def can_leave_rows(self) -> bool:
        """Whether its cells are never mistaken for the marker of a value outside of its row."""
        if self.schema.kind != "value" or self.schema.ttl:
            return False
        try:
            msgspec.convert(LargeValue.marker, self.annotation)
        except msgspec.ValidationError:
            return True
        return False

    def large(self) -> Column:
        """The column's variant whose maps or lists may lie outside of their rows."""

        def outside(apply: _Convert | None) -> _Convert:
            """``apply`` for content in the row; the marker of large content (an integer) passes through."""
            return lambda cell: cell if type(cell) is int or apply is None else apply(cell)

        encode, conform = outside(self.encode), outside(self.conform)
        return replace(
            self,
            annotation=Union[self.annotation, int],
            encode=lambda cell: cell.marker if type(cell) in LARGE else encode(cell),
            decode=outside(self.decode),
            conform=lambda cell: cell if type(cell) in LARGE else conform(cell),
        )

    def outside(self, value: LargeValue | None) -> Column:
        """The column's variant whose values may lie outside of their rows.

        ``value``: what the marker is decoded as; None: it stays the marker.
        """
        encode, decode, conform = self.encode, self.decode, self.conform

        def encoded(cell: Any) -> Any:
            if cell is value:
                return LargeValue.marker
            if encode is not None:
                return encode(cell)
            if type(cell) is int:
                raise TypeError("an integer")  # it would be taken for the marker
            return cell

        def decoded(cell: Any) -> Any:
            if type(cell) is int:
                return cell if value is None else value
            return cell if decode is None else decode(cell)

        def conforming(cell: Any) -> Any:
            return cell if type(cell) is LargeValue or conform is None else conform(cell)

        return replace(self, annotation=Union[self.annotation, int], encode=encoded, decode=decoded, conform=conforming)


_Stored = tuple[Any, Any, Any, Any]
"""Annotation, encode, decode and conform of a column, in this order."""


def _items_of(entries: dict[Any, Any]) -> list[tuple[Any, Any]]:
    """The stored form of a map whose keys and values are plain."""
    return list(entries.items())


TOLERANT = frozenset((_items_of, *UNPACKED.values()))
"""Encodings that accept cells whose elements do not conform; their results are checked."""


def _nullable(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


def _map_of(key: Any, value: Any) -> _Stored:
    """The stored form of a map state: a list of pairs, since keys may have any type. Values may be None."""
    annotation = list[tuple[key.annotation, Optional[value.annotation]]]  # noqa: UP045
    to_key, to_value = key.conform, _nullable(value.conform)

    def conform(entries: Any) -> dict[Any, Any]:
        return {to_key(k): to_value(v) for k, v in entries.items()}

    if key.is_plain and value.is_plain:
        return annotation, _items_of, dict, conform
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
        unpacked = UNPACKED.get(container_of(element))
        if unpacked is None:
            return annotation, None, None, conform
        return annotation, unpacked, None, lambda elements: conform(unpacked(elements))
    return (
        annotation,
        lambda elements: [element.encode(e) for e in elements],
        lambda stored: [element.decode(e) for e in stored],
        conform,
    )


def _step(schema: ColumnSchema, old: Types, new: Types) -> _Convert | None:
    """The conversion of stored cells from one version of the types to the next; None: both have the same stored form."""
    if not old:
        declared = Column.stored(schema, new)
        conform, encode = declared.conform, declared.encode
        assert conform is not None
        return _chained([loader(), conform] if encode is None else [loader(), conform, encode])
    if not new:
        decode = Column.stored(schema, old).decode
        return dumps if decode is None else _chained([decode, dumps])
    part = evolution(old[-1], new[-1]).convert
    if part is None:
        return None
    convert = Stamped.each(part) if schema.ttl else part
    if schema.kind == "list":
        return lambda elements: [convert(element) for element in elements]
    if schema.kind == "map":
        return lambda items: [(key, None if value is None else convert(value)) for key, value in items]
    return convert


def _chained(steps: Sequence[_Convert]) -> _Convert | None:
    if len(steps) < 2:
        return steps[0] if steps else None

    def chain(cell: Any) -> Any:
        for step in steps:
            cell = step(cell)
        return cell

    return chain


def expires(descriptor: Any) -> bool:
    """Whether a state has a time-to-live."""
    return descriptor.ttl_config is not None and bool(descriptor.ttl_config.is_enabled())


def unreadable_cell(schema: ColumnSchema, written: Types, error: Exception, where: str, key: Any) -> HoldfastError:
    """The error for a stored cell that does not read as the program declares its state.

    Args:
        schema: The declared state.
        written: The types that the cell was written with.
        error: The error that reading raised.
        where: The operator.
        key: The key of the cell.
    """
    types = f"\n    stored:   {msgspec.structs.replace(schema, types=written)}\n    declared: {schema}"
    return unreadable(f"value of state {schema.name!r} of operator {where}, key {key!r:.200},", error, types)


class Stamped:
    """Stored form for a state with time-to-live: the last write's time and the value."""

    is_pickled = False

    def __init__(self, part: Any) -> None:
        self._part = part
        self.is_plain: bool = part.is_plain
        self.annotation: Any = GenericAlias(tuple, (int, Optional[part.annotation]))  # noqa: UP045
        self.encode = self.each(part.encode)
        self.decode = self.each(part.decode)
        self.conform = self.each(part.conform)

    @staticmethod
    def each(convert: _Convert) -> _Convert:
        """Lift a conversion of values to values with their times."""
        return lambda stamped: (stamped[0], None if stamped[1] is None else convert(stamped[1]))
