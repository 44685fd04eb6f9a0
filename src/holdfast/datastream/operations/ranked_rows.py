"""Places in a ranking, and the rows of the ranks that change. Compiled (`holdfast.compiled`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.common.types import Row, RowKind, RowSlots

__all__ = ["Ranked", "check_order", "enter", "rank_of", "shifted_rows"]

Ranked = tuple[Any, Any, Any]
"""An element that is among the best: what it is ordered by, its id, and the element."""

_INSERT, _DELETE = RowKind.INSERT, RowKind.DELETE
_BEFORE, _AFTER = RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER
_NONE: tuple[Row, ...] = ()


def check_order(order: Any) -> None:
    """Check that an element has a place among others.

    Raises:
        ValueError: it is ordered by NaN, or by a tuple that has one: it is neither better nor worse than any other.
    """
    kind = type(order)
    if kind is tuple:
        for each in order:
            check_order(each)
    elif kind is not int and kind is not str and order != order:
        raise ValueError(
            f"top_n() cannot order an element by {order!r}, which is neither more nor less than any other value: filter "
            "such elements before top_n(), or let order_by return a number for them"
        )


def enter(
    state: Any,
    order: Any,
    element: Any,
    most: int,
    descending: bool,
    ranked: bool,
    row_of: Callable[[int, Ranked, RowKind], Row],
) -> Sequence[Row]:
    """Put an element among the best of its key, in the list itself, if it is one of them; returns the changes.

    Args:
        state: Holds the best elements, in order.
        order: What the element is ordered by.
        element: The element.
        most: How many are kept.
        descending: Whether larger is better.
        ranked: Whether rows have a rank.
        row_of: Makes the row of an element that is no tuple, of its place, the element and the row's kind.

    Raises:
        ValueError: see `check_order`.
    """
    check_order(order)
    best = state.value()
    if best is None:
        best = []
    elif len(best) == most:
        last = best[most - 1][0]
        if not (order > last if descending else order < last):
            return _NONE
    at = rank_of(best, order, descending)
    best.insert(at, (order, None, element))
    if ranked:
        rows = shifted_rows(best, at, most, row_of)
    else:
        rows = [_row(best.pop(), _DELETE, row_of)] if len(best) > most else []
        rows.append(_row((order, None, element), _INSERT, row_of))
    state.update(best)
    return rows


def rank_of(best: list[Ranked], order: Any, descending: bool) -> int:
    """The place of a new element among the best: behind those that are as good.

    >>> rank_of([(5, None, "a"), (3, None, "b")], 3, True), rank_of([(5, None, "a")], 3, False)
    (2, 0)
    """
    at = len(best)
    if descending:  # no call for each
        while at > 0 and order > best[at - 1][0]:
            at -= 1
    else:
        while at > 0 and order < best[at - 1][0]:
            at -= 1
    return at


def shifted_rows(best: list[Ranked], at: int, most: int, row_of: Callable[[int, Ranked, RowKind], Row]) -> list[Row]:
    """The changes of each rank after an element has been inserted; drops the last one if it is one too many.

    Args:
        best: The best elements, in order.
        at: The place of the new one.
        most: How many are kept.
        row_of: Makes the row of an element that is no tuple, of its place, the element and the row's kind.
    """
    rows: list[Row] = []
    last = len(best) - 1
    for i in range(at, last):
        rows.append(_ranked_row(i, best[i + 1], _BEFORE, row_of))
        rows.append(_ranked_row(i, best[i], _AFTER, row_of))
    if last >= most:
        best.pop()
    else:
        rows.append(_ranked_row(last, best[last], _INSERT, row_of))
    return rows


def _ranked_row(i: int, ranked: Ranked, kind: RowKind, row_of: Callable[[int, Ranked, RowKind], Row]) -> Row:
    element = ranked[2]
    return _made([*element, i + 1], kind) if type(element) is tuple else row_of(i, ranked, kind)


def _row(ranked: Ranked, kind: RowKind, row_of: Callable[[int, Ranked, RowKind], Row]) -> Row:
    element = ranked[2]
    return _made([*element], kind) if type(element) is tuple else row_of(0, ranked, kind)


def _made(values: list[Any], kind: RowKind) -> Row:
    row = RowSlots()  # as `Row.of_values` does, without the call
    row._fields = None
    row._values = values
    row._row_kind = kind
    row.__class__ = Row
    return row  # type: ignore[return-value]
