"""Reads keyed state outside of a job: keys with the values of their states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, NamedTuple

from holdfast.common.typeinfo import TypeInformation
from holdfast.state.cells.column import Column
from holdfast.state.cells.large_values import LargeValue
from holdfast.state.cells.row import filled
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.rows.space import StateSpace
from holdfast.state.stored.schema import ColumnSchema

__all__ = ["Content", "contents_of", "declare_stored", "timers_of", "value_of"]

Types = Mapping[str, Sequence[TypeInformation[Any] | None]]
"""By state name: the types to read it with (two for a map) instead of the stored ones."""


class Content(NamedTuple):
    """The states of one key, or of one key and window."""

    key: Any
    window: int | None
    """The start of an aligned window, in ms; None: no window, or one that is part of the key."""
    values: tuple[Any, ...]
    """One per column, in order; None: empty."""


def declare_stored(state: KeyedState, family: str, types: Types, pickled: bool = True) -> list[ColumnSchema]:
    """Declare the states of a family with their stored types; returns them.

    Args:
        state: The opened state.
        family: The family's name: ``keyed``, ``window``, ...
        types: Types that replace the stored ones, by state name.
        pickled: Whether to unpickle values without a type, which needs their classes. Otherwise they are bytes.
    """
    columns = state.schema.states[family].columns
    space = state.space(family)
    for column in columns:
        if column.name in types:
            space.register(Column.declared(column.name, column.kind, types[column.name], column.ttl))
        elif column.types or pickled:
            space.register(Column.stored(column, column.types))
    return list(state.schema.states[family].columns)


def contents_of(space: StateSpace, columns: Sequence[ColumnSchema]) -> Iterator[Content]:
    """The contents of a family, read a block of rows at a time."""
    plain = not any(column.ttl or column.kind in ("list", "map") for column in columns)
    kept = plain and not space.codec.large and not space.codec.outside
    for window, table in space.tables.items():
        for keys, rows in table.blocks():
            for key, row in zip(keys, rows):
                if filled(row):
                    values = tuple(row[1:]) if kept else tuple(map(value_of, columns, row[1:], repeat(key)))
                    yield Content(key, window, values)
            space.forget_values()


def value_of(column: ColumnSchema, cell: Any, key: Any) -> Any:
    """The content of a cell in a key's row, as its handle would return it; times of last writes are left out."""
    if type(cell) is LargeValue:
        cell = cell.of(key)
    if cell is None or isinstance(cell, bytes):
        return cell
    if column.kind == "list":
        return [each[1] if column.ttl else each for each in cell]
    if column.kind == "map":
        return {key: value[1] if column.ttl else value for key, value in cell.items()}
    return cell[1] if column.ttl else cell


def timers_of(state: KeyedState, service: str) -> Iterator[tuple[int, Any]]:
    """The timers of a service, each with its key (or pair of key and window)."""
    return iter(state.timer_queue(service).all())
