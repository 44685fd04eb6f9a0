"""The file source and sink on object stores: S3 by moto's server, with injected errors and kills, and a store in memory."""

from __future__ import annotations

import functools
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import fastavro
import pytest
from connector_harness import Crash, SinkRun, SourceRun, flat
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.checkpoint.stores import bucket
from holdfast.checkpoint.stores.storage import FileStorage, RetryPolicy
from holdfast.common import Configuration, RestartStrategies, WatermarkStrategy
from holdfast.common.formats.avro import AvroSchema
from holdfast.common.serialization import Encoder
from holdfast.common.time import Duration
from holdfast.common.typeinfo import Types
from holdfast.connectors.base import Committable
from holdfast.connectors.file import files
from holdfast.connectors.file.avro_files import AvroFormat
from holdfast.connectors.file.bulk import ArrowBulkWriters, AvroBulkWriters, ParquetBulkWriters
from holdfast.connectors.file.files import FileVersion, InputFile, StoreFiles
from holdfast.connectors.file.outputs import StoreOutput
from holdfast.connectors.file.source import FileEnumerator
from holdfast.datastream.connectors.file_system import (
    BucketAssigner,
    FileSink,
    FileSource,
    JsonLinesEncoder,
    RollingPolicy,
    StreamFormat,
)
from holdfast.errors import ConfigurationError, InputLost, StorageError, UserCodeError
from holdfast.testing import InProcessEnvironment
from holdfast.testing.faulty_storage import Fault, FaultyStorage
from holdfast.testing.memory_store import MemoryStore
from s3_fixtures import Relay

QUICK = RetryPolicy(budget=5.0, first_delay=0.001, longest_delay=0.01)


class InMemory:
    """A store in memory behind all URIs."""

    def __init__(self) -> None:
        self.dies = False
        self.store = MemoryStore(self._between_copy_and_delete)
        self.faulty = FaultyStorage(self.store)

    def _between_copy_and_delete(self) -> None:
        if self.dies:
            raise Crash("moving")

    def visible(self, directory: str = "out") -> list[str]:
        found = [path for path in self.store.objects if path.startswith(f"{directory}/") and "/." not in path]
        return [line for path in sorted(found) for line in self.store.objects[path].decode().splitlines()]

    def hidden(self) -> list[str]:
        return [path for path in self.store.objects if "/." in path]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> InMemory:
    made = InMemory()
    monkeypatch.setattr(FileStorage, "open", classmethod(lambda cls, uri, config=None: cls(made.faulty, QUICK)))
    return made


def sink_to(path: str, encoder: Any = None) -> FileSink:
    builder = FileSink.for_row_format(path, encoder or Encoder.simple_string_encoder())
    return builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()


def lines_of(*paths: str) -> FileSource:
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), *paths).build()


CRASHES = [None, "moving", *SinkRun.CRASH_POINTS]
FAULTS = st.tuples(st.sampled_from(["create", "move", "walk", "delete"]), st.integers(1, 6), st.sampled_from([*Fault][:2]))


def test_any_crashes_and_faults_write_every_record_once_and_leave_nothing(memory: InMemory) -> None:
    @given(st.lists(st.tuples(st.sampled_from(CRASHES), st.lists(FAULTS, max_size=3)), min_size=1, max_size=10))
    @settings(max_examples=60, deadline=None)
    def check(epochs: list[tuple[str | None, list[tuple[str, int, Fault]]]]) -> None:
        memory.store.objects.clear()
        memory.faulty = FaultyStorage(memory.store)
        run = SinkRun(sink_to("s3://bucket/out"), "memory:checkpoints")
        expected: Counter[str] = Counter()
        for n, (crash_at, faults) in enumerate(epochs):
            for method, call, fault in faults:
                memory.faulty.on_call(call, method, fault)
            values = [[f"{n}-{s}-{i}" for i in range(n % 5)] for s in range(2)]
            before = run.completed
            memory.dies = crash_at == "moving"
            try:
                run.epoch(values, crash_at)
            except Crash:
                memory.dies = False
                run.start()
            memory.dies = False
            if run.completed > before:
                expected.update(values[0] + values[1])
            assert Counter(memory.visible()) == expected
        run.start()
        assert Counter(memory.visible()) == expected
        assert memory.hidden() == []

    check()


