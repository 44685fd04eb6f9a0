"""Deduplication and Top-N: functions of a keyed stream that keep some rows of each key, as Flink SQL's ROW_NUMBER does.

Their results are changelogs: Rows whose kind says whether a row comes (INSERT), goes (DELETE) or is replaced (UPDATE_BEFORE,
UPDATE_AFTER).
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from holdfast.common.state_ttl import StateTtlConfig
from holdfast.common.time import Duration, Time, to_milliseconds
from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.common.types import Row, RowKind
from holdfast.datastream.functions import FilterFunction, KeyedProcessFunction, RuntimeContext
from holdfast.datastream.operations.ranked_rows import Ranked, check_order, enter
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import ConfigurationError, IncompatibleState
from holdfast.functions.defined_state import DefinedState

__all__ = ["FirstOfKey", "FirstWithinWatermark", "LastOfKey", "TopN", "as_row", "check_offset"]


def as_row(element: Any, kind: RowKind) -> Row:
    """Make a row of an element's fields.

    Named tuples, dataclasses and dicts give named fields, tuples positional ones; any other element is the only field.

    >>> as_row(("ann", 3), RowKind.DELETE).get_row_kind()
    <RowKind.DELETE: 3>
    >>> as_row({"name": "ann"}, RowKind.INSERT)
    Row(name='ann')
    """
    if type(element) is tuple:  # the usual case
        return _row_of([*element], None, kind)
    if isinstance(element, Row):
        return Row.of_values(list(element), element._fields, kind)
    if isinstance(element, tuple):
        return Row.of_values(list(element), getattr(element, "_fields", None), kind)
    if isinstance(element, dict):
        return Row.of_values(list(element.values()), [str(name) for name in element], kind)
    if dataclasses.is_dataclass(element):
        names = [field.name for field in dataclasses.fields(element)]
        return Row.of_values([getattr(element, name) for name in names], names, kind)
    return Row.of_values([element], None, kind)


_row_of = Row.of_values


def _row_of_element(i: int, ranked: Ranked, kind: RowKind) -> Row:
    return as_row(ranked[_ELEMENT], kind)


def check_offset(offset: Any, of: str) -> None:
    """Check how many of the best are left out.

    Raises:
        ConfigurationError: it is no number from 0 on.
    """
    if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
        raise ConfigurationError(f"top_n() leaves out the first offset {of}, a number from 0 on, not {offset!r}.")


def _living(ttl: Time | Duration) -> StateTtlConfig:
    return StateTtlConfig.new_builder(ttl).build()


class FirstOfKey(FilterFunction[Any], DefinedState):
    """Keeps the first element of each key, and remembers the key for a time."""

    def __init__(self, ttl: Time | Duration) -> None:
        self._living = _living(ttl)

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state that says that the key has come."""
        seen = ValueStateDescriptor("seen", Types.BOOLEAN())
        seen.enable_time_to_live(self._living)
        self._seen = runtime_context.get_state(seen)

    def definition(self) -> dict[str, Any]:
        """Which element is kept."""
        return {"of": "dedup()", "keeps": "first"}

    def continuing(self, stored: Mapping[str, Any]) -> FirstOfKey:
        """What is known of the other elements of keys is no state of this one.

        Raises:
            IncompatibleState: always.
        """
        raise _keeps_another(self, stored)

    def filter(self, value: Any) -> bool:
        """Keep the element if its key is new."""
        if self._seen.value() is not None:
            return False
        self._seen.update(True)
        return True


class FirstWithinWatermark(KeyedProcessFunction[Any, Any, Any]):
    """Keeps the first element of each key, and remembers the key until the watermark is ``delay`` behind its timestamp."""

    def __init__(self, delay: Time | Duration) -> None:
        self._delay = to_milliseconds(delay)
        if self._delay < 0:
            raise ConfigurationError(
                f"drop_duplicates_within_watermark() takes a delay of at least 0 ms, not {self._delay}."
            )

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state that says that the key has come."""
        self._seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.BOOLEAN()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context[Any]) -> Iterable[Any]:
        """Emit an element that is the key's first and not late."""
        timers, time = ctx.timer_service(), ctx.timestamp()
        if self._seen.value() or time <= timers.current_watermark():
            return ()
        self._seen.update(True)
        timers.register_event_time_timer(time + self._delay - 1)  # Spark's watermark is a millisecond more
        return (value,)

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext[Any]) -> Iterable[Any]:
        """Forget the key."""
        self._seen.clear()
        return ()


