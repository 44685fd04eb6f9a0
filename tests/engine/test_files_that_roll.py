"""Files that wait across checkpoints, in whole jobs: crashes, other parallelisms, savepoints, time without records."""

from __future__ import annotations

import itertools
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import Types, WatermarkStrategy
from holdfast.common.serialization import Encoder
from holdfast.connectors.base import EpochInput, JobInfo
from holdfast.connectors.file.outputs import LocalOutput
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import (
    BucketAssigner,
    FileCompactStrategy,
    FileSink,
    RecordWiseFileCompactor,
    RollingPolicy,
)
from holdfast.datastream.formats.parquet import ParquetBulkWriters
from holdfast.runtime.driver import coordinator

from .inprocess import Crash, Lab, SplitEnumerator, SplitSource
from .test_same_results import few
from .test_savepoints import run

FOREVER = 10**12
NUMBER = Types.ROW_NAMED(["n"], [Types.LONG()])
SPLITS = {name: list(range(first, first + 60)) for name, first in (("a", 0), ("b", 100), ("c", 200))}
EVERY = Counter(value for values in SPLITS.values() for value in values)


def program(out: Path, form: str, part_size: int, cut: int = 6, seed: int = 0) -> Any:
    """Numbers to files: of text by their size, of Parquet compacted."""

    def build(env: StreamExecutionEnvironment) -> None:
        numbers = env.from_source(SplitSource(SPLITS, cut, seed), WatermarkStrategy.no_watermarks(), "numbers").uid("in")
        builder: Any
        if form == "text":
            policy = RollingPolicy.default_rolling_policy(part_size, FOREVER, FOREVER)
            numbers = numbers.map(str, Types.STRING()).uid("text")
            builder = FileSink.for_row_format(str(out), Encoder.simple_string_encoder()).with_rolling_policy(policy)
        else:
            numbers = numbers.map(lambda n: {"n": n}).uid("text")
            strategy = FileCompactStrategy.builder().enable_compaction_on_checkpoint(part_size).build()
            builder = FileSink.for_bulk_format(str(out), ParquetBulkWriters.for_row_type(NUMBER))
            builder = builder.enable_compact(strategy, RecordWiseFileCompactor())
        flat = BucketAssigner.base_path_bucket_assigner()
        numbers.rebalance().sink_to(builder.with_bucket_assigner(flat).build()).uid("out")

    return build


def files(out: Path) -> list[Path]:
    return sorted(out.glob("[!.]*"))


def seen(out: Path, form: str = "text") -> Counter[int]:
    if form == "text":
        return Counter(int(line) for file in files(out) for line in file.read_text().splitlines())
    return Counter(n for file in files(out) for n in pyarrow.parquet.read_table(file).column("n").to_pylist())


POINTS = ("run", "before complete", "after complete", "before publish", "after publish")


@settings(few, max_examples=examples(12))
@given(
    form=st.sampled_from(["text", "parquet"]),
    part_size=st.integers(2, 60),
    crashes=st.lists(st.tuples(st.sampled_from(POINTS), st.integers(1, 8), st.integers(1, 4)), max_size=5),
    seed=st.integers(0, 99),
)
@example("text", 20, [("after publish", 1, 2), ("before publish", 1, 3), ("after complete", 3, 1)], 1)
@example("parquet", 3, [("after publish", 1, 3), ("before publish", 2, 1), ("before complete", 3, 2)], 1)
def test_every_record_is_in_one_file_whatever_dies_at_whatever_parallelism(form, part_size, crashes, seed):
    with tempfile.TemporaryDirectory(prefix="holdfast-rolling-") as directory, pytest.MonkeyPatch.context() as patch:
        out, left = Path(directory) / "out", ["", 0]
        publish = LocalOutput._publish

        def publishing(self: LocalOutput, data: Any) -> bool:
            for point in ("before publish", "after publish"):
                if left[0] == point:
                    left[1] -= 1
                    if left[1] == 0:
                        if point == "after publish":
                            publish(self, data)
                        raise Crash(point)
            return publish(self, data)

        patch.setattr(LocalOutput, "_publish", publishing)
        job = Lab(program(out, form, part_size, seed=seed), Path(directory), budget=20)
        for point, count, parallelism in crashes:
            job.parallelism = parallelism
            left[:] = [point, count]
            ended = job._run_until(point, count)
            assert not seen(out, form) - EVERY
            if ended:
                break
        left[:] = ["", 0]
        job.run()
        assert seen(out, form) == EVERY
        assert not list(out.glob(".*"))


