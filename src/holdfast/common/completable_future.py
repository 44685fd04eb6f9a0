"""CompletableFuture, a result that a running job delivers later."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from concurrent.futures import Future, wait
from typing import Any, Generic, TypeVar

from holdfast.errors import HoldfastError

__all__ = ["CompletableFuture"]

T = TypeVar("T")

_LOOK_EVERY_S = 0.2
"""How often a wait lets Python handle signals. Only the main thread does that, and the kernel may give Ctrl-C to another
thread, which does not wake it."""


class CompletableFuture(Generic[T]):
    """A result that arrives later; supports ``await``.

    Args:
        future: the future that delivers the result.
    """

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    @staticmethod
    def completed(value: T) -> CompletableFuture[T]:
        """Create a future that already has its value."""
        future: Future[T] = Future()
        future.set_result(value)
        return CompletableFuture(future)

    def cancel(self) -> bool:
        """Cancel the wait; return False if it is too late."""
        return self._future.cancel()

    def cancelled(self) -> bool:
        """Whether the wait was cancelled."""
        return self._future.cancelled()

    def done(self) -> bool:
        """Whether the value or an error has arrived."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value, at most ``timeout`` seconds.

        Raises:
            TimeoutError: the value did not arrive in time.
            Exception: the job failed with this error.
        """
        error = self.exception(timeout)
        if error is not None:
            # Drop the earlier traceback, or a second call would show the first call's frames too.
            raise error.with_traceback(None) if isinstance(error, HoldfastError) else error
        return self._future.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end, at most ``timeout`` seconds; return the error, or None on success.

        Raises:
            TimeoutError: the end did not come in time.
        """
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not self._future.done():
            left = until - time.monotonic()
            if left <= 0:
                raise TimeoutError
            wait([self._future], min(left, _LOOK_EVERY_S))
        return self._future.exception()

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        return asyncio.wrap_future(self._future).__await__()
