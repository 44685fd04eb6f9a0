"""Runs programs written with the public API on the engine in this process: chosen epochs, injected crashes, no Spark.

A `Lab` is one job with its checkpoint storage and its local disk. `Lab.run` starts drivers of it, one after the other,
until the job ends: each crash kills a driver, the next one resumes from what the storage holds.
"""

from __future__ import annotations

import pickle
import random
import shutil
import threading
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.retention import Retention, verify_files
from holdfast.checkpoint.stores.storage import Storage, storage_options
from holdfast.connectors.base import (
    Batch,
    Committable,
    EpochInput,
    JobInfo,
    ReaderContext,
    SplitRange,
    WriterContext,
)
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import HoldfastError
from holdfast.metrics.job import JobMetrics
from holdfast.runtime.driver.coordinator import Coordinator
from holdfast.runtime.driver.restore_check import RestoreCheck, check_restore
from holdfast.runtime.driver.savepoints import SavepointWriter, StartFromSavepoint
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.task_messages import EpochAssignment, JobSetup, TaskReport
from holdfast.runtime.protocol.pacing import Pace
from holdfast.runtime.protocol.restart import FixedDelay, RestartStrategy
from holdfast.runtime.protocol.unaligned import ALIGNMENT_SECONDS
from holdfast.runtime.records.frames import unpack_header
from holdfast.runtime.task.time_slices import Slices, TimeSlices
from holdfast.state.stored.delta_files import verify_contents
from holdfast.testing.executor import InProcessExecutor

CRASH_POINTS = ("run", "before complete", "after complete", "before commit", "within commit", "after commit")


class Crash(BaseException):
    """The driver's process dies here. No `Exception`: nothing in a real driver could handle it."""


# ---- a source with several splits, and a sink that is a judge ---------------------------------------------------------


@dataclass(frozen=True)
class SplitSource:
    """A bounded source of lists, cut into epochs at random: another driver cuts elsewhere."""

    splits: dict[str, list[Any]]
    cut: int = 0
    """The largest number of records of a split in one epoch; 0: as the engine asks for."""
    seed: int = 0

    @property
    def bounded(self) -> bool:
        return True

    def create_enumerator(self, job: JobInfo, uid: str) -> SplitEnumerator:
        return SplitEnumerator(self, job.generation)

    def create_reader(self, context: ReaderContext) -> SplitReader:
        return SplitReader(self.splits)


class SplitEnumerator:
    def __init__(self, source: SplitSource, generation: int) -> None:
        self._sizes = {name: len(values) for name, values in source.splits.items()}
        self._next = dict.fromkeys(self._sizes, 0)
        self._cut = source.cut
        self._random = random.Random(f"{source.seed} {generation}")

    def start(self, state: Any | None) -> None:
        if state is not None:
            self._next = state

    def plan(self, max_records: int) -> EpochInput:
        ranges = []
        for name, size in self._sizes.items():
            start = self._next[name]
            most = max(1, max_records // len(self._sizes))
            count = min(size - start, self._random.randint(0, min(most, self._cut)) if self._cut else most)
            # A split that has nothing to read yet is announced: it holds the watermark back.
            if size > start or start == 0:
                self._next[name] = start + count
                ranges.append(SplitRange(name, start, start + count, count, last=start + count == size))
        left = sum(self._sizes[name] - at for name, at in self._next.items())
        return EpochInput(tuple(ranges), left, finished=left == 0)

    def snapshot(self) -> Any:
        return self._next  # goes on changing

    def checkpoint_completed(self, checkpoint_id: int, state: Any) -> None:
        pass

    def wait(self, timeout: float) -> None:
        pass

    def close(self) -> None:
        pass


class SplitReader:
    def __init__(self, splits: dict[str, list[Any]]) -> None:
        self._splits = splits

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch]:
        values = self._splits[part.split][part.start : part.end]
        for at in range(0, len(values), max_batch):
            first = part.start + at
            yield Batch(values[at : at + max_batch], None, lambda i, first=first: f"split {part.split}, record {first + i}")

    def close(self) -> None:
        pass


class Ledger:
    """What a two-phase sink has made visible. Committing the same output again changes nothing; other output adds."""

    def __init__(self) -> None:
        self.committed: dict[str, list[Any]] = {}
        self.lock = threading.Lock()

    @property
    def values(self) -> list[Any]:
        """All visible records, in the order of their commits."""
        with self.lock:  # a job that runs commits from a thread of its own
            return [value for values in self.committed.values() for value in values]


LEDGERS: dict[str, Ledger] = defaultdict(Ledger)
COMMIT_HOOK: dict[str, Callable[[str], None]] = {}
"""By ledger: called around the commit of each part."""


