"""The metrics of user functions: PyFlink's MetricGroup with counters, gauges, meters and distributions.

They live in the task and are read once an epoch, as changes since the last reading: what an abandoned attempt of an
epoch counted is dropped with it, and a task that moves to another worker loses nothing.
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
    """A number that goes up and down."""

    def __init__(self) -> None:
        self._count = 0
        self._read = 0

    def inc(self, n: int = 1) -> None:
        """Add ``n``."""
        self._count += n

    def dec(self, n: int = 1) -> None:
        """Take ``n`` off."""
        self._count -= n

    def get_count(self) -> int:
        """The count since this instance of the function was opened."""
        return self._count

    def _take(self) -> Sample | None:
        change, self._read = self._count - self._read, self._count
        return ("counter", change)


class Meter:
    """How often something happens: events per second over the last ``time_span_in_seconds``."""

    def __init__(self, time_span_in_seconds: int = 60) -> None:
        self._span = time_span_in_seconds
        self._count = 0
        self._read = 0

    def mark_event(self, value: int = 1) -> None:
        """It happened, ``value`` times."""
        self._count += value

    def get_count(self) -> int:
        """How often since this instance of the function was opened."""
        return self._count

    def _take(self) -> Sample | None:
        change, self._read = self._count - self._read, self._count
        return ("meter", change, self._span)


class Distribution:
    """How values are spread: their count, sum, smallest and largest."""

    def __init__(self) -> None:
        self._clear()

    def _clear(self) -> None:
        self._count, self._sum = 0, 0
        self._min: Any = None
        self._max: Any = None

    def update(self, value: int) -> None:
        """Take a value in."""
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
        """The reading; a gauge that fails costs its value, not the job (as in Flink)."""
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
    """Named metrics, and groups of them; what ``RuntimeContext.get_metrics_group()`` gives.

    Args:
        scope: The names before those of the metrics, the operator's first.

    >>> group = MetricGroup("score")
    >>> hits = group.add_group("rules").counter("hits")
    >>> hits.inc(3)
    >>> group.snapshot()
    {'score.rules.hits': ('counter', 3)}
    """

    def __init__(self, *scope: str) -> None:
        self._scope = scope
        self._metrics: dict[str, _Metric] = {}

    def add_group(self, name: str, extra: str | None = None) -> MetricGroup:
        """A group within this one; with ``extra``, ``name`` is a key and ``extra`` its value, as in Flink."""
        child = MetricGroup(*self._scope, name, *(() if extra is None else (extra,)))
        child._metrics = self._metrics
        return child

    def counter(self, name: str) -> Counter:
        """The counter of this name; the same one when asked again."""
        return self._register(name, Counter())

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """A number that ``obj()`` gives when asked, once an epoch. Of several subtasks the largest is shown."""
        if not callable(obj):
            raise TypeError(f"gauge {name!r} needs a function without arguments, not {type(obj).__name__}")
        self._metrics[self._name(name)] = _Gauge(self._name(name), obj)

    def meter(self, name: str, time_span_in_seconds: int = 60) -> Meter:
        """The meter of this name; the same one when asked again."""
        return self._register(name, Meter(time_span_in_seconds))

    def distribution(self, name: str) -> Distribution:
        """The distribution of this name; the same one when asked again."""
        return self._register(name, Distribution())

    def snapshot(self) -> dict[str, Sample]:
        """What changed since the last snapshot, under each metric's full name.

        Called at the end of an epoch; and at the beginning, to drop what an attempt that failed left behind.
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
    """The snapshots of several tasks, or of one after another, as one.

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
