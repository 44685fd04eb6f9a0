"""StandstillReader: finds out, in the driver, which work is stuck, for the job's metrics and the log."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

import msgspec

from holdfast.checkpoint.parsing import PARSE_ERRORS
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import StorageError
from holdfast.metrics.job import RUNNING_EPOCH, JobMetrics
from holdfast.metrics.standstills import LASTS_S, standstills
from holdfast.metrics.stats import Observed, SparkTasks, StandingTask
from holdfast.runtime.records.places import outside_of_libraries, place_of
from holdfast.runtime.slots.standstill import LOOK_S

__all__ = ["StandstillReader", "read_standstills"]

log = logging.getLogger("holdfast")

T = TypeVar("T")

_ASKS_S = 4.0
"""Seconds after which an epoch may be stuck: the driver then asks what its tasks are doing."""
_PATIENCE_S = 2.0
"""Seconds that one look waits for an answer."""
_TOLD_EVERY_S = 60.0
_MOST = 50
"""The most slots whose reports the driver reads."""


class _Question(Generic[T]):
    """A question to a system that may never answer: asked in a thread, and asked again only after an answer."""

    def __init__(self, name: str, ask: Callable[[], T]) -> None:
        self._name = name
        self._ask = ask
        self._asked: float | None = None
        self._answered = threading.Event()
        self._answer: T | None = None

    def answer(self) -> T | None:
        """The answer; None if there is none yet, or asking failed."""
        if self._asked is None:
            self._asked = time.monotonic()
            self._answered.clear()
            threading.Thread(target=self._run, name=f"holdfast-asks-{self._name}", daemon=True).start()
        if not self._answered.wait(_PATIENCE_S):
            return None
        self._asked = None
        return self._answer

    @property
    def seconds(self) -> float:
        """Seconds since the question was asked, while it has no answer."""
        return 0.0 if self._asked is None else time.monotonic() - self._asked

    def _run(self) -> None:
        self._answer = None
        try:
            self._answer = self._ask()
        except Exception as error:  # the job's own requests will report what is wrong
            log.debug("%s: %s", self._name, error)
        finally:
            self._answered.set()


class StandstillReader:
    """Finds out what a long epoch is doing, in a thread, for the job's metrics and the log.

    Args:
        storage: The checkpoint storage, where slots report their tasks.
        paths: The job's paths there.
        metrics: The job's metrics.
        spark: Asks Spark for the tasks of the running epoch; None if they are unknown.
    """

    def __init__(
        self, storage: Storage, paths: JobPaths, metrics: JobMetrics, spark: Callable[[], SparkTasks | None]
    ) -> None:
        self._storage, self._paths, self._metrics = storage, paths, metrics
        self._slots = _Question("storage", lambda: read_standstills(storage, paths))
        self._spark = _Question("spark", spark)
        self._told: dict[str, float] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-standstills", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, and delete what slots have left behind."""
        self._over.set()
        self._thread.join()
        if self._metrics.snapshot().observed.tasks:
            _Question("storage", lambda: self._storage.delete(self._storage.list(self._paths.standstills_prefix))).answer()

    def _run(self) -> None:
        while not self._over.wait(LOOK_S):
            self._metrics.observe(self._look())
            self._tell()

    def _look(self) -> Observed:
        activities = self._metrics.snapshot().activities
        if max(activities.values(), default=0.0) < _ASKS_S:
            return Observed()
        told, spark = self._slots.answer() or [], None
        epochs = [int(what.removeprefix(RUNNING_EPOCH)) for what in activities if what.startswith(RUNNING_EPOCH)]
        if epochs:
            spark = self._spark.answer()
        asked = {f"The checkpoint storage {self._storage.uri}": self._slots.seconds, "Spark's JVM": self._spark.seconds}
        return Observed(
            tuple(task for task in told if task.epoch in epochs),
            spark,
            {what: seconds for what, seconds in asked.items() if seconds},
            self._lines(activities),
        )

    def _lines(self, activities: Mapping[str, float]) -> dict[str, str]:
        """The line at which the driver is in each long activity."""
        frames, threads = sys._current_frames(), self._metrics.threads()
        lasting = [what for what, seconds in activities.items() if seconds >= LASTS_S and threads.get(what) in frames]
        return {what: place_of(outside_of_libraries(frames[threads[what]])) for what in lasting}

    def _tell(self) -> None:
        """Log what is stuck, each finding once a minute."""
        job, now = self._metrics.snapshot(), time.monotonic()
        for finding in standstills(job):
            if finding.kind == "bad" and now - self._told.get(finding.title, -_TOLD_EVERY_S) >= _TOLD_EVERY_S:
                self._told[finding.title] = now
                log.warning("job %r: %s. %s %s", job.name, finding.title, finding.detail, finding.remedy)


def read_standstills(storage: Storage, paths: JobPaths) -> list[StandingTask]:
    """The slots' reports of stuck tasks, the longest call first.

    Raises:
        StorageError: the storage does not answer.
    """
    found = []
    for path in storage.list(paths.standstills_prefix)[:_MOST]:
        try:
            found.append(msgspec.json.decode(storage.get(path), type=StandingTask))
        except (StorageError, *PARSE_ERRORS):
            continue  # it ended just now, or another release wrote it
    return sorted(found, key=lambda seen: -seen.same_call_seconds)
