"""Autoscaler: chooses a job's parallelism from its load and its backlog. Pure.

The busiest vertex decides, as in Flink's autoscaler (FLIP-271). The load is its utilization at the current parallelism,
times the ratio of arriving records (plus a share of the backlog) to read records. The parallelism is chosen such that the
load meets the target utilization.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from holdfast.metrics.stats import EpochStats, VertexStats

__all__ = ["Autoscaler", "AutoscalerSettings", "Scope"]


@dataclass(frozen=True)
class AutoscalerSettings:
    """The bounds and the pace of rescaling."""

    least: int
    most: int | None
    """None: the number of Spark's cores."""
    utilization: float
    """The target utilization, between 0 and 1."""
    stabilization_seconds: float
    """Seconds without a decision after the start and after each rescaling."""
    window_seconds: float
    """Seconds over which the load is measured, and within which a backlog should be worked off."""


@dataclass(frozen=True)
class Scope:
    """What a rescaling changes."""

    vertices: frozenset[str]
    """The ids of the vertices that follow the job's parallelism; others have their own."""
    most: int
    """The highest parallelism at which the program can run: the lowest max parallelism of these vertices."""
    partly: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """By the id of a vertex that also contains operators, or a source, with a parallelism of their own: the uids of its
    other operators, which are a vertex of their own at any other parallelism of the job.
    """

    def busy_seconds(self, stats: EpochStats) -> float:
        """The busy time of a subtask of the busiest vertex that a rescaling changes, in seconds."""
        return max((self._busy_ms(v) / 1000 / v.parallelism for v in stats.vertices if v.id in self.vertices), default=0.0)

    def _busy_ms(self, vertex: VertexStats) -> float:
        if vertex.id not in self.partly:
            return vertex.busy_ms
        return sum(operator.busy_ms for operator in vertex.operators if operator.uid in self.partly[vertex.id])


@dataclass(frozen=True)
class _Sample:
    at: float
    """The end of the epoch, in seconds."""
    records: int
    backlog: int
    busy_seconds: float
    """The busy time of one subtask of the busiest vertex."""


_LEAST = 2
"""The fewest epochs that count, however old: with long checkpoint intervals the window would hold fewer."""


class Autoscaler:
    """The load of a job over the latest epochs.

    Args:
        settings: The bounds and the pace.
        cores: Returns the current number of Spark's cores: executors come and go.
        scope: Returns what a rescaling from a parallelism changes.
    """

    def __init__(self, settings: AutoscalerSettings, cores: Callable[[], int], scope: Callable[[int], Scope]) -> None:
        self._settings = settings
        self._cores = cores
        self._scope_at = scope
        self._scope = Scope(frozenset(), 0)
        self._parallelism = 0
        """The job's parallelism in the samples."""
        self._samples: deque[_Sample] = deque()
        self._stable_from = 0.0

    def observe(self, stats: EpochStats, parallelism: int, now: float) -> int | None:
        """Add an epoch that has ended; returns the parallelism to which the job should change, if any.

        Args:
            stats: The epoch.
            parallelism: The job's parallelism in this epoch.
            now: The time in seconds, by a monotonic clock.
        """
        if parallelism != self._parallelism:
            self._parallelism, self._scope = parallelism, self._scope_at(parallelism)
            self._start_over(now)
        busy = self._scope.busy_seconds(stats)
        self._samples.append(_Sample(now, stats.records_in, sum(stats.backlog.values()), busy))
        while len(self._samples) > _LEAST and self._samples[0].at < now - self._settings.window_seconds:
            self._samples.popleft()
        if now < self._stable_from or len(self._samples) < 2:
            return None
        wanted = self._wanted()
        if wanted == parallelism:
            return None
        self._start_over(now)
        return wanted

    def _start_over(self, now: float) -> None:
        self._samples.clear()
        self._stable_from = now + self._settings.stabilization_seconds

    def _wanted(self) -> int:
        """The parallelism for the load of the window."""
        first, *rest = self._samples
        last = self._samples[-1]
        seconds = max(last.at - first.at, 1e-3)
        read = sum(sample.records for sample in rest)
        arrived = read + last.backlog - first.backlog + last.backlog * seconds / self._settings.window_seconds
        utilization = sum(sample.busy_seconds for sample in rest) / seconds
        load = utilization * (max(arrived, 0.0) / read if read else 1.0)
        target, most = self._settings.utilization, self._settings.most
        if target / 2 <= load <= (1 + target) / 2:
            wanted = self._parallelism  # close enough: a rescaling costs a pause
        else:
            wanted = min(math.ceil(self._parallelism * load / target), most or self._cores())
        wanted = max(wanted, self._settings.least)
        return min(wanted, most or wanted, self._scope.most)
