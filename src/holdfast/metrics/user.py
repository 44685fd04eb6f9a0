"""Metrics of user functions: PyFlink's MetricGroup with counters, gauges, meters and distributions.

They live in the task. Each epoch reports their changes since the last reading. An abandoned attempt's functions are closed
with their counts, so no record counts twice, and a task that moves to another worker loses none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

__all__ = ["Counter", "Distribution", "Meter", "MetricGroup", "Sample", "merge"]

Sample = tuple[Any, ...]
"""One metric's reading, plain data: ``("counter", change)``, ``("gauge", value)``, ``("meter", change, span in s)``,
``("distribution", count, sum, min, max)``."""


_log = logging.getLogger(__name__)


class Counter:
    """A counter, which can go up and down."""

    def __init__(self) -> None:
        self._count = 0
        self._read = 0

    def inc(self, n: int = 1) -> None:
        """Add ``n``."""
        self._count += n

    def dec(self, n: int = 1) -> None:
        """Subtract ``n``."""
        self._count -= n

    def get_count(self) -> int:
        """The count since this instance of the function was opened."""
        return self._count

    def _take(self) -> Sample | None:
        change, self._read = self._count - self._read, self._count
        return ("counter", change)


class Meter:
    """Rate of events: events per second over the last ``time_span_in_seconds``."""

    def __init__(self, time_span_in_seconds: int = 60) -> None:
        self._span = time_span_in_seconds
        self._count = 0
        self._read = 0

    def mark_event(self, value: int = 1) -> None:
        """Record ``value`` events."""
        self._count += value

    def get_count(self) -> int:
        """The number of events since this instance of the function was opened."""
        return self._count

    def _take(self) -> Sample | None:
        change, self._read = self._count - self._read, self._count
        return ("meter", change, self._span)


class Distribution:
    """Distribution of values: their count, sum, minimum and maximum."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._count, self._sum = 0, 0
        self._min: Any = None
        self._max: Any = None

    def update(self, value: int) -> None:
        """Record a value."""
        if not self._count:
            self._min = self._max = value
        elif value < self._min:
            self._min = value
        elif value > self._max:
            self._max = value
        self._count += 1
        self._sum += value

    def _take(self) -> Sample | None:
        if not self._count:
            return None
        sample = ("distribution", self._count, self._sum, self._min, self._max)
        self._clear()
        return sample


class _Gauge:
    def __init__(self, name: str, read: Callable[[], Any]) -> None:
        self._name = name
        self._read = read
        self._complained = False

    def _take(self) -> Sample | None:
        """Return the reading. A failing gauge loses its value and does not fail the job (as in Flink)."""
        try:
            value = self._read()
            if isinstance(value, int | float):
                return ("gauge", value)
            problem = f"gave {value!r:.200}, which is not a number"
        except Exception as error:
            problem = f"raised {error!r:.500}"
        if not self._complained:
            self._complained = True
            _log.warning("gauge %r %s; it is not shown while it does", self._name, problem)
        return None


_Metric = Counter | Meter | Distribution | _Gauge
_Kind = TypeVar("_Kind", Counter, Meter, Distribution)


class MetricGroup:
    """Named metrics and subgroups, as returned by ``RuntimeContext.get_metrics_group()``.

    Args:
        scope: The prefix of metric names, starting with the operator's name.

    >>> group = MetricGroup("score")
    >>> hits = group.add_group("rules").counter("hits")
    >>> hits.inc(3)
    >>> group.drain()
    {'score.rules.hits': ('counter', 3)}
    """

    def __init__(self, *scope: str) -> None:
        self._scope = scope
        self._metrics: dict[str, _Metric] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """Return a subgroup. With ``extra``, ``name`` is a key and ``extra`` its value, as in Flink."""
        child = MetricGroup(*self._scope, name, *(() if extra is None else (extra,)))
        child._metrics = self._metrics
        return child

    def counter(self, name: str) -> Counter:
        """Return the counter with this name; repeated calls return the same one."""
        return self._register(name, Counter())

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """Register a gauge, read from ``obj()`` once per epoch. The metric shows the largest value of all subtasks."""
        if not callable(obj):
            raise TypeError(f"gauge {name!r} needs a function without arguments, not {type(obj).__name__}")
        self._metrics[self._name(name)] = _Gauge(self._name(name), obj)

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """Return the meter with this name; repeated calls return the same one."""
        return self._register(name, Meter(time_span_in_seconds))

    def distribution(self, name: str) -> Distribution:
        """Return the distribution with this name; repeated calls return the same one."""
        return self._register(name, Distribution())

    def drain(self) -> dict[str, Sample]:
        """Return the changes since the last call, by full metric name.

        Called at the end of an epoch. The first epoch also reports what ``open`` recorded; the counts of a failed attempt
        end with its functions.
        """
        taken = {name: metric._take() for name, metric in self._metrics.items()}
        return {name: sample for name, sample in taken.items() if sample is not None}

    def _name(self, name: str) -> str:
        return ".".join((*self._scope, name))

    def _register(self, name: str, metric: _Kind) -> _Kind:
        full = self._name(name)
        present = self._metrics.setdefault(full, metric)
        if not isinstance(present, type(metric)):
            was, wanted = type(present).__name__.strip("_").lower(), type(metric).__name__.lower()
            raise ValueError(f"metric {full!r} is a {was} already, it cannot be a {wanted} too: choose another name")
        return present


def merge(snapshots: Iterable[Mapping[str, Sample]]) -> dict[str, Sample]:
    """Merge snapshots of several tasks, or consecutive snapshots of one task.

    >>> merge([{"hits": ("counter", 3)}, {"hits": ("counter", 4), "size": ("gauge", 2)}])
    {'hits': ('counter', 7), 'size': ('gauge', 2)}
    """
    merged: dict[str, Sample] = {}
    for snapshot in snapshots:
        for name, sample in snapshot.items():
            have = merged.get(name)
            merged[name] = tuple(sample) if have is None or have[0] != sample[0] else _join(have, sample)
    return merged


def _join(a: Sample, b: Sample) -> Sample:
    kind = a[0]
    if kind == "counter":
        return (kind, a[1] + b[1])
    if kind == "meter":
        return (kind, a[1] + b[1], a[2])
    if kind == "gauge":
        return (kind, max(a[1], b[1]))
    return (kind, a[1] + b[1], a[2] + b[2], min(a[3], b[3]), max(a[4], b[4]))