def a_file_that_a_zombie_finishes_later_never_appears_and_is_deleted_by_the_next_driver(memory: InMemory) -> None:
    run = SinkRun(sink_to("s3://bucket/out"), "memory:c", parallelism=1)
    zombie = run.writers[0]
    zombie.begin_epoch(1, "a", 0)
    zombie.write(["x"], None)
    run.writers = []
    run.start()
    run.epoch([["x"]])
    zombie.prepare_commit()
    assert len(memory.hidden()) == 1
    run.epoch([["y"]])
    assert memory.visible() == ["x", "y"]
    run.start()
    assert memory.hidden() == []


def a_driver_that_was_overtaken_before_it_recovered_leaves_its_successors_files_alone(memory: InMemory) -> None:
    run = SinkRun(sink_to("s3://bucket/out"), "memory:c", parallelism=1)
    run.recover_overtaken([["x"]])
    assert memory.visible() == ["x"]


def a_probe_of_a_driver_that_died_is_deleted_by_the_next(memory: InMemory) -> None:
    run = SinkRun(sink_to("s3://bucket/out"), "memory:c")
    memory.dies = True
    with pytest.raises(Crash):
        run.start()
    memory.dies = False
    assert memory.hidden()
    run.start()
    assert memory.hidden() == []


def an_epoch_that_is_abandoned_leaves_nothing(memory: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreOutput, "longest_part", 1)
    writer = SinkRun(sink_to("s3://bucket/out"), parallelism=1).writers[0]
    writer.begin_epoch(1, "a", 0)
    writer.write(["x" * (2 << 20)], None)
    writer.write(["y"], None)
    assert len(memory.hidden()) == 2
    writer.abort_epoch()
    assert memory.store.objects == {}


def a_prepared_file_that_is_missing_fails_the_commit_but_not_a_recovery(
    memory: InMemory, caplog: pytest.LogCaptureFixture
) -> None:
    run = SinkRun(sink_to("s3://bucket/out"), parallelism=1)
    with pytest.raises(Crash):
        run.epoch([["x"]], crash_at="complete")
    memory.store.objects.clear()
    with pytest.raises(ConfigurationError, match=r"s3://bucket/out/\.inprogress/.*: the prepared file is not there"):
        run.committer.commit(run.committables)
    run.start()
    assert "was moved or deleted after it was finished" in caplog.text


def a_part_file_ends_at_the_greatest_size(memory: InMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoreOutput, "longest_part", 10)
    run = SinkRun(sink_to("s3://bucket/out"), parallelism=1)
    values = [f"record {i}" for i in range(10)]
    run.epoch([values])
    assert sorted(memory.visible()) == values
    assert len(memory.store.objects) == 4  # a batch of three records each


def test_what_a_store_refuses_is_told_before_any_input_with_the_operator(memory: InMemory) -> None:
    memory.faulty.on_call(1, "put", Fault.REFUSED)
    with pytest.raises(ConfigurationError, match="cannot write to s3://bucket/out: injected"):
        SinkRun(sink_to("s3://bucket/out"))
    memory.store.objects["in/a"] = b"1\n"
    memory.faulty.on_call(1, "look_up", Fault.REFUSED)
    with pytest.raises(ConfigurationError, match=r"injected.*\[file source, uid 'lines'\]"):
        SourceRun(lines_of("s3://bucket/in"), uid="lines").start()


