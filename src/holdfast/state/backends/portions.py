"""Yields the keyed state of a part as changes, in portions; optionally for another number of key groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.common.formats.in_portions import in_portions
from holdfast.state.cells.entries import LARGE, EntryFamily
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.rows.space import StateSpace
from holdfast.state.stored.delta import Change
from holdfast.state.stored.layout import after, section

__all__ = ["in_files", "portions"]

_FILE = 64 << 20
"""Approximate size of a file before compression, in bytes."""


def portions(state: KeyedState, max_parallelism: int | None = None) -> Iterator[Change]:
    """The complete state, in the form that `KeyedState.apply` takes; rows and entries keep their stored form.

    Args:
        state: The checkpointed state, without declared columns. It must not change meanwhile.
        max_parallelism: The new number of key groups, to which the keys are reassigned; None: as in the state.
    """
    other = state
    if max_parallelism is not None:
        other = KeyedState(state.registry.where, state.schema, max_parallelism=max_parallelism)
    for name, space in list(state.spaces.items()):
        groups_of = other.space(name).groups_of
        for namespace, table in list(space.tables.items()):
            at = section(space.state_id, namespace)
            for pieces in table.portions(space.where, groups_of):
                yield Change(at, False, pieces)
        for column, family in space.large_columns():
            yield from family.dump() if other is state else family.changes(_moved(space, column, family, other.space(name)))
    for name, timers in list(state.timers.items()):
        yield from timers.portions(other.timer_queue(name).groups_of)


def _moved(space: StateSpace, column: int, family: EntryFamily, other: StateSpace) -> Iterator[tuple[bytes, bytes]]:
    """The entries of a column's large maps or lists, under their stored keys in ``other``, which has other key groups."""
    for namespace, table in space.tables.items():
        for keys, rows in table.blocks():
            owners = [key for key, row in zip(keys, rows) if type(row[column + 1]) is int or type(row[column + 1]) in LARGE]
            for key, old, new in zip(owners, space.groups_of(owners), other.groups_of(owners), strict=True):
                prefix, target = family.prefix(namespace, old, key), family.prefix(namespace, new, key)
                for at, data in space.store.scan(prefix, after(prefix)):
                    yield target + at[len(prefix) :], data


def in_files(changes: Iterable[Change]) -> Iterator[list[Change]]:
    """Group changes into files. A file is held in memory while it is written."""
    single = (Change(at, dropped, [piece]) for at, dropped, pieces, _ in changes for piece in pieces)
    return in_portions(single, lambda change: len(change.pieces[0].data), _FILE)
