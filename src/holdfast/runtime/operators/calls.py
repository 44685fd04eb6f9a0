"""The innermost loop of a keyed function: a call for each element, and its results. Compiled (`holdfast.compiled`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.runtime.copies import FIXED, fixed, same
from holdfast.runtime.operators.stateless import Collector
from holdfast.runtime.user_code import not_iterable
from holdfast.state.handles import CurrentRow

__all__ = ["call_each"]


def call_each(
    function: Callable[[Any, Any], Any],
    context: Any,
    elements: Iterable[tuple[Any, Any, int, Any]],
    current: CurrentRow,
    out: Collector,
    own: type[Any] | None,
    fail: Callable[[BaseException, Any, Any], Exception],
) -> None:
    """Call the function with each element.

    Args:
        function: Takes an element and the context.
        context: The context, whose ``stamp`` is set for each element.
        elements: Keys, values, timestamps and rows.
        current: Holds the current key and its row.
        out: Collects the results.
        own: A class of results that the function makes for this output alone: only what they hold may be shared.
        fail: Makes the user's error with its element and key.
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