def a_store_that_does_not_answer_is_no_wrong_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = FaultyStorage(MemoryStore(), lambda method, path: Fault.UNAVAILABLE)
    brief = RetryPolicy(budget=0.0)
    monkeypatch.setattr(FileStorage, "open", classmethod(lambda cls, uri, config=None: cls(faulty, brief)))
    for start in (lambda: SinkRun(sink_to("s3://b/out")), lambda: SourceRun(lines_of("s3://b/in")).start()):
        with pytest.raises(StorageError, match="503") as raised:
            start()
        assert not isinstance(raised.value, ConfigurationError)


def a_missing_directory_and_a_vanished_or_replaced_object_are_named(memory: InMemory) -> None:
    with pytest.raises(ConfigurationError, match=r"s3://bucket/in: no such file.*uid 'lines'"):
        SourceRun(lines_of("s3://bucket/in"), uid="lines").start()
    memory.store.objects["in/a"] = b"1\n" * 100
    run = SourceRun(lines_of("s3://bucket/in"), uid="lines").start()
    run.epoch(10)
    memory.store.objects["in/a"] = b"2\n" * 100
    with pytest.raises(InputLost, match=r"s3://bucket/in/a: was replaced.*Restore the original.*uid 'lines'"):
        run.epoch(10)
    del memory.store.objects["in/a"]
    with pytest.raises(InputLost, match=r"s3://bucket/in/a: the file was removed.*uid 'lines'"):
        run.epoch(10)
    memory.store.objects["damaged/b.parquet"] = b"PAR1 damaged PAR1"
    damaged = FileSource.for_bulk_file_format(StreamFormat.parquet(), "s3://bucket/damaged").build()
    with pytest.raises(UserCodeError, match=r"s3://bucket/damaged/b\.parquet: is not a Parquet file"):
        SourceRun(damaged).start().plan(1)


def test_hidden_and_empty_objects_are_left_out_and_paths_may_stand_beside_uris(memory: InMemory, tmp_path: Path) -> None:
    objects = {"in/a": b"a\n", "in/.b": b"b\n", "in/_t/c": b"c\n", "in/d/e": b"e\n", "in/f": b"", "into": b"x\n"}
    memory.store.objects.update(objects)
    (tmp_path / "local").write_text("l\n")
    source = lines_of("s3://bucket/in/", "gs://other/into", str(tmp_path))
    assert sorted(flat(SourceRun(source).start().run())) == ["a", "e", "l", "x"]


def test_new_objects_of_a_watched_directory_are_read_at_once_and_once(memory: InMemory) -> None:
    source = (
        FileSource.for_record_stream_format(StreamFormat.text_line_format(), "s3://bucket/in")
        .monitor_continuously(Duration.of_seconds(10))
        .build()
    )
    run, now = SourceRun(source), [100.0]

    def enumerator() -> FileEnumerator:
        return FileEnumerator(source.format, source.paths, 10_000, clock=lambda: now[0])

    run.enumerator = enumerator()
    run.start()
    assert flat(run.epoch(100)) == []
    memory.store.objects["in/a"] = b"1\n2\n"
    now[0] += 10
    assert flat(run.epoch(100)) == ["1", "2"]
    memory.store.objects["in/b"] = b"3\n"
    now[0] += 10
    run.plan(100)
    run.enumerator = enumerator()  # a crash
    run.start()
    assert flat(run.epoch(100)) == ["3"]
    now[0] += 10
    assert flat(run.epoch(100)) == []
    memory.store.objects["in/a"] = b"other\n"
    now[0] += 10
    with pytest.raises(InputLost, match=r"s3://bucket/in/a: was replaced or changed after.*must not change"):
        run.epoch(100)


