"""What a program can take from a checkpoint, decided from the plan and the checkpoint's metadata alone."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.metadata import (
    CHANNEL_STATE,
    CheckpointMetadata,
    KeyedHandle,
    ListPart,
    OperatorCheckpoint,
    SourceState,
    SubtaskState,
)
from holdfast.common import Configuration, Encoder
from holdfast.connectors.base import Committable
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.file_system import FileSink
from holdfast.errors import IncompatibleState
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.protocol.resumption import (
    check_resumable,
    committable_now,
    obstacles,
    unclaimed,
    with_key_groups,
)

ROWS = KeyedHandle(0, 15, deltas=[ContainedFile("delta", 3, b"c" * 16)])
PART = {"bucket": "", "pending": ".a", "final": "a"}
POSITION = {"sizes": {"collection": 2}, "next": {"collection": 1}}


def plan(key_groups: int = 0, parallelism: int = 2, **config: str) -> JobPlan:
    """A source, a keyed operator with another one in its chain, and a sink of files behind a shuffle."""
    settings = Configuration.from_dict({key.replace("_", "."): value for key, value in config.items()})
    env = StreamExecutionEnvironment.get_execution_environment(settings, spark=object())  # type: ignore[arg-type]
    env.set_parallelism(parallelism)
    keyed = env.from_collection([1, 2]).uid("source").key_by(lambda v: v).reduce(max).uid("keyed").name("totals")
    if key_groups:
        keyed.set_max_parallelism(key_groups)
    lines = keyed.map(str).uid("last").rebalance()
    lines.sink_to(FileSink.for_row_format("/nowhere", Encoder.simple_string_encoder()).build()).uid("files")
    return env._plan("job")


def checkpoint(operators: dict[str, OperatorCheckpoint] | None = None, **rest: Any) -> CheckpointMetadata:
    return CheckpointMetadata(7, 1, "id", "job", 0, operators=operators or {}, **rest)


def rows(max_parallelism: int = 16, name: str = "totals", **rest: Any) -> OperatorCheckpoint:
    return OperatorCheckpoint(name, max_parallelism=max_parallelism, subtasks=[SubtaskState([ROWS])], **rest)


def reasons(job: JobPlan, stored: CheckpointMetadata, savepoint: str | None = None) -> list[tuple[str, str]]:
    return [(each.uid, each.reason) for each in obstacles(job, stored, savepoint)]


def a_program_takes_the_checkpoints_number_of_key_groups_unless_it_sets_its_own():
    stored = checkpoint({"keyed": rows(16)})

    def groups(job: JobPlan) -> dict[str, int]:
        return {vertex.chain[0].uid: vertex.max_parallelism for vertex in job.vertices}

    assert groups(plan()) == {"source-records": 128, "keyed": 128, "files": 128}
    assert groups(with_key_groups(plan(), stored)) == {"source-records": 128, "keyed": 16, "files": 128}
    assert groups(check_resumable(plan(), stored)) == {"source-records": 128, "keyed": 16, "files": 128}
    assert groups(with_key_groups(plan(32), stored)) == {"source-records": 128, "keyed": 32, "files": 128}
    assert groups(with_key_groups(plan(), checkpoint())) == groups(plan())
    with pytest.raises(IncompatibleState, match=r"max parallelism 16 in checkpoint 7 .* and 32 in the program"):
        check_resumable(plan(32), stored)


def a_parallelism_above_the_number_of_key_groups_is_told():
    stored = checkpoint({"keyed": rows(2)})
    assert reasons(with_key_groups(plan(parallelism=2), stored), stored) == []
    ((uid, reason),) = reasons(with_key_groups(plan(parallelism=3), stored), stored)
    assert uid == "keyed"
    assert "parallelism 3, but only 2 key groups to share out in checkpoint 7 of job 'job'" in reason
    empty = checkpoint({"keyed": OperatorCheckpoint("totals", max_parallelism=2, subtasks=[SubtaskState()] * 2)})
    assert reasons(with_key_groups(plan(parallelism=3), empty), empty) == [], "without keyed state nothing is shared out"


def test_each_difference_is_told_with_the_checkpoint_or_savepoint_that_it_is_in():
    stored = checkpoint(
        {"gone": rows(name="counts"), "keyed": rows(definition={"of": "a window", "form": "panes"})},
        sources={"source": SourceState({**POSITION, "sizes": {"collection": 3}})},
        committables=[("files", 0, {"topic": "a"})],
    )
    for savepoint, where in ((None, "checkpoint 7 of job 'job'"), ("file:///s", "savepoint file:///s of job 'job'")):
        told = reasons(with_key_groups(plan(), stored), stored, savepoint)
        assert [uid for uid, _ in told] == ["", "source", "files", "keyed"]
        assert all(where in reason for _, reason in told)
        for (_, reason), part in zip(told, ("'counts' (uid 'gone')", "position in", "commit its output", "a window")):
            assert part in reason


def test_what_a_checkpoint_has_beyond_the_program_is_told_by_kind():
    empty = OperatorCheckpoint("empty", subtasks=[SubtaskState(), SubtaskState([KeyedHandle(0, 15)])])
    own = OperatorCheckpoint("lines", max_parallelism=16, subtasks=[SubtaskState([ROWS], {"seen": [ListPart([b"1"])]})])
    stored = checkpoint(
        {"keyed": rows(), "gone": rows(name="counts", parallelism=3), "empty": empty, "last": own},
        sources={"source": SourceState(POSITION), "other": SourceState(None)},
        committables=[("out", 0, {}), ("out", 1, {}), ("files", 0, PART), ("gone:changelog", 0, {})],
    )
    found = unclaimed(plan(), stored)
    assert [(each.kind, each.uid, each.parallelism) for each in found] == [
        ("operator", "gone", 3),
        ("operator", "last", 1),
        ("source", "other", 0),
        ("sink", "out", 0),
    ]
    assert [str(each) for each in found] == [
        "'counts' (uid 'gone')",
        "'lines' (uid 'last', its keyed state and operator state)",
        "source 'other'",
        "sink 'out' (prepared output)",
    ]
    ((_, reason),) = reasons(with_key_groups(plan(), stored), stored)
    assert all(str(each) in reason for each in found)
    assert "Nothing in it belongs to this program" not in reason
    foreign = checkpoint({"gone": rows()}, sources={"other": SourceState(None)})
    assert "Nothing in it belongs to this program" in reasons(plan(), foreign)[0][1]
    source_alone = checkpoint({"gone": rows()}, sources={"source": SourceState(POSITION)})
    assert "Nothing in it belongs to this program" not in reasons(plan(), source_alone)[0][1]
    ignoring = plan(**{"execution.state-recovery.ignore-unclaimed-state": "true"})
    assert reasons(with_key_groups(ignoring, stored), stored) == []


def test_channel_state_of_its_inputs_is_taken_by_the_first_operator_of_a_task_only():
    """The input of a subtask waits before the first operator of its chain."""

    def waiting(*inputs: str) -> OperatorCheckpoint:
        cursor = {"epoch": 7, "parallelism": 1, "max_parallelism": 128, "inputs": list(inputs), "lanes": []}
        parts = [ListPart([msgspec.msgpack.encode(cursor)]), ListPart()]
        return OperatorCheckpoint("totals", subtasks=[SubtaskState(), SubtaskState(lists={CHANNEL_STATE: parts})])

    def told(uid: str, *inputs: str) -> list[tuple[str, str]]:
        return reasons(plan(), checkpoint({uid: waiting(*inputs)}))

    assert told("keyed", "KEYED") == []
    for uid in ("last", "source-records"):
        ((where, reason),) = told(uid, "KEYED")
        assert where == uid
        assert f"channel state of operator 'totals' (uid '{uid}'), which is not the first of its task any more" in reason
        assert "stop the old program with a savepoint, which holds no channel state" in reason
    ((where, reason),) = told("keyed", "KEYED", "PLAIN")
    assert where == "keyed"
    assert "from inputs ['KEYED', 'PLAIN'], and the program has inputs ['KEYED']: stop the old program" in reason


def a_sink_that_cannot_commit_prepared_output_is_told_once():
    outputs = [("files", 0, PART), ("files", 1, {"topic": "a"}), ("files", 2, {"topic": "a"})]
    ((uid, reason),) = reasons(plan(), checkpoint(committables=outputs))
    assert uid == "files"
    assert "another kind of connector than this FileSink has stored it" in reason
    assert reasons(plan(), checkpoint(committables=outputs[:1])) == []


def a_start_from_an_older_checkpoint_commits_what_the_sinks_can_commit_of_the_newest():
    output = [
        Committable("files", 0, {"topic": "a"}),
        Committable("files", 1, PART),
        Committable("gone", 0, {"topic": "a"}),
    ]
    assert committable_now(plan(), output) == output[1:]


def a_source_that_has_ended_or_was_not_started_is_not_asked_about_its_position():
    other = {"sizes": {"collection": 3}, "next": {"collection": 1}}
    assert [uid for uid, _ in reasons(plan(), checkpoint(sources={"source": SourceState(other)}))] == ["source"]
    ended = SourceState(other, {"\x00finished": {"finished": True}})
    for position in (ended, SourceState(None), SourceState(POSITION)):
        assert reasons(plan(), checkpoint(sources={"source": position})) == []
