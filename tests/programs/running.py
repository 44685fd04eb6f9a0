"""Ways to run a program: parallelism, epochs, chains, failures, restarts, rescalings, backends, clocks, changed programs."""

from __future__ import annotations

import itertools
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

import holdfast.cep
import holdfast.common
import holdfast.datastream
import holdfast.runtime.task.changelogs
import holdfast.state.changelogs.keyed_changelog
import holdfast.table
from engine.changelog_model import Broker
from engine.inprocess import COMMIT_HOOK, CRASH_POINTS, LEDGERS, Crash, Lab, LedgerSink, RecordSlices, SplitSource
from engine.standby_host import StandbyHost
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.operations import batches
from holdfast.datastream.operations.data_stream_utils import DataStreamUtils
from holdfast.errors import IncompatibleState
from holdfast.runtime.driver.coordinator import Coordinator
from holdfast.runtime.driver.savepoints import new_savepoint
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.task.time_slices import Slices

from . import expiring, functions, more_functions, window_functions
from .changes import changed
from .drawing import Program

NAMES: dict[str, Any] = {
    name: value
    for module in (
        holdfast.common,
        holdfast.datastream,
        holdfast.table,
        holdfast.cep,
        functions,
        more_functions,
        window_functions,
        expiring,
    )
    for name, value in vars(module).items()
    if not name.startswith("_")
} | {"SplitSource": SplitSource, "LedgerSink": LedgerSink, "DataStreamUtils": DataStreamUtils, "batches": batches}
"""What the text of a program may name."""


@dataclass(frozen=True)
class Leg:
    """One driver of the job, which may die."""

    parallelism: int = 1
    backend: str = "hashmap"
    dies: str = ""
    """A point at which the driver dies, the `count`-th time it comes there."""
    count: int = 1
    rescales: tuple[tuple[int, int], ...] = ()
    """Behind which completed checkpoint of the driver it rescales, and to which parallelism."""
    savepoint: int = 0
    """Behind which completed checkpoint the driver stops with a savepoint, from which the next one starts elsewhere."""
    changelog: bool = False
    """Whether its state is in changelogs, too."""
    changes: int = 0
    """The number of a form of the program that has the same results (`changed`); 0: as it was drawn."""


@dataclass(frozen=True)
class Way:
    legs: tuple[Leg, ...] = (Leg(),)
    cut: int = 0
    """The most records of a split in an epoch; 0: all in one."""
    frame: int = 2048
    chained: bool = False
    unaligned: bool = False
    keeps_disk: bool = True
    """Whether the next driver finds the local stores."""
    seed: int = 0
    standby: bool = False
    """Whether the next driver finds the stores of standbys in place of them."""
    flaky: bool = False
    """Whether tasks die before they report, and run twice."""
    jumps: tuple[int, ...] = ()
    """By how many seconds the wall clock is set, time after time."""
    pace: int = 0
    """How many milliseconds processing time goes on beside, each time that it is asked for."""

    @property
    def parallelisms(self) -> set[int]:
        return {leg.parallelism for leg in self.legs} | {to for leg in self.legs for _, to in leg.rescales}

    @property
    def moves(self) -> bool:
        """Whether the parallelism changes."""
        return len(self.parallelisms) > 1

    @property
    def restarts(self) -> bool:
        return len(self.legs) > 1 or any(leg.rescales for leg in self.legs)


PLAIN = Way()

parallelisms = st.sampled_from([2, 1, 3, 1, 2, 4, 2, 1, 3, 8])


@st.composite
def legs(draw: Any, dies: bool, suddenly: bool = False) -> Leg:
    rescales = {} if suddenly else draw(st.dictionaries(st.integers(1, 6), parallelisms, max_size=2))
    saves = dies and not suddenly and draw(st.sampled_from([False, False, True]))
    backend = draw(st.sampled_from(["hashmap", "rocksdb", "changelog"]))
    return Leg(
        draw(parallelisms),
        "hashmap" if backend == "hashmap" else "rocksdb",
        draw(st.sampled_from(CRASH_POINTS)) if dies and not saves else "",
        draw(st.integers(1, 5)),
        tuple(rescales.items()),
        draw(st.integers(1, 4)) if saves else 0,
        backend == "changelog",
        draw(st.sampled_from([0, 0, 0, *range(1, 10)])),
    )