def a_reader_asks_for_ranges_that_grow_and_never_for_a_whole_file(memory: InMemory) -> None:
    size = 30 << 20
    memory.store.objects["big"] = bytes(1 << 20) * 30
    asked: list[int] = []
    answer = memory.store.get_range

    def watched(path: str, start: int, length: int) -> bytes:
        data = answer(path, start, length)
        asked.append(len(data))
        return data

    memory.store.get_range = watched  # type: ignore[method-assign]
    opened = StoreFiles("s3://bucket", FileStorage(memory.store)).open("s3://bucket/big")
    for start in range(0, size, 1 << 20):
        assert len(opened.read_at(start, 1 << 20)) == 1 << 20
    assert max(asked) <= files._LONGEST_READ
    assert sum(asked) == size
    assert len(asked) < 10
    asked.clear()
    assert opened.read_at(size // 2, 10) == bytes(10)
    assert asked == [files._FIRST_READ]


@given(
    counts=st.lists(st.integers(0, 200), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 5000)),
    interval=st.sampled_from([1, 100, 1000]),
)
@settings(max_examples=60, deadline=None)
def test_an_avro_file_cut_anywhere_yields_every_record_once_in_order(
    counts: list[int], cuts: list[int], interval: int
) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "long"}]}
    records = [{"n": n} for n in range(sum(counts))]
    written = io.BytesIO()
    fastavro.writer(written, schema, records, sync_interval=interval)
    data = written.getvalue()
    store = MemoryStore()
    store.objects["x.avro"] = data
    file = InputFile("s3://b/x.avro", StoreFiles("s3://b", FileStorage(store)), FileVersion(len(data), "v"))
    form = AvroFormat()
    length, _ = form.measure(file)
    bounds = sorted({0, length, *(cut for cut in cuts if cut < length)})
    read = [
        value
        for start, end in itertools.pairwise(bounds)
        for batch in form.read(file, start, end, length, 7)
        for value in batch.values
    ]
    assert read == records


# ---- S3 -----------------------------------------------------------------------------------------------------------------


PAYMENT = Types.ROW_NAMED(["n", "name"], [Types.LONG(), Types.STRING()])
AVRO = AvroSchema.parse_string(
    '{"type":"record","name":"P","fields":[{"name":"n","type":"long"},{"name":"name","type":"string"}]}'
)
FORMATS = {
    "csv": (None, StreamFormat.csv(header=False)),
    "json": (JsonLinesEncoder(), StreamFormat.json_lines()),
    "parquet": (ParquetBulkWriters.for_row_type(PAYMENT), StreamFormat.parquet()),
    "arrow": (ArrowBulkWriters.for_row_type(PAYMENT), StreamFormat.arrow()),
    "avro": (AvroBulkWriters.for_generic_record(AVRO), StreamFormat.avro()),
}


@pytest.mark.parametrize("name", FORMATS)
def a_format_is_written_and_read_on_s3(name: str, s3_config: dict[str, str], tmp_path: Path) -> None:
    encoder, form = FORMATS[name]
    uri = f"s3://checkpoints/{tmp_path.name}"
    rows: list[Any] = [{"n": n, "name": f"name {n}"} for n in range(300)]
    if name == "csv":
        rows = [f"{row['n']},{row['name']}" for row in rows]
    base = BucketAssigner.base_path_bucket_assigner()
    builder: Any
    if name in ("csv", "json"):
        builder = FileSink.for_row_format(uri, encoder or Encoder.simple_string_encoder())
    else:
        builder = FileSink.for_bulk_format(uri, encoder)
    run = SinkRun(builder.with_bucket_assigner(base).build(), config=s3_config)
    run.epoch([rows[:100], rows[100:200]])
    with pytest.raises(Crash):
        run.epoch([rows[200:], []], "prepared")
    run.start()
    run.epoch([rows[200:], []])
    source = FileSource.for_record_stream_format(form, uri).build()
    read = flat(SourceRun(source, max_batch=50, config=s3_config).start().run(per := 70))
    assert per < 100  # ranges of files
    expected = [tuple(row.split(",")) for row in rows] if name == "csv" else rows
    assert sorted(read, key=str) == sorted(expected, key=str)


