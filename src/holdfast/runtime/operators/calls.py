"""The innermost loops of keyed functions: one call per element, and its results. Compiled (`holdfast.compiled`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.records.copies import FIXED, Copy, fixed, same
from holdfast.runtime.records.user_code import not_iterable
from holdfast.state.cells.handles import CurrentRow
from holdfast.state.cells.row import CHANGED

__all__ = ["call_each", "reduce_each", "take_each"]

Fail = Callable[[BaseException, Any, Any], Exception]
"""Turns an exception into the user error that names the element and its key."""


def call_each(
    function: Callable[[Any, Any], Any],
    context: Any,
    elements: Iterable[tuple[Any, Any, int, Any]],
    current: CurrentRow,
    out: Collector,
    own: type[Any] | None,
    fail: Fail,
) -> None:
    """Call the function with each element.

    Args:
        function: Takes an element and the context.
        context: The context, whose ``stamp`` is set for each element.
        elements: Keys, values, timestamps and rows.
        current: Holds the current key and its row.
        out: Collects the results.
        own: A class of results that the function creates only for this output, so that only their content may be shared.
        fail: Makes the user error with the element and its key.
    """
    values, stamps, take = out.values, out.stamps, out.take_one
    reused = out.copied is same
    key = value = results = None
    try:
        for key, value, stamp, row in elements:
            current.row = row
            current.key = key
            context.stamp = stamp
            results = function(value, context)
            if results is not None:
                for result in results:
                    kind = type(result)
                    if kind is tuple:  # the usual cases, without a call
                        for each in result:
                            if type(each) not in FIXED:
                                take(result, stamp)
                                break
                        else:
                            values.append(result)
                            stamps.append(stamp)
                    elif kind in FIXED or (kind is own and (reused or fixed(map(type, result._values)))):
                        values.append(result)
                        stamps.append(stamp)
                    else:
                        take(result, stamp)
    except (Exception, SystemExit) as error:
        raise fail(not_iterable(error, results), value, key) from error


def take_each(
    function: Callable[[Any], Any],
    elements: Iterable[tuple[Any, Any, int, Any]],
    current: CurrentRow,
    out: Collector,
    take: Callable[[Collector, Any, Any, int], None],
    iterable: bool,
    fail: Fail,
) -> None:
    """Call a function without a context with each element.

    Args:
        function: Takes an element.
        elements: Keys, values, timestamps and rows.
        current: Holds the current key and its row.
        out: Collects the results.
        take: Takes the result of a call, the element and its timestamp.
        iterable: Whether results must be iterable.
        fail: Makes the user's error.
    """
    key = value = result = None
    try:
        for key, value, stamp, row in elements:
            current.row = row
            current.key = key
            result = function(value)
            take(out, result, value, stamp)
    except (Exception, SystemExit) as error:
        raise fail(not_iterable(error, result) if iterable else error, value, key) from error


def reduce_each(
    reduce: Callable[[Any, Any], Any],
    elements: Iterable[tuple[Any, Any, Any]],
    current: CurrentRow,
    cell: int,
    fit: Callable[[Any], Any] | None,
    copied: Copy,
    fail: Fail,
) -> list[Any]:
    """Reduce each element into its key's cell; returns copies of the reduced values.

    Args:
        reduce: Takes the reduced value and an element.
        elements: Keys, values and rows.
        current: Holds the current key and its row.
        cell: The cell's position in the rows.
        fit: Converts reduced values to their declared type.
        copied: Copies what is emitted.
        fail: Makes the user's error.
    """
    reduced: list[Any] = []
    reused = copied is same
    key = value = None
    try:
        for key, value, row in elements:
            before = row[cell]
            if before is not None:
                current.row = row
                current.key = key
                value = reduce(before, value)
            row[cell] = value = value if fit is None else fit(value)
            row[0] = CHANGED[row[0]]
            reduced.append(value if reused else copied(value))
    except (Exception, SystemExit) as error:
        raise fail(error, value, key) from error
    return reduced
