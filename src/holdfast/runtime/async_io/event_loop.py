"""EventLoop: runs the requests of an async operator in an event loop with a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import logging
import os
import queue
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from holdfast.functions.async_functions import AsyncFunction, AsyncRetryStrategy, retried
from holdfast.runtime.async_io.fine_timers import new_loop
from holdfast.runtime.async_io.result_queue import Request
from holdfast.runtime.records.copies import Copy
from holdfast.runtime.records.places import place_of

__all__ = ["BlockedLoop", "EventLoop", "awaited"]

log = logging.getLogger(__name__)

_CHECK_SECONDS = 1.0
"""Interval in which a waiting task checks that the event loop is alive."""
_GRACE_SECONDS = 5.0
"""How late the event loop may notice a timeout before it counts as blocked."""
_PAUSE_SECONDS = 1.0
"""How long the loop may take to resume after the process was paused."""
_CLOSING_SECONDS = 5.0
"""How long cancelled requests may run on when the operator is closed."""


class BlockedLoop(TimeoutError):
    """The event loop is stuck in a call that blocks."""

    def __init__(self, message: str, request: Request | None) -> None:
        super().__init__(message)
        self.request = request
        """The request whose coroutine blocks, if known."""


_waits: dict[int, EventLoop] = {}
"""The loops that tasks wait for, by the task's thread."""


def awaited(thread: int) -> tuple[Request, str] | None:
    """The oldest request that the task in a thread waits for, and where its coroutine waits; None if it does not wait."""
    loop = _waits.get(thread)
    return None if loop is None else loop.oldest()


