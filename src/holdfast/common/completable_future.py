"""CompletableFuture, the answer of a running job that is still to come."""

from __future__ import annotations

from collections.abc import Generator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from holdfast.errors import HoldfastError

__all__ = ["CompletableFuture"]

T = TypeVar("T")


class CompletableFuture(Generic[T]):
    """A value that is still to come; it can also be awaited.

    Args:
        future: where it comes from.
    """

    def __init__(self, future: Future[T]) -> None:
        self._future = future

    @staticmethod
    def completed(value: T) -> CompletableFuture[T]:
        """One that has its value."""
        future: Future[T] = Future()
        future.set_result(value)
        return CompletableFuture(future)

    def cancel(self) -> bool:
        """Give up waiting; False if it is too late for that."""
        return self._future.cancel()

    def cancelled(self) -> bool:
        """Whether it was given up."""
        return self._future.cancelled()

    def done(self) -> bool:
        """Whether the value, or an error, is there."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the value, at most ``timeout`` seconds.

        Raises:
            TimeoutError: it did not come in time.
            Exception: the error that came in its place.
        """
        error = self._future.exception(timeout)
        if error is not None:
            # From here on: a second call must not tell of the first one's way as well.
            raise error.with_traceback(None) if isinstance(error, HoldfastError) else error
        return self._future.result()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end, and return the error that came in the value's place, or None."""
        return self._future.exception(timeout)

    def __await__(self) -> Generator[Any, None, T]:
        import asyncio

        return asyncio.wrap_future(self._future).__await__()