@dataclass(frozen=True)
class LedgerSink:
    name: str

    def validate(self) -> None:
        pass

    def create_writer(self, context: WriterContext) -> LedgerWriter:
        return LedgerWriter()

    def create_committer(self, job: JobInfo, uid: str) -> LedgerCommitter:
        return LedgerCommitter(self.name)


class LedgerWriter:
    def __init__(self) -> None:
        self._values: list[Any] | None = None
        self._attempt = ""

    def begin_epoch(self, epoch: int, attempt: str, completed: int) -> None:
        assert completed < epoch
        self._attempt = attempt
        self._values = []

    def write(self, values: Sequence[Any], timestamps: Sequence[int] | None) -> None:
        assert self._values is not None, "written outside of an epoch"
        self._values += values

    def prepare_commit(self) -> list[Any]:
        values, self._values = self._values, None
        return [[self._attempt, pickle.dumps(values)]] if values else []

    def abort_epoch(self) -> None:
        self._values = None

    def close(self) -> None:
        pass


class LedgerCommitter:
    def __init__(self, name: str) -> None:
        self._ledger = LEDGERS[name]
        self._name = name

    def recover(self, committables: Sequence[Committable]) -> None:
        self.commit(committables)

    def commit(self, committables: Sequence[Committable]) -> None:
        hook = COMMIT_HOOK.get(self._name, lambda point: None)
        hook("before commit")
        for number, committable in enumerate(committables):
            if number:
                hook("within commit")
            attempt, values = committable.data
            with self._ledger.lock:
                self._ledger.committed.setdefault(attempt, pickle.loads(values))
        hook("after commit")

    def close(self) -> None:
        pass


# ---- the executor and the driver --------------------------------------------------------------------------------------


class FlakyExecutor(InProcessExecutor):
    """Tasks that die before they report, and tasks that run twice as Spark's do."""

    flaky: random.Random | None = None
    failures = 0.0
    repeats = 0.0

    def run(self, order: EpochAssignment) -> list[TaskReport]:
        if self.flaky is None:
            return super().run(order)
        chance = self.flaky.random
        reports = []
        frames: dict[tuple[int, int], list[bytes]] = {}
        for level in range(self._plan.levels):
            partition = 0
            for vertex in self._plan.at(level):
                for n in range(vertex.parallelism):
                    subtask = self._subtasks[(vertex.id, n)]
                    given = frames.pop((level, partition), [])
                    sent: list[bytes] = []
                    report = subtask.run(order, given, lambda _, frame, sent=sent: sent.append(frame))
                    if chance() < self.repeats:
                        again: list[bytes] = []
                        second = subtask.run(order, given, lambda _, frame, again=again: again.append(frame))
                        # The readers may have read another run than the one that is reported.
                        if chance() < 0.3:
                            sent = again
                        else:
                            report, sent = second, again
                    if chance() < self.failures:
                        raise HoldfastError("a task died")
                    reports.append(report)
                    self.start_early(order, level)
                    for frame in sent:
                        header = unpack_header(frame)
                        frames.setdefault((header.level, header.partition), []).append(frame)
                    partition += 1
        return reports


class RecordSlices:
    """A deadline after a number of records, in slices of any size."""

    def __init__(self, most: int, chance: random.Random) -> None:
        self._left = most
        self._chance = chance

    def take(self, count: int) -> int:
        taken = min(self._left, count, self._chance.randint(1, 5))
        self._left -= taken
        return taken

    def begin_small(self) -> None:
        pass

    @property
    def spent(self) -> float:
        return 0.0


class FixedPace(Pace):
    """Epochs of about so many records."""

    def budget(self) -> int:
        return self.most_records

    def after(self, records: int, seconds: float) -> FixedPace:
        return self


