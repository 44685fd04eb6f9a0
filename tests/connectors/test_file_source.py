"""The file source: epochs, crashes, watching."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from connector_harness import SourceRun, flat
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import WatermarkStrategy
from holdfast.common.time import Duration
from holdfast.connectors.base import ReaderContext
from holdfast.connectors.file.source import FileEnumerator
from holdfast.datastream.connectors.file_system import FileSource, StreamFormat
from holdfast.errors import ConfigurationError, IncompatibleState, InputLost, UserCodeError
from holdfast.runtime.task.split_merge import SplitMerge
from holdfast.testing import InProcessEnvironment


def text_source(*paths: object) -> FileSource:
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), *map(str, paths)).build()


def test_any_epochs_and_crashes_yield_every_line_of_every_file_once_in_order(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    @given(
        files=st.lists(st.lists(st.sampled_from(["", "x", "a longer line", "ä" * 40]), max_size=60), max_size=20),
        per_epoch=st.integers(1, 100),
        crashes=st.sets(st.integers(0, 30)),
    )
    @settings(max_examples=60, deadline=None)
    def check(files: list[list[str]], per_epoch: int, crashes: set[int]) -> None:
        directory = tmp_path_factory.mktemp("input")
        for i, lines in enumerate(files):
            (directory / f"f{i:02d}.txt").write_text("".join(f"{i}-{n}-{line}\n" for n, line in enumerate(lines)))
        run = SourceRun(text_source(directory)).start()
        read: dict[str, list[str]] = {}
        epochs = 0
        while not run.finished:
            if epochs in crashes:
                run.plan(per_epoch)
                run.crash()
            for split, values in run.epoch(per_epoch).items():
                read.setdefault(os.path.basename(split), []).extend(values)
            epochs += 1
        assert read == {
            f"f{i:02d}.txt": [f"{i}-{n}-{line}" for n, line in enumerate(lines)] for i, lines in enumerate(files) if lines
        }
        assert run.finished_splits == {str(directory / name) for name in read}

    check()


def an_epoch_has_about_as_many_records_as_asked_for(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text("".join(f"{i:09d}\n" for i in range(20_000)))
    run = SourceRun(text_source(tmp_path), max_batch=10_000).start()
    assert [len(values) for values in run.epoch(1000).values()] == [500, 500]
    assert run.last_input.backlog == 39_000
    assert sum(part.weight for part in run.last_input.ranges) == 1000


def test_files_advance_in_proportion_to_what_is_left_of_them(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("".join(f"{i:09d}\n" for i in range(9000)))
    (tmp_path / "short").write_text("".join(f"{i:09d}\n" for i in range(1000)))
    run = SourceRun(text_source(tmp_path), max_batch=10_000).start()
    for _ in range(3):
        assert [len(values) for values in run.epoch(1000).values()] == [900, 100]


def test_hidden_files_are_left_out_and_directories_read_recursively(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "_temporary").mkdir()
    for name in ("a/1", "a/b/2", "a/.3", "_temporary/4", "_5", "6"):
        (tmp_path / name).write_text(name + "\n")
    run = SourceRun(text_source(tmp_path.as_uri())).start()
    assert sorted(flat(run.run())) == ["6", "a/1", "a/b/2"]


def a_file_that_is_replaced_before_its_turn_is_read_as_it_is_then(tmp_path: Path) -> None:
    for number in range(17):
        (tmp_path / f"{number:02d}").write_text("".join(f"{number} {line}\n" for line in range(20)))
    run = SourceRun(text_source(tmp_path)).start()
    run.epoch(16)
    replace(tmp_path / "16", "".join(f"new {line}\n" for line in range(30)))
    assert flat(run.run())[-30:] == [f"new {line}" for line in range(30)]


def test_of_sparks_output_only_files_in_its_log_are_read(tmp_path: Path) -> None:
    log, part = tmp_path / "out" / "_spark_metadata", tmp_path / "out" / "day=1"
    log.mkdir(parents=True)
    part.mkdir()

    def write(name: str, *lines: object) -> None:
        (tmp_path / "out" / name).write_text("".join(f"{line}\n" for line in lines))

    def entry(path: str, action: str = "add") -> str:
        return json.dumps({"path": f"hdfs://elsewhere/out/{path}", "size": 1, "isDir": False, "action": action})

    for number in range(1, 8):
        write(f"day=1/part-{number}", f"record {number}")
    write("_spark_metadata/0", "v1", entry("day=1/part-7"))
    write("_spark_metadata/1.compact", "v1", *(entry(f"day=1/part-{n}") for n in (1, 2)))
    write("_spark_metadata/2", "v1", entry("day=1/part-3"), entry("day=1/part-2", "delete"))
    write("_spark_metadata/10", "v1", entry("day=1/part-5"), "")
    write("_spark_metadata/.11.tmp", "v")
    for path in (tmp_path, tmp_path / "out"):
        assert sorted(flat(SourceRun(text_source(path)).start().run())) == ["record 1", "record 3", "record 5"]
    write("_spark_metadata/11", "v2")
    with pytest.raises(ConfigurationError, match=r"_spark_metadata/11: is no log of Spark's output"):
        SourceRun(text_source(tmp_path)).start()


def the_cost_of_many_small_files_grows_with_their_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    look = SplitMerge._event_time
    monkeypatch.setattr(SplitMerge, "_event_time", lambda self, name: looks.append(name) or look(self, name))
    for number in range(200):
        (tmp_path / str(number)).write_text(f"{number}\n")
    lines = InProcessEnvironment().from_source(text_source(tmp_path), WatermarkStrategy.no_watermarks(), "files")
    with lines.execute_and_collect() as results:
        assert sorted(map(int, results)) == list(range(200))
    assert 200 <= len(looks) <= 2 * 200


def a_missing_path_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="nowhere: no such file or directory"):
        SourceRun(text_source(tmp_path / "nowhere")).start()


def an_empty_directory_finishes_at_once(tmp_path: Path) -> None:
    run = SourceRun(text_source(tmp_path)).start()
    assert run.epoch() == {}
    assert run.finished


def an_empty_file_is_no_obstacle(tmp_path: Path) -> None:
    for name, text in (("a", ""), ("b", "1\n"), ("c", "")):
        (tmp_path / name).write_text(text)
    assert flat(SourceRun(text_source(tmp_path)).start().run()) == ["1"]


def a_compressed_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.csv.gz").write_bytes(b"\x1f\x8b")
    with pytest.raises(ConfigurationError, match="decompress it first"):
        SourceRun(text_source(tmp_path)).start()


def test_another_file_system_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"only local paths, file://, s3://.* mount ftp:// as a directory"):
        text_source("ftp://host/key")
    with pytest.raises(ConfigurationError, match="three slashes"):
        text_source("file://data/x")
    with pytest.raises(ConfigurationError, match="at least one path"):
        text_source()


def a_file_removed_before_it_was_read_is_input_lost(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n" * 100)
    run = SourceRun(text_source(tmp_path)).start()
    run.epoch(10)
    (tmp_path / "a").unlink()
    with pytest.raises(InputLost, match="removed before it was read"):
        run.epoch(10)


def replace(path: Path, text: str) -> None:
    """Another file under the same name, as a program that writes and renames leaves it."""
    other = path.with_name(".new")
    other.write_text(text)
    other.rename(path)


@pytest.mark.parametrize("text", ["other\n" * 1000, "y\n" * 100, "1\n" * 99, ""])
def a_file_that_is_replaced_while_it_is_read_stops_the_job(tmp_path: Path, text: str) -> None:
    file = tmp_path / "a"
    file.write_text("x\n" * 100)
    run = SourceRun(text_source(tmp_path)).start()
    run.epoch(10)
    replace(file, text)
    with pytest.raises(InputLost, match=r"a: was replaced or changed while it was read.*touch -d @.*/a"):
        run.epoch(10)
    with pytest.raises(InputLost, match="was replaced or changed"):
        run.crash()


def a_file_that_is_replaced_while_a_range_of_it_is_read_stops_the_job(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("x\n" * 100)
    source = text_source(tmp_path)
    run = SourceRun(source).start()
    (part,) = run.enumerator.plan(50).ranges
    batches = source.create_reader(ReaderContext(run.job, "u", 0, 1)).read(part, 7)
    next(batches)
    replace(file, "y\n" * 100)
    with pytest.raises(InputLost, match="was replaced or changed"):
        list(batches)


def the_original_file_put_back_as_the_message_says_is_read_on(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("x\n" * 100)
    run = SourceRun(text_source(tmp_path)).start()
    read = len(flat(run.epoch(10)))
    replace(file, "x\n" * 100)
    with pytest.raises(InputLost) as lost:
        run.epoch(10)
    touch = re.search(r"touch -d (\S+) (\S+)\)", str(lost.value))
    assert touch is not None
    subprocess.run(["touch", "-d", touch[1], touch[2]], check=True)
    run.crash()
    while not run.finished:
        read += len(flat(run.epoch(30)))
    assert read == 100


def test_data_appended_to_a_file_during_a_single_read_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("x\n" * 100)
    run = SourceRun(text_source(tmp_path)).start()
    read = flat(run.epoch(10))
    with file.open("a") as end:
        end.write("y\n" * 1000)
    run.crash()
    while not run.finished:
        read += flat(run.epoch(30))
    assert read == ["x"] * 100


class Watched:
    """A watched directory and a clock that the test moves."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.now = 2e9
        self.read: list[str] = []
        source = (
            FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(directory))
            .monitor_continuously(Duration.of_seconds(10))
            .build()
        )
        assert not source.bounded
        self.run = SourceRun(source)
        self.start()

    def start(self) -> None:
        self.run.enumerator = FileEnumerator(
            self.run.source.format,  # type: ignore[attr-defined]
            self.run.source.paths,  # type: ignore[attr-defined]
            10_000,
            clock=lambda: self.now,
        )
        self.run.start()

    def write(self, name: str, text: str) -> None:
        path = self.directory / name
        path.write_text(text)
        os.utime(path, (self.now, self.now))

    def look(self) -> list[str]:
        """What the next look at the directory gives."""
        self.now += 10
        return flat(self.run.epoch(1000))


