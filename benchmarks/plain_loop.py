"""The functions of a stateful job in a plain loop, without an engine: the limit of a program with these functions.

States and windows are dictionaries in memory, timers a heap; nothing is partitioned, stored or sent.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections import defaultdict
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from benchmarks.data import DISORDER_MS, data_set
from benchmarks.stateful import Emit, Fraud, Parse, SumAndCount, check
from holdfast.common.windows import TimeWindow
from holdfast.metrics.user import MetricGroup

_MINUTE_MS = 60_000
_BATCH = 1024
"""Events between two advances of the watermark, as in a frame."""


class _Context:
    """The context of all calls, and the timers."""

    def __init__(self, metrics: MetricGroup) -> None:
        self.key: Any = None
        self.metrics = metrics
        self._timers: list[tuple[int, Any]] = []

    def get_metrics_group(self) -> MetricGroup:
        return self.metrics

    def get_state(self, descriptor: Any) -> _Value:
        return _Value(self)

    def get_list_state(self, descriptor: Any) -> _List:
        return _List(self)

    def timer_service(self) -> _Context:
        return self

    def register_event_time_timer(self, timestamp: int) -> None:
        heappush(self._timers, (timestamp, self.key))

    def fire(self, function: Fraud, watermark: int) -> None:
        timers = self._timers
        while timers and timers[0][0] <= watermark:
            when, self.key = heappop(timers)
            function.on_timer(when, self)


class _Value:
    """A value of each key."""

    def __init__(self, context: _Context) -> None:
        self._context = context
        self._held: dict[Any, Any] = {}

    def value(self) -> Any:
        return self._held.get(self._context.key)

    def update(self, value: Any) -> None:
        self._held[self._context.key] = value

    def clear(self) -> None:
        self._held.pop(self._context.key, None)


class _List(_Value):
    """A list of each key."""

    def get(self) -> Any:
        return self._held[self._context.key]

    def update(self, value: Any) -> None:
        self._held[self._context.key] = value[:]


class _Windows:
    """The windows of a minute, and the context of the call for one that fires."""

    def __init__(self, metrics: MetricGroup) -> None:
        self.metrics = metrics
        self.open: defaultdict[int, dict[int, tuple[float, int]]] = defaultdict(dict)
        self._window = TimeWindow(0, 0)

    def get_metrics_group(self) -> MetricGroup:
        return self.metrics

    def window(self) -> TimeWindow:
        return self._window

    def fire(self, aggregate: SumAndCount, function: Emit, watermark: int) -> Iterator[Any]:
        for start in sorted(start for start in self.open if start + _MINUTE_MS - 1 <= watermark):
            self._window = TimeWindow(start, start + _MINUTE_MS)
            for user, held in self.open.pop(start).items():
                yield from function.process(user, self, (aggregate.get_result(held),))


def _fraud(path: Path, metrics: MetricGroup) -> int:
    context, parse, function = _Context(metrics), Parse().map, Fraud()
    results: list[Any] = []
    function.open(context)  # type: ignore[arg-type]
    process, count = function.process_element, 0
    with open(path) as lines:
        for line in lines:
            event = parse(line)
            context.key = event[0]
            results.extend(process(event, context))
            count += 1
            if not count % _BATCH:
                results.clear()
                context.fire(function, event[2] - 2 * DISORDER_MS)
    return count


def _window(path: Path, metrics: MetricGroup) -> int:
    windows, parse, aggregate, function = _Windows(metrics), Parse().map, SumAndCount(), Emit()
    results: list[Any] = []
    function.open(windows)  # type: ignore[arg-type]
    add, opened, count, timestamp = aggregate.add, windows.open, 0, 0
    with open(path) as lines:
        for line in lines:
            event = parse(line)
            user, _, timestamp = event
            window = opened[timestamp - timestamp % _MINUTE_MS]
            held = window.get(user)
            window[user] = add(event, aggregate.create_accumulator() if held is None else held)
            count += 1
            if not count % _BATCH:
                results.clear()
                results.extend(windows.fire(aggregate, function, timestamp - 2 * DISORDER_MS))
    results.extend(windows.fire(aggregate, function, timestamp + 2 * _MINUTE_MS))
    return count


_LOOPS = {"fraud": _fraud, "window": _window}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("workload", choices=_LOOPS)
    parser.add_argument("data", help="a data set, e.g. u10k-2m")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the functions over both files; returns microseconds of the processor an event."""
    metrics, count, seconds = MetricGroup(options.workload), 0, 0.0
    gc.disable()  # as in a task slot
    try:
        for name in ("part-0.csv", "part-1.csv"):
            began = time.process_time()
            count += _LOOPS[options.workload](data_set(options.data) / name, metrics)
            seconds += time.process_time() - began
    finally:
        gc.enable()
    counted = {name.rsplit(".", 1)[-1]: sample[1] for name, sample in metrics.drain().items()}
    figures = {"workload": options.workload, "data": options.data, "events": count, "us": round(seconds / count * 1e6, 3)}
    return {**figures, "ok": check(options.workload, options.data, counted)}