def a_large_file_goes_up_in_parts_and_comes_down_in_ranges_through_errors_and_lost_answers(
    relay: tuple[type[Relay], dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bucket, "PART", 5 << 20)  # the least size of a part
    handler, config = relay
    seen: list[str] = []
    handler.watch = staticmethod(lambda request, done: seen.append(request) if done else None)  # type: ignore[misc]
    uri = f"s3://checkpoints/{tmp_path.name}"
    run = SinkRun(sink_to(uri), parallelism=1, config=config)
    values = [f"{n:07d} {'x' * 1000}" for n in range(12_000)]
    handler.faults[:] = ["", "503", "", "503"]  # of the upload
    writer = run.writers[0]
    writer.begin_epoch(1, "a", 0)
    writer.write(values, None)
    data = writer.prepare_commit()
    assert sum("partNumber=" in request for request in seen) >= 3
    assert handler.faults == []
    handler.faults[:] = ["503", "lost", "", "lost", "503"]  # of the move
    run.committer.commit([Committable("sink", 0, each) for each in data])
    run.committer.commit([Committable("sink", 0, each) for each in data])
    handler.faults[:] = ["503", "", "lost", "", "503"]  # of the reading
    source = SourceRun(lines_of(uri), max_batch=20_000, config=config).start()
    assert flat(source.run(5000)) == values


def a_file_of_many_checkpoints_costs_its_store_the_requests_of_one(
    relay: tuple[type[Relay], dict[str, str]], tmp_path: Path
) -> None:
    handler, config = relay
    seen: list[str] = []
    handler.watch = staticmethod(lambda request, done: seen.append(request.split()[0]) if done else None)  # type: ignore[misc]
    builder = FileSink.for_row_format(f"s3://checkpoints/{tmp_path.name}", JsonLinesEncoder())
    builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    sink = builder.with_rolling_policy(RollingPolicy.default_rolling_policy(part_size=60)).build()
    run = SinkRun(sink, parallelism=1, config=config)
    seen.clear()  # of the probe
    for n in range(10, 29):
        run.epoch([[n]])
    assert seen == []
    run.epoch([[29]])  # with its sixtieth byte
    assert seen.count("PUT") == seen.count("COPY") == 1
    assert flat(SourceRun(lines_of(f"s3://checkpoints/{tmp_path.name}"), config=config).start().run()) == [
        str(n) for n in range(10, 30)
    ]


def test_a_missing_bucket_and_missing_rights_are_told_with_the_operator(
    relay: tuple[type[Relay], dict[str, str]], tmp_path: Path
) -> None:
    handler, config = relay
    with pytest.raises(ConfigurationError, match=r"bucket nowhere does not exist; create it.*\[file source, uid 'in'\]"):
        SourceRun(lines_of("s3://nowhere/x"), uid="in", config=config).start()
    with pytest.raises(
        ConfigurationError, match=r"FileSink .*'sink'.: cannot write to s3://nowhere/x: .*nowhere does not exist"
    ):
        SinkRun(sink_to("s3://nowhere/x"), config=config)
    handler.faults[:] = ["403"]
    with pytest.raises(ConfigurationError, match=r"credentials must allow s3:GetObject.*\[file source, uid 'in'\]"):
        SourceRun(lines_of("s3://checkpoints/x"), uid="in", config=config).start()
    handler.faults[:] = ["403"]
    with pytest.raises(
        ConfigurationError, match=r"FileSink .*'sink'.: cannot write to s3://checkpoints/x: .*credentials must allow"
    ):
        SinkRun(sink_to("s3://checkpoints/x"), config=config)


KILLED = """
import json, sys
from holdfast.common.serialization import Encoder
from holdfast.connectors.base import Committable, JobInfo, WriterContext
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink

uri, config, generation, committables = sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4])
sink = FileSink.for_row_format(uri, Encoder.simple_string_encoder())
sink = sink.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()
job = JobInfo("job", "job", generation, "memory:", config)
committer = sink.create_committer(job, "sink")
print("recovers", flush=True)
committer.recover([Committable("sink", 0, data) for data in committables])
writer = sink.create_writer(WriterContext(job, "sink", 0, 1))
writer.begin_epoch(generation, "a", 0)
writer.write([f"epoch {generation}"], None)
data = writer.prepare_commit()
print(json.dumps(data), flush=True)
committer.commit([Committable("sink", 0, each) for each in data])
print("committed", flush=True)
"""


@pytest.mark.fault
@pytest.mark.parametrize("done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("step", ["COPY /checkpoints/.*/part-", r"(POST|DELETE) /checkpoints(\?delete|/.*/\.inprogress/)"])
def a_process_killed_before_or_after_a_step_of_its_commit_loses_and_repeats_nothing(
    relay: tuple[type[Relay], dict[str, str]], tmp_path: Path, step: str, done: bool
) -> None:
    handler, config = relay
    uri = f"s3://checkpoints/{tmp_path.name}"
    process: subprocess.Popen[str] | None = None
    prepared, killed = threading.Event(), threading.Event()

    def watch(request: str, after: bool) -> None:
        if prepared.is_set() and after == done and not killed.is_set() and re.match(step, request):
            assert process is not None
            killed.set()
            process.send_signal(signal.SIGKILL)

    handler.watch = staticmethod(watch)  # type: ignore[misc]

    def start(generation: int, committables: list[Any]) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", KILLED, uri, json.dumps(config), str(generation), json.dumps(committables)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    process = start(1, [])
    assert process.stdout is not None
    assert process.stdout.readline() == "recovers\n"
    prepared.set()  # the probe of the store is done; an empty recovery moves and deletes nothing
    data = json.loads(process.stdout.readline())
    process.wait(600)
    process.stdout.close()
    assert killed.is_set()
    assert process.returncode == -signal.SIGKILL
    for generation in (2, 3):  # the checkpoint is complete: each driver finishes it, and goes on
        process = start(generation, data)
        out, _ = process.communicate(timeout=600)
        assert out.endswith("committed\n")
        data = json.loads(out.splitlines()[1])
    read = SourceRun(lines_of(uri), config=config).start().run()
    assert sorted(flat(read)) == ["epoch 1", "epoch 2", "epoch 3"]
    storage = FileStorage.open("s3://checkpoints/", config)
    assert not storage.walk(f"{tmp_path.name}/.inprogress")


def fails_once(marker: str, line: str) -> str:
    """Fail at the second half of the input, in the first run only."""
    if line == "150" and not os.path.exists(marker):
        Path(marker).touch()
        raise ValueError("once")
    return line


def a_job_reads_and_writes_s3_and_an_epoch_that_failed_leaves_nothing(s3_config: dict[str, str], tmp_path: Path) -> None:
    uri = f"s3://checkpoints/{tmp_path.name}"
    storage = FileStorage.open("s3://checkpoints/", s3_config)
    for part in range(2):
        storage.put(f"{tmp_path.name}/in/{part}", "".join(f"{n}\n" for n in range(part * 100, part * 100 + 100)).encode())
    own = {"execution.checkpointing.dir": f"{uri}/job", "holdfast.epoch.max-records": "40", **s3_config}
    env = InProcessEnvironment(Configuration.from_dict(own))
    env.set_restart_strategy(RestartStrategies.fixed_delay_restart(3, 0))
    lines = env.from_source(lines_of(f"{uri}/in"), WatermarkStrategy.no_watermarks(), "lines")
    once = functools.partial(fails_once, str(tmp_path / "failed"))
    lines.map(once, Types.STRING()).sink_to(sink_to(f"{uri}/out"))
    env.execute("from S3 to S3")
    assert (tmp_path / "failed").exists()
    written = flat(SourceRun(lines_of(f"{uri}/out"), config=s3_config).start().run(1000))
    assert sorted(map(int, written)) == list(range(200))
    assert not storage.walk(f"{tmp_path.name}/out/.inprogress")