@st.composite
def ways(draw: Any) -> Way:
    unaligned = draw(st.sampled_from([False, False, True]))
    # Only a death leaves input that waits to another parallelism: a rescaling and a savepoint wait until there is none.
    first = [draw(legs(True, suddenly=True))] if unaligned and draw(st.sampled_from([False, True, True])) else []
    deaths = draw(st.lists(legs(True), max_size=2 - len(first)))
    return Way(
        (*first, *deaths, draw(legs(False))),
        draw(st.sampled_from([1, 2, 0, 4])),
        draw(st.sampled_from([2048, 1, 3])),
        draw(st.booleans()),
        unaligned,
        draw(st.booleans()),
        draw(st.integers(0, 100)),
        draw(st.booleans()),
        draw(st.sampled_from([False, False, False, True])),
        draw(st.sampled_from([(), (), (3600, -3600), (-3600,), (7, -7), (90_000, 1)])),
        draw(st.sampled_from([0, 0, 1, 7, 60])),
    )


class Job(Lab):
    """A lab that can be rescaled while it runs, and has a wall clock that is set."""

    jumps: tuple[int, ...] = ()
    pace = 0
    uneven = False
    """Whether a deadline cuts every other input only, so that subtasks are not alike far behind."""

    def _slices(self, number: int) -> Callable[[float], Slices]:
        cut, chance = super()._slices(number), random.Random(f"{self.seed} {number} in time")
        if not self.uneven:
            return cut
        return lambda seconds: cut(seconds) if chance.random() < 0.5 else RecordSlices(sys.maxsize, chance)

    def coordinator(self, *arguments: Any) -> Coordinator:
        made = super().coordinator(*arguments)
        ahead = itertools.accumulate(1000 * seconds + self.pace for seconds in itertools.cycle(self.jumps or (0,)))
        made._wall_clock = lambda: time.time_ns() // 1_000_000 + next(ahead)
        return made

    def plan(self) -> JobPlan:
        env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
        env.set_parallelism(self.parallelism)
        for key, value in self.config.items():
            env._configuration.set_string(key, value)
        self.build(env)
        plan = env._plan("job")
        self.replan = env._replan(plan)
        return plan


@contextmanager
def broker(way: Way) -> Iterator[Broker]:
    """Keeps the changelogs, in memory."""
    made, new_changelog = Broker(way.seed), holdfast.runtime.task.changelogs.new_changelog
    patience = holdfast.state.changelogs.keyed_changelog.PATIENCE
    holdfast.runtime.task.changelogs.new_changelog = made.changelog  # type: ignore[assignment]
    holdfast.state.changelogs.keyed_changelog.PATIENCE = 0.0  # the transactions end at once
    try:
        yield made
    finally:
        holdfast.runtime.task.changelogs.new_changelog = new_changelog
        holdfast.state.changelogs.keyed_changelog.PATIENCE = patience