@pytest.mark.parametrize("form", ["text", "parquet"])
def a_job_of_many_epochs_writes_the_few_files_that_the_policy_gives(form: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = Lab(program(out, form, 10_000), tmp_path, parallelism=1, budget=10)
    job.run()
    assert job.coordinator()._log.read_retained()[0].checkpoint_id >= 10
    assert len(files(out)) == 1
    assert seen(out, form) == EVERY


def a_savepoint_has_the_records_of_files_that_wait_and_starts_anywhere_at_another_parallelism(tmp_path: Path) -> None:
    out = tmp_path / "out"
    build = program(out, "text", FOREVER)
    savepoint = run(Lab(build, tmp_path / "first", parallelism=3, budget=20), after=5)
    assert files(out) == []
    second = Lab(build, tmp_path / "second", parallelism=2, budget=20, savepoint=savepoint)
    second.run([("after complete", 2)])
    assert seen(out) == EVERY
    assert len(files(out)) <= 2


def a_job_that_is_drained_has_rolled_all_its_files(tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = Lab(program(out, "text", FOREVER), tmp_path, budget=20)
    run(job, after=4, drain=True)
    read = seen(out)
    assert 0 < sum(read.values()) < sum(EVERY.values())
    assert not read - EVERY


def a_return_to_an_older_checkpoint_finds_the_records_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    job = Lab(program(out, "text", FOREVER, cut=3), tmp_path, budget=20)
    assert not job._run_until("after complete", 6)
    older = job.coordinator()._log.read_retained()[-1].checkpoint_id
    monkeypatch.setattr(job, "_start_from", lambda *_: older)
    assert not job._run_until("after complete", 3)
    monkeypatch.undo()
    job.run()
    assert seen(out) == EVERY


class WaitsForAFile(SplitSource):
    """Ends once a file is visible, without further records."""

    def create_enumerator(self, job: JobInfo, uid: str) -> Any:
        return _Waiting(self, job.generation)


class _Waiting(SplitEnumerator):
    asked = 0

    def plan(self, max_records: int) -> EpochInput:
        planned = super().plan(max_records)
        self.asked += 1
        assert self.asked < 10_000, "no file became visible"
        return EpochInput(planned.ranges, planned.backlog, planned.finished and bool(files(OUT[0])))


OUT: list[Path] = []


def a_file_is_rolled_by_time_although_no_records_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = itertools.count(1_700_000_000)
    monkeypatch.setattr(coordinator.time, "time_ns", lambda: next(seconds) * 10**9)
    OUT[:] = [tmp_path / "out"]

    def build(env: StreamExecutionEnvironment) -> None:
        source = env.from_source(WaitsForAFile({"a": [1, 2, 3]}), WatermarkStrategy.no_watermarks(), "numbers")
        policy = RollingPolicy.default_rolling_policy(FOREVER, FOREVER, 60_000)
        builder = FileSink.for_row_format(str(OUT[0]), Encoder.simple_string_encoder()).with_rolling_policy(policy)
        flat = BucketAssigner.base_path_bucket_assigner()
        source.map(str, Types.STRING()).sink_to(builder.with_bucket_assigner(flat).build())

    Lab(build, tmp_path, parallelism=1).run()
    assert seen(OUT[0]) == Counter([1, 2, 3])


def test_a_batch_job_writes_one_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    job = Lab(program(out, "text", FOREVER, cut=0), tmp_path, parallelism=1, config={"execution.runtime-mode": "BATCH"})
    job.run()
    assert len(files(out)) == 1
    assert seen(out) == EVERY
