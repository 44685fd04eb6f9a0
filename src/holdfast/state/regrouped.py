"""The same keyed state with another number of key groups."""

from __future__ import annotations

from holdfast.state.entries import LARGE
from holdfast.state.keyed_state import KeyedState
from holdfast.state.layout import after
from holdfast.state.space import StateSpace

__all__ = ["regrouped"]


def regrouped(state: KeyedState, max_parallelism: int) -> KeyedState:
    """Assign the keys of a state in memory to new key groups; rows and entries keep their stored form.

    Args:
        state: The state, of which no column has been declared.
        max_parallelism: The new number of key groups.
    """
    result = KeyedState(state.registry.where, state.schema, max_parallelism=max_parallelism)
    for name, space in state.spaces.items():
        other = result.space(name)
        for namespace, table in space.tables.items():
            other.table(namespace).rows.update(table.rows)
        _move_entries(space, result)
    for name, timers in state.timers.items():
        result.timer_queue(name).replay(timers.all(), ())
    return result


def _move_entries(space: StateSpace, result: KeyedState) -> None:
    """Move the entries of large maps and lists, whose stored keys contain the key group."""
    other = result.space(space.name)
    for column, family in space.large_columns():
        moved = other.entry_family(column)
        for namespace, table in space.tables.items():
            owners = [
                key for key, row in table.rows.items() if type(row[column + 1]) is int or type(row[column + 1]) in LARGE
            ]
            for key, old, new in zip(owners, space.groups_of(owners), other.groups_of(owners), strict=True):
                prefix, target = family.prefix(namespace, old, key), moved.prefix(namespace, new, key)
                rows = space.store.scan(prefix, after(prefix))
                result.store.write([(target + at[len(prefix) :], data) for at, data in rows])
