"""The output of checkpoints, delivered to a function in the driver: once, or again with the same id and the same rows."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Row, RowKind, Types, WatermarkStrategy
from holdfast.connectors.base import Sink
from holdfast.errors import ConfigurationError, CorruptFile, UserCodeError
from holdfast.runtime.protocol.restart import FixedDelay, NoRestart
from holdfast.spark import delivery, staged_output
from holdfast.spark.checkpoint_sink import CheckpointSink
from holdfast.spark.results import Results, ResultsSink
from holdfast.spark.staged_output import StagedOutput
from holdfast.spark.table_sink import SparkTableSink

from .inprocess import Crash, Lab, SplitSource
from .test_savepoints import run

SPLITS = {f"split {n}": [(f"key {i % 5}", 1000 * n + i) for i in range(60)] for n in range(3)}
ALL = Counter(value for values in SPLITS.values() for value in values)
PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])
POINTS = ("before the function", "within the function", "after the function", "before the deletion", "amid the deletion")


class Calls:
    """The calls of the function, with the rows of each; dies at a point when it comes there for the n-th time."""

    def __init__(self) -> None:
        self.rows: dict[int, list[Any]] = {}
        self.ids: list[int] = []
        self.dies: list[tuple[str, int]] = []

    def __call__(self, output: StagedOutput) -> None:
        self.at("before the function")
        rows = [tuple(row.values()) for batch in output.batches() for row in batch.to_pylist()]
        assert self.rows.setdefault(output.checkpoint_id, rows) == rows, "other rows under the same id"
        self.at("within the function")
        self.ids.append(output.checkpoint_id)
        self.at("after the function")

    def at(self, point: str) -> None:
        if self.dies and self.dies[0][0] == point:
            self.dies[0] = point, self.dies[0][1] - 1
            if self.dies[0][1] == 0:
                self.dies.pop(0)
                raise Crash(point)

    @property
    def all(self) -> Counter:
        return Counter(row for rows in self.rows.values() for row in rows)


def job(sink: Sink, directory: Any, **options: Any) -> Lab:
    def build(env: Any) -> None:
        pairs = env.from_source(SplitSource(SPLITS, 7), WatermarkStrategy.no_watermarks(), "pairs", PAIR).uid("pairs")
        keyed = pairs.key_by(lambda pair: pair[0]).map(lambda pair: pair, output_type=PAIR).uid("keyed")
        keyed.sink_to(sink).uid("out")

    return Lab(build, directory, budget=20, ledgers=(), **options)


def staged(directory: Any) -> list[str]:
    return [path for path in Storage.open(str(directory / "checkpoints")).list("") if "/sinks/" in path]


def parts(directory: Any) -> list[str]:
    return [path for path in staged(directory) if "/done-" not in path]


def test_every_checkpoint_with_output_is_delivered_once_in_order_and_the_last_before_the_job_ends(tmp_path):
    calls = Calls()
    job(CheckpointSink("out", calls), tmp_path).run()
    assert calls.all == ALL
    assert calls.ids == sorted(set(calls.ids))
    assert len(calls.ids) > 3
    assert len(staged(tmp_path)) == 1, "the last marker is left"


def a_checkpoint_without_output_is_not_delivered(tmp_path):
    calls = Calls()

    def build(env: Any) -> None:
        pairs = env.from_source(SplitSource(SPLITS, 7), WatermarkStrategy.no_watermarks(), "pairs", PAIR).uid("pairs")
        pairs.filter(lambda pair: False).sink_to(CheckpointSink("out", calls)).uid("out")

    Lab(build, tmp_path, budget=20, ledgers=()).run()
    assert calls.ids == []
    assert staged(tmp_path) == []


@pytest.mark.parametrize("point", [*POINTS, "run", "before complete", "after complete"])
def a_driver_that_dies_anywhere_delivers_each_row_under_one_id(point, tmp_path, monkeypatch):
    calls = Calls()
    delete = Storage.delete

    def deleting(storage: Storage, paths: Any) -> None:
        paths = list(paths)
        if any("/sinks/out/" in path for path in paths):
            calls.at("before the deletion")
            delete(storage, paths[:1])
            calls.at("amid the deletion")
        delete(storage, paths)

    monkeypatch.setattr(Storage, "delete", deleting)
    lab = job(CheckpointSink("out", calls), tmp_path)
    if point in POINTS:
        calls.dies = [(point, 2), (point, 3)]
        assert not lab._run_until("", 0)
        assert not lab._run_until("", 0)
        lab.run()
    else:
        lab.run([(point, 2), (point, 3)])
    assert calls.all == ALL
    assert calls.ids == sorted(calls.ids)
    assert parts(tmp_path) == []
    again = len(calls.ids) > len(set(calls.ids))
    assert again is (point == "after the function"), "called again only where it may not have returned"


@pytest.mark.parametrize("repeats", [0.0, 0.5])
def test_tasks_that_die_or_run_twice_deliver_each_row_once(repeats, tmp_path):
    calls = Calls()
    job(CheckpointSink("out", calls), tmp_path, failures=0.1, repeats=repeats, seed=3).run([("run", 4)])
    assert calls.all == ALL
    assert calls.ids == sorted(set(calls.ids))


def a_job_goes_on_at_another_parallelism_with_what_has_not_been_delivered(tmp_path):
    calls = Calls()
    lab = job(CheckpointSink("out", calls), tmp_path, parallelism=3)
    assert not lab._run_until("after complete", 2)
    lab.parallelism = 1
    lab.run()
    assert calls.all == ALL
    assert calls.ids == sorted(set(calls.ids))


@pytest.mark.parametrize("stop", [True, False])
def the_output_before_a_savepoint_is_delivered_before_it_is_written(stop, tmp_path):
    calls = Calls()
    first = job(CheckpointSink("out", calls), tmp_path / "first")
    savepoint = run(first, 3, stop)
    before = calls.all
    assert (before == ALL) is not stop
    if stop:
        later = Calls()
        second = job(CheckpointSink("out", later), tmp_path / "second", savepoint=savepoint).run()
        assert before + later.all == ALL
        assert parts(second.directory) == []


def an_error_of_the_function_is_told_with_its_traceback_and_the_rows_are_kept(tmp_path):
    calls = Calls()

    def broken(output: StagedOutput) -> None:
        raise RuntimeError("the warehouse is closed")

    lab = job(CheckpointSink("foreach", broken), tmp_path)
    with pytest.raises(UserCodeError) as caught:
        lab.coordinator(strategy=NoRestart()).run()
    text = str(caught.value)
    assert text.startswith("Traceback (most recent call last):\n")
    assert "in broken" in text
    assert text.endswith("RuntimeError: the warehouse is closed\n  in operator 'foreach' (uid 'out')\n  checkpoint 2")
    lab.close()
    job(CheckpointSink("foreach", calls), tmp_path).run()
    assert calls.all == ALL


def a_function_that_fails_is_called_again_after_a_restart_with_the_same_checkpoint(tmp_path):
    calls, failures = Calls(), ["first", "second"]

    def flaky(output: StagedOutput) -> None:
        if len(calls.ids) == 2 and failures:
            failures.pop()
            raise RuntimeError("not now")
        calls(output)

    lab = job(CheckpointSink("out", flaky), tmp_path, config={"restart-strategy.type": "fixed-delay"})
    coordinator = lab.coordinator(strategy=FixedDelay(5, 0))
    coordinator.run()
    lab.close()
    assert failures == []
    assert calls.all == ALL
    assert calls.ids == sorted(set(calls.ids))


def a_part_that_is_gone_before_it_was_delivered_is_named(tmp_path):
    calls = Calls()
    lab = job(CheckpointSink("out", calls), tmp_path)
    calls.dies = [("before the function", 2)]
    assert not lab._run_until("", 0)
    lab.storage.delete(parts(tmp_path))
    with pytest.raises(
        CorruptFile, match=r"sinks/out/.*this part of the output of checkpoint \d+ is gone, which operator 'out'"
    ):
        lab.run()


def a_job_begun_anew_in_the_same_directory_delivers_its_own_checkpoints(tmp_path):
    first, second = Calls(), Calls()
    lab = job(CheckpointSink("out", first), tmp_path).run()
    lab.storage.delete([path for path in lab.storage.list("") if "/sinks/" not in path])
    job(CheckpointSink("out", second), tmp_path).run()
    assert first.all == second.all == ALL


def test_what_attempts_have_left_is_deleted_while_the_job_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(delivery, "_SWEEP_EVERY", 1)
    calls = Calls()
    lab = job(CheckpointSink("out", calls), tmp_path, repeats=1.0, seed=1)
    lab.run()
    assert calls.all == ALL
    assert parts(tmp_path) == []


def test_what_a_driver_was_writing_when_it_died_is_deleted_by_the_next_one(tmp_path):
    lab = job(CheckpointSink("out", Calls()), tmp_path)
    assert not lab._run_until("after complete", 2)
    area = next((tmp_path / "checkpoints").glob("*/sinks/out/*"))
    part, marker = f"{1:010d}-{99:020d}-{0:05d}-{'a' * 32}", f"done-{99:020d}"
    for name in (part, marker):
        Path(JobPaths.part_file(str(area / name))).write_bytes(b"half of")
    calls = Calls()
    job(CheckpointSink("out", calls), tmp_path).run()
    assert calls.ids, "the unfinished marker does not count"
    assert [path.rpartition("/")[2][:5] for path in staged(tmp_path)] == ["done-"]


def test_many_rows_are_in_several_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(staged_output, "_PART_BYTES", 1)
    monkeypatch.setattr(staged_output, "_ROWS", 2)
    sizes = []
    calls = Calls()

    def counting(output: StagedOutput) -> None:
        sizes.append(len(output.parts))
        calls(output)

    job(CheckpointSink("out", counting), tmp_path).run()
    assert max(sizes) > 3
    assert calls.all == ALL


def tables_of(build: Callable[[Any], Any], directory: Any) -> list[pa.Table]:
    found: list[pa.Table] = []

    def program(env: Any) -> None:
        build(env).sink_to(CheckpointSink("out", lambda output: found.append(pa.Table.from_batches(output.batches()))))

    Lab(program, directory, ledgers=(), parallelism=1).run()
    return found


def test_rows_of_a_changelog_have_their_kind(tmp_path):
    rows = [Row(user="Asha", n=1), Row.of_kind(RowKind.DELETE, "Asha", 1)]
    (table,) = tables_of(
        lambda env: env.from_collection(rows, Types.ROW_NAMED(["user", "n"], [Types.STRING(), Types.INT()])), tmp_path
    )
    assert table.to_pylist() == [
        {"user": "Asha", "n": 1, "row_kind": None},
        {"user": "Asha", "n": 1, "row_kind": "DELETE"},
    ]


def test_elements_without_a_declared_type_have_the_columns_of_their_values(tmp_path):
    (table,) = tables_of(lambda env: env.from_collection([{"a": 1}, {"a": 2.5, "b": "x"}]), tmp_path)
    assert table.to_pylist() == [{"a": 1.0, "b": None}, {"a": 2.5, "b": "x"}]
    (table,) = tables_of(lambda env: env.from_collection([3, 4], Types.INT()), tmp_path / "numbers")
    assert table.schema == pa.schema([("value", pa.int32())])


def an_element_that_has_no_columns_is_named(tmp_path):
    with pytest.raises(UserCodeError, match=r"(?s)Arrow has no type for the column 'a'.*element: \{'a': <object"):
        tables_of(lambda env: env.from_collection([1]).map(lambda n: {"a": object()}), tmp_path)


def a_function_that_fails_twice_for_one_checkpoint_ends_the_job_unless_a_restart_strategy_is_chosen(tmp_path):
    called = []

    def broken(output: StagedOutput) -> None:
        called.append(output.checkpoint_id)
        raise RuntimeError("never")

    lab = job(CheckpointSink("out", broken), tmp_path)
    with pytest.raises(UserCodeError, match="RuntimeError: never"):
        lab.coordinator(strategy=FixedDelay(50, 0)).run()
    lab.close()
    assert len(called) == 2
    assert len(set(called)) == 1


@pytest.mark.parametrize("point", ["run", "before complete", "after complete"])
def the_results_of_a_bounded_job_are_complete_although_its_drivers_die(point, tmp_path):
    results = Results()
    lab = job(ResultsSink(results, None), tmp_path)
    lab.run([(point, 2), (point, 2)])
    output = results.output()
    assert Counter(tuple(row.values()) for batch in output.batches() for row in batch.to_pylist()) == ALL
    assert sum(part.rows for part in output.parts) == ALL.total()
    named = {part.name for part in output.parts}
    assert named == {path.rpartition("/")[2] for path in staged(tmp_path) if "/rows-" not in path}


@pytest.mark.parametrize("whole", [True, False])
def a_list_of_results_that_was_being_written_when_its_driver_died_does_not_count(whole: bool, tmp_path: Path) -> None:
    results = Results()
    lab = job(ResultsSink(results, None), tmp_path)
    assert not lab._run_until("after complete", 2)
    stored = next((tmp_path / "checkpoints").glob("*/sinks/out/*/rows-*"))
    content = stored.read_bytes()
    Path(JobPaths.part_file(str(stored))).write_bytes(content if whole else content[: len(content) // 2])
    job(ResultsSink(results, None), tmp_path).run()
    assert Counter(tuple(row.values()) for batch in results.output().batches() for row in batch.to_pylist()) == ALL
    assert not any(JobPaths.is_part(path) for path in staged(tmp_path))


def a_job_that_has_ended_has_its_results_when_it_is_started_again(tmp_path):
    first, second = Results(), Results()
    job(ResultsSink(first, None), tmp_path).run()
    job(ResultsSink(second, None), tmp_path).run()
    assert second.output().parts == first.output().parts


def test_results_without_rows_have_the_columns_of_their_declared_type(tmp_path):
    results = Results()

    def build(env: Any) -> None:
        env.from_collection([("a", 1)], PAIR).filter(lambda pair: False).sink_to(ResultsSink(results, None)).uid("out")

    Lab(build, tmp_path, ledgers=()).run()
    assert results.output().schema == pa.schema([("f0", pa.string()), ("f1", pa.int64())])
    assert results.output().parts == ()


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("totals", "parquet"), "append to a table of parquet cannot be exactly once; give the path of a directory"),
        (("s3a://bucket/totals", "orc"), "a directory in s3a:// cannot be renamed in one step"),
        (("lake.totals", "iceberg"), "append to iceberg cannot be exactly once, as it does not remember"),
        (("/data/totals", "parquet", "merge", ["shop"]), "rows in files of parquet cannot be merged"),
        (("totals", "delta", "merge"), "mode 'merge' needs merge_keys"),
        (("totals", "delta", "append", ["shop"]), "merge_keys are those of mode 'merge'"),
        (("totals", "delta", "complete"), "the mode is 'append' or 'merge', not 'complete'"),
        (("totals", "delta", "merge", "shop"), "merge_keys is a list of columns, not 'shop'"),
        ((None, "delta"), "None is neither a table's name nor the path of a directory"),
        (("totals", None), "name a format as Spark does"),
    ],
)
def a_table_that_cannot_be_exactly_once_is_refused_when_the_program_is_built(arguments, why):
    with pytest.raises(ConfigurationError, match=re.escape(why)):
        SparkTableSink(*arguments)


@pytest.mark.parametrize("library", ["pyarrow", "pandas"])
def a_sink_whose_output_spark_could_not_read_here_is_refused_before_the_job_starts(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    for sink in (CheckpointSink("out", Calls()), ResultsSink(Results(), None)):
        with pytest.raises(ConfigurationError, match=rf"Spark need {library}: pip install 'holdfast\[dataframes\]'"):
            sink.validate()
