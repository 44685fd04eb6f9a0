"""The innermost loops of windows: adding elements to contents, and the calls for firing windows. Compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.records.copies import FIXED
from holdfast.runtime.records.user_code import not_iterable
from holdfast.state.cells.entries import LARGE
from holdfast.state.cells.handles import NO_ACCUMULATOR, NO_REDUCED, CurrentRow
from holdfast.state.cells.row import CHANGED, Row

__all__ = ["accumulate_each", "call_windows", "cut_each", "filled_rows", "reduce_rows"]


def cut_each(
    keys: Iterable[Any], values: Iterable[Any], times: Iterable[int], first: int, size: int
) -> list[tuple[int, list[Any], list[Any], list[int]]]:
    """Cut elements along windows: the start of each with its keys, values and times, earlier windows first.

    Args:
        keys: The keys.
        values: The elements.
        times: Their timestamps, at most 2**62 ms after ``first``.
        first: The start of the first window.
        size: The size of all windows.
    """
    parts: dict[int, tuple[list[Any], list[Any], list[int]]] = {}
    number = -1
    its_keys: list[Any] = []
    its_values: list[Any] = []
    its_times: list[int] = []
    for key, value, time in zip(keys, values, times):
        at = (time - first) // size
        if at != number:
            number = at
            part = parts.get(at)
            if part is None:
                part = parts[at] = [], [], []
            its_keys, its_values, its_times = part
        its_keys.append(key)
        its_values.append(value)
        its_times.append(time)
    return [(first + at * size, *parts[at]) for at in sorted(parts)]


def filled_rows(rows: dict[Any, Row], cell: int) -> list[tuple[Any, Row]]:
    """The keys and rows that have content in this cell."""
    return [(key, row) for key, row in rows.items() if row[cell] is not None]


def accumulate_each(
    create: Callable[[], Any],
    accumulate: Callable[[Any, Any], Any],
    cell: int,
    fit: Callable[[Any], Any] | None,
    rows: list[Row],
    values: Iterable[Any],
) -> None:
    """Add each value to the accumulator in its row.

    Args:
        create: Makes an accumulator.
        accumulate: Takes a value and an accumulator, and returns the next one.
        cell: The accumulator's cell in the rows.
        fit: Converts accumulators to their declared type.
        rows: The rows.
        values: The values.
    """
    for row, value in zip(rows, values):
        current = row[cell]
        current = accumulate(value, create() if current is None else current)
        if current is None:
            raise TypeError(NO_ACCUMULATOR)
        row[cell] = current if fit is None else fit(current)
        row[0] = CHANGED[row[0]]


def reduce_rows(
    reduce: Callable[[Any, Any], Any],
    cell: int,
    fit: Callable[[Any], Any] | None,
    rows: list[Row],
    values: Iterable[Any],
) -> None:
    """Reduce each value into the content in its row.

    Args:
        reduce: Takes the reduced value and a value.
        cell: The reduced value's cell in the rows.
        fit: Converts reduced values to their declared type.
        rows: The rows.
        values: The values.
    """
    for row, value in zip(rows, values):
        current = row[cell]
        if current is not None:
            value = reduce(current, value)
            if value is None:
                raise TypeError(NO_REDUCED)
        row[cell] = value if fit is None else fit(value)
        row[0] = CHANGED[row[0]]


def call_windows(
    function: Callable[[Any, Any, Any], Any],
    second: Any,
    rows: list[tuple[Any, Row]],
    cell: int,
    kept: bool,
    result: Callable[[Any], Any] | None,
    large: Callable[[Any, Any], Any],
    context: Any,
    current: CurrentRow | None,
    out: Collector,
    last: int,
    fail: Callable[[BaseException, Any], Exception],
) -> None:
    """Call a window function for each key of a window.

    Args:
        function: Takes the key, ``second`` and the elements.
        second: The context or the window.
        rows: Keys and rows.
        cell: The cell of the contents.
        kept: Whether a content is the list of elements.
        result: Turns a content into its result; None if the content is the result.
        large: Returns the elements of a key's content that is stored outside of its row.
        context: The window context, whose ``key`` is set; its ``bring`` makes a key's global state current.
        current: Holds the current key and its row; None if the function has no state of the window.
        out: Collects the results.
        last: The results' timestamp.
        fail: Makes the user error with the key.
    """
    values, stamps, take = out.values, out.stamps, out.take_one
    key = results = None
    try:
        for key, row in rows:
            content = row[cell]
            if result is not None:
                content = result(content)
            if type(content) in LARGE:
                content = large(key, content)
            if current is not None:
                current.key = key
                current.row = row
                context.key = key
            bring = context.bring  # None until the function first uses global state
            if bring is not None:
                bring(key)
            results = function(key, second, content if kept else [content])
            if results is not None:
                for each in results:
                    if type(each) is tuple:  # the usual case, inlined
                        for field in each:
                            if type(field) not in FIXED:
                                take(each, last)
                                break
                        else:
                            values.append(each)
                            stamps.append(last)
                    else:
                        take(each, last)
    except (Exception, SystemExit) as error:
        raise fail(not_iterable(error, results), key) from error
