"""The functions of the fraud job in a plain loop, without an engine: the limit of a program with these functions.

States are dictionaries in memory, timers a sorted list; nothing is partitioned, stored or sent.
"""

from __future__ import annotations

import argparse
import gc
import time
from heapq import heappop, heappush
from typing import Any

from benchmarks.data import data_set
from benchmarks.stateful import Fraud, Parse, check
from holdfast.metrics.user import MetricGroup


class _Context:
    """The context of all calls, and the timers."""

    def __init__(self) -> None:
        self.key: Any = None
        self.metrics = MetricGroup("fraud")
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("data", help="a data set, e.g. u10k-2m")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run the functions over both files; returns microseconds of the processor an event."""
    context, count, seconds = _Context(), 0, 0.0
    parse, function = Parse().map, Fraud()
    function.open(context)  # type: ignore[arg-type]
    process = function.process_element
    gc.disable()  # as in a task slot
    results = []
    for name in ("part-0.csv", "part-1.csv"):
        began = time.process_time()
        with open(data_set(options.data) / name) as lines:
            for line in lines:
                event = parse(line)
                context.key = event[0]
                results.extend(process(event, context))
                count += 1
                if not count % 1024:
                    results.clear()
                    context.fire(function, event[2] - 10_000)
        seconds += time.process_time() - began
    metrics = {name.rsplit(".", 1)[-1]: sample[1] for name, sample in context.metrics.drain().items()}
    figures = {"data": options.data, "events": count, "us": round(seconds / count * 1e6, 3)}
    return {**figures, "ok": check("fraud", options.data, metrics)}
