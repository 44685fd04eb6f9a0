"""Ready-made predicates for retry strategies of async I/O."""

from __future__ import annotations

from typing import Any

__all__ = ["empty_result_predicate", "exception_type_predicate", "has_exception_predicate"]


def empty_result_predicate(result: list[Any]) -> bool:
    """Whether the answer has no results."""
    return not result


def has_exception_predicate(error: Exception) -> bool:
    """True: every exception is retried."""
    return True


def exception_type_predicate(error: Exception, expected_error_type: type[BaseException]) -> bool:
    """Whether the exception has the type; bind the second argument with ``functools.partial``."""
    return isinstance(error, expected_error_type)