def run(program: Program, way: Way) -> list[Any] | None:
    """What the program tells, in the order of commits; None: a change was refused by name, before it began."""
    text = program.text

    def build(env: Any) -> None:
        sources = {name.upper(): splits for name, splits in program.sources.items()}
        exec(text, NAMES | sources | {"env": env, "cut": way.cut, "seed": way.seed})

    LEDGERS["out"].committed.clear()
    tasks = max(way.parallelisms) * len(text.splitlines())  # about: with many of them, most epochs would fail
    with tempfile.TemporaryDirectory(prefix="holdfast-programs-") as directory, broker(way) as logs:
        job = Job(
            build,
            Path(directory),
            budget=1000 if way.cut == 0 else 8 * way.cut,
            keep_disk=way.keeps_disk,
            failures=0.1 / tasks if way.flaky else 0,
            repeats=min(0.1, 1 / tasks) if way.flaky else 0,
            seed=way.seed,
            records_before_deadline=(1, 2, 4)[way.seed % 3] if way.unaligned and not program.batch else 0,
        )
        job.jumps, job.pace, job.uneven = way.jumps, way.pace, job.records_before_deadline > 0 and way.seed % 2 == 1
        for number, leg in enumerate(way.legs):
            job.parallelism = leg.parallelism
            job.config = {
                "state.backend.type": leg.backend,
                "holdfast.frame.records": str(way.frame),
                "holdfast.batch.records": str(way.frame),
                "pipeline.operator-chaining.enabled": str(way.chained).lower(),
                "execution.checkpointing.unaligned.enabled": str(way.unaligned and not program.batch).lower(),
                "execution.runtime-mode": "BATCH" if program.batch else "STREAMING",
                "state.storage.fs.memory-threshold": ("20kb", "0", "200b")[way.seed % 3],
                "execution.checkpointing.min-pause": "2 ms" if way.seed % 4 == 1 else "0 ms",
                **({"execution.checkpointing.interval": "3 ms"} if way.seed % 4 == 2 else {}),
            }
            if leg.changelog:
                job.config |= {
                    "state.changelog.enabled": "true",
                    "state.changelog.storage": "kafka",
                    "state.changelog.kafka.bootstrap.servers": "in memory",
                }
            if program.batch:  # one epoch, which is never rescaled or saved
                leg = replace(leg, rescales=(), savepoint=0)
            text = changed(program, leg.changes)
            host = None
            if way.standby and leg.changelog and not program.batch:
                host = StandbyHost(logs, Path(directory) / f"standby {number}", leg.parallelism, way.seed, chance=0.3)
            try:
                if drive(job, leg):
                    return LEDGERS["out"].values
            except IncompatibleState as refusal:
                unchanged = len({each.changes for each in way.legs[: number + 1]}) == 1
                if unchanged and not (way.moves and "not the first of its task any more" in str(refusal)):
                    raise
                return None
            finally:
                if host is not None and host.root.exists():
                    host.become(job.disk, killed=way.seed % 2 == 1)
            if host is None and not way.keeps_disk:
                shutil.rmtree(job.disk, ignore_errors=True)
    raise AssertionError("the last driver has died")


def drive(job: Job, leg: Leg) -> bool:
    """Run one driver; False if it died, or stopped with a savepoint."""
    saved: list[Future[str]] = []
    with dying(job, leg) as coordinator:
        complete, done, rescales = coordinator._log.complete, [0], dict(leg.rescales)

        def completing(*checkpoint: Any) -> None:
            complete(*checkpoint)
            done[0] += 1
            if done[0] in rescales:
                coordinator.request_rescale(job.replan(rescales[done[0]]))
            if done[0] == leg.savepoint:
                place = new_savepoint(str(job.directory / "savepoints"), "abcdef0123", {})
                saved.append(coordinator.request_savepoint(place, stop=True))

        coordinator._log.complete = completing
        try:
            coordinator.run()
        except Crash:
            return False
    if not saved or not saved[0].done() or saved[0].exception() is not None:
        return True  # the input has ended before
    job.savepoint = saved[0].result()
    job.directory = job.directory / "next"
    return False


@contextmanager
def dying(job: Job, leg: Leg) -> Iterator[Any]:
    """A driver that dies where its leg says."""
    left = [leg.count]

    def at(here: str) -> None:
        if here == leg.dies:
            left[0] -= 1
            if left[0] == 0:
                raise Crash(here)

    coordinator = job.coordinator()
    complete, make = coordinator._log.complete, coordinator._make_executor

    def completing(*checkpoint: Any) -> None:
        at("before complete")
        complete(*checkpoint)
        at("after complete")

    def making(*arguments: Any) -> Any:
        made: Any = make(*arguments)
        run = made.run

        def running(order: Any) -> Any:
            reports = run(order)
            at("run")
            return reports

        made.run = running
        return made

    coordinator._log.complete = completing  # type: ignore[method-assign]
    coordinator._make_executor = making
    COMMIT_HOOK["out"] = at
    try:
        yield coordinator
    finally:
        COMMIT_HOOK.pop("out", None)
        job.close()
