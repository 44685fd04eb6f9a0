"""Uploads that are complete when they begin, for tests that depend on neither threads nor time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

__all__ = ["Inline"]


class Inline:
    """An executor of uploads that runs each of them before it returns."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Run the function; its result, or error, is in the future."""
        result: Future[Any] = Future()
        try:
            result.set_result(function(*arguments))
        except Exception as error:
            result.set_exception(error)
        return result

    def shutdown(self) -> None:
        """Nothing runs."""
