"""Changes of tables, and the functions that make, join and aggregate them.

A table is a stream of changes. Each has the key, the new value and the old one; None stands for no value. For each key, the
old value of a change is the new value of the one before, so a change can be taken back downstream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.types import Row, RowKind
from holdfast.datastream.functions import KeyedCoProcessFunction, KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor
from holdfast.errors import IncompatibleState
from holdfast.functions.defined_state import DefinedState
from holdfast.runtime.records.copies import copied

__all__ = [
    "Aggregate",
    "Change",
    "Cogrouped",
    "JoinForeignKey",
    "JoinTable",
    "JoinTables",
    "LatestVersion",
    "Kept",
    "Mapped",
    "Materialize",
    "Reduced",
    "Regroup",
    "Subscribe",
    "added",
    "changed",
    "changelog",
    "key_of",
    "nothing",
    "one_less",
    "one_more",
    "owner_of",
]

Change = tuple[Any, Any, Any]
"""Key, new value, old value."""


def key_of(change: tuple[Any, ...]) -> Any:
    """The key of a change or of a pair."""
    return change[0]


def changed(key: Any, new: Any, old: Any) -> Iterable[Change]:
    """The change of a row, if there is a row before or after it."""
    return () if new is None and old is None else ((key, new, old),)


def changelog(change: Change) -> Iterable[Row]:
    """The rows of a change, with their kinds."""
    key, new, old = change
    if old is None:
        return (Row.of_kind(RowKind.INSERT, key, new),)
    if new is None:
        return (Row.of_kind(RowKind.DELETE, key, old),)
    return Row.of_kind(RowKind.UPDATE_BEFORE, key, old), Row.of_kind(RowKind.UPDATE_AFTER, key, new)


class Materialize(KeyedProcessFunction[Any, Any, Change]):
    """Makes the changes of a table from pairs of key and value; None deletes the key."""

    def __init__(self, value_type: TypeInformation | None = None) -> None:
        self._type = value_type

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the value's state."""
        self._value = runtime_context.get_state(ValueStateDescriptor("value", self._type))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Change]:
        """Replace the value."""
        new, old = value[1], self._value.value()
        if new is None and old is None:
            return ()
        self._value.update(new)
        return ((ctx.get_current_key(), new, old),)


class Kept:
    """Keeps the rows of a table for which a predicate holds; a row that no longer does is deleted."""

    def __init__(self, predicate: Callable[[Any, Any], Any], wanted: bool) -> None:
        self._predicate = predicate
        self._wanted = wanted

    def __call__(self, change: Change) -> Iterable[Change]:
        """Return the change of the kept rows, if there is one."""
        key, new, old = change
        return changed(key, self._kept(key, new), self._kept(key, old))

    def _kept(self, key: Any, value: Any) -> Any:
        return value if value is not None and bool(self._predicate(key, value)) is self._wanted else None


class Mapped:
    """Converts the values of a table."""

    def __init__(self, mapper: Callable[[Any], Any]) -> None:
        self._mapper = mapper

    def __call__(self, change: Change) -> Iterable[Change]:
        """Return the change of the converted rows, if there is one: None is no row."""
        key, new, old = change
        mapper = self._mapper
        return changed(key, None if new is None else mapper(new), None if old is None else mapper(old))


_KINDS = {(False, False): "inner", (True, False): "left", (False, True): "right", (True, True): "outer"}


def _other_join(stored: Mapping[str, Any], own: Mapping[str, Any]) -> IncompatibleState:
    before, now = (_KINDS[each["outer"][0], each["outer"][1]] for each in (stored, own))
    return IncompatibleState(f"its results are those of the kind {before!r} of join, and the program's join is {now!r}")


