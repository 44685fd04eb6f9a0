"""Places in a ranking, and the rows of the ranks that change. Compiled (`holdfast.compiled`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.common.types import Row, RowKind, RowSlots

__all__ = ["Ranked", "place_of", "shifted_rows"]

Ranked = tuple[Any, Any, Any]
"""An element that is among the best: what it is ordered by, its id, and the element."""

_INSERT, _BEFORE, _AFTER = RowKind.INSERT, RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER


def place_of(best: list[Ranked], order: Any, descending: bool) -> int:
    """The place of a new element among the best: behind those that are as good.

    >>> place_of([(5, None, "a"), (3, None, "b")], 3, True), place_of([(5, None, "a")], 3, False)
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
    if type(element) is not tuple:
        return row_of(i, ranked, kind)
    row = RowSlots()  # as `Row.of_values` does, without the call
    row._fields = None
    row._values = [*element, i + 1]
    row._row_kind = kind
    row.__class__ = Row
    return row  # type: ignore[return-value]
