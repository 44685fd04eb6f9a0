"""The contents of windows, read from savepoints of real jobs as Arrow; and what the state processor refuses."""

from __future__ import annotations

import shutil
import threading
from collections import defaultdict
from pathlib import Path
from typing import Any

import cloudpickle
import msgspec
import pytest

from awaiting import until
from engine.inprocess import LedgerSink
from engine.small_programs import Pass, program, timed
from engine.test_same_results import config, lab
from engine.test_savepoints import run
from engine.test_state_queries import VALUES, Everything
from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.savepoint import METADATA
from holdfast.common import Configuration, JobClient, Time, Types, WatermarkStrategy
from holdfast.datastream import AggregateFunction, KeyedProcessFunction, ProcessWindowFunction, ValueStateDescriptor
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.window import (
    CountEvictor,
    CountTumblingWindowAssigner,
    EventTimeSessionWindows,
    GlobalWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.errors import ConfigurationError, CorruptFile, IncompatibleState
from holdfast.state_api import SavepointReader, SavepointWriter, WindowReaderFunction, open_snapshot, verify
from holdfast.testing import InProcessEnvironment

DATA = [(f"k{n % 5}", n * 10 + (n // 20) * 70, n) for n in range(200)]
"""Key, timestamp and number; after twenty elements, nothing comes for a while."""


class Total(AggregateFunction):
    def create_accumulator(self) -> Any:
        return (0, 0)

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value[2], accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] * 1000 + accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


class Elements(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, len(list(elements))


ELEMENT = Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])


def larger(one: Any, other: Any) -> Any:
    return one if one[2] > other[2] else other


def tumbling(n: int) -> list[tuple[int, int]]:
    start = n // 300 * 300
    return [(start, start + 300)]


def sliding(n: int) -> list[tuple[int, int]]:
    return [(start, start + 250) for start in range((n // 100) * 100 - 200, n + 1, 100) if start <= n < start + 250]


ASSIGNERS = {
    "tumbling": (TumblingEventTimeWindows.of(Time.milliseconds(300)), tumbling),
    "sliding": (SlidingEventTimeWindows.of(Time.milliseconds(250), Time.milliseconds(100)), sliding),
}
KINDS = ["reduce", "aggregate", "process", "evictor"]


def shown(kind: str, values: list[Any]) -> Any:
    if kind == "reduce":
        return max(values, key=lambda value: value[2])
    if kind == "aggregate":
        return sum(value[2] for value in values) * 1000 + len(values)
    return values


def built(assigner: Any, kind: str) -> Any:
    def build(env: Any) -> None:
        windows = timed(env, DATA, 40).map(lambda r: r, ELEMENT).key_by(lambda r: r[0], Types.STRING()).window(assigner)
        if kind == "evictor":
            windows = windows.evictor(CountEvictor.of(1000))
        if kind == "reduce":
            results = windows.reduce(larger)
        elif kind == "aggregate":
            results = windows.aggregate(Total(), accumulator_type=Types.TUPLE([Types.LONG(), Types.LONG()]))
        else:
            results = windows.process(Elements())
        results.uid("windows").sink_to(LedgerSink("out")).uid("out")

    return build


class Described(WindowReaderFunction):
    """The window and its elements, as a row."""

    def open(self, runtime_context):
        self.task = runtime_context.get_task_name()

    def read_window(self, key, context, elements):
        assert self.task
        window = context.window()
        yield key, window.start, window.end, list(elements)


def read_by_function(path: str, assigner: Any, kind: str) -> dict[Any, Any]:
    reader = SavepointReader.read_arrow(path).window(assigner)
    content = Types.LONG() if kind == "aggregate" else ELEMENT
    names, types = ["key", "start", "end", "all"], [Types.STRING(), Types.LONG(), Types.LONG(), Types.LIST(content)]
    given: dict[str, Any] = {"reader_function": Described(), "output_type": Types.ROW_NAMED(names, types)}
    if kind == "reduce":
        batches = reader.reduce("windows", larger, **given)
    elif kind == "aggregate":
        batches = reader.aggregate("windows", Total(), acc_type=Types.TUPLE([Types.LONG(), Types.LONG()]), **given)
    else:
        batches = (reader.evictor() if kind == "evictor" else reader).process("windows", element_type=ELEMENT, **given)
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    found = {row[:-1]: row[-1] if kind == "aggregate" else _plain(row[-1]) for row in rows}
    return {at: values if kind in ("process", "evictor") else values[0] for at, values in found.items()}


def read(path: str, assigner: Any, kind: str) -> dict[Any, Any]:
    reader = SavepointReader.read_arrow(path).window(assigner)
    if kind == "reduce":
        batches = reader.reduce("windows", larger, reduce_type=ELEMENT)
    elif kind == "aggregate":
        accumulator = Types.TUPLE([Types.LONG(), Types.LONG()])
        batches = reader.aggregate("windows", Total(), acc_type=accumulator, output_type=Types.LONG())
    else:
        if kind == "evictor":
            reader = reader.evictor()
        batches = reader.process("windows", element_type=ELEMENT)
    rows = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    found = {row[:-1]: row[-1] for row in rows}
    assert len(found) == len(rows)
    return {key: _plain(value) for key, value in found.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [tuple(each.values()) for each in value]
    return tuple(value.values()) if isinstance(value, dict) else value


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*ASSIGNERS, "session"])
def the_windows_of_a_savepoint_are_those_that_have_not_fired(name, kind):
    assigner, windows_of = ASSIGNERS.get(name, (EventTimeSessionWindows.with_gap(Time.milliseconds(60)), None))
    with lab(built(assigner, kind), parallelism=2, budget=40, config=config("rocksdb", "16")) as job:
        path = run(job, 4)
        checkpoint = open_snapshot(path).checkpoint
        done = DATA[: checkpoint.sources["source"].enumerator["only"]]
        watermark = min(checkpoint.operators["windows"].watermarks)
        expected: dict[Any, list[Any]] = defaultdict(list)
        for value in done:
            if windows_of is not None:
                for window in windows_of(value[1]):
                    expected[(value[0], *window)].append(value)
                continue
            joined = [at for at in expected if at[0] == value[0] and at[1] <= value[1] <= at[2]]
            held = [each for at in joined for each in expected.pop(at)] + [value]
            expected[(value[0], held[0][1], value[1] + 60)] = held
        open_windows = {at: shown(kind, held) for at, held in expected.items() if at[2] - 1 > watermark}
        assert open_windows
        assert read(path, assigner, kind) == open_windows
        assert read_by_function(path, assigner, kind) == open_windows


def the_windows_of_a_changed_program_are_read_with_the_spans_that_they_have():
    before, after = ASSIGNERS["tumbling"][0], ASSIGNERS["sliding"][0]
    with lab(built(before, "process"), parallelism=2, budget=40) as job:
        first = run(job, 2)
        had = read(first, before, "process")
        with pytest.raises(ConfigurationError, match=r"has TumblingEventTimeWindows\(300, 0\), not SlidingEventTimeWindows"):
            read(first, after, "process")
        with pytest.raises(ConfigurationError, match=r"have no evictor: leave out evictor\(\)"):
            SavepointReader.read_arrow(first).window(before).evictor().process("windows")
        job.build = built(after, "process")
        path = run(job, 3)
        checkpoint = open_snapshot(path).checkpoint
        watermark = min(checkpoint.operators["windows"].watermarks)
        found = read(path, after, "process")
        assert any(end - start == 250 for _, start, end in found)
        for at, elements in had.items():
            if at[2] - 1 > watermark:
                assert found[at] == elements


def test_windows_of_counts_and_the_global_window_are_read_by_their_columns():
    def build(env: Any) -> None:
        keyed = timed(env, DATA, 40).map(lambda r: r, ELEMENT).key_by(lambda r: r[0], Types.STRING())
        keyed.count_window(30).process(Elements()).uid("windows").sink_to(LedgerSink("out")).uid("out")

    with lab(build, parallelism=2, budget=40) as job:
        path = run(job, 3)
        done = DATA[: open_snapshot(path).checkpoint.sources["source"].enumerator["only"]]
        held = {key: [each for each in done if each[0] == key] for key in {each[0] for each in done}}
        kept = {key: values[len(values) // 30 * 30 :] for key, values in held.items()}
        batches = (
            SavepointReader.read_arrow(path)
            .window(CountTumblingWindowAssigner.of(30))
            .process("windows", element_type=ELEMENT)
        )
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert {row["key"]: _plain(row["elements"]) for row in rows} == {k: v for k, v in kept.items() if v}
        assert {(row["key"], row["window"]) for row in rows} == {(k, len(held[k]) // 30) for k, v in kept.items() if v}
        with pytest.raises(ConfigurationError, match="windows that do not merge; EventTimeSessionWindows is not its window"):
            SavepointReader.read_arrow(path).window(EventTimeSessionWindows.with_gap(Time.seconds(1))).process("windows")
    with lab(built(TumblingEventTimeWindows.of(Time.milliseconds(300)), "reduce"), budget=40) as job:
        path = run(job, 3)
        with pytest.raises(ConfigurationError, match="windows of fixed times; GlobalWindows is not its window assigner"):
            SavepointReader.read_arrow(path).window(GlobalWindows.create()).process("windows")


def test_windows_of_processing_time_are_read_too(monkeypatch):
    def build(env: Any) -> None:
        keyed = timed(env, DATA, 40).map(lambda r: r, ELEMENT).key_by(lambda r: r[0], Types.STRING())
        windows = keyed.window(TumblingProcessingTimeWindows.of(Time.days(1000)))
        windows.process(Elements()).uid("windows").sink_to(LedgerSink("out")).uid("out")

    with lab(build, parallelism=2, budget=40) as job:
        path = run(job, 3)
        done = DATA[: open_snapshot(path).checkpoint.sources["source"].enumerator["only"]]
        found = read(path, TumblingProcessingTimeWindows.of(Time.days(1000)), "process")
        assert sorted(each for values in found.values() for each in values) == sorted(done)
        assert {end - start for _, start, end in found} == {1000 * 24 * 3_600_000}

        # What Spark's tasks get does not refer to the session.
        monkeypatch.setattr("holdfast.state_api.reader.frame_of", lambda rows, spark: cloudpickle.dumps(rows))
        reader = SavepointReader(open_snapshot(path), {}, spark=threading.Lock())  # type: ignore[arg-type]
        assert reader.window(TumblingProcessingTimeWindows.of(Time.days(1000))).process("windows")


# ---- what is refused ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def savepoint(tmp_path_factory):
    with lab(program(Everything(), VALUES, cut=90), budget=90, parallelism=2) as job:
        return run(job, 3, directory=tmp_path_factory.mktemp("savepoints"))


def changed(savepoint: str, directory: Path, change: Any) -> str:
    """A copy of a savepoint with other metadata."""
    copy = directory / "copy"
    shutil.copytree(savepoint.removeprefix("file://"), copy)
    data = msgspec.msgpack.decode(unpack((copy / METADATA).read_bytes(), METADATA))
    change(data)
    (copy / METADATA).write_bytes(pack(msgspec.msgpack.encode(data)))
    return str(copy)


def a_reader_names_the_operators_and_states_that_there_are(savepoint):
    reader = SavepointReader.read_arrow(savepoint)
    with pytest.raises(ConfigurationError, match="pass it, as key_type"):
        reader.read_keyed_state("keyed")
    with pytest.raises(ConfigurationError, match="no state 'counts'; it has count, seen"):
        reader.read_keyed_state("keyed", key_type=Types.STRING(), types={"counts": Types.LONG()})
    with pytest.raises(ConfigurationError, match="uid 'other'; it has state of keyed"):
        reader.read_keyed_state("other", key_type=Types.STRING())
    with pytest.raises(ConfigurationError, match="no split state 'waiting' of uid 'keyed'; it has none"):
        reader.read_list_state("keyed", "waiting")
    with pytest.raises(ConfigurationError, match="has no windows"):
        reader.window(GlobalWindows.create()).process("keyed", key_type=Types.STRING())
    typed = list(
        reader.read_keyed_state("keyed", key_type=Types.STRING(), types={"pickled": Types.MAP(Types.STRING(), Types.LONG())})
    )
    assert {next(iter(row["pickled"][0])) for batch in typed for row in batch.to_pylist()} == {"n"}


@pytest.mark.parametrize("opened", ["reader", "writer"])
def test_what_is_no_savepoint_or_damaged_is_refused_by_name(savepoint, tmp_path, opened):
    def open_it(path: str) -> object:
        if opened == "reader":
            return list(SavepointReader.read_arrow(path).read_keyed_state("keyed", key_type=Types.STRING()))
        return SavepointWriter.from_existing_savepoint(None, path)  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match=r"empty/_metadata does not exist"):
        open_it(str(tmp_path / "empty"))
    newer = changed(savepoint, tmp_path / "newer", lambda data: data.update(format_version=99))
    with pytest.raises(IncompatibleState, match="format 99"):
        open_it(newer)
    lost = Path(changed(savepoint, tmp_path / "lost", lambda data: None))
    (file,) = list(lost.glob("*.dump"))[:1]
    file.unlink()
    with pytest.raises(CorruptFile, match=file.name):
        open_it(str(lost))


@pytest.mark.parametrize("way", ["whole", "one operator"])
def a_merged_savepoint_has_the_latest_processing_time_and_the_highest_generation(savepoint, tmp_path, way):
    def later(data):
        checkpoint = data["checkpoint"]
        data["checkpoint"] = {**checkpoint, "created_at": checkpoint["created_at"] + 60_000, "generation": 9}

    newer = changed(savepoint, tmp_path / "newer", later)
    expected = SavepointWriter.from_existing_savepoint(None, newer).base  # type: ignore[arg-type]
    for first, second in ((savepoint, newer), (newer, savepoint)):
        writer = SavepointWriter.from_existing_savepoint(None, first)  # type: ignore[arg-type]
        for uid in tuple(writer.stored):
            writer = writer.remove_operator(uid)
        merged = (writer.with_savepoint(second) if way == "whole" else writer.with_operator_of(second, "keyed")).base
        assert (merged.created_at, merged.generation) == (expected.created_at, 9)


def a_writer_refuses_what_does_not_fit_together(savepoint, tmp_path):
    writer = SavepointWriter.from_existing_savepoint(None, savepoint)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="no operator or source with uid 'x'; it has keyed, source"):
        writer.with_operator_of(savepoint, "x")
    with pytest.raises(ConfigurationError, match=r"this savepoint has, too: keyed, source.*remove_operator"):
        writer.with_savepoint(savepoint)
    with pytest.raises(ConfigurationError, match="no operator with uid 'x'; there are keyed"):
        writer.remove_operator("x")
    with pytest.raises(ConfigurationError, match="with uid 'source' already"):
        writer.change_operator_identifier("keyed", "source")
    with pytest.raises(ConfigurationError, match="max parallelism must be a whole number from 1 to"):
        writer.change_max_parallelism(0)
    options = config("rocksdb", "64") | {"pipeline.max-parallelism": "16"}
    with lab(program(Pass(), VALUES, cut=90), budget=90, config=options) as job:
        other = run(job, 2, directory=tmp_path / "other")
    with pytest.raises(ConfigurationError, match=r"has 16 key groups, and this savepoint's have 128: call change_max_para"):
        writer.with_operator_of(other, "keyed", "theirs")
    with pytest.raises(ConfigurationError, match=r"is not empty, it has .*: write the savepoint into a new directory"):
        writer.write(savepoint)
    with lab(program(Pass(), VALUES, cut=90), budget=90) as job:
        job._run_until("after complete", 2)
        with pytest.raises(ConfigurationError, match=r"is a checkpoint; .*stop the job with a savepoint"):
            SavepointWriter.from_existing_savepoint(None, str(job.directory / "checkpoints" / "job"))  # type: ignore[arg-type]


def a_directory_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigurationError, match=r"file/savepoint"):
        SavepointWriter.new_savepoint(None).write(str(tmp_path / "file" / "savepoint"))  # type: ignore[arg-type]


class CountAndSum(KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        self.sum.update((self.sum.value() or 0) + value)
        yield from ()


def counting(directory: Path, backend: str) -> JobClient:
    """A job that counts the numbers from 1 on, and keeps its newest checkpoint only."""
    settings = {
        "execution.checkpointing.dir": directory.as_uri(),
        "execution.checkpointing.num-retained": "1",
        "execution.checkpointing.data-inline-threshold": "0",
        "holdfast.epoch.max-records": "10",
        "state.backend.type": backend,
    }
    env = InProcessEnvironment(Configuration.from_dict(settings))
    numbers = env.from_source(NumberSequenceSource(1, 10**9), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    numbers.key_by(lambda n: n % 7, Types.LONG()).process(CountAndSum()).uid("keyed").print()
    return env.execute_async("counting")


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def test_a_scan_of_a_running_job_sees_one_checkpoint_however_many_follow(tmp_path, backend):
    client = counting(tmp_path, backend)

    def completed() -> int:
        return client.metrics.snapshot().values.get("numberOfCompletedCheckpoints", 0)

    def read(reader: Any) -> dict[int, tuple[int, int]]:
        """Count and sum by key."""
        rows = [row for batch in reader.read_keyed_state("keyed") for row in batch.to_pylist()]
        return {row["key"]: (row["count"], row["sum"]) for row in rows}

    def model(reader: Any) -> dict[int, tuple[int, int]]:
        """What the checkpoint has counted, by the positions of its source."""
        positions = reader.snapshot.checkpoint.sources["numbers"].enumerator["next"]
        begins = {split: int(split.split()[2]) for split in positions}
        numbers = [n for split, read in positions.items() for n in range(begins[split], begins[split] + read)]
        by_key = {key: [n for n in numbers if n % 7 == key] for key in range(7)}
        return {key: (len(own), sum(own)) for key, own in by_key.items() if own}

    def goes_on(epochs: int) -> None:
        begun = completed()
        until(lambda: completed() >= begun + epochs)

    goes_on(2)
    with client.hold_checkpoint() as first, SavepointReader.scan_arrow(client) as reader:
        assert read(reader) == model(reader)
        goes_on(80)  # no entry of the log stays that long by itself
        assert read(reader) == model(reader)
        assert not verify(reader.snapshot)
        assert open_snapshot(first.path).checkpoint.checkpoint_id == first.checkpoint_id
    storage = reader.snapshot.storage
    until(lambda: not all(storage.exists(file.path) for file in reader.snapshot.checkpoint.files()))
    with pytest.raises(CorruptFile, match=r"missing, because the job goes on and has removed its checkpoint \d+: read the"):
        read(reader)
    with pytest.raises(CorruptFile, match=r"has removed its checkpoint \d+"):
        open_snapshot(first.path)
    with SavepointReader.scan_arrow(client) as reader:
        assert read(reader) == model(reader)
    client.cancel().result(600)
    assert client.metrics.snapshot().values["numRestarts"] == 0


def test_a_scan_names_a_job_that_can_be_found():
    for job, said in (("nobody's", "no running job"), ("http://localhost:9/overview", "is not the URL of a job")):
        with pytest.raises(ConfigurationError, match=said), SavepointReader.scan_arrow(job):
            pass