class EventLoop:
    """Calls an AsyncFunction for requests, with timeouts and retries.

    The task's thread owns the object; only coroutines and callbacks run in the loop's thread.

    Args:
        function: The AsyncFunction.
        timeout_ms: The time that a request may take, with all its retries.
        strategy: When to retry.
        capacity: The most concurrent requests, and the most answers waiting to be fetched.
        copied: Copies an element for an attempt, which may change it.
        name: The thread's name.
    """

    def __init__(
        self,
        function: AsyncFunction[Any, Any],
        timeout_ms: int,
        strategy: AsyncRetryStrategy[Any],
        capacity: int,
        copied: Copy,
        name: str,
    ) -> None:
        self._function = function
        self._timeout = timeout_ms / 1000
        self._strategy = strategy
        predicate = strategy.get_retry_predicate()
        self._retry_result = predicate.result_predicate()
        self._retry_error = predicate.exception_predicate()
        self._capacity = capacity
        self._copied = copied
        self._answers: deque[tuple[Request, list[Any], BaseException | None]] = deque()
        self._wanted = 0
        """The number of answers that the task waits for; 0 if it does not wait."""
        self._failed = False
        """Whether an answer is an error."""
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()
        """Wakes the task that waits for answers."""
        self._waiting: deque[Request] = deque()
        """The requests that wait for room."""
        self._starved = False
        """Whether there is no room because of answers that wait to be fetched, or for their turn."""
        self._held = 0
        """The number of answered requests that wait for their turn, and take up room."""
        self._running: dict[Request, asyncio.Task[None]] = {}
        """The requests without an answer, the oldest first."""
        self._timer: asyncio.TimerHandle | None = None
        self._overdue: tuple[asyncio.TimerHandle | None, float] = (None, 0.0)
        """A timer that the loop has missed, and when this was first noticed."""
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    # for the thread of the task

    def call(self, function: Callable[[], Any]) -> None:
        """Call a function in the event loop, and await its result if it is a coroutine.

        Raises:
            BlockedLoop: the loop misses its timers during the call.
        """

        async def called() -> None:
            try:
                result = function()
                if inspect.isawaitable(result):
                    await result
            except SystemExit as error:  # would end the loop
                raise RuntimeError(f"the async function called sys.exit({error.code!r})") from error

        done = asyncio.run_coroutine_threadsafe(called(), self._loop)
        while True:
            try:
                return done.result(_CHECK_SECONDS)
            except concurrent.futures.TimeoutError:
                if done.done():  # the function itself raised it
                    raise
                self.check()

    def send(self, requests: Sequence[Request]) -> None:
        """Start the calls for these requests as soon as there is room."""
        if requests:
            self._waiting += requests
            self._loop.call_soon_threadsafe(self._begin)

    def hold(self, held: int) -> None:
        """Set the number of answered requests that wait for their turn."""
        self._held = held
        if self._starved:
            self._loop.call_soon_threadsafe(self._begin)

    def answers(self, wait: int) -> list[tuple[Request, list[Any], BaseException | None]]:
        """The answers since the last call: results, or the function's error.

        Args:
            wait: Number of answers to wait for; an error ends the wait. More than one is allowed only if no answered request
                waits for its turn, and never more than the capacity: otherwise there may be no room for a request whose
                answer is awaited.

        Raises:
            BlockedLoop: the event loop notices no timeout.
        """
        self.check()
        answers = self._answers
        thread = threading.get_ident()
        try:
            while True:
                self._wanted = wait  # set before looking: the other thread adds an answer, and then reads this
                if len(answers) >= wait or (self._failed and answers):
                    break
                _waits[thread] = self
                try:
                    self._bell.get(timeout=_CHECK_SECONDS)
                except queue.Empty:
                    self.check()
            self._wanted = 0
        finally:
            _waits.pop(thread, None)
        return [answers.popleft() for _ in range(len(answers))]

    @property
    def answered(self) -> bool:
        """Whether there is an answer to fetch."""
        return bool(self._answers)

    def oldest(self) -> tuple[Request, str] | None:
        """The oldest request without an answer, and where its coroutine waits. Thread-safe."""
        try:
            request, task = next(iter(self._running.items()))
        except (StopIteration, RuntimeError):  # none left, or one was answered just now
            return None
        frame = _frame(task)
        return request, "a coroutine" if frame is None else place_of(frame)

    def check(self) -> None:
        """Check that the event loop notices timeouts.

        Raises:
            BlockedLoop: it does not.
        """
        timer, now = self._timer, time.monotonic()
        if timer is None or now <= timer.when() + _GRACE_SECONDS:
            return
        if self._overdue[0] is not timer:
            self._overdue = timer, now  # after a pause of the whole process, the loop needs a moment
        elif now > self._overdue[1] + _PAUSE_SECONDS:
            raise self._blocked()

    def _blocked(self) -> BlockedLoop:
        inner: FrameType | None = sys._current_frames().get(self._thread.ident or 0)
        frame, depth = inner, 0
        while frame is not None and frame.f_code is not EventLoop._answer.__code__:
            frame, depth = frame.f_back, depth + 1
        request: Request | None = None if frame is None else frame.f_locals["request"]
        where = "" if frame is None else "\n".join([" It blocks here:", *traceback.format_stack(inner)[-depth:]]).rstrip()
        return BlockedLoop(
            f"the event loop of the async function has not answered for {self._timeout + _GRACE_SECONDS:g} s: a coroutine "
            f"must await, never block (asyncio.sleep() instead of time.sleep(), an async client instead of requests, "
            f"asyncio.to_thread() for a client that blocks).{where}",
            request,
        )

    def close(self, last: Callable[[], Any]) -> None:
        """Cancel all requests, call ``last`` in the loop, and end the thread."""
        try:
            self.call(lambda: self._end(last))
        finally:
            self._thread.join(_CLOSING_SECONDS)
            if self._thread.is_alive():
                log.warning("the event loop of %s is blocked; its thread is left behind", self._thread.name)

    # in the thread of the loop

    async def _end(self, last: Callable[[], Any]) -> None:
        try:
            await self._cancel()
            result = last()
            if inspect.isawaitable(result):
                await result
        finally:
            self._loop.call_soon(self._loop.stop)

    async def _cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        self._waiting.clear()
        self._running.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_CLOSING_SECONDS)

    def _begin(self) -> None:
        """Start as many calls as there is room for."""
        waiting, running, loop = self._waiting, self._running, self._loop
        now = loop.time()
        while waiting and len(running) < self._capacity:
            # Set before looking: the other thread makes room, and then reads this.
            self._starved = True
            if len(running) + self._held >= self._capacity or len(self._answers) >= self._capacity:
                break
            self._starved = False
            request = waiting.popleft()
            request.sent = now
            running[request] = loop.create_task(self._answer(request))
        if running and self._timer is None:
            self._timer = loop.call_at(now + self._timeout, self._expire)

    async def _answer(self, request: Request) -> None:
        """Call the function until its answer needs no retry."""
        strategy, attempts = self._strategy, 0
        results: list[Any] = []
        error: BaseException | None = None
        try:
            while True:
                attempts += 1
                if attempts > 1:
                    retried.set(True)
                try:
                    results = _checked(await self._function.async_invoke(self._copied(request.value)), "async_invoke")
                except Exception as raised:
                    if self._retry_error is None or not self._retry_error(raised) or not strategy.can_retry(attempts):
                        raise
                else:
                    if self._retry_result is None or not self._retry_result(results) or not strategy.can_retry(attempts):
                        break
                await asyncio.sleep(strategy.get_backoff_time_millis(attempts) / 1000)
        except (Exception, SystemExit, asyncio.CancelledError) as raised:
            error = raised  # a cancellation comes from the function itself, unless the request is over
        self._finish(request, results, error)

    def _finish(self, request: Request, results: list[Any], error: BaseException | None) -> None:
        if self._running.pop(request, None) is None:
            return
        answers = self._answers
        answers.append((request, results, error))
        if error is not None:
            self._failed = True
        if self._wanted and (len(answers) >= self._wanted or self._failed):
            self._wanted = 0  # before ringing the bell, because the woken thread sets it again
            self._bell.put(None)
        if self._waiting:
            self._begin()

    def _expire(self) -> None:
        """End the requests that have taken too long; set the timer for the next."""
        now = self._loop.time()
        self._timer = None
        while self._running:
            request, task = next(iter(self._running.items()))
            due = request.sent + self._timeout
            if due > now:
                self._timer = self._loop.call_at(due, self._expire)
                return
            where = _position(task)
            error: BaseException | None = None
            results: list[Any] = []
            try:
                if type(self._function).timeout is AsyncFunction.timeout:
                    raise TimeoutError(
                        f"async_invoke() gave no answer within {round(self._timeout * 1000)} ms, all attempts included"
                        f"{where}. Allow it more time, or override timeout(value) to emit something else in its place"
                    )
                results = _checked(self._function.timeout(self._copied(request.value)), "timeout")
            except (Exception, SystemExit) as raised:
                error = raised
            self._finish(request, results, error)
            task.cancel()


def _checked(results: Any, method: str) -> list[Any]:
    if type(results) is list or isinstance(results, list):
        return results
    if results is None:
        raise TypeError(f"{method}() returned None; it must return a list (an empty one for nothing)")
    raise TypeError(f"{method}() returned a {type(results).__name__} ({results!r:.200}); it must return a list of results")


def _position(task: asyncio.Task[None]) -> str:
    """Where the coroutine of the function waits, e.g. ``; it waits in lookup (job.py:12)``."""
    frame = _frame(task)
    if frame is None:
        return ""
    return f"; it waits in {frame.f_code.co_name} ({os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno})"


def _frame(task: asyncio.Task[None]) -> FrameType | None:
    """The frame of the function's coroutine; None if it has none at the moment."""
    waiting: Any = task.get_coro()
    frame: FrameType | None = None
    while (frame := getattr(waiting, "cr_frame", None)) is not None and frame.f_code.co_filename == __file__:
        waiting = waiting.cr_await
    return frame