class JoinTables(KeyedCoProcessFunction[Any, Change, Change, Change], DefinedState):
    """Joins two tables by key."""

    def __init__(self, joiner: Callable[[Any, Any], Any], keeps_left: bool, keeps_right: bool) -> None:
        self._joiner = joiner
        self._keeps_left = keeps_left
        self._keeps_right = keeps_right

    def definition(self) -> dict[str, Any]:
        """Which sides' rows have a result without a partner."""
        return {"of": "a join of tables", "outer": [self._keeps_left, self._keeps_right]}

    def continuing(self, stored: Mapping[str, Any]) -> JoinTables:
        """None goes on with another kind of join: it would take back results that were never emitted.

        Raises:
            IncompatibleState: always.
        """
        raise _other_join(stored, self.definition())

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of both values."""
        self._left = runtime_context.get_state(ValueStateDescriptor("left"))
        self._right = runtime_context.get_state(ValueStateDescriptor("right"))

    def process_element1(self, value: Change, ctx: KeyedCoProcessFunction.Context) -> Iterable[Change]:
        """Replace the left value."""
        right = self._right.value()
        old = self._joined(self._left.value(), right)
        self._left.update(value[1])
        return changed(value[0], self._joined(value[1], right), old)

    def process_element2(self, value: Change, ctx: KeyedCoProcessFunction.Context) -> Iterable[Change]:
        """Replace the right value."""
        left = self._left.value()
        old = self._joined(left, self._right.value())
        self._right.update(value[1])
        return changed(value[0], self._joined(left, value[1]), old)

    def _joined(self, left: Any, right: Any) -> Any:
        if (left is None and right is None) or (left is None and not self._keeps_right):
            return None
        if right is None and not self._keeps_left:
            return None
        return self._joiner(copied(left), copied(right))  # the joiner may change them; the states have them


class JoinTable(KeyedCoProcessFunction[Any, Any, Change, Any]):
    """Joins each pair of a stream with the value that a table has for its key."""

    def __init__(self, joiner: Callable[[Any, Any], Any], keeps_left: bool) -> None:
        self._joiner = joiner
        self._keeps_left = keeps_left

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of the table's value."""
        self._value = runtime_context.get_state(ValueStateDescriptor("value"))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """Join a pair of the stream."""
        held = self._value.value()
        if value[1] is None or (held is None and not self._keeps_left):
            return ()
        return ((value[0], self._joiner(value[1], copied(held))),)

    def process_element2(self, value: Change, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """Replace the table's value."""
        self._value.update(value[1])
        return ()


class Aggregate(KeyedProcessFunction[Any, Any, Change]):
    """Aggregates tuples of group, value to add, value to take back and more; None: there is no value."""

    def __init__(
        self,
        initializer: Callable[[], Any],
        adder: Callable[[Any, Any, Any], Any],
        subtractor: Callable[[Any, Any, Any], Any] | None,
        result_type: TypeInformation | None,
    ) -> None:
        self._initializer = initializer
        self._adder = adder
        self._subtractor = subtractor
        self._type = result_type

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the aggregate's state."""
        self._aggregate = runtime_context.get_state(ValueStateDescriptor("aggregate", self._type))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Change]:
        """Take one value back, and add another."""
        added, subtracted = value[1:3]
        group = ctx.get_current_key()
        old = self._aggregate.value()
        new = copied(old)  # the functions may change it
        if subtracted is not None and self._subtractor is not None:
            new = self._subtractor(group, subtracted, self._initializer() if new is None else new)
        if added is not None:
            new = self._adder(group, added, self._initializer() if new is None else new)
        self._aggregate.update(new)
        return changed(group, new, old)


def one_more(group: Any, value: Any, count: int) -> int:
    """Count a value."""
    return count + 1


def one_less(group: Any, value: Any, count: int) -> int:
    """Take a value back from a count."""
    return count - 1


def nothing() -> None:
    """The aggregate of no value in a reduction."""


class Reduced:
    """Calls a function of aggregate and value; the first value is the aggregate."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def __call__(self, group: Any, value: Any, aggregate: Any) -> Any:
        """Return the new aggregate."""
        return value if aggregate is None else self._function(aggregate, value)


def added(pair: tuple[Any, Any]) -> tuple[tuple[Any, Any, None], ...]:
    """What a pair adds to an aggregate: one without a value adds nothing."""
    return () if pair[1] is None else ((pair[0], pair[1], None),)


class Cogrouped:
    """Adds values of several streams to one aggregate: pairs of a stream's number and a value of it."""

    def __init__(self, aggregators: Sequence[Callable[[Any, Any, Any], Any]]) -> None:
        self._aggregators = aggregators

    def __call__(self, key: Any, value: tuple[int, Any], aggregate: Any) -> Any:
        """Return the new aggregate."""
        return self._aggregators[value[0]](key, value[1], aggregate)

    @staticmethod
    def numbered(number: int) -> Callable[[tuple[Any, Any]], tuple[Any, ...]]:
        """What a pair of a stream adds."""
        return lambda pair: () if pair[1] is None else ((pair[0], (number, pair[1]), None),)


