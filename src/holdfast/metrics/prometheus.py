"""The jobs' metrics for Prometheus, under the names of Flink's Prometheus reporter.

Dashboards made for Flink therefore show Holdfast jobs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import xxhash
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from holdfast.metrics.job import JobSnapshot

__all__ = ["JobCollector"]

_JOB = "flink_jobmanager_job_"
_TASK = "flink_taskmanager_job_task_"
_OPERATOR = "flink_taskmanager_job_task_operator_"
_INVALID = re.compile(r"[^a-zA-Z0-9_]")

_Labels = Mapping[str, str]


class JobCollector(Collector):
    """Collects the jobs' metrics when Prometheus scrapes.

    Args:
        jobs: Returns a snapshot of every job.
    """

    def __init__(self, jobs: Callable[[], Iterable[JobSnapshot]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield one family per metric name. All are gauges, as in Flink's reporter, so that names get no suffix."""
        families: dict[tuple[str, tuple[str, ...]], GaugeMetricFamily] = {}
        for name, labels, value in self._samples():
            key = (name, tuple(labels))
            family = families.get(key)
            if family is None:
                family = families[key] = GaugeMetricFamily(name, name.rsplit("_", 1)[-1], labels=list(labels))
            family.add_metric(list(labels.values()), value)
        yield from families.values()

    def _samples(self) -> Iterator[tuple[str, _Labels, float]]:
        for job in self._jobs():
            of_job = {"job_id": job.job_id, "job_name": job.name}
            yield _JOB + "status", {**of_job, "status": job.status}, 1
            for metric, value in job.values.items():
                if not metric.endswith(".pendingRecords"):
                    yield _JOB + _valid(metric), of_job, value
            for uid, pending in job.backlog.items():
                yield _OPERATOR + "pendingRecords", {**of_job, "operator_id": uid}, pending
            for vertex in job.vertices:
                of_task = {**of_job, "task_id": vertex.id, "task_name": vertex.name}
                for metric, value in vertex.values.items():
                    yield _TASK + metric, of_task, value
            for (operator, name), value in _of_users(job.user_values).items():
                yield _OPERATOR + name, {**of_job, "operator_name": operator}, value


def _of_users(values: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """The metrics of functions by operator and name; of names that become equal in Prometheus, all but one get a hash."""
    found: dict[tuple[str, str], float] = {}
    for metric in sorted(values):
        operator, _, rest = metric.partition(".")
        name = _valid(rest)
        if (operator, name) in found:
            name += f"_{xxhash.xxh3_64_hexdigest(rest.encode())[:8]}"
        found[operator, name] = values[metric]
    return found


def _valid(name: str) -> str:
    return _INVALID.sub("_", name)
