"""Programs with async I/O, for its tests."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import pytest

from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import (
    AsyncDataStream,
    AsyncFunction,
    StreamExecutionEnvironment,
)
from holdfast.datastream.async_retry_predicates import exception_type_predicate

from .inprocess import SplitSource

LONG = Time.seconds(60)


class Looks(AsyncFunction):
    """Answers each element by itself, after a moment."""

    def __init__(self, most: float = 0.003) -> None:
        self.most = most

    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(random.random() * self.most)
        return [value]


def numbers(env: StreamExecutionEnvironment, values: list[Any], cut: int = 0) -> Any:
    return env.from_source(SplitSource({"s": values}, cut), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")


def waiting(how: str, source: Any, function: Any, timeout: Time = LONG, **options: Any) -> Any:
    return getattr(AsyncDataStream, f"{how}_wait")(source, function, timeout, **options)


both = pytest.mark.parametrize("how", ["ordered", "unordered"])


GATE = threading.Event()
ASKED: Counter[Any] = Counter()


class Gated(AsyncFunction):
    """Answers the elements below 10 once the gate is open, all others at once."""

    async def async_invoke(self, value: Any) -> list[Any]:
        ASKED[value] += 1
        while value < 10 and not GATE.is_set():
            await asyncio.sleep(0.002)
        return [value]


def is_a(kind: type[Exception], error: Exception) -> bool:
    return exception_type_predicate(error, kind)