class Regroup:
    """Finds the groups of a table's rows: group, value to add, value to take back, and the row's key."""

    def __init__(self, selector: Callable[[Any, Any], tuple[Any, Any]]) -> None:
        self._selector = selector

    def __call__(self, change: Change) -> Iterable[tuple[Any, Any, Any, Any]]:
        """Return one change, or two if the row changes its group."""
        key, new, old = change
        after = None if new is None else self._selector(key, new)
        before = None if old is None else self._selector(key, old)
        if after is not None and before is not None and after[0] == before[0]:
            return ((after[0], after[1], before[1], key),)
        found = [] if before is None else [(before[0], None, before[1], key)]
        return found if after is None else [*found, (after[0], after[1], None, key)]


# ---- joins by foreign key ------------------------------------------------------------------------------------------------

_BY_KEY, _ALONE = 0, 1


def owner_of(change: Change) -> tuple[int, Any]:
    """Where the rows of a table meet those that refer to them."""
    return _BY_KEY, change[0]


class Subscribe(KeyedProcessFunction[Any, Change, Any]):
    """Sends each row of a table to the row of another table that it refers to.

    Sends tuples of the place, the row's key, its version, its value, and whether it has a result there. Versions increase
    with each change of the row, so that results of the row that it referred to before are known as old.
    """

    def __init__(self, foreign_key: Callable[[Any], Any]) -> None:
        self._foreign_key = foreign_key

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the version's state."""
        self._version = runtime_context.get_state(ValueStateDescriptor("version", Types.LONG()))

    def process_element(self, value: Change, ctx: KeyedProcessFunction.Context) -> Iterable[Any]:
        """Send a change, and take back the row from where it was."""
        key, new, old = value
        version = (self._version.value() or 0) + 1
        self._version.update(version)
        before = None if old is None else self._place(key, old)
        after = None if new is None else self._place(key, new)
        if before is not None and before != after:
            yield before, key, version, None, after is None
        if after is not None:
            yield after, key, version, new, True

    def _place(self, key: Any, value: Any) -> tuple[int, Any]:
        found = self._foreign_key(value)
        return (_ALONE, key) if found is None else (_BY_KEY, found)


class JoinForeignKey(KeyedCoProcessFunction[Any, Any, Change, Any], DefinedState):
    """Joins the rows that refer to a row with it: triples of key, version and result."""

    def __init__(self, joiner: Callable[[Any, Any], Any], keeps_left: bool) -> None:
        self._joiner = joiner
        self._keeps_left = keeps_left

    def definition(self) -> dict[str, Any]:
        """Whether rows have a result without a partner."""
        return {"of": "a join of tables by a foreign key", "outer": [self._keeps_left, False]}

    def continuing(self, stored: Mapping[str, Any]) -> JoinForeignKey:
        """None goes on with another kind of join: rows that wait for a partner would not get their other result.

        Raises:
            IncompatibleState: always.
        """
        raise _other_join(stored, self.definition())

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of the rows that refer, and of the row."""
        self._referring = runtime_context.get_map_state(MapStateDescriptor("referring"))
        self._right = runtime_context.get_state(ValueStateDescriptor("right"))

    def process_element1(self, value: Any, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """Add, replace or remove a row that refers."""
        _, key, version, left, has_result = value
        if left is not None:
            self._referring.put(key, (version, left))
            return ((key, version, self._joined(left, self._right.value())),)
        self._referring.remove(key)
        return ((key, version, None),) if has_result else ()

    def process_element2(self, value: Change, ctx: KeyedCoProcessFunction.Context) -> Iterable[Any]:
        """Replace the row."""
        self._right.update(value[1])
        return [(key, version, self._joined(left, value[1])) for key, (version, left) in self._referring.items()]

    def _joined(self, left: Any, right: Any) -> Any:
        return None if right is None and not self._keeps_left else self._joiner(copied(left), copied(right))


class LatestVersion(KeyedProcessFunction[Any, Any, Change]):
    """Makes changes of the newest results: those of an older version come from a row that is no longer referred to."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of version and result."""
        self._version = runtime_context.get_state(ValueStateDescriptor("version", Types.LONG()))
        self._result = runtime_context.get_state(ValueStateDescriptor("result"))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Change]:
        """Replace the result."""
        key, version, new = value
        if version < (self._version.value() or 0):
            return ()
        old = self._result.value()
        self._version.update(version)
        self._result.update(new)
        return changed(key, new, old)
