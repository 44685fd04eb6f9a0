"""Queries of committed state, beside a model of what the checkpoint has read."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

import compactions
import holdfast.state.backends.upkeep
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.retention import Retention, verify_files
from holdfast.checkpoint.savepoint import read_savepoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.cli.query import _as_json
from holdfast.common import Row, Time, Types
from holdfast.datastream import (
    KeyedProcessFunction,
    ListStateDescriptor,
    MapStateDescriptor,
    ProcessWindowFunction,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.datastream.window import (
    CountTrigger,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from holdfast.errors import CheckpointError, ConfigurationError, CorruptFile
from holdfast.rest.queries import _key
from holdfast.runtime.driver.queries import StateQueries
from holdfast.runtime.driver.savepoints import SavepointWriter, new_savepoint
from holdfast.runtime.plan.settings import JobSettings
from holdfast.state_api import find_orphans

from .inprocess import LedgerSink
from .small_programs import Remember, program, timed
from .test_same_results import IN_FILES, config, lab

VALUES = [(f"k{n % 7}", n, n) for n in range(700)]
ROW = Types.ROW_NAMED(["last", "count"], [Types.LONG(), Types.LONG()])


class Everything(KeyedProcessFunction):
    def open(self, runtime_context):
        expiring = ValueStateDescriptor("expiring", Types.LONG())
        expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.count = runtime_context.get_state(ValueStateDescriptor("count", ROW))
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.by = runtime_context.get_map_state(MapStateDescriptor("by", Types.LONG(), Types.STRING()))
        self.expiring = runtime_context.get_state(expiring)
        self.pickled = runtime_context.get_state(ValueStateDescriptor("pickled"))

    def process_element(self, value, ctx):
        count = self.count.value()
        self.count.update(Row(last=value[2], count=1 if count is None else count.count + 1))
        for each in range(4):  # more elements than a row holds
            self.seen.add(4 * value[2] + each)
        self.by.put(value[2] % 3, value[0])
        self.expiring.update(value[2])
        self.pickled.update({"n": value[2]})
        yield value


def queries(job: Any) -> tuple[StateQueries, Any]:
    paths = JobPaths.of("job")
    log = CheckpointLog(job.storage, paths, 3)
    taken = log.take_over()
    settings = JobSettings.of(dict(job.config))
    retention = Retention(job.storage, paths, log)
    return StateQueries(job.storage, retention, settings, log.locate), taken.restored


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def a_query_shows_exactly_what_the_newest_checkpoint_has_read(backend):
    with lab(program(Everything(), VALUES, cut=90), parallelism=3, budget=90, config=config(backend, "64")) as job:
        for stop in (2, 3, 4):
            job._run_until("after complete", stop)
            asked, checkpoint = queries(job)
            read = VALUES[: checkpoint.sources["source"].enumerator["only"]]
            assert read
            counts = Counter(key for key, _, _ in read)
            for key in [f"k{n}" for n in range(8)]:
                numbers = [n for k, _, n in read if k == key]
                answers = {name: asked.query("keyed", name, key) for name in ("count", "seen", "by", "expiring", "pickled")}
                assert {each.checkpoint_id for each in answers.values()} == {checkpoint.checkpoint_id}
                if not numbers:
                    assert {each.value for each in answers.values()} == {None}
                    continue
                assert answers["count"].value == Row(last=numbers[-1], count=counts[key])
                assert answers["seen"].value == [4 * n + each for n in numbers for each in range(4)]
                assert answers["by"].value == {n % 3: key for n in numbers}
                assert answers["expiring"].value == numbers[-1]
                assert answers["pickled"].value == {"n": numbers[-1]}


ODD_KEYS: list[tuple[Any, list[Any]]] = [
    (None, [-5, 0, 1 << 63, 1 << 80, -(1 << 80)]),
    (Types.LONG(), [-5, -(1 << 63), (1 << 63) - 1]),
    (Types.BIG_INT(), [-5, 1 << 80, -(1 << 80)]),
    (Types.ROW_NAMED(["shop", "n"], [Types.STRING(), Types.LONG()]), [Row(shop="anna", n=-5), Row(shop="é/%", n=0)]),
    (Types.TUPLE([Types.STRING(), Types.LONG()]), [("anna", -5), ("", 1 << 62)]),
    (Types.STRING(), ["-5", "", "null", "é", "a/b"]),
]


@pytest.mark.parametrize(("declared", "keys"), ODD_KEYS, ids=lambda each: "" if isinstance(each, list) else repr(each))
def a_state_is_queried_by_the_key_in_a_request(declared, keys, job):
    """As the REST API and the command line pass it on: from JSON, where an object is a Row and a list a tuple."""

    def build(env: Any) -> None:
        elements = timed(env, [(key, n, n) for n, key in enumerate(keys)])
        kept = elements.key_by(lambda value: value[0], declared).process(Remember(Types.LONG())).uid("keyed")
        kept.sink_to(LedgerSink("out")).uid("out")

    here = job(build, budget=30)
    here._run_until("after complete", 2)
    asked, _ = queries(here)
    for n, key in enumerate(keys):
        given = key.as_dict() if isinstance(key, Row) else key
        text = _as_json(json.dumps(given) if not isinstance(key, str) or key in ("-5", "null") else key)
        assert asked.query("keyed", "kept", _key(json.loads(text))).value == n


class AsNeeded(KeyedProcessFunction):
    """Counts each key in a state that its first element declares."""

    def open(self, runtime_context):
        self.context = runtime_context

    def process_element(self, value, ctx):
        count = self.context.get_state(ValueStateDescriptor(f"count of {value[0]}", Types.LONG()))
        count.update((count.value() or 0) + 1)
        yield value


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def a_key_is_queried_although_each_subtask_has_declared_the_states_in_an_order_of_its_own(backend):
    with lab(program(AsNeeded(), VALUES, cut=90), parallelism=3, budget=90, config=config(backend, "64")) as job:
        job._run_until("after complete", 3)
        asked, checkpoint = queries(job)
        assert len(checkpoint.operators["keyed"].schemas) == 3
        read = VALUES[: checkpoint.sources["source"].enumerator["only"]]
        for key, count in Counter(key for key, _, _ in read).items():
            assert asked.query("keyed", f"count of {key}", key).value == count


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
def a_rescaled_state_is_queried_and_saved_although_only_some_subtasks_had_large_lists(backend, tmp_path):
    # One key has more elements than a row holds: the subtasks that it was in have another schema than the others.
    values = [("hot" if n % 4 else f"k{n % 28}", n, n) for n in range(700)]
    with lab(program(Everything(), values, cut=90), parallelism=3, budget=90, config=config(backend, "64")) as job:
        for parallelism in (3, 1, 2, 5):
            job.parallelism = parallelism
            job._run_until("after complete", 2)
            asked, checkpoint = queries(job)
            read = values[: checkpoint.sources["source"].enumerator["only"]]
            for key in {key for key, _, _ in read}:
                numbers = [n for k, _, n in read if k == key]
                assert asked.query("keyed", "seen", key).value == [4 * n + each for n in numbers for each in range(4)]
            uri = new_savepoint(str(tmp_path), "abcdef0123", {})
            SavepointWriter(job.storage, job.plan().settings).write(
                checkpoint, uri, False, lambda task, parts: [task(part) for part in parts]
            )
            verify_files(Storage.open(uri, {}), read_savepoint(uri).savepoint.checkpoint)


def a_checkpoint_held_with_one_driver_stays_whole_through_the_lives_of_the_next_ones(monkeypatch):
    monkeypatch.setattr(holdfast.state.backends.upkeep, "due", compactions.anything(1))
    with lab(program(Everything(), VALUES, cut=90), budget=90, config=IN_FILES) as job:
        job._run_until("after complete", 2)
        asked, held = queries(job)
        hold = asked._retention.hold_newest(600)
        job.run([("after complete", 2), ("after complete", 1)])
        log, paths = CheckpointLog(job.storage, JobPaths.of("job"), 1), JobPaths.of("job")
        assert held.checkpoint_id not in {record.checkpoint_id for record in log.read_retained()}
        assert read_checkpoint(job.storage, paths, held.checkpoint_id) == held
        verify_files(job.storage, held)
        orphans = {orphan.path for orphan in find_orphans(job.storage.locate("job"))}
        assert not orphans & {job.storage.locate(file.path) for file in held.files()}
        log.take_over()
        retention = Retention(job.storage, paths, log)
        retention.adopt_holds()
        retention.holds.remove(hold.id)
        retention.sweep()
        with pytest.raises(CorruptFile, match="missing"):
            verify_files(job.storage, held)


def a_query_for_state_that_is_not_there_names_what_is(tmp_path):
    with lab(program(Everything(), VALUES, cut=90), budget=90) as job:
        with pytest.raises(CheckpointError, match="no checkpoint has been completed yet"):
            queries(job)[0].query("keyed", "count", "k1")
        job._run_until("after complete", 2)
        asked, _ = queries(job)
        with pytest.raises(ConfigurationError, match="uid 'other'; the job has state of keyed"):
            asked.query("other", "count", "k1")
        with pytest.raises(ConfigurationError, match="has no state 'counts' to query; it has count, seen, by"):
            asked.query("keyed", "counts", "k1")
        with pytest.raises(
            ConfigurationError, match=r"state 'count' of operator .* belongs to no window: ask for it without one"
        ):
            asked.query("keyed", "count", "k1", window=0)
        for key in (7, ("k1",)):
            with pytest.raises(ConfigurationError, match=r"no key of type (number|tuple): its keys are of type str"):
                asked.query("keyed", "count", key)
        assert asked.query("keyed", "count", "of this type").value is None
        with pytest.raises(ConfigurationError, match=r"uid 'keyed'. cannot have this key: a key must be hashable"):
            asked.query("keyed", "count", {"k": 1})


class Numbers(ProcessWindowFunction):
    def process(self, key: str, context: Any, elements: Any) -> Any:
        yield key, len(list(elements))


@pytest.mark.parametrize(
    ("windows", "shown"),
    [
        (lambda keyed: keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(20))), True),
        (lambda keyed: keyed.window(SlidingEventTimeWindows.of(Time.milliseconds(20), Time.milliseconds(10))), False),
        (lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(20))), False),
        (
            lambda keyed: keyed.window(TumblingEventTimeWindows.of(Time.milliseconds(20))).trigger(CountTrigger.of(100)),
            False,
        ),
    ],
    ids=["tumbling", "sliding", "sessions", "with a trigger"],
)
def the_content_of_a_window_is_shown_if_it_is_stored_as_a_whole_under_its_start(job, windows, shown):
    def build(env: Any) -> None:
        stream = windows(timed(env, [("k", at) for at in range(40)]).key_by(lambda each: each[0]))
        stream.process(Numbers()).uid("windows").sink_to(LedgerSink("out")).uid("out")

    here = job(build, budget=30)
    assert not here._run_until("after complete", 1)
    asked, checkpoint = queries(here)
    if shown:
        read = checkpoint.sources["source"].enumerator["only"]
        assert asked.query("windows", "window-contents", "k", 20).value == [("k", at) for at in range(20, read)]
    else:
        with pytest.raises(ConfigurationError, match=r"uid 'windows'. cannot be queried"):
            asked.query("windows", "window-contents", "k", 20)
