"""Calls to user functions, and the errors that they raise."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError, StorageError, UserCodeError
from holdfast.functions.declared_states import open_declared_states
from holdfast.runtime.records.places import is_holdfasts

__all__ = ["OperatorName", "close_function", "user_callable", "not_iterable", "open_function", "user_error"]

_NOTHING = object()


class OperatorName(NamedTuple):
    """An operator or source as error messages name it."""

    name: str
    uid: str


def user_callable(function: Any, name: str) -> Callable[..., Any]:
    """The method of this name, or the function itself if it is a plain callable."""
    method = getattr(function, name, None)
    if callable(method):
        return method  # type: ignore[no-any-return]
    if callable(function):
        return function  # type: ignore[no-any-return]
    raise TypeError(f"{function!r} is neither callable nor has a method {name}()")


def open_function(function: Any, runtime_context: Any) -> Any:
    """Open the states that the function declares, and call its ``open`` if it has one; returns its result.

    Raises:
        UserCodeError: it failed.
    """
    try:
        open_declared_states(function, runtime_context)
        method = getattr(function, "open", None)
        return method(runtime_context) if callable(method) else None
    except HoldfastError:
        raise
    except (Exception, SystemExit) as error:
        raise user_error(error, runtime_context.operator_name, runtime_context.operator_uid) from error


def close_function(function: Any) -> Any:
    """Call the function's ``close`` if it has one; returns its result."""
    method = getattr(function, "close", None)
    return method() if callable(method) else None


def not_iterable(error: BaseException, results: Any) -> BaseException:
    """Explain an error of a call or of iterating over its results, if these are not iterable.

    Args:
        error: The error.
        results: The last return value of the function; None if there is none.
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
    """The traceback of the error and its causes, each without Holdfast's frames above the user's.

    If Holdfast raised the error to report a mistake, its text says what is wrong: the frames below the user's are left out
    too, as is a cause in Holdfast's own code.
    """
    report = traceback.TracebackException.from_exception(error)
    waiting, seen = [report], set()
    while waiting:
        each = waiting.pop()
        if id(each) not in seen:
            seen.add(id(each))
            _cut(each)
            waiting += [link for link in (each.__cause__, each.__context__) if link is not None]
    return "".join(report.format()).rstrip()


def _cut(report: traceback.TracebackException) -> None:
    theirs = _users(report)
    last = report.stack[-1] if report.stack else None
    if last is not None and is_holdfasts(last.filename) and (last.line or "").startswith("raise "):
        del report.stack[theirs[-1] + 1 if theirs else 0 :]
        causes = [link for link in (report.__cause__, report.__context__) if link is not None]
        if not any(map(_users, causes)):
            report.__cause__ = report.__context__ = None
    del report.stack[: theirs[0] if theirs else 0]


def _users(report: traceback.TracebackException) -> list[int]:
    """The positions of the frames in the user's code."""
    return [i for i, frame in enumerate(report.stack) if not is_holdfasts(frame.filename)]


def _text(value: Any, limit: int) -> str:
    try:
        return repr(value)[:limit]
    except Exception:  # raised by the class's repr; must not hide the original error
        return f"<{type(value).__name__} without a text>"


def user_error(error: BaseException, operator: str, uid: str, value: Any = _NOTHING, key: Any = None) -> UserCodeError:
    """The error for the user: the function's traceback, then operator, key and element.

    Raises:
        StorageError: the error itself: state that the function asked for is damaged, or could not be fetched.
    """
    if isinstance(error, UserCodeError):
        return error
    if isinstance(error, StorageError):
        raise error
    lines = [_traceback(error), f"  in operator {operator!r} (uid {uid!r})"]
    if key is not None:
        lines.append(f"  key: {_text(key, 500)}")
    if value is not _NOTHING:
        lines.append(f"  element: {_text(value, 1000)}")
    return UserCodeError("\n".join(lines), operator=operator, uid=uid, key="" if key is None else _text(key, 500))
