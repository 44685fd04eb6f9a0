"""ResultQueue: the requests of an async operator with their watermarks, and the order in which results are emitted. Pure.

A watermark never overtakes the requests before it, and no request overtakes a watermark before it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["OrderedQueue", "Request", "ResultQueue", "UnorderedQueue"]


@dataclass(slots=True, eq=False)
class Request:
    """An element that waits for its results."""

    value: Any
    stamp: int
    late_by: int
    """The watermark that makes the element late; the minimum timestamp for an element in time."""
    results: list[Any] | None = None
    """None: not answered yet."""
    sent: float = 0.0
    """The start of the first attempt, in seconds of the monotonic clock."""
    stored: bytes | None = None
    """The element in stored form, if an epoch ended before its results were emitted."""
    segment: Any = None
    """Used only by the queue."""


class ResultQueue(Protocol):
    """Requests whose results have not been emitted, and the watermarks among them."""

    def __len__(self) -> int:
        """The number of requests."""

    def add(self, request: Request) -> None:
        """Add a request after all others."""

    def add_watermark(self, watermark: int) -> None:
        """Add a watermark after all requests."""

    def answered(self, request: Request) -> None:
        """Mark a request as answered."""

    def take(self) -> Iterator[Request | int]:
        """Take out the requests and watermarks that may be emitted, in that order."""

    @property
    def held(self) -> int:
        """The number of answered requests that wait for their turn."""

    def requests(self) -> Iterator[Request]:
        """All requests, in the order of the input."""


class OrderedQueue:
    """Emits results in the order of the input.

    >>> queue = OrderedQueue()
    >>> first, second = Request("a", 0, 0), Request("b", 0, 0)
    >>> queue.add(first); queue.add_watermark(5); queue.add(second)
    >>> second.results = []; queue.answered(second); list(queue.take())
    []
    >>> first.results = []; queue.answered(first); list(queue.take()) == [first, 5, second]
    True
    """

    def __init__(self) -> None:
        self._queue: deque[Request | int] = deque()
        self._requests = 0
        self.held = 0
        """The number of answered requests that wait for their turn."""

    def __len__(self) -> int:
        """The number of requests."""
        return self._requests

    def add(self, request: Request) -> None:
        """Add a request after all others."""
        self._queue.append(request)
        self._requests += 1

    def add_watermark(self, watermark: int) -> None:
        """Add a watermark after all requests."""
        if self._queue and isinstance(self._queue[-1], int):
            self._queue[-1] = watermark
        else:
            self._queue.append(watermark)

    def answered(self, request: Request) -> None:
        """Mark a request as answered."""
        self.held += 1

    def take(self) -> Iterator[Request | int]:
        """Take out the answered requests and the watermarks before the first request without an answer."""
        queue = self._queue
        while queue:
            first = queue[0]
            if isinstance(first, Request):
                if first.results is None:
                    return
                self._requests -= 1
                self.held -= 1
            yield queue.popleft()

    def requests(self) -> Iterator[Request]:
        """All requests, in the order of the input."""
        return (each for each in self._queue if isinstance(each, Request))


@dataclass(slots=True, eq=False)
class _Segment:
    """The requests between two watermarks."""

    waiting: dict[Request, None] = field(default_factory=dict)
    """All requests that have not been taken, in the order of the input."""
    answered: list[Request] = field(default_factory=list)
    watermark: int | None = None
    """The watermark after them."""


class UnorderedQueue:
    """Emits results as they arrive, within the bounds of the watermarks.

    >>> queue = UnorderedQueue()
    >>> first, second, third = (Request(each, 0, 0) for each in "abc")
    >>> queue.add(first); queue.add(second); queue.add_watermark(5); queue.add(third)
    >>> for request in (third, second):
    ...     queue.answered(request)
    >>> list(queue.take()) == [second]
    True
    >>> queue.answered(first); list(queue.take()) == [first, 5, third]
    True
    """

    def __init__(self) -> None:
        self._segments: deque[_Segment] = deque()
        self._requests = 0
        self.held = 0
        """The number of answered requests that wait for their turn."""

    def __len__(self) -> int:
        """The number of requests."""
        return self._requests

    def add(self, request: Request) -> None:
        """Add a request after all others."""
        segments = self._segments
        if not segments or segments[-1].watermark is not None:
            segments.append(_Segment())
        request.segment = segments[-1]
        segments[-1].waiting[request] = None
        self._requests += 1

    def add_watermark(self, watermark: int) -> None:
        """Add a watermark after all requests."""
        if not self._segments:
            self._segments.append(_Segment())
        self._segments[-1].watermark = watermark

    def answered(self, request: Request) -> None:
        """Mark a request as answered."""
        request.segment.answered.append(request)
        self.held += 1

    def take(self) -> Iterator[Request | int]:
        """Take out the answered requests before the first watermark; the watermark, if none is left there; and so on."""
        segments = self._segments
        while segments:
            first = segments[0]
            for request in first.answered:
                del first.waiting[request]
            self._requests -= len(first.answered)
            self.held -= len(first.answered)
            yield from first.answered
            first.answered.clear()
            if first.waiting or first.watermark is None:
                return
            segments.popleft()
            yield first.watermark

    def requests(self) -> Iterator[Request]:
        """All requests, in the order of the input."""
        return (request for segment in self._segments for request in segment.waiting)
