"""Best, the best rows of each group of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.common.typeinfo import Types
from holdfast.common.types import Row
from holdfast.common.values.pickling import dumps
from holdfast.datastream.functions import KeyedProcessFunction, RuntimeContext
from holdfast.datastream.operations.ranked_rows import check_order
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.errors import IncompatibleState
from holdfast.functions.defined_state import DefinedState
from holdfast.runtime.records.copies import FIXED
from holdfast.table.changes import Change, changed

__all__ = ["Best"]

Ranked = tuple[Any, int, Any, Any]
"""What a row is ordered by, the number of the change that made it so, the row's key and its value."""

_KEY = 2


class Best(KeyedProcessFunction[Any, Any, Change], DefinedState):
    """Makes a table of the ``n`` best values of each group, as a list. Of equal ones, those that came first are better.

    It keeps all rows of a group: when one of the best gets worse or goes, the next one is found among them. With an offset,
    the list has those behind the first ones, which are kept beside it.
    """

    def __init__(
        self, n: int, order: Callable[[Any], Any], descending: bool, offset: int, shorter: frozenset[int] = frozenset()
    ) -> None:
        """``shorter``: the numbers of rows that earlier programs kept in order. So many rows may lack further ones."""
        self._n = n
        self._offset = offset
        self._kept = offset + n
        self._shorter = shorter
        self._order = order
        self._descending = descending

    def definition(self) -> dict[str, Any]:
        """How many values there are, and in which order."""
        return {
            "of": "top_n() of a table",
            "n": self._n,
            "offset": self._offset,
            "descending": self._descending,
            "shorter": sorted(self._shorter),
        }

    def continuing(self, stored: Mapping[str, Any]) -> Best:
        """A group gets its other number of values, or those behind another offset, when one of its rows changes.

        Raises:
            IncompatibleState: the order is another one.
        """
        if stored["descending"] != self._descending:
            orders = ["the largest" if each else "the smallest" for each in (stored["descending"], self._descending)]
            raise IncompatibleState(f"it has {orders[0]} values of each group, and the program's top_n() is of {orders[1]}")
        kept = stored["n"] + stored.get("offset", 0)
        shorter = frozenset(each for each in (*stored["shorter"], kept) if each < self._kept)
        return Best(self._n, self._order, self._descending, self._offset, shorter)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of all rows, of the best ones, of those before them, and of the number of changes."""
        self._rows = runtime_context.get_map_state(MapStateDescriptor("rows"))
        self._best = runtime_context.get_state(ValueStateDescriptor("best"))
        self._above = runtime_context.get_state(ValueStateDescriptor("above"))
        self._changes = runtime_context.get_state(ValueStateDescriptor("changes", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Change]:
        """Add, replace or remove a row."""
        _, added, _, key = value
        above: list[Ranked] = self._above.value() or []
        told: list[Ranked] = self._best.value() or []
        before = [*above, *told]
        after = self._without(key, before) if added is None else self._with(key, added, before)
        if len(before) in self._shorter:
            after = self._found()
        first, best = after[: self._offset], after[self._offset :]
        if not _all_alike(first, above):
            self._above.update(first or None)
        if _all_alike(best, told):
            return ()
        self._best.update(best or None)
        return changed(ctx.get_current_key(), _values(best), _values(told))

    def _without(self, key: Any, before: list[Ranked]) -> list[Ranked]:
        self._rows.remove(key)
        after = [row for row in before if row[_KEY] != key]
        return self._found() if len(after) < len(before) == self._kept else after[: self._kept]

    def _with(self, key: Any, value: Any, before: list[Ranked]) -> list[Ranked]:
        order, known = self._order(value), self._rows.get(key)
        check_order(order)
        if known is not None and known[0] == order:
            change = known[1]
        else:
            change = (self._changes.value() or 0) + 1
            self._changes.update(change)
        self._rows.put(key, (order, change, value))
        after = [row for row in before if row[_KEY] != key]
        at = len(after)
        while at and self._better(order, change, after[at - 1]):
            at -= 1
        if at == len(after) < len(before) == self._kept:  # the last one: any other row of the group may be better
            return self._found()
        after.insert(at, (order, change, key, value))
        return after[: self._kept]

    def _better(self, order: Any, change: int, than: Ranked) -> bool:
        if order == than[0]:
            return change < than[1]
        return bool(order > than[0] if self._descending else order < than[0])

    def _found(self) -> list[Ranked]:
        """The best of all rows."""
        rows = [(order, change, key, value) for key, (order, change, value) in self._rows.items()]
        rows.sort(key=lambda row: row[1])
        rows.sort(key=lambda row: row[0], reverse=self._descending)
        return rows[: self._kept]


def _all_alike(some: list[Ranked], others: list[Ranked]) -> bool:
    return len(some) == len(others) and all(map(_alike, some, others))


def _alike(one: Any, other: Any) -> bool:
    """Whether two values cannot be told apart. What ``==`` says of objects may leave out fields of theirs.

    A value of the best rows and that of all rows may be two objects: a restart reads each of the two states.
    """
    kind = type(one)
    if one is other or kind is not type(other):
        return one is other
    if kind in FIXED:
        return bool(one == other or (one != one and other != other))
    if kind is Row:
        return one._fields == other._fields and _alike(one._values, other._values)
    if kind is tuple or kind is list:
        return len(one) == len(other) and all(map(_alike, one, other))
    if kind is dict:
        return one.keys() == other.keys() and all(_alike(each, other[key]) for key, each in one.items())
    return dumps(one) == dumps(other)


def _values(rows: list[Ranked]) -> list[Any] | None:
    return [value for *_, value in rows] or None