@dataclass
class Lab:
    """One job: its program, storage and disk."""

    build: Callable[[StreamExecutionEnvironment], Any]
    directory: Path
    parallelism: int = 2
    budget: int = 1000
    config: dict[str, str] = field(default_factory=dict)
    ledgers: tuple[str, ...] = ("out",)
    failures: float = 0.0
    repeats: float = 0.0
    seed: int = 0
    records_before_deadline: int = 0
    """With unaligned checkpoints: the most records that a subtask processes in an epoch; 0: as ``slices`` say."""
    slices: Callable[[float], Slices] = TimeSlices
    early: bool = True
    """Whether subtasks may begin with channel state, before the frames of the epoch arrive."""
    keep_disk: bool = True
    """Whether a new driver finds the local stores of the one that crashed."""
    savepoint: str = ""
    """The savepoint that drivers are told to start from."""
    claim: bool = False
    drivers: int = 0
    metrics: JobMetrics | None = None
    executor: FlakyExecutor | None = None

    def plan(self) -> JobPlan:
        env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
        env.set_parallelism(self.parallelism)
        for key, value in self.config.items():
            env._configuration.set_string(key, value)
        self.build(env)
        return env._plan("job")

    def check(self) -> RestoreCheck:
        """What becomes of the newest checkpoint if the program as it is now begins."""
        self.config["execution.checkpointing.dir"] = str(self.directory / "checkpoints")
        return check_restore(self.plan())

    @property
    def storage(self) -> Storage:
        return Storage.open(str(self.directory / "checkpoints"), storage_options(self.config))

    @property
    def disk(self) -> Path:
        return self.directory / "disk"

    def coordinator(self, budget: int | None = None, strategy: RestartStrategy | None = None) -> Coordinator:
        """A new driver."""
        plan = self.plan()
        storage = self.storage
        paths = JobPaths.of(plan.name)
        checkpoint_log = CheckpointLog(storage, paths, 3)
        self.metrics = JobMetrics(uuid.uuid4().hex, plan.name)
        self.drivers += 1
        number = self.drivers

        def executor(job: JobInfo, plan: JobPlan) -> FlakyExecutor:
            self.close()
            self.executor = FlakyExecutor(
                JobSetup(plan, job, uuid.uuid4().hex),
                storage,
                str(self.disk),
                slices=self._slices(number),
                early_slices=self._early_slices(number),
            )
            if self.failures or self.repeats:
                self.executor.flaky = random.Random(f"{self.seed} {number}")
                self.executor.failures, self.executor.repeats = self.failures, self.repeats
            return self.executor

        return Coordinator(
            plan,
            lambda generation: JobInfo("j", plan.name, generation, str(self.directory / "checkpoints")),
            executor,
            checkpoint_log,
            Retention(storage, paths, checkpoint_log),
            lambda checkpoint, deep: (verify_contents if deep else verify_files)(storage, checkpoint),
            strategy or FixedDelay(10_000 if self.failures or self.repeats else 5, 0),
            self.metrics,
            FixedPace(2.0, budget or self.budget),
            SavepointWriter(storage, plan.settings),
            storage.requests,
            self._start_from(checkpoint_log, storage, paths),
        )

    def _slices(self, number: int) -> Callable[[float], Slices]:
        most = self.records_before_deadline
        chance = random.Random(f"{self.seed} {number} deadlines")

        def slices(seconds: float) -> Slices:
            if seconds == ALIGNMENT_SECONDS:  # the epoch before a rescaling
                return self.slices(seconds)
            return RecordSlices(chance.randint(1, most), chance)

        return slices if most else self.slices

    def _early_slices(self, number: int) -> Callable[[], Slices | None]:
        most = self.records_before_deadline if self.early else 0
        chance = random.Random(f"{self.seed} {number} early")
        return lambda: RecordSlices(chance.randint(0, most), chance) if most and chance.random() < 0.5 else None

    def _start_from(self, log: CheckpointLog, storage: Storage, paths: JobPaths) -> StartFromSavepoint | None:
        if not self.savepoint:
            return None
        return StartFromSavepoint.unless_started(log.started_from(), self.savepoint, {}, storage, paths, self.claim)

    def close(self) -> None:
        if self.executor is not None:
            self.executor.close()
            self.executor = None

    def run(self, crashes: Sequence[tuple[str, int]] = ()) -> Lab:
        """Run the job to its end, through drivers that die: each at the n-th time it comes to a point (from 1)."""
        for point, count in crashes:
            if self._run_until(point, count):
                return self
            if not self.keep_disk:
                shutil.rmtree(self.disk, ignore_errors=True)
        assert self._run_until("", 0)
        return self

    def _run_until(self, point: str, count: int) -> bool:
        """Run one driver; False if it crashed."""
        left = [count]

        def at(here: str) -> None:
            if here == point:
                left[0] -= 1
                if left[0] == 0:
                    raise Crash(here)

        coordinator = self.coordinator()
        complete = coordinator._log.complete

        def completing(*checkpoint: Any) -> None:
            at("before complete")
            complete(*checkpoint)
            at("after complete")

        coordinator._log.complete = completing  # type: ignore[method-assign]
        make = coordinator._make_executor

        def making(job: JobInfo, plan: JobPlan) -> Any:
            made: Any = make(job, plan)
            run = made.run

            def running(order: EpochAssignment) -> list[TaskReport]:
                reports: list[TaskReport] = run(order)
                at("run")
                return reports

            made.run = running
            return made

        coordinator._make_executor = making
        for name in self.ledgers:
            COMMIT_HOOK[name] = at
        try:
            coordinator.run()
            return True
        except Crash:
            return False
        finally:
            for name in self.ledgers:
                COMMIT_HOOK.pop(name, None)
            self.close()
