"""A program is told whether it can restore from a savepoint or checkpoint, with all differences, before it runs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.metadata import (
    SPLIT,
    UNION,
    CheckpointMetadata,
    ListedState,
    ListPart,
    SourceState,
    SubtaskState,
)
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common import Configuration, SimpleStringSchema, Types, WatermarkStrategy
from holdfast.connectors.delivery import DeliveryGuarantee
from holdfast.connectors.kafka.offsets import KafkaTopicPartition
from holdfast.connectors.kafka.sink.committable import KafkaCommittable
from holdfast.connectors.kafka.sink.serializer import RecordSerializer
from holdfast.connectors.kafka.sink.sink import KafkaSink
from holdfast.connectors.kafka.sink.transactions import Prepared
from holdfast.connectors.kafka.source.positions import Positions
from holdfast.datastream import CheckpointedFunction, KeyedProcessFunction, MapFunction, StreamExecutionEnvironment
from holdfast.datastream.connectors.kafka import KafkaSource
from holdfast.datastream.state import ListStateDescriptor, StateDescriptor, ValueStateDescriptor
from holdfast.errors import ConfigurationError, IncompatibleState, StorageError
from holdfast.runtime.driver.launch import Launch
from holdfast.runtime.driver.restore_check import JudgingLists, RestoreCheck, read_check
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.redistribution import OperatorSnapshot
from holdfast.runtime.protocol.resumption import obstacles
from holdfast.state.backends import canonical
from holdfast.state_api import prune
from holdfast.table import KStream

from .inprocess import Lab, LedgerSink, SplitSource
from .programs import records, stream
from .test_same_results import lab
from .test_savepoints import run

DATA = records(7, 200, keys=20)
Declared = list[StateDescriptor]


class Counts(KeyedProcessFunction):
    """Counts in one state; declares others."""

    def __init__(self, *declared: Any) -> None:
        self.declared = declared

    def open(self, runtime_context: Any) -> None:
        self.states = [
            runtime_context.get_list_state(each)
            if isinstance(each, ListStateDescriptor)
            else runtime_context.get_state(each)
            for each in self.declared
        ]

    def process_element(self, value: Any, ctx: Any) -> Any:
        for each in self.states:
            if not isinstance(each, list) and hasattr(each, "update") and not hasattr(each, "add"):
                each.update((each.value() or 0) + 1)
        yield value


class Failing(Counts):
    def open(self, runtime_context: Any) -> None:
        raise OSError("no model file here")


def value(name: str, type: Any = None) -> ValueStateDescriptor:
    return ValueStateDescriptor(name, type or Types.INT())


def program(function: Any, uid: str = "counts", source: str = "source", cut: int = 20) -> Callable[[Any], None]:
    def build(env: StreamExecutionEnvironment) -> None:
        keyed = stream(env, DATA, cut, source).key_by(lambda record: record[0])
        keyed.process(function).uid(uid).name("counts").sink_to(LedgerSink("out")).uid("out")

    return build


@pytest.fixture(scope="module")
def saved() -> Iterator[str]:
    """A savepoint of a job with two counts."""
    with (
        pytest.MonkeyPatch.context() as limits,
        lab(program(Counts(value("count"), value("other"))), parallelism=2, budget=40) as job,
    ):
        limits.setattr(canonical, "_PART", 50)
        yield run(job, 3)


def check(path: str | None, build: Callable[[Any], None], **config: str) -> Any:
    settings = {"parallelism.default": "2", **config}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings), spark=object())  # type: ignore[arg-type]
    build(env)
    return env.check_restore(path, "job")


def verdicts(found: Any) -> dict[str, str]:
    return {each.state: each.verdict for each in found.states}


def test_the_same_program_can_restore(saved):
    found = check(saved, program(Counts(value("count"), value("other"))))
    assert found.restorable, found.problems
    assert verdicts(found) == {"count": "as is", "other": "as is"}
    assert not found.notes
    assert found.path == saved or found.path == f"file://{saved}"


def test_all_states_are_judged_though_one_does_not_fit(saved):
    declared = [
        value("count", Types.STRING()),
        value("other", Types.LONG()),
        value("more"),
        ListStateDescriptor("l", Types.INT()),
    ]
    found = check(saved, program(Counts(*declared)))
    assert verdicts(found) == {"count": "incompatible", "other": "after migration", "more": "new", "l": "new"}
    (problem,) = found.problems
    assert "'count'" in problem
    assert "uid 'counts'" in problem
    assert "stored:   a value state of INT" in problem
    assert "declared: a value state of STRING" in problem


def test_the_only_state_of_an_operator_does_not_fit_and_is_told_once():
    with lab(program(Counts(value("count"))), budget=40) as job:
        found = check(run(job, 3), program(Counts(value("count", Types.STRING()))))
    (problem,) = found.problems
    assert "INT cannot become STRING" in problem


def test_a_state_of_another_kind_is_told(saved):
    found = check(saved, program(Counts(ListStateDescriptor("count", Types.INT()))))
    assert verdicts(found)["count"] == "incompatible"
    assert len(found.problems) == 1
    assert "cannot change its kind" in found.problems[0]


def test_states_that_nothing_declares_any_more_are_told(saved):
    found = check(saved, program(Counts(value("count"))))
    assert found.restorable
    assert verdicts(found) == {"count": "as is", "other": "not declared"}


def test_another_max_parallelism_and_operators_that_are_gone_are_told_together(saved):
    found = check(saved, program(Counts(value("count")), source="elsewhere"), **{"pipeline.max-parallelism": "32"})
    assert len(found.problems) == 2
    assert "source 'source'" in found.problems[0]
    assert saved in found.problems[0]
    assert "change_max_parallelism" in found.problems[1]


def test_the_savepoint_of_another_program_is_recognised(saved):
    found = check(saved, program(Counts(value("count")), uid="mine", source="elsewhere"))
    assert "Nothing in it belongs to this program" in found.problems[0]
    ignored = check(
        saved,
        program(Counts(value("count")), uid="mine", source="elsewhere"),
        **{"execution.state-recovery.ignore-unclaimed-state": "true"},
    )
    assert ignored.restorable
    assert [note for note in ignored.notes if "'counts'" in note]
    assert verdicts(ignored) == {"count": "new"}


def test_every_missing_file_is_told_with_what_it_holds(saved, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(saved.removeprefix("file://"), copy)
    files = sorted(copy.glob("*.dump"))
    assert len(files) > 1
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1])
    found = check(str(copy), program(Counts(value("count"), value("other"))))
    assert len(found.problems) == 2
    assert all("of operator 'counts' (uid 'counts')" in problem for problem in found.problems)


def test_a_function_that_cannot_be_opened_here_is_told(saved):
    found = check(saved, program(Failing()))
    assert found.restorable
    assert "no model file here" in found.notes[0]
    assert "uid 'counts'" in found.notes[0]


def test_the_program_s_own_functions_are_not_opened(saved):
    function = Counts(value("count"))
    check(saved, program(function))
    assert not hasattr(function, "states")


def test_the_newest_checkpoint_of_the_job_is_checked_without_a_path(tmp_path):
    build = program(Counts(value("count")))
    Lab(build, tmp_path, budget=40).run()
    directory = {"execution.checkpointing.dir": f"file://{tmp_path}/checkpoints"}
    found = check(None, build, **directory)
    assert found.restorable
    assert verdicts(found) == {"count": "as is"}
    assert not check(None, program(Counts(value("count", Types.STRING()))), **directory).restorable


def test_nothing_to_restore_from_is_said(tmp_path):
    with pytest.raises(ConfigurationError, match=r"name a savepoint, or set execution\.checkpointing\.dir"):
        check(None, program(Counts(value("count"))))
    with pytest.raises(ConfigurationError, match="has no checkpoint in"):
        check(None, program(Counts(value("count"))), **{"execution.checkpointing.dir": str(tmp_path)})
    with pytest.raises(ConfigurationError, match="is not a savepoint"):
        check(str(tmp_path), program(Counts(value("count"))))


def test_the_job_itself_refuses_what_the_check_refuses(saved):
    with tempfile.TemporaryDirectory() as elsewhere:
        job = Lab(program(Counts(value("count")), source="elsewhere"), Path(elsewhere), budget=60, savepoint=saved)
        with pytest.raises(IncompatibleState, match=r"savepoint .* has state of source 'source'"):
            job.run()


class Listed(MapFunction, CheckpointedFunction):
    """Keeps operator state of one kind."""

    def __init__(self, mode: str, type: Any) -> None:
        self.mode, self.type = mode, type

    def initialize_state(self, context: Any) -> None:
        store = context.get_operator_state_store()
        get = store.get_union_list_state if self.mode == "union" else store.get_list_state
        self.state = get(ListStateDescriptor("seen", self.type))
        self.more = store.get_list_state(ListStateDescriptor("more", Types.INT()))

    def snapshot_state(self, context: Any) -> None:
        self.state.update([1])

    def map(self, value: Any) -> Any:
        return value


def listing(function: Any, uid: str = "listed") -> Callable[[Any], None]:
    def build(env: StreamExecutionEnvironment) -> None:
        stream(env, DATA, 20, "source").map(function).uid(uid).sink_to(LedgerSink("out")).uid("out")

    return build


@pytest.fixture(scope="module")
def saved_lists() -> Iterator[str]:
    """A savepoint of a job with a list state of one element in its first subtask, and none in the second."""
    with lab(listing(Listed("list", Types.INT())), parallelism=1, budget=40) as job:
        yield run(job, 3)


@pytest.mark.parametrize(
    ("mode", "type", "verdict"),
    [
        ("list", Types.INT(), "as is"),
        ("list", Types.LONG(), "after migration"),
        ("list", Types.STRING(), "incompatible"),
        ("union", Types.INT(), "incompatible"),
    ],
)
def test_operator_states_are_judged_as_at_a_start(saved_lists, tmp_path, mode, type, verdict):
    build = listing(Listed(mode, type))
    found = check(saved_lists, build)
    assert verdicts(found) == {"seen": verdict, "more": "as is"}
    assert {each.uid: each.verdict for each in found.operators}["listed"] == (
        "incompatible" if verdict == "incompatible" else "rescaled"
    )
    start = Lab(build, tmp_path, parallelism=2, budget=60, savepoint=saved_lists)
    if found.restorable:
        start.run()
        return
    (problem,) = found.problems
    assert "state 'seen' of operator " in problem
    assert "stored:   an operator list state of INT" in problem
    assert "declared: " in problem
    with pytest.raises(IncompatibleState) as refused:
        start.run()
    assert str(refused.value) == problem


def test_an_operator_that_keeps_no_such_state_any_more_is_told(saved_lists, tmp_path):
    plain = listing(lambda value: value)
    found = check(saved_lists, plain)
    assert "(uid 'listed', its operator state), which the program does not have" in found.problems[0]
    assert {each.uid: each.verdict for each in found.operators}["listed"] == "removed"
    with pytest.raises(IncompatibleState, match="its operator state"):
        Lab(plain, tmp_path, savepoint=saved_lists).run()
    dropped = check(saved_lists, plain, **{"execution.state-recovery.ignore-unclaimed-state": "true"})
    assert dropped.restorable
    assert {each.uid: each.verdict for each in dropped.operators}["listed"] == "dropped"


def test_operators_that_come_and_go_and_rescale_are_shown(saved):
    found = check(
        saved,
        program(Counts(value("count")), uid="mine"),
        **{"execution.state-recovery.ignore-unclaimed-state": "true", "parallelism.default": "3"},
    )
    told = {each.uid: (each.kind, each.verdict, each.stored_parallelism, each.parallelism) for each in found.operators}
    assert told["source"] == ("source", "as is", 0, 3)
    assert told["mine"] == ("operator", "new", 0, 3)
    assert told["counts"] == ("operator", "dropped", 2, 0)
    wider = check(saved, program(Counts(value("count"))), **{"parallelism.default": "3"})
    assert wider.restorable
    assert {each.uid: each.verdict for each in wider.operators}["counts"] == "rescaled"


TWO_JOBS = """
from holdfast.common import Configuration
from holdfast.datastream import StreamExecutionEnvironment
from engine import test_restore_check as tests

