"""Calling users' functions: what to call on them, and how their errors are told."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, UserCodeError

__all__ = ["OperatorName", "close_function", "user_callable", "not_iterable", "open_function", "user_error"]

_NOTHING = object()
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


class OperatorName(NamedTuple):
    """An operator or source as error messages name it."""

    name: str
    uid: str


def user_callable(function: Any, name: str) -> Callable[..., Any]:
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
            f"the function returned {_text(results, 200)} of type {type(results).__name__}, which is not iterable: yield "
            "each element, or return a list of them"
        )
    return error


def _traceback(error: BaseException) -> str:
    """The error's traceback, and those of its causes, each from the user's first frame on."""
    report = traceback.TracebackException.from_exception(error)
    waiting, seen = [report], set()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            theirs = (i for i, frame in enumerate(each.stack) if not frame.filename.startswith(_OURS))
            del each.stack[: next(theirs, 0)]
            waiting += [link for link in (each.__cause__, each.__context__) if link is not None]
    return "".join(report.format()).rstrip()


def _text(value: Any, limit: int) -> str:
    try:
        return repr(value)[:limit]
    except Exception:  # the class's own, which must not hide the error that is being told
        return f"<{type(value).__name__} without a text>"


def user_error(error: BaseException, operator: str, uid: str, value: Any = _NOTHING, key: Any = None) -> UserCodeError:
    """The error as the user sees it: the own traceback first, then the place."""
    if isinstance(error, UserCodeError):
        return error
    lines = [_traceback(error), f"  in operator {operator!r} (uid {uid!r})"]
    if key is not None:
        lines.append(f"  key: {_text(key, 500)}")
    if value is not _NOTHING:
        lines.append(f"  element: {_text(value, 1000)}")
    return UserCodeError("\n".join(lines), operator=operator, uid=uid, key="" if key is None else _text(key, 500))
