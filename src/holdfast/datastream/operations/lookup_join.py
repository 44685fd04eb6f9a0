"""LookupJoin: joins elements with rows of an external database, by async I/O and with a cache."""

from __future__ import annotations

import asyncio
import inspect
import time
from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any, Generic, TypeVar

from holdfast.datastream.functions import AsyncFunction, FlatJoinFunction, Function, RuntimeContext
from holdfast.datastream.operations.function_checks import check_function, check_lookup, check_object, selector_callable
from holdfast.functions.async_functions import retried
from holdfast.functions.lookup_cache import CachedRows, LookupCache
from holdfast.runtime.records.copies import copied
from holdfast.runtime.records.user_code import close_function, open_function

__all__ = ["AsyncLookupFunction", "LookupCache", "LookupJoin"]

KEY = TypeVar("KEY")
ROW = TypeVar("ROW")


class _Lookup:
    """A lookup under way, and the number of elements that wait for it."""

    def __init__(self, task: asyncio.Task[list[Any]]) -> None:
        self.task = task
        self.waiting = 0


class AsyncLookupFunction(Function, Generic[KEY, ROW]):
    """Reads the rows of a key from an external system. All methods run in the event loop of the subtask."""

    @abstractmethod
    async def async_lookup(self, key: KEY) -> list[ROW]:
        """Return the rows of a key, as a list; empty for none."""

    def open(self, runtime_context: RuntimeContext) -> Awaitable[None] | None:  # type: ignore[override]
        """Open connections; called once before the first element. May be a coroutine."""
        return None

    def close(self) -> Awaitable[None] | None:  # type: ignore[override]
        """Release connections; called once after the last element. May be a coroutine."""
        return None


class LookupJoin(AsyncFunction[Any, Any]):
    """Joins each element with the rows that a lookup of its key returns. Elements with one key share a lookup under way.

    Examples:
        ``AsyncDataStream.ordered_wait(payments, LookupJoin(lambda p: p[0], Users(), lambda p, user: ...), timeout)``
    """

    def __init__(
        self,
        key_selector: Callable[[Any], Any] | Any,
        lookup_function: AsyncLookupFunction[Any, Any],
        join_function: Callable[[Any, Any], Any] | Any,
        cache: LookupCache | None = None,
        left_outer: bool = False,
    ) -> None:
        """Create the function, to be given to a call of `AsyncDataStream`.

        Args:
            key_selector: A callable ``element -> key`` or a KeySelector.
            lookup_function: Reads the rows of a key.
            join_function: A callable ``(element, row) -> result``, a JoinFunction or a FlatJoinFunction. It may change both:
                they are copies.
            cache: The cache of each subtask; None: every lookup asks the external system.
            left_outer: Whether elements without a row are joined with None. Without it they have no result.
        """
        check_function(key_selector, "get_key", ("value",), "LookupJoin()")
        check_lookup(lookup_function, AsyncLookupFunction, "LookupJoin()")
        if isinstance(join_function, FlatJoinFunction):
            check_object(join_function, FlatJoinFunction, {}, "LookupJoin()")
        else:
            check_function(join_function, "join", ("element", "row"), "LookupJoin()")
        if cache is not None and not isinstance(cache, LookupCache):
            raise TypeError(f"the cache of LookupJoin() is a LookupCache or None, not {cache!r}.")
        self._select = selector_callable(key_selector, "get_key")
        self._lookup = lookup_function
        self._function = join_function
        self._settings = cache
        self._left_outer = left_outer

    async def open(self, runtime_context: RuntimeContext) -> None:  # type: ignore[override]
        """Open the functions, and the cache."""
        self._join = getattr(self._function, "join", self._function)
        self._cache = None if self._settings is None else CachedRows(self._settings, time.monotonic)
        self._pending: dict[Any, _Lookup] = {}
        group = runtime_context.get_metrics_group()
        self._hits, self._misses = group.counter("hitCount"), group.counter("missCount")
        self._loads, self._failures = group.counter("loadCount"), group.counter("numLoadFailures")
        open_function(self._function, runtime_context)
        opened = open_function(self._lookup, runtime_context)
        if inspect.isawaitable(opened):
            await opened

    async def close(self) -> None:  # type: ignore[override]
        """Close the functions."""
        close_function(self._function)
        closed = self._lookup.close()
        if inspect.isawaitable(closed):
            await closed

    async def async_invoke(self, value: Any) -> list[Any]:
        """Look up the key of the element, and join it with each row."""
        rows = await self._rows(self._select(value)) or ([None] if self._left_outer else [])
        joined: list[Any] = []
        for at, row in enumerate(rows, 1):
            element, row = value if at == len(rows) else copied(value), copied(row)
            if isinstance(self._function, FlatJoinFunction):
                joined += self._join(element, row) or ()
            else:
                joined.append(self._join(element, row))
        return joined

    async def _rows(self, key: Any) -> list[Any]:
        rows = None if self._cache is None else self._cache.get(key)
        if rows or (rows is not None and not retried.get()):  # a retry asks whether there is a row by now
            self._hits.inc()
            return rows
        self._misses.inc()
        lookup = self._pending.get(key)
        if lookup is None:
            lookup = self._pending[key] = _Lookup(asyncio.ensure_future(self._load(key)))
            lookup.task.add_done_callback(lambda done: self._loaded(key, lookup, done))
        lookup.waiting += 1
        try:
            return await asyncio.shield(lookup.task)
        except asyncio.CancelledError:
            # The element has waited too long, and leaves the lookup to those that wait already: it may never end.
            self._forget(key, lookup)
            if lookup.waiting == 1:
                lookup.task.cancel()
            raise
        finally:
            lookup.waiting -= 1

    async def _load(self, key: Any) -> list[Any]:
        rows = await self._lookup.async_lookup(key)
        if not isinstance(rows, list):
            raise TypeError(f"async_lookup() returned {rows!r:.200}; it must return a list of rows (an empty one for none)")
        if self._cache is not None:
            self._cache.put(key, rows)
        return rows

    def _forget(self, key: Any, lookup: _Lookup) -> None:
        if self._pending.get(key) is lookup:
            del self._pending[key]

    def _loaded(self, key: Any, lookup: _Lookup, done: asyncio.Task[list[Any]]) -> None:
        self._forget(key, lookup)
        failed = done.cancelled() or done.exception() is not None
        (self._failures if failed else self._loads).inc()
