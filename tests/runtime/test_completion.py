"""From the reports of an epoch to the checkpoint: every operator of a chain, whatever state it has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.layers import SubtaskChange, added, difference
from holdfast.checkpoint.metadata import (
    SPLIT,
    UNION,
    CheckpointMetadata,
    KeyedHandle,
    ListedState,
    ListPart,
    SubtaskState,
)
from holdfast.connectors.base import Committable
from holdfast.datastream import CheckpointedFunction, MapFunction, StreamExecutionEnvironment
from holdfast.errors import IncompatibleState, UserCodeError
from holdfast.runtime.channels.channels import ChannelIncomplete, seen_attempts, senders
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.plan.redistribution import OperatorSnapshot, assigned
from holdfast.runtime.plan.task_messages import OperatorReport, TaskReport
from holdfast.runtime.protocol.completion import committables_of, failure_of, operator_states, tokens_of
from holdfast.runtime.protocol.resumption import check_resumable
from holdfast.runtime.time.clock import EventTime

DELTA = ContainedFile("delta", 3, b"c" * 16)


class Kept(MapFunction, CheckpointedFunction):
    """A function with operator state."""

    def initialize_state(self, context: Any) -> None:
        pass

    def snapshot_state(self, context: Any) -> None:
        pass

    def map(self, value: Any) -> Any:
        return value


def plan(parallelism: int, *, last: str = "last") -> JobPlan:
    """A keyed operator with two more in its chain."""
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(parallelism)
    keyed = env.from_collection([1]).uid("source").key_by(lambda v: v).reduce(max).uid("keyed").set_max_parallelism(16)
    keyed.map(Kept()).uid("middle").map(lambda v: v).uid(last).print().uid("sink")
    return env._plan("job")


def reports(job: JobPlan, states: dict[str, Any]) -> list[TaskReport]:
    """The first report of each task, whose state is ``states[uid](subtask)``."""
    made = []
    for vertex in job.vertices:
        for n in range(vertex.parallelism):
            report = TaskReport((vertex.id, n), f"attempt of {vertex.id}-{n}")
            report.event_times = {c.uid: EventTime(100 + n) for c in vertex.chain}
            report.state = {c.uid: OperatorReport.whole(states[c.uid](n)) for c in vertex.chain if c.uid in states}
            made.append(report)
    return made


def keyed(n: int) -> OperatorSnapshot:
    handle = KeyedHandle(8 * n, 8 * n + 7, schema="s", deltas=[DELTA])
    return OperatorSnapshot(SubtaskState([handle]), {"s": {"version": 3}})


def listed(n: int) -> OperatorSnapshot:
    state = SubtaskState(lists={"offsets": [ListPart([b"%d" % n, b"more"])], "all": [ListPart([b"x%d" % n])]})
    return OperatorSnapshot(state, listed={"offsets": ListedState(SPLIT), "all": ListedState(UNION)})


def generator(n: int) -> OperatorSnapshot:
    return OperatorSnapshot(generator={"max_timestamp": 50 + n})


def checkpoint(job: JobPlan, states: dict[str, Any]) -> CheckpointMetadata:
    return CheckpointMetadata(7, 1, "id", "job", 0, operators=operator_states(job, reports(job, states)))


def stored(whole: CheckpointMetadata) -> CheckpointMetadata:
    """The checkpoint as the next driver finds it."""
    nothing = CheckpointMetadata(0, 0, "", "", 0)
    layer = difference(nothing, whole)
    layer = msgspec.msgpack.decode(msgspec.msgpack.encode(layer), type=type(layer))
    return msgspec.structs.replace(whole, operators=added(nothing, [layer]).operators)


ALL = {"keyed": keyed, "middle": listed, "last": generator}


def test_every_operator_of_a_chain_that_has_state_is_in_the_checkpoint():
    job = plan(2)
    whole = checkpoint(job, ALL)
    assert {"keyed", "middle", "last"} < set(whole.operators)
    assert "sink" not in whole.operators
    assert whole.operators["keyed"].watermarks == [100, 101]
    assert whole.operators["middle"].watermarks == [100, 101]
    for n in range(2):
        for uid in ("keyed", "last"):
            assert assigned(stored(whole).operators[uid], 2, n) == ALL[uid](n)
        lists = assigned(stored(whole).operators["middle"], 2, n).state.lists
        assert lists["offsets"] == listed(n).state.lists["offsets"]
        assert lists["all"] == [ListPart([b"x0"]), ListPart([b"x1"])]


def test_a_subtask_reports_only_its_change_of_the_checkpoint_that_the_epoch_continues():
    job = plan(2)
    before = checkpoint(job, ALL)
    quiet = [replace(r, state={uid: OperatorReport(listed=s.listed, generator=s.generator) for uid, s in r.state.items()})
             for r in reports(job, ALL)]  # fmt: skip
    assert operator_states(job, quiet, before) == before.operators
    one = next(r for r in quiet if "keyed" in r.state and r.task[1] == 1)
    one.state["keyed"] = OperatorReport(SubtaskChange(deltas=[ContainedFile("next", 4, b"d" * 16)]))
    after = operator_states(job, quiet, before)
    first, second = after["keyed"].subtasks
    assert first is before.operators["keyed"].subtasks[0]
    assert [file.path for file in second.files()] == ["delta", "next"]
    assert after["keyed"].schemas == before.operators["keyed"].schemas


def test_the_driver_that_saw_the_attempts_asks_for_them_and_another_for_what_is_stored():
    job = plan(2)
    whole = checkpoint(job, ALL)
    assert set(tokens_of(job, whole).values()) == {report.attempt for report in reports(job, ALL)}
    assert set(tokens_of(job, stored(whole)).values()) == {"checkpoint 7"}
    assert tokens_of(job, None) == {}


def test_state_that_is_not_keyed_is_kept_when_the_parallelism_changes():
    whole = stored(checkpoint(plan(2), {"middle": listed, "last": generator}))
    wider = plan(3)
    check_resumable(wider, whole)
    assert len(tokens_of(wider, whole)) == 1 + 3
    middle = [assigned(whole.operators["middle"], 3, n).state.lists for n in range(3)]
    assert [[e for part in lists.get("offsets", []) for e in part.elements] for lists in middle] == [
        [b"0"],
        [b"more"],
        [b"1", b"more"],
    ]
    assert all([e for part in lists["all"] for e in part.elements] == [b"x0", b"x1"] for lists in middle)
    assert {assigned(whole.operators["last"], 3, n).generator["max_timestamp"] for n in range(3)} == {50}


def test_keyed_state_is_taken_at_another_parallelism_and_refused_at_another_max_parallelism():
    whole = stored(checkpoint(plan(2), ALL))
    check_resumable(plan(3), whole)
    job = plan(2)
    vertices = tuple(replace(v, max_parallelism=32) if v.chain[0].uid == "keyed" else v for v in job.vertices)
    with pytest.raises(IncompatibleState, match=r"'keyed'.* max parallelism 16 in checkpoint 7.* 32 in the program"):
        check_resumable(replace(job, vertices=vertices), whole)


@pytest.mark.parametrize(("uid", "snapshot"), [("last", listed), ("last", keyed)])
def test_state_of_an_operator_that_is_gone_is_refused_wherever_it_was_in_its_chain(uid, snapshot):
    whole = stored(checkpoint(plan(2), {uid: snapshot}))
    with pytest.raises(IncompatibleState, match=rf"has state of .*uid '{uid}'.*give the operators their uid"):
        check_resumable(plan(2, last="renamed"), whole)


def test_an_operator_without_state_may_go():
    whole = stored(checkpoint(plan(2), {"last": lambda n: OperatorSnapshot(SubtaskState([KeyedHandle(n, n)]))}))
    check_resumable(plan(2, last="renamed"), whole)


def mixed(partitioning: str) -> tuple[JobPlan, list[TaskReport], int]:
    """A job whose last vertex has read every sender once; its reports, and its channel."""
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(3)
    records = env.from_collection([1]).map(lambda v: v).uid("first")
    spread = records.key_by(lambda v: v) if partitioning == "key_by" else getattr(records, partitioning)()
    spread.map(lambda v: v).uid("second").set_parallelism(2 if partitioning == "rescale" else 3).print()
    job = env._plan("job")
    told = reports(job, {})
    attempts = {report.task: report.attempt for report in told}
    for vertex in job.vertices:
        for channel in (channel for chained in vertex.chain for channel in chained.channels):
            receiver = next(v for v in job.vertices if v.id == channel.target)
            for report in (r for r in told if r.task[0] == receiver.id):
                own = senders(channel.partitioning, report.task[1], vertex.parallelism, receiver.parallelism)
                report.seen[channel.id] = seen_attempts(attempts[(vertex.id, n)] for n in own)
    return job, told, job.levels


@pytest.mark.parametrize("partitioning", ["key_by", "rebalance", "rescale", "broadcast"])
def test_an_epoch_in_which_two_tasks_read_different_attempts_of_a_sender_fails(partitioning: str):
    job, told, levels = mixed(partitioning)
    assert failure_of(job, told) is None
    rerun = next(report for report in told if report.task[0] in {v.id for v in job.at(levels - 2)})
    rerun.attempt = "the attempt that Spark ran again"
    found = failure_of(job, told)
    assert found is not None
    assert isinstance(found[0], ChannelIncomplete)
    assert "read another attempt of a subtask of" in str(found[0])


def test_of_several_failures_the_cause_is_told_and_not_its_consequences():
    job, told, _ = mixed("key_by")
    told[0].error = ended = ChannelIncomplete("a channel ended")
    assert failure_of(job, told) == (ended, "Source: Collection Source (1/1)")
    told[1].error = lost = OSError("the disk is full")
    assert failure_of(job, told)[0] is lost
    told[2].error = mistake = UserCodeError("the function failed")
    assert failure_of(job, told)[0] is mistake


def an_epoch_without_the_reports_of_two_tasks_fails_and_names_them():
    job, told, _ = mixed("key_by")
    last = max(report.task[0] for report in told)
    error, task = failure_of(job, [report for report in told if report.task not in ((last, 0), (last, 2))])
    first, second = (f"Map -> Sink: Print to Std. Out ({n}/3)" for n in (1, 3))
    assert str(error) == f"no report from {first}, {second}"
    assert task == first


def the_output_of_a_checkpoint_is_that_of_its_committables():
    stored_output = CheckpointMetadata(7, 1, "id", "job", 0, committables=[("sink", 1, {"file": "part-1"})])
    assert committables_of(stored_output) == [Committable("sink", 1, {"file": "part-1"})]
    assert committables_of(None) == []


def test_a_schema_that_no_subtask_has_state_of_leaves_the_checkpoint():
    job = plan(2)
    before = checkpoint(job, ALL)

    def next_version(n: int) -> OperatorSnapshot:
        return OperatorSnapshot(SubtaskState([KeyedHandle(8 * n, 8 * n + 7, schema="t")]), {"t": {"version": 4}})

    one = reports(job, ALL)
    (report,) = [r for r in one if "keyed" in r.state and r.task[1] == 1]
    report.state["keyed"] = OperatorReport.whole(next_version(1))
    assert operator_states(job, one, before)["keyed"].schemas == {"s": {"version": 3}, "t": {"version": 4}}
    assert operator_states(job, reports(job, {"keyed": next_version}), before)["keyed"].schemas == {"t": {"version": 4}}
