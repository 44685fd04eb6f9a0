"""Async I/O in one subtask: elements a second when each answer takes 10 ms, and the memory that the requests need.

The function only sleeps. Beside it, as the ceiling: the same number of asyncio workers in a loop, without Holdfast.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import tracemalloc
from typing import Any

from benchmarks.one_subtask import one_subtask
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.datastream import AsyncFunction, AsyncRetryStrategy
from holdfast.runtime.operators.async_wait import AsyncWaitOperator
from holdfast.runtime.plan.listed_states import ListedStates
from holdfast.runtime.plan.operator import Operator
from holdfast.runtime.records.records import RecordBatch
from holdfast.runtime.time.clock import Clock
from holdfast.testing.memory_store import MemoryStore

_FRAME = 2048


class Answers(AsyncFunction[Any, Any]):
    """Answers after a fixed time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def async_invoke(self, value: Any) -> list[Any]:
        """The element itself."""
        await asyncio.sleep(self._seconds)
        return [value]


def _operator(seconds: float, capacity: int, ordered: bool, taken: list[int]) -> Operator:
    operator = AsyncWaitOperator(Answers(seconds), 60_000, capacity, ordered, AsyncRetryStrategy.no_restart()).create()
    operator.context = one_subtask(
        Clock(),
        None,
        lists=ListedStates(Storage(MemoryStore()), None),
        emit=lambda batch: taken.append(len(batch.values)),
    )
    operator.open()
    return operator


def rate(seconds: float, capacity: int, ordered: bool, events: int) -> tuple[float, float]:
    """Elements a second, and microseconds of the processor for each."""
    taken: list[int] = []
    operator = _operator(seconds, capacity, ordered, taken)
    batches = [RecordBatch(list(range(at, at + _FRAME)), [MIN_TIMESTAMP] * _FRAME) for at in range(0, events, _FRAME)]
    began, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        operator.process(batch)
    operator.finish_pending()
    elapsed, spent = time.perf_counter() - began, time.process_time() - cpu
    operator.close()
    assert sum(taken) == len(batches) * _FRAME
    return sum(taken) / elapsed, spent / sum(taken) * 1e6


def ceiling(seconds: float, capacity: int, events: int) -> float:
    """Answers a second of plain asyncio."""

    async def all_of_them() -> None:
        turns = iter(range(events))

        async def worker() -> None:
            for _ in turns:
                await asyncio.sleep(seconds)

        await asyncio.gather(*(worker() for _ in range(capacity)))

    began = time.perf_counter()
    asyncio.run(all_of_them())
    return events / (time.perf_counter() - began)


def memory(capacity: int, size: int) -> float:
    """The memory of the operator while it is full, as a multiple of one capacity of elements of ``size`` bytes."""
    operator = _operator(0.002, capacity, False, [])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    for _ in range(20):
        operator.process(RecordBatch([bytes(size) for _ in range(capacity)]))
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    operator.finish_pending()
    operator.close()
    return peak / (capacity * size) - 1  # without the batch that is being processed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-command's arguments."""
    parser.add_argument("--milliseconds", type=float, default=10)
    parser.add_argument("--capacity", type=int, default=100)
    parser.add_argument("--events", type=int, default=40_960)
    parser.add_argument("--rounds", type=int, default=3)


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure unordered, ordered and plain asyncio in turn; medians."""
    seconds, capacity, events = options.milliseconds / 1000, options.capacity, options.events
    rounds = [
        (rate(seconds, capacity, False, events), rate(seconds, capacity, True, events), ceiling(seconds, capacity, events))
        for _ in range(options.rounds)
    ]
    figures = {
        "unordered": round(statistics.median(each[0][0] for each in rounds)),
        "unordered_cpu_us": round(statistics.median(each[0][1] for each in rounds), 1),
        "ordered": round(statistics.median(each[1][0] for each in rounds)),
        "asyncio": round(statistics.median(each[2] for each in rounds)),
        "memory_in_capacities": round(memory(capacity, 100_000), 2),
    }
    print("  ".join(f"{name} {figure}" for name, figure in figures.items()), file=sys.stderr)
    return {"milliseconds": options.milliseconds, "capacity": capacity, **figures}