env = StreamExecutionEnvironment.get_execution_environment()
with env.from_collection([1]).execute_and_collect("first") as results:
    assert list(results) == []
env.from_collection([1]).print()
assert env.execute("between").get_net_runtime() == 0
tests.program(tests.Counts(tests.value("count")))(env)
env.execute("job")
raise AssertionError("the check has ended the program")
"""


@pytest.mark.parametrize(("job", "restorable"), [("job", True), (None, False), ("none", None)])
def test_of_several_jobs_the_one_that_is_named_restores(saved, tmp_path, job, restorable):
    (tmp_path / "program.py").write_text(TWO_JOBS)
    settings = {"execution.state-recovery.path": saved} | ({} if job is None else {"execution.state-recovery.job-name": job})
    launch = Launch("id", settings, str(tmp_path / "log"), False, restore_check=str(tmp_path / "check"))
    environment = {**Launch.environment(launch.store(tmp_path)), "PYTHONPATH": str(Path(__file__).parents[1])}
    ended = subprocess.run([sys.executable, tmp_path / "program.py"], env=environment, capture_output=True, check=False)
    if restorable is None:
        assert b"the check has ended the program" in ended.stderr
        names = "The program has no job 'none' to restore; its jobs: 'first', 'between', 'job'."
        assert read_check(tmp_path / "check") == names
        return
    assert ended.returncode == 0, ended.stderr
    found = read_check(tmp_path / "check")
    assert isinstance(found, RestoreCheck)
    assert found.restorable is restorable
    if not restorable:
        assert "another job of this one, which execution.state-recovery.job-name would name" in found.problems[0]


def test_a_job_that_is_not_named_begins_as_without_a_path(saved):
    config = {"parallelism.default": "1", "execution.state-recovery.path": saved, "execution.state-recovery.job-name": "job"}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(config), spark=object())  # type: ignore[arg-type]
    program(Counts(value("count")))(env)
    assert env._plan("job").settings.restore_path == saved
    assert env._plan("another").settings.restore_path == ""


def test_a_savepoint_on_s3(saved, s3_config):
    storage = Storage.open("s3://checkpoints/check-restore", s3_config)
    for path in Path(saved.removeprefix("file://")).iterdir():
        storage.put_new(path.name, path.read_bytes())
    found = check("s3://checkpoints/check-restore", program(Counts(value("count"), value("other"))), **s3_config)
    assert found.restorable, found.problems
    assert verdicts(found) == {"count": "as is", "other": "as is"}
    storage.delete([next(each for each in storage.list("") if each.endswith(".dump"))])
    found = check("s3://checkpoints/check-restore", program(Counts(value("count"), value("other"))), **s3_config)
    assert len(found.problems) == 1
    assert "s3://checkpoints/check-restore" in found.problems[0]
    with pytest.raises(StorageError, match="the bucket nowhere does not exist"):
        check(None, program(Counts(value("count"))), **s3_config, **{"execution.checkpointing.dir": "s3://nowhere/jobs"})
    with pytest.raises(StorageError, match="the bucket nowhere does not exist"):
        prune("s3://nowhere/jobs/job", options=s3_config)
    with pytest.raises(
        ConfigurationError, match=r"set execution.checkpointing.dir .* that restores s3://nowhere/jobs/log/1"
    ):
        check("s3://nowhere/jobs/log/1", program(Counts(value("count"))), **s3_config)


def test_a_program_in_batch_mode(tmp_path):
    build = program(Counts(value("count")))
    batch = {"execution.runtime-mode": "BATCH"}
    Lab(build, tmp_path, config=batch).run()
    directory = {"execution.checkpointing.dir": f"file://{tmp_path}/checkpoints", **batch}
    found = check(None, build, **directory)
    assert found.restorable, found.problems
    Lab(build, tmp_path, config=batch).run()


def kafka_program(guarantee: DeliveryGuarantee) -> JobPlan:
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(1)
    source = KafkaSource.builder().set_bootstrap_servers("nowhere:1").set_topics("payments").set_group_id("g")
    source = source.set_value_only_deserializer(SimpleStringSchema()).build()
    lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "payments").uid("payments")
    sink = KafkaSink(
        properties={"bootstrap.servers": "nowhere:1"},
        record_serializer=RecordSerializer("out"),
        delivery_guarantee=guarantee,
        transactional_id_prefix="out",
    )
    lines.sink_to(sink).uid("out")
    return env._plan("kafka")


def kafka_checkpoint(position: Any, prepared: Any) -> CheckpointMetadata:
    sources = {"payments": SourceState(position)}
    return CheckpointMetadata(7, 1, "id", "kafka", 0, sources=sources, committables=[("out", 0, prepared)])  # type: ignore[arg-type]


POSITION = Positions({"payments": "id"}, {KafkaTopicPartition("payments", 0): 17}).encode()
PREPARED = KafkaCommittable(Prepared("out-0", 1, 2), 1, 3, 0, "token", None).encode()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("position", "prepared", "guarantee", "why"),
    [
        (POSITION, PREPARED, DeliveryGuarantee.EXACTLY_ONCE, ""),
        ({**POSITION, "version": 9}, PREPARED, DeliveryGuarantee.EXACTLY_ONCE, "position .* is of version 9"),
        (
            {"sizes": {}, "next": {}},
            PREPARED,
            DeliveryGuarantee.EXACTLY_ONCE,
            "another kind of connector than this KafkaSource",
        ),
        (POSITION, {**PREPARED, "version": 9}, DeliveryGuarantee.EXACTLY_ONCE, "output .* is of version 9"),
        (
            POSITION,
            {"epoch": 3, "text": b""},
            DeliveryGuarantee.EXACTLY_ONCE,
            "another kind of connector than this KafkaSink",
        ),
        (POSITION, PREPARED, DeliveryGuarantee.AT_LEAST_ONCE, "AT_LEAST_ONCE does not commit"),
    ],
)
def test_what_kafka_has_stored_is_judged_without_a_broker(position, prepared, guarantee, why):
    found = list(obstacles(kafka_program(guarantee), kafka_checkpoint(position, prepared)))
    if not why:
        assert not found
        return
    (obstacle,) = found
    assert re.search(why, obstacle.reason)
    assert obstacle.uid == ("payments" if "position" in why or "Source" in why else "out")


def tables(of: Any) -> Callable[[Any], None]:
    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(
            SplitSource({"all": [("a", 1), ("b", 2)] * 30}, 10), WatermarkStrategy.no_watermarks(), "in"
        )
        records = KStream.of(stream.uid("source"), lambda record: record[0], lambda record: record[1])
        of(records).to_stream().to_data_stream().map(str).uid("text").sink_to(LedgerSink("out")).uid("out")

    return build


@pytest.mark.parametrize(
    ("after", "restorable"),
    [
        (lambda records: records.group_by_key().count(), True),
        (lambda records: records.to_table(), False),
        (lambda records: records.group_by_key().count().group_by(lambda key, count: (count, key)).count(), True),
    ],
)
def test_a_program_of_tables(tmp_path, after, restorable):
    first = Lab(tables(lambda records: records.group_by_key().count()), tmp_path / "first", budget=20)
    savepoint = run(first, 2)
    found = check(savepoint, tables(after))
    assert found.restorable is restorable, found
    second = Lab(tables(after), tmp_path / "second", budget=20, savepoint=savepoint)
    if restorable:
        second.run()
    else:
        with pytest.raises(IncompatibleState) as refused:
            second.run()
        assert str(refused.value) in found.problems


def test_requests_under_way_are_judged_but_not_sent(tmp_path):
    """The operator would send those that it gets when it opens."""
    stored = OperatorSnapshot(
        SubtaskState(lists={"requests": [ListPart([b"1"])]}),
        listed={"requests": ListedState(SPLIT), "gone": ListedState(UNION)},
    )
    lists = JudgingLists(Storage.open(str(tmp_path)), stored, "'asks' (uid 'asks')")
    assert lists.stored("requests", SPLIT) == []
    assert lists.found["requests"][0] == "as is"
    assert list(lists.undeclared) == ["gone"]
    assert not lists.problems
