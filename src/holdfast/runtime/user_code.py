"""Calling users' functions: what to call on them, and how their errors are told."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any

from holdfast.errors import HoldfastError, UserCodeError

__all__ = ["close_function", "method_of", "not_iterable", "open_function", "user_error"]

_NOTHING = object()
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def method_of(function: Any, name: str) -> Callable[..., Any]:
    """The callable of a user's function: its method of this name, or itself when it is a plain callable."""
    method = getattr(function, name, None)
    if callable(method):
        return method  # type: ignore[no-any-return]
    if callable(function):
        return function  # type: ignore[no-any-return]
    raise TypeError(f"{function!r} is neither callable nor has a method {name}()")


def open_function(function: Any, runtime_context: Any) -> None:
    """Call the function's ``open`` if it has one.

    Raises:
        UserCodeError: it failed.
    """
    method = getattr(function, "open", None)
    if callable(method):
        try:
            method(runtime_context)
        except HoldfastError:
            raise
        except (Exception, SystemExit) as error:
            raise user_error(error, runtime_context.operator_name, runtime_context.operator_uid) from error


def close_function(function: Any) -> None:
    """Call the function's ``close`` if it has one."""
    method = getattr(function, "close", None)
    if callable(method):
        method()


def not_iterable(error: BaseException, results: Any) -> BaseException:
    """The error of calling a function and going through its ``results``, told plainly if these are no iterable.

    Args:
        error: What was raised.
        results: What the function returned last; None if it has returned nothing.
    """
    if not isinstance(error, TypeError) or results is None:
        return error
    try:
        iter(results)
    except TypeError:
        return TypeError(
            f"the function returned {results!r:.200} of type {type(results).__name__}, which is not iterable: yield each "
            "element, or return a list of them"
        )
    return error


def _traceback(error: BaseException) -> str:
    """The error's traceback from the user's first frame on."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [i for i, frame in enumerate(frames) if not frame.filename.startswith(_OURS)]
    shown = frames[theirs[0] :] if theirs else frames
    return "".join(
        [
            "Traceback (most recent call last):\n",
            *traceback.format_list(shown),
            *traceback.format_exception_only(type(error), error),
        ]
    ).rstrip()


def user_error(error: BaseException, operator: str, uid: str, value: Any = _NOTHING, key: Any = None) -> UserCodeError:
    """The error as the user sees it: the own traceback first, then the place."""
    if isinstance(error, UserCodeError):
        return error
    lines = [_traceback(error), f"  in operator {operator!r} (uid {uid!r})"]
    if key is not None:
        lines.append(f"  key: {key!r:.500}")
    if value is not _NOTHING:
        lines.append(f"  element: {value!r:.1000}")
    return UserCodeError("\n".join(lines), operator=operator, uid=uid, key="" if key is None else repr(key))
