"""Files that are rolled by size and time, or compacted: few files, and every record once at every crash point."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pyarrow
import pyarrow.parquet
import pytest
from connector_harness import SinkRun
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common.formats.avro import AvroSchema
from holdfast.common.serialization import Encoder
from holdfast.common.typeinfo import Types
from holdfast.connectors.file import writer
from holdfast.connectors.file.bulk import ArrowBulkWriters, AvroBulkWriters, ParquetBulkWriters
from holdfast.datastream.connectors.file_system import (
    BucketAssigner,
    ConcatFileCompactor,
    FileCompactor,
    FileCompactStrategy,
    FileSink,
    JsonLinesEncoder,
    RecordWiseFileCompactor,
    RollingPolicy,
)
from holdfast.errors import ConfigurationError, CorruptFile, IncompatibleState

FOREVER = 10**12
PAYMENT = Types.ROW_NAMED(["n", "name"], [Types.LONG(), Types.STRING()])
AVRO = AvroSchema.parse_string(
    '{"type":"record","name":"P","fields":[{"name":"n","type":"long"},{"name":"name","type":"string"}]}'
)


def rolling(path: Path, part_size: int = FOREVER, rollover: int = FOREVER, inactivity: int = FOREVER) -> FileSink:
    policy = RollingPolicy.default_rolling_policy(part_size, rollover, inactivity)
    return flat(FileSink.for_row_format(str(path), Encoder.simple_string_encoder()).with_rolling_policy(policy))


def flat(builder: Any) -> FileSink:
    made: FileSink = builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()
    return made


def compacted(path: Path, factory: Any, size: int | None = None, checkpoints: int | None = None) -> FileSink:
    strategy = FileCompactStrategy.builder()
    if size is not None:
        strategy.set_size_threshold(size)
    if checkpoints is not None:
        strategy.enable_compaction_on_checkpoint(checkpoints)
    builder = FileSink.for_bulk_format(str(path), factory)
    return flat(builder.enable_compact(strategy.build(), RecordWiseFileCompactor()))


def files(path: Path) -> list[Path]:
    return sorted(path.glob("[!.]*"))


def lines(path: Path) -> list[str]:
    return [line for file in files(path) for line in file.read_text().splitlines()]


@pytest.mark.parametrize("inline", [0, 200, 20_000])
def a_file_goes_on_across_checkpoints_until_it_has_its_size(inline: int, tmp_path: Path) -> None:
    run = SinkRun(rolling(tmp_path, part_size=1000), parallelism=1)
    run.inline_bytes = inline
    run.start()
    for n in range(100):
        run.epoch([[f"line {n:04d}"]])  # of ten bytes
    assert [len(file.read_text()) for file in files(tmp_path)] == [1000]
    assert lines(tmp_path) == [f"line {n:04d}" for n in range(100)]
    run.epoch([["the rest"]])
    assert len(files(tmp_path)) == 1
    run.epoch([[]], ends=True)
    assert len(files(tmp_path)) == 2
    assert "the rest" in lines(tmp_path)


def an_epoch_larger_than_a_file_is_several(tmp_path: Path) -> None:
    run = SinkRun(rolling(tmp_path, part_size=60), parallelism=1)
    run.epoch([[f"line {n:04d}" for n in range(20)]])
    assert [len(file.read_text()) for file in files(tmp_path)] == [60, 60, 60]
    run.epoch([[]], ends=True)
    assert Counter(lines(tmp_path)) == Counter(f"line {n:04d}" for n in range(20))


def a_file_is_rolled_when_it_is_old_or_idle_although_no_records_come(tmp_path: Path) -> None:
    run = SinkRun(rolling(tmp_path, rollover=60_000, inactivity=10_000), parallelism=1)
    run.epoch([["a"]])
    assert run.next_commit() == 10_000
    run.now = 9_999
    run.epoch([[]])
    assert files(tmp_path) == []
    run.now = 10_000
    run.epoch([[]])
    assert lines(tmp_path) == ["a"]
    assert run.next_commit() is None
    for run.now in range(20_000, 79_999, 5_000):  # never idle, but old in the end
        run.epoch([["b"]])
    assert lines(tmp_path) == ["a"]
    assert run.next_commit() == 80_000
    run.now = 80_000
    run.epoch([["c"]])
    assert Counter(lines(tmp_path)) == Counter(a=1, b=12, c=1)
    assert len(files(tmp_path)) == 2


def a_compaction_counts_checkpoints_also_without_records(tmp_path: Path) -> None:
    run = SinkRun(compacted(tmp_path, ParquetBulkWriters.for_row_type(PAYMENT), checkpoints=3), parallelism=1)
    run.epoch([[(1, "a")]])
    due = run.next_commit()
    while due is not None:
        run.now = due
        run.epoch([[]])
        due = run.next_commit()
    assert run.completed == 3
    assert len(files(tmp_path)) == 1


def a_file_that_only_its_size_compacts_asks_for_no_epochs(tmp_path: Path) -> None:
    run = SinkRun(compacted(tmp_path, ParquetBulkWriters.for_row_type(PAYMENT), size=10**9), parallelism=1)
    run.epoch([[(1, "a")]])
    assert run.next_commit() is None


@pytest.mark.parametrize(
    ("factory", "read"),
    [
        (ParquetBulkWriters.for_row_type(PAYMENT), lambda file: pyarrow.parquet.read_table(file).to_pylist()),
        (
            ArrowBulkWriters.for_row_type(PAYMENT),
            lambda file: pyarrow.ipc.open_file(file.read_bytes()).read_all().to_pylist(),
        ),
        (AvroBulkWriters.for_generic_record(AVRO), lambda file: list(fastavro.reader(io.BytesIO(file.read_bytes())))),
    ],
    ids=["parquet", "arrow", "avro"],
)
def the_files_of_a_bulk_format_become_one_before_they_are_visible(factory: Any, read: Any, tmp_path: Path) -> None:
    rows = [{"n": n, "name": f"name {n}"} for n in range(60)]
    run = SinkRun(compacted(tmp_path, factory, checkpoints=6), parallelism=1)
    for first in range(0, 60, 10):
        assert files(tmp_path) == []
        run.epoch([rows[first : first + 10]])
    (file,) = files(tmp_path)
    assert read(file) == rows


def a_compacted_parquet_file_has_few_groups_of_rows(tmp_path: Path) -> None:
    run = SinkRun(compacted(tmp_path, ParquetBulkWriters.for_row_type(PAYMENT), checkpoints=20), parallelism=1)
    for n in range(20):
        run.epoch([[(n, "a")]])
    (file,) = files(tmp_path)
    assert pyarrow.parquet.ParquetFile(file).metadata.num_row_groups == 1


class Numbered:
    """A format of which Holdfast knows nothing: the numbers of a file, each with its place in it."""

    def create(self, file: Any) -> Any:
        return _Numbers(file)


class _Numbers:
    def __init__(self, file: Any) -> None:
        self._file, self._next = file, 0

    def add(self, values: Any) -> None:
        for value in values:
            self._file.write(f"{self._next}:{value}\n".encode())
            self._next += 1

    def finish(self) -> None:
        self._file.write(b"end\n")

    def abandon(self) -> None:
        pass


def the_files_of_a_users_own_format_are_written_of_their_records(tmp_path: Path) -> None:
    run = SinkRun(compacted(tmp_path, Numbered(), checkpoints=3), parallelism=1)
    for values in ([5, 6, 7, 8], [], [9]):
        run.epoch([values])
    assert lines(tmp_path) == ["0:5", "1:6", "2:7", "3:8", "4:9", "end"]


def test_a_file_is_rolled_once_both_the_policy_and_the_compaction_say_so(tmp_path: Path) -> None:
    policy = RollingPolicy.default_rolling_policy(FOREVER, 5_000, FOREVER)
    builder = FileSink.for_row_format(str(tmp_path), JsonLinesEncoder()).with_rolling_policy(policy)
    strategy = FileCompactStrategy.builder().enable_compaction_on_checkpoint(3).build()
    run = SinkRun(flat(builder.enable_compact(strategy, ConcatFileCompactor())), parallelism=1)
    for n in range(4):  # three checkpoints, but not old
        run.epoch([[n]])
    assert files(tmp_path) == []
    run.now = 5_000
    run.epoch([[4]])
    assert lines(tmp_path) == list("01234")
    run.now = 20_000
    run.epoch([[5]])
    run.now = 30_000  # old, but one checkpoint
    run.epoch([[6]])
    assert lines(tmp_path) == list("01234")


EPOCHS = st.tuples(st.sampled_from([None, *SinkRun.CRASH_POINTS]), st.integers(0, 40), st.integers(1, 3), st.booleans())


@pytest.mark.parametrize("inline", [0, 300])
def test_any_crashes_and_parallelisms_write_every_record_once(inline: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    @given(st.lists(EPOCHS, min_size=1, max_size=14), st.sampled_from(["size", "time", "compaction"]))
    @settings(max_examples=examples(40), deadline=None)
    def check(epochs: list[tuple[str | None, int, int, bool]], how: str) -> None:
        base = tmp_path_factory.mktemp("out")
        sinks = {
            "size": rolling(base / "files", part_size=150),
            "time": rolling(base / "files", rollover=3_000, inactivity=2_000),
            "compaction": compacted(base / "files", Numbered(), size=400, checkpoints=4),
        }
        run = SinkRun(sinks[how], (base / "checkpoints").as_uri())
        run.inline_bytes = inline
        run.start()
        expected: Counter[str] = Counter()
        for n, (crash_at, count, parallelism, moves) in enumerate(epochs):
            run.now += 1000
            values = [[f"{n}-{s}-{i}" for i in range(count)] for s in range(run.parallelism)]
            if run.completes(values, crash_at):
                expected.update(value for each in values for value in each)
            seen = records(base / "files")
            assert not seen - expected, "a record is visible before its checkpoint, or twice"
            if moves:
                run.parallelism = parallelism
                run.start()
        run.epoch([[]] * run.parallelism, ends=True)
        assert records(base / "files") == expected
        assert len(files(base / "files")) <= len(epochs) * 3 * 3
        run.start()
        assert not list((base / "files").glob(".*"))
        assert run.state is not None
        assert all(subtask.empty for subtask in run.state.subtasks)

    def records(path: Path) -> Counter[str]:
        return Counter(line.rpartition(":")[2] for line in lines(path) if line != "end")

    check()


def a_delimiter_is_between_what_two_checkpoints_have_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_LONGEST_CHUNK", 3)  # a checkpoint has several chunks
    strategy = FileCompactStrategy.builder().enable_compaction_on_checkpoint(4).build()
    builder = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder())
    run = SinkRun(flat(builder.enable_compact(strategy, FileCompactor.concat_file_compactor(b"--\n"))), parallelism=1)
    for values in (["a", "b", "c", "d", "e", "f", "g"], [], ["h"], ["i", "j"]):
        run.epoch([values])
    assert "".join(lines(tmp_path)) == "abcdefg--h--ij"


def test_files_that_are_compacted_as_they_are_appear_with_each_checkpoint(tmp_path: Path) -> None:
    strategy = FileCompactStrategy.builder().enable_compaction_on_checkpoint(4).build()
    builder = FileSink.for_row_format(str(tmp_path), JsonLinesEncoder())
    run = SinkRun(flat(builder.enable_compact(strategy, FileCompactor.identical_file_compactor())), parallelism=1)
    for n in range(3):
        run.epoch([[n]])
        assert len(files(tmp_path)) == n + 1


def an_abandoned_epoch_leaves_the_files_as_they_were(tmp_path: Path) -> None:
    run = SinkRun(rolling(tmp_path, part_size=25), parallelism=1)
    run.epoch([["first line"]])
    abandoned = run.writers[0]
    abandoned.begin_epoch(2, "a", 1)
    abandoned.write(["abandoned", "abandoned"], None)
    abandoned.abort_epoch()
    run.epoch([["other line"]])
    run.epoch([[]], ends=True)
    assert lines(tmp_path) == ["first line", "other line"]


def a_file_of_two_former_subtasks_is_one(tmp_path: Path) -> None:
    run = SinkRun(rolling(tmp_path))
    run.epoch([["a"], ["b"]])
    run.parallelism = 1
    run.start()
    run.epoch([["c"]], ends=True)
    assert [file.read_text() for file in files(tmp_path)] == ["a\nb\nc\n"]


@pytest.mark.parametrize("to", ["every checkpoint", "another size"])
def a_file_that_waits_is_rolled_by_the_policy_of_a_changed_program(to: str, tmp_path: Path) -> None:
    run = SinkRun(rolling(tmp_path), parallelism=1)
    run.epoch([["a"]])
    builder = FileSink.for_row_format(str(tmp_path), Encoder.simple_string_encoder())
    run.start(flat(builder) if to == "every checkpoint" else rolling(tmp_path, part_size=4))
    run.epoch([["b"]])
    assert [file.read_text() for file in files(tmp_path)] == ["a\nb\n"]
    run.epoch([["c"]], ends=True)
    assert Counter(lines(tmp_path)) == Counter("abc")


def test_records_that_wait_in_another_form_are_refused_with_the_way_out(tmp_path: Path) -> None:
    run = SinkRun(rolling(tmp_path), parallelism=1)
    run.epoch([["a"]])
    with pytest.raises(IncompatibleState, match=r"encoded; now arrow-.*drain=True"):
        run.start(compacted(tmp_path, ParquetBulkWriters.for_row_type(PAYMENT), checkpoints=3))
    other = Types.ROW_NAMED(["n", "street"], [Types.LONG(), Types.STRING()])
    run = SinkRun(compacted(tmp_path, ParquetBulkWriters.for_row_type(PAYMENT), checkpoints=3), parallelism=1)
    run.epoch([[(1, "a")]])
    with pytest.raises(IncompatibleState, match="another format or schema"):
        run.start(compacted(tmp_path, ParquetBulkWriters.for_row_type(other), checkpoints=3))
    run.start(compacted(tmp_path, ArrowBulkWriters.for_row_type(PAYMENT), checkpoints=3))  # of the same record batches


def a_checkpoint_names_no_bucket_outside_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Outside(BucketAssigner):
        def bucket(self) -> str:
            return "../other"

    policy = RollingPolicy.default_rolling_policy()
    builder = FileSink.for_row_format(str(tmp_path / "out"), JsonLinesEncoder()).with_rolling_policy(policy)
    outside = SinkRun(rolling(tmp_path / "out"), parallelism=1)
    outside.writers[0]._buckets = Outside()  # type: ignore[attr-defined]
    monkeypatch.setattr(writer, "check_bucket", lambda bucket: None)
    outside.epoch([["a"]])
    with pytest.raises(CorruptFile, match="a bucket outside the directory of the FileSink"):
        outside.start(flat(builder))


def the_state_of_a_long_file_has_few_parts(tmp_path: Path) -> None:
    run = SinkRun(rolling(tmp_path), parallelism=1)
    run.inline_bytes = 100
    run.start()
    most = 0
    for n in range(300):
        run.epoch([[f"{n:04d} {'x' * (n % 90)}"]])
        assert run.state is not None
        most = max(most, len(run.state.subtasks[0].lists["writer-state"]))
    assert most <= 12
    run.epoch([[]], ends=True)
    assert [line.split()[0] for line in lines(tmp_path)] == [f"{n:04d}" for n in range(300)]


def a_bucket_that_has_ended_is_rolled_by_its_own_time(tmp_path: Path) -> None:
    class Switching(BucketAssigner):
        name = "one"

        def bucket(self) -> str:
            return self.name

    run = SinkRun(rolling(tmp_path, inactivity=5_000), parallelism=1)
    buckets = run.writers[0]._buckets = Switching()  # type: ignore[attr-defined]
    run.epoch([["a"]])
    buckets.name, run.now = "two", 3_000
    run.epoch([["b"]])
    run.now = 5_000
    run.epoch([["b"]])
    assert lines(tmp_path / "one") == ["a"]
    assert files(tmp_path / "two") == []


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RollingPolicy.default_rolling_policy(part_size=0), "part_size must be a positive integer, not 0"),
        (lambda: RollingPolicy.default_rolling_policy(rollover_interval=-1), "rollover_interval must be a positive"),
        (lambda: RollingPolicy.default_rolling_policy(inactivity_interval=1.5), "inactivity_interval must be"),  # type: ignore[arg-type]
        (lambda: FileCompactStrategy.builder().build(), "set enable_compaction_on_checkpoint.*or both"),
        (lambda: FileCompactStrategy.builder().set_size_threshold(0), "the size threshold must be a positive"),
        (lambda: FileCompactStrategy.builder().enable_compaction_on_checkpoint(0), "the number of checkpoints must be"),
        (lambda: FileSink("/x", JsonLinesEncoder(), rolling_policy="daily"), "cannot roll by 'daily'"),  # type: ignore[arg-type]
        (
            lambda: FileSink.for_row_format("/x", JsonLinesEncoder()).enable_compact("often", ConcatFileCompactor()),  # type: ignore[arg-type]
            "FileCompactStrategy.builder",
        ),
        (
            lambda: FileSink("/x", JsonLinesEncoder(), compact_strategy=FileCompactStrategy(1, None), compactor="zip"),  # type: ignore[arg-type]
            r"cannot compact by 'zip'; use FileCompactor.concat_file_compactor\(\) or RecordWiseFileCompactor\(\)",
        ),
        (
            lambda: (
                FileSink.for_bulk_format("/x", ParquetBulkWriters.for_row_type(PAYMENT))
                .enable_compact(FileCompactStrategy(1, None), ConcatFileCompactor())
                .build()
            ),
            "a bulk format cannot be written one after another; use RecordWiseFileCompactor",
        ),
    ],
)
def a_policy_or_strategy_that_cannot_work_is_refused(make: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        make()
