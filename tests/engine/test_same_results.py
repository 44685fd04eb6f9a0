"""The same results for any epochs, parallelism and backend, with and without crashes."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueStateDescriptor

from .inprocess import CRASH_POINTS, LEDGERS, Lab, LedgerSink, SplitSource
from .programs import (
    UntypedSessions,
    records,
    sessions,
    sessions_model,
    windows,
    windows_model,
)

seeds = st.integers(0, 2**16)
backends = st.sampled_from(["rocksdb", "hashmap"])
parallelisms = st.integers(1, 5)
budgets = st.sampled_from([15, 60, 400, 5000])
frames = st.sampled_from(["3", "64", "2048"])
crashes = st.lists(st.tuples(st.sampled_from(CRASH_POINTS), st.integers(1, 5)), max_size=4)
runs = {
    "seed": seeds,
    "backend": backends,
    "parallelism": parallelisms,
    "budget": budgets,
    "frame": frames,
    "crashes": crashes,
}
"""How a job runs that may run in any way: the strategies of all arguments."""
few = settings(
    deadline=None,
    max_examples=examples(3),
    phases=[Phase.explicit, Phase.generate],  # to shrink a failure takes longer than to look at it
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)


@contextmanager
def lab(build: Any, **options: Any) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory(prefix="holdfast-engine-") as directory:
        LEDGERS["out"].committed.clear()
        here = Lab(build, Path(directory), **options)
        try:
            yield here
        finally:
            here.close()


def visible(ledger: str = "out") -> Counter[Any]:
    return Counter(map(repr, LEDGERS[ledger].values))


IN_FILES = {"execution.checkpointing.data-inline-threshold": "0"}
"""Deltas are in files, however small, and can be damaged there."""


def config(backend: str, frame: str, cache: str = "256mb") -> dict[str, str]:
    return {
        "state.backend.type": backend,
        "holdfast.frame.records": frame,
        "holdfast.batch.records": frame,
        "state.backend.cache.size": cache,
        "execution.checkpointing.data-inline-threshold": "300b",  # some deltas are in files, some in the log's entries
    }


@few
@given(**runs)
def test_windows_of_out_of_order_input(seed, backend, parallelism, budget, frame, crashes):
    data = records(seed, 300)
    options = {"parallelism": parallelism, "budget": budget, "config": config(backend, frame)}
    with lab(windows(data, cut=budget), **options) as job:
        job.run(crashes)
        assert visible() == windows_model(data)


@few
@given(
    **runs,
    function=st.sampled_from([UntypedSessions, UntypedSessions.__base__]),
    cache=st.sampled_from(["256mb", "2kb"]),
    keep_disk=st.booleans(),
)
def test_all_kinds_of_state_with_timers(seed, backend, parallelism, budget, frame, crashes, function, cache, keep_disk):
    data = records(seed, 300, keys=20)
    options = {
        "parallelism": parallelism,
        "budget": budget,
        "config": config(backend, frame, cache),
        "keep_disk": keep_disk,
    }
    with lab(sessions(data, cut=budget, function=function), **options) as job:
        job.run(crashes)
        assert visible() == sessions_model(data)


@few
@given(seed=seeds, backend=backends, crashes=crashes)
def test_tasks_that_die_and_tasks_that_run_twice(seed, backend, crashes):
    data = records(seed, 200)
    with lab(
        sessions(data, cut=40), budget=60, config=config(backend, "64", "2kb"), failures=0.03, repeats=0.1, seed=seed
    ) as job:
        job.run(crashes)
        assert visible() == sessions_model(data)


class Chained(KeyedProcessFunction):
    """Draws a number for each record, and tells the one before: another run of the same records draws others."""

    def open(self, ctx):
        self.last = ctx.get_state(ValueStateDescriptor("last", Types.TUPLE([Types.LONG(), Types.LONG()])))

    def process_element(self, value, ctx):
        count, before = self.last.value() or (0, 0)
        drawn = random.SystemRandom().getrandbits(62)
        self.last.update((count + 1, drawn))
        yield ctx.get_current_key(), count + 1, before, drawn


@few
@given(**runs)
def a_function_that_gives_other_results_each_time_is_never_run_again_for_a_completed_epoch(
    seed, backend, parallelism, budget, frame, crashes
):
    def build(env: StreamExecutionEnvironment) -> None:
        source = SplitSource({"a": list(range(0, 200, 2)), "b": list(range(1, 200, 2))}, cut=20)
        numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
        numbers.key_by(lambda n: n % 7).process(Chained()).uid("chained").sink_to(LedgerSink("out")).uid("out")

    with lab(build, parallelism=parallelism, budget=budget, config=config(backend, frame), seed=seed) as job:
        job.failures = job.repeats = 0.05
        job.run(crashes)
    chains: dict[int, dict[int, tuple[int, int]]] = {}
    for key, count, before, drawn in LEDGERS["out"].values:
        assert count not in chains.setdefault(key, {}), f"key {key} has two results with number {count}"
        chains[key][count] = (before, drawn)
    assert {key: sorted(chain) for key, chain in chains.items()} == {
        key: list(range(1, len(range(key, 200, 7)) + 1)) for key in range(7)
    }
    for chain in chains.values():  # the state goes on from the results that are visible
        assert all(chain[count][0] == chain[count - 1][1] for count in chain if count > 1)