def test_new_files_are_picked_up_and_read_once(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    assert watched.look() == []
    watched.write("b", "1\n2\n")
    assert watched.look() == ["1", "2"]
    assert watched.look() == []
    watched.write("a", "3\n")
    watched.run.plan(1000)
    watched.start()  # a crash
    assert watched.look() == ["3"]
    assert watched.look() == []
    assert not watched.run.finished
    assert watched.run.finished_splits == {str(tmp_path / name) for name in "ab"}


def a_file_is_picked_up_only_when_it_has_stopped_growing(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    text = ""
    for n in range(3):
        text += f"{n}\n"
        watched.now += 9.5
        watched.write("a", text)
        watched.now -= 9.5
        assert watched.look() == []
    assert watched.look() == ["0", "1", "2"]


def a_file_that_grows_after_it_was_picked_up_stops_the_job_with_the_remedy(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.write("a", "1\n")
    watched.look()
    watched.write("a", "1\n2\n")
    with pytest.raises(InputLost, match=r"grew from 2 to 4 bytes.*truncate -s 2"):
        watched.look()


@pytest.mark.parametrize("text", ["9\n", "8\n9\n"])
def a_file_that_is_replaced_after_it_was_read_stops_the_job_with_the_remedy(tmp_path: Path, text: str) -> None:
    watched = Watched(tmp_path)
    watched.write("a", "1\n2\n")
    assert watched.look() == ["1", "2"]
    watched.write("a", text)
    with pytest.raises(InputLost, match=r"was replaced or changed after it was picked up.*name of its own"):
        watched.look()
    (tmp_path / "a").rename(tmp_path / "b")
    assert watched.look() == text.split()


def a_removed_file_is_forgotten_once_it_is_read(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.write("a", "1\n")
    watched.look()
    assert set(watched.run.state["done"]) == {str(tmp_path / "a")}
    (tmp_path / "a").unlink()
    watched.look()
    assert watched.run.state["done"] == {}


@pytest.mark.parametrize("epochs", [1, 2, 50])
def a_program_that_begins_to_watch_reads_no_file_again(tmp_path: Path, epochs: int) -> None:
    for name in "abc":
        (tmp_path / name).write_text("".join(f"{name}{n}\n" for n in range(30)))
    once = SourceRun(text_source(tmp_path)).start()
    read = [value for _ in range(epochs) for value in flat(once.epoch(20))]
    (tmp_path / "d").write_text("d0\n")
    interval = Duration.of_millis(1)
    watching = SourceRun(FileSource(StreamFormat.text_line_format(), str(tmp_path), discovery_interval=interval))
    watching.state = once.state
    watching.start()
    while "d0" not in read or watching.last_input.ranges:
        watching.enumerator.wait(1)
        read += flat(watching.epoch(20))
    assert sorted(read) == sorted([*(f"{name}{n}" for name in "abc" for n in range(30)), "d0"])
    watching.close()


def the_oldest_of_the_new_files_comes_first(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    for n, name in enumerate(f"{i:03d}" for i in reversed(range(40))):
        watched.now += n / 100
        watched.write(name, f"{n}\n")
    watched.now += 10
    order: list[str] = []
    while len(order) < 40:
        order += [v for values in watched.run.epoch(1).values() for v in values]
    groups = [set(map(int, order[i : i + 16])) for i in (0, 16)]
    assert groups == [set(range(16)), set(range(16, 32))]


@pytest.mark.parametrize("as_tuples", [False, True])
def test_parquet_rows_are_read_once_whatever_the_epochs(tmp_path: Path, as_tuples: bool) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    for f in range(2):
        rows = [{"id": f * 1000 + i, "name": f"n{i}", "skip": None} for i in range(500)]
        table = pyarrow.Table.from_pylist(rows)
        parquet.write_table(table, tmp_path / f"{f}.parquet", row_group_size=64)
    form = StreamFormat.parquet(["id", "name"], as_tuples)
    for per_epoch in (19, 130, 10_000):
        source = FileSource.for_record_stream_format(form, str(tmp_path)).build()
        read = SourceRun(source, max_batch=50).start().run(per_epoch)
        expected = [(f * 1000 + i, f"n{i}") for f in range(2) for i in range(500)]
        assert flat(read) == (expected if as_tuples else [{"id": i, "name": n} for i, n in expected])


def a_row_of_a_parquet_file_is_located(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.table({"n": list(range(100))}), path, row_group_size=30)
    run = SourceRun(FileSource.for_record_stream_format(StreamFormat.parquet(), str(path)).build(), max_batch=8).start()
    run.enumerator.plan(35)
    batch = run.read(run.enumerator.plan(100).ranges[0])[0]
    assert batch.locate(2) == f"{path}, row {batch.values[2]['n'] + 1}"


def a_file_that_is_no_parquet_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "x.parquet").write_text("no parquet")
    run = SourceRun(FileSource.for_record_stream_format(StreamFormat.parquet(), str(tmp_path)).build()).start()
    with pytest.raises(UserCodeError, match=r"x\.parquet: is not a Parquet file"):
        run.plan(10)


def a_missing_parquet_column_is_named(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"n": [1]}), tmp_path / "x.parquet")
    form = StreamFormat.parquet(["m"])
    run = SourceRun(FileSource.for_record_stream_format(form, str(tmp_path)).build()).start()
    with pytest.raises(UserCodeError, match="no column m; the file has n"):
        run.plan(10)


# files that change while they are read


class Act(NamedTuple):
    """Something that happens to a file between two epochs."""

    what: str
    number: int


def act(file: Path, done: Act, original: str) -> bool:
    """Do it; whether the file is still the one whose beginning was read."""
    if done.what == "append":
        with file.open("a") as end:
            end.write("more\n" * done.number)
        return True
    if done.what == "touch":
        os.utime(file, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
        return True
    if done.what == "truncate":
        os.truncate(file, min(done.number, max(0, len(original) - 1)))
    elif done.what == "replace":
        replace(file, "other\n" * done.number)
    else:
        file.unlink()
    return False


acts = st.builds(Act, st.sampled_from(["append", "touch", "truncate", "replace", "remove"]), st.integers(0, 120))


def test_whatever_happens_to_a_file_its_lines_are_read_or_the_loss_is_told_and_never_a_mixture(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    @given(
        count=st.integers(2, 60),
        per_epoch=st.integers(1, 20),
        happens=st.dictionaries(st.integers(1, 5), acts, min_size=1, max_size=2),
        crashes=st.sets(st.integers(1, 5)),
    )
    @settings(max_examples=100, deadline=None)
    def check(count: int, per_epoch: int, happens: dict[int, Act], crashes: set[int]) -> None:
        file = tmp_path_factory.mktemp("input") / "a"
        lines = [f"{n}" for n in range(count)]
        original = "".join(f"{line}\n" for line in lines)
        file.write_text(original)
        run = SourceRun(text_source(file)).start()
        read: list[str] = []
        intact, epoch = True, 0
        try:
            while not run.finished:
                if epoch in happens and file.exists():
                    intact = act(file, happens[epoch], original) and intact
                if epoch in crashes:
                    run.crash()
                read += flat(run.epoch(per_epoch))
                epoch += 1
        except InputLost:
            assert not intact, "the file was as it had been, or longer"
            assert read == lines[: len(read)]
        else:
            assert read == lines

    check()


@pytest.mark.parametrize("kind", ["waiting", "active"])
@pytest.mark.parametrize("elsewhere", ["/etc/passwd", "{}/../other", "{}-other/file", "s3://bucket/file"])
def a_checkpoint_names_no_file_outside_the_paths_of_the_source(kind: str, elsewhere: str, tmp_path: Path) -> None:
    source = text_source(tmp_path)
    state = {"waiting": {f"{tmp_path}/a": [1, "2"]}, "active": {f"{tmp_path}/b/c": [0, 1, 1, "2"]}, "done": {}}
    source.check_position(state)
    state[kind] = {elsewhere.format(tmp_path): [0, 1, 1, "2"]}
    with pytest.raises(IncompatibleState, match="is not under the paths of the FileSource"):
        source.check_position(state)
