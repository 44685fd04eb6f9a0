"""Calls that wait for the storage, several at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

__all__ = ["in_parallel"]

_AT_ONCE = 4

_T = TypeVar("_T")
_R = TypeVar("_R")


def in_parallel(function: Callable[[_T], _R], items: Iterable[_T], at_once: int = _AT_ONCE) -> Iterator[_R]:
    """Yield the results in the order of the items; a few are computed ahead, in threads.

    ``at_once``: the number of threads.

    >>> list(in_parallel(str.upper, ["a", "b"]))
    ['A', 'B']
    """
    with ThreadPoolExecutor(at_once, "holdfast-fetch") as threads:
        ahead: deque[Future[_R]] = deque()
        for item in items:
            ahead.append(threads.submit(function, item))
            if len(ahead) >= at_once:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
