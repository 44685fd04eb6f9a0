"""Runs Holdfast jobs and measures them."""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.common import Configuration
from holdfast.datastream import AggregateFunction, RuntimeContext, StreamExecutionEnvironment
from holdfast.metrics.stats import EpochStats


class Discard:
    """A sink that discards its input."""

    def validate(self) -> None:
        pass

    def create_writer(self, context: Any) -> Discard:
        return self

    def create_committer(self, job: Any, uid: str) -> None:
        return None

    def begin_epoch(self, epoch: int, attempt: str, completed: int) -> None:
        pass

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        pass

    def prepare_commit(self) -> list[Any]:
        return []

    def abort_epoch(self) -> None:
        pass

    def close(self) -> None:
        pass


class Count(AggregateFunction):
    """Counts elements."""

    def create_accumulator(self) -> int:
        return 0

    def add(self, value: Any, accumulator: int) -> int:
        return accumulator + 1

    def get_result(self, accumulator: int) -> int:
        return accumulator

    def merge(self, acc_a: int, acc_b: int) -> int:
        return acc_a + acc_b


def note_start(context: RuntimeContext) -> None:
    """Record the time in the ``open`` of a function right after the source, just before its first element."""
    context.get_metrics_group().distribution("opened_ms").update(time.time_ns() // 1_000_000)


@dataclass
class Outcome:
    """The measurements of a run, epoch by epoch."""

    submitted: float
    """The time of submission, in seconds since 1970 like all times here."""
    epochs: list[tuple[float, EpochStats]] = field(default_factory=list)
    """The time of completion and the statistics of each epoch."""

    def counters(self) -> dict[str, int]:
        """The sums of user functions' counters, by name."""
        sums: dict[str, int] = {}
        for _, stats in self.epochs:
            for name, sample in stats.user_metrics.items():
                if sample[0] == "counter":
                    short = name.rsplit(".", 1)[-1]
                    sums[short] = sums.get(short, 0) + sample[1]
        return sums

    def _opened(self) -> list[float]:
        """The times that the functions have noted (see `note_start`)."""
        return [
            sample[3] / 1000
            for _, stats in self.epochs[:1]
            for name, sample in stats.user_metrics.items()
            if name.endswith(".opened_ms")
        ]

    @property
    def began(self) -> float:
        """The time just before the first task's first element, if the functions note it, else when the first epoch began."""
        first = self.epochs[0]
        return min(self._opened(), default=first[0] - first[1].duration_ms / 1000)

    @property
    def ended(self) -> float:
        """The completion of the last epoch."""
        return self.epochs[-1][0]

    @property
    def events(self) -> int:
        """The number of records read."""
        return sum(stats.records_in for _, stats in self.epochs)

    def summary(self) -> dict[str, Any]:
        """The figures of the run."""
        seconds = self.ended - self.began
        return {
            "events": self.events,
            "events_per_s": round(self.events / seconds),
            "busy_s": round(seconds, 2),
            "startup_s": round(self.began - self.submitted, 2),
            "clock": "from the first element" if self._opened() else "from the first epoch",
            "epochs": len(self.epochs),
            "phases_s": self.phases(),
            "late": sum(v.late_dropped for _, stats in self.epochs for v in stats.vertices),
        }

    def phases(self) -> dict[str, float]:
        """Seconds per phase, summed over all epochs; for a task's phases, those of the slowest subtask."""
        sums: dict[str, float] = {}
        for _, stats in self.epochs:
            for name, seconds in stats.phases.items():
                sums[name] = sums.get(name, 0.0) + seconds
            for vertex in stats.vertices:
                name = f"busy {vertex.name}"
                sums[name] = sums.get(name, 0.0) + vertex.busy_ms / 1000
        return {name: round(seconds, 3) for name, seconds in sums.items()}


def settings(work: Path, backend: str, extra: Iterable[str] = ()) -> Configuration:
    """The configuration of all benchmarks, with ``extra`` settings as ``key=value``."""
    configuration = Configuration()
    for key, value in {
        "state.backend.type": backend,
        "execution.checkpointing.dir": (work / "checkpoints").as_uri(),
        "io.tmp.dirs": str(work / "local"),
        "restart-strategy.type": "none",
        "rest.port": "0",
    }.items():
        configuration.set_string(key, value)
    for setting in extra:
        key, separator, value = setting.partition("=")
        if not separator:
            raise SystemExit(f"--set {setting}: must be key=value")
        configuration.set_string(key, value)
    return configuration


def scratch() -> Path:
    """A new directory for a run's checkpoints and local state."""
    return Path(tempfile.mkdtemp(prefix="holdfast-bench-"))


def start(
    env: StreamExecutionEnvironment, name: str, each: Callable[[EpochStats], None] | None = None
) -> tuple[Any, Outcome]:
    """Submit the job; returns its client, and its outcome so far. ``each`` is called after every epoch."""
    outcome = Outcome(time.time())
    client: Any = env.execute_async(name)
    told = client.metrics.epoch_finished

    def record(stats: EpochStats, *sizes: int) -> None:
        outcome.epochs.append((time.time(), stats))
        told(stats, *sizes)
        if each is not None:
            each(stats)

    client.metrics.epoch_finished = record
    return client, outcome


def run(env: StreamExecutionEnvironment, name: str, each: Callable[[EpochStats], None] | None = None) -> Outcome:
    """Run a bounded job to its end."""
    client, outcome = start(env, name, each)
    client.get_job_execution_result().result()
    return outcome


class RunningJob:
    """A job that runs beside the benchmark, which waits for its epochs."""

    def __init__(self, env: StreamExecutionEnvironment, name: str) -> None:
        self._changed = threading.Condition()
        self.records = 0
        """The records read so far."""
        self.client, self.outcome = start(env, name, self._note)
        self._result = self.client.get_job_execution_result()

    def _note(self, stats: EpochStats) -> None:
        with self._changed:
            self.records += stats.records_in
            self._changed.notify_all()

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until the condition holds after an epoch; raises the job's failure, or SystemExit if it has ended before."""
        with self._changed:
            while not self._changed.wait_for(condition, 1):
                if self._result.done():
                    self._result.result()
                    raise SystemExit("the job has ended: it had too little input for this measurement")


def tidy(work: Path) -> None:
    """Remove what `scratch` made."""
    shutil.rmtree(work, ignore_errors=True)