class LastOfKey(KeyedProcessFunction[Any, Any, Row], DefinedState):
    """Replaces the row of each key by the newest element, and remembers it for a time."""

    def __init__(self, ttl: Time | Duration, element_type: TypeInformation | None) -> None:
        self._living = _living(ttl)
        self._type = element_type

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the state of the newest element."""
        last = ValueStateDescriptor("last", self._type)
        last.enable_time_to_live(self._living)
        self._last = runtime_context.get_state(last)

    def definition(self) -> dict[str, Any]:
        """Which element is kept."""
        return {"of": "dedup()", "keeps": "last"}

    def continuing(self, stored: Mapping[str, Any]) -> LastOfKey:
        """What is known of the other elements of keys is no state of this one.

        Raises:
            IncompatibleState: always.
        """
        raise _keeps_another(self, stored)

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Row]:
        """Replace the element."""
        before = self._last.value()
        self._last.update(value)
        if before is None:
            return (as_row(value, RowKind.INSERT),)
        return as_row(before, RowKind.UPDATE_BEFORE), as_row(value, RowKind.UPDATE_AFTER)


def _keeps_another(function: DefinedState, stored: Mapping[str, Any]) -> IncompatibleState:
    before, now = stored["keeps"], function.definition()["keeps"]
    return IncompatibleState(f"it keeps the {before} element of each key, and the program the {now}")


_ORDER, _ID, _ELEMENT = 0, 1, 2


class TopN(KeyedProcessFunction[Any, Any, Row], DefinedState):
    """Keeps the ``n`` best elements of each key. Of equal ones, those that came first are better.

    Args:
        n: The number of elements.
        order: From an element to what it is ordered by.
        descending: Whether larger is better.
        unique_key: From an element to its id among the elements of the key: an element replaces the one with its id.
        rank_field: The name of a field for the rank, from 1; None: rows have no rank.
        offset: How many of the best have no row. They are kept, too.
    """

    def __init__(
        self,
        n: int,
        order: Callable[[Any], Any],
        descending: bool,
        unique_key: Callable[[Any], Any] | None,
        rank_field: str | None,
        offset: int,
    ) -> None:
        self._n = n
        self._offset = offset
        self._kept = offset + n
        self._order = order
        self._unique_key = unique_key
        self._rank_field = rank_field
        self._descending = descending
        self._better: Callable[[Any, Any], Any] = operator.gt if descending else operator.lt

    def definition(self) -> dict[str, Any]:
        """How many elements are kept, and of which kind."""
        return {
            "of": "top_n()",
            "n": self._n,
            "offset": self._offset,
            "descending": self._descending,
            "unique key": self._unique_key is not None,
            "rank": self._rank_field is not None,
            "rank field": self._rank_field,
        }

    def continuing(self, stored: Mapping[str, Any]) -> TopN:
        """What was left out is not there, and what was emitted stands.

        Raises:
            IncompatibleState: the elements, or the rows that were emitted, are others.
        """
        own, stored = self.definition(), {"offset": 0, **stored}
        others = [name for name in own if own[name] != stored.get(name, own[name])]  # earlier checkpoints tell less
        if not others:
            return self
        was, now = (", ".join(f"{name} {each[name]}" for name in others) for each in (stored, own))
        raise IncompatibleState(f"it has the best elements by {was}, and the program's top_n() has {now}")

    def open(self, runtime_context: RuntimeContext) -> None:
        """Get the states of the best elements, and of the best one that was left out."""
        self._best = runtime_context.get_state(ValueStateDescriptor("best"))
        self._left_out = runtime_context.get_state(ValueStateDescriptor("left-out"))
        self._ranks = self._rank_field is not None
        self._row_of: Callable[[int, Ranked, RowKind], Row] = self._at if self._ranks else _row_of_element

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Iterable[Row]:
        """Rank an element, and emit what changes."""
        if type(value) is not tuple and isinstance(value, Row) and self._takes_back(value):
            return ()
        order = self._order(value)
        if self._unique_key is None and self._offset == 0:
            return enter(self._best, order, value, self._n, self._descending, self._ranks, self._row_of)
        check_order(order)
        best: list[Ranked] = self._best.value() or []
        old, of = None, None
        if self._unique_key is not None:
            of = self._unique_key(value)
            old = next((each for each in best if each[_ID] == of), None)
        new = (order, of, value)
        if old is not None:
            self._check(old, new)
        elif len(best) == self._kept and not self._better(order, best[-1][_ORDER]):
            self._leave_out(order)
            return ()
        return self._ranked(best, old, new)

    def _takes_back(self, row: Row) -> bool:
        """Whether a row is the first half of an update, whose second half replaces it."""
        kind = row.get_row_kind()
        if kind is RowKind.DELETE or (kind is RowKind.UPDATE_BEFORE and self._unique_key is None):
            raise ValueError(
                f"top_n() got a row of kind {kind.name}: it does not keep the elements that it leaves out. "
                "Give updated rows a unique_key=; for rows that are deleted, use top_n() of a grouped KTable"
            )
        return kind is RowKind.UPDATE_BEFORE

    def _ranked(self, before: list[Ranked], old: Ranked | None, new: Ranked) -> list[Row]:
        """Put an element among the best, in place of an old one if there is one, and return the changes."""
        after = [each for each in before if each is not old]
        at = len(after)
        if old is not None and old[_ORDER] == new[_ORDER]:  # keeps its place
            at = before.index(old)
        else:
            while at and self._better(new[_ORDER], after[at - 1][_ORDER]):
                at -= 1
        after.insert(at, new)
        if len(after) > self._kept:
            self._leave_out(after.pop()[_ORDER])
        self._best.update(after)
        if self._rank_field is not None:
            return self._shifted(before, after)
        first = self._offset
        left = [each for each in before[first:] if not any(each is other for other in after[first:])]
        entered = [each for each in after[first:] if not any(each is other for other in before[first:])]
        if old is not None and left == [old] and entered == [new]:
            return [as_row(old[_ELEMENT], RowKind.UPDATE_BEFORE), as_row(new[_ELEMENT], RowKind.UPDATE_AFTER)]
        rows = [as_row(each[_ELEMENT], RowKind.DELETE) for each in left]
        return [*rows, *(as_row(each[_ELEMENT], RowKind.INSERT) for each in entered)]

    def _shifted(self, before: list[Ranked], after: list[Ranked]) -> list[Row]:
        """The changes of each rank."""
        rows: list[Row] = []
        for i, new in enumerate(after[self._offset :], self._offset):
            if i == len(before):
                rows.append(self._at(i, new, RowKind.INSERT))
            elif before[i] is not new:
                rows += self._at(i, before[i], RowKind.UPDATE_BEFORE), self._at(i, new, RowKind.UPDATE_AFTER)
        return rows

    def _at(self, i: int, ranked: Ranked, kind: RowKind) -> Row:
        row = as_row(ranked[_ELEMENT], kind)
        names = row._fields
        if names is not None and self._rank_field in names:
            raise ValueError(f"rank_field={self._rank_field!r} is the name of a field of {row!r}; choose another one")
        return Row.of_values([*row, i + 1], None if names is None else [*names, str(self._rank_field)], kind)

    # ---- elements that replace others ---------------------------------------------------------------------------------

    def _leave_out(self, order: Any) -> None:
        if self._unique_key is None:
            return
        known = self._left_out.value()
        if known is None or self._better(order, known[0]):
            self._left_out.update((order,))

    def _check(self, old: Ranked, new: Ranked) -> None:
        """Check that no element that was left out must replace one that gets worse."""
        known = self._left_out.value()
        if known is None or not self._better(old[_ORDER], new[_ORDER]) or self._better(new[_ORDER], known[0]):
            return
        raise ValueError(
            f"top_n() with unique_key: the element with the key {new[_ID]!r} got worse, from {old[_ORDER]!r} to "
            f"{new[_ORDER]!r}, and one that was left out, with {known[0]!r}, may be better now. What is left out is "
            "not kept: order by something that only gets better, such as a count, or use top_n() of a grouped KTable"
        )
