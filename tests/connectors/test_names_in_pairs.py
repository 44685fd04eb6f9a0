"""Names of two jobs, operators, sinks or states that run into each other give different names to what is stored of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.paths import HoldName, JobPaths, safe_name
from holdfast.common.watermark_strategy import WatermarkStrategy
from holdfast.connectors.base import JobInfo
from holdfast.connectors.file.sink import _owner
from holdfast.connectors.kafka.changelogs.changelog import changelog_topic
from holdfast.connectors.kafka.sink.committable import TransactionalId, id_prefix, rewriter_id, rewriting_job
from holdfast.connectors.kafka.sink.outbox import outbox_name
from holdfast.connectors.kafka.sink.tokens import Token, token_topic
from holdfast.connectors.redis.server import RedisServer
from holdfast.connectors.redis.staging import Staging
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.hybrid_source import HybridSource
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.errors import ConfigurationError
from holdfast.metrics.prometheus import _of_users
from holdfast.runtime.host.local_directory import state_directory
from holdfast.runtime.protocol.resumption import obstacles
from holdfast.table.cluster import _prefix

PARTS = [
    "a",
    "b",
    "A",
    "1",
    "10",
    "eu",
    "é",
    "e\u0301",
    "ß",
    "日",
    " ",
    "a b",
    "x" * 90,
    "x" * 210,
    "changelog",
    "rewrite",
    "g1",
    "j1",
]
JOINTS = ["-", "--", "/", ".", "_", "%", "%2D", "%25", ":", "\n", "\\", "", "-1", "-11", "%5"]


def joined(parts: list[str], joints: list[str]) -> str:
    return "".join(part + joint for part, joint in itertools.zip_longest(parts, joints, fillvalue=""))


@st.composite
def pairs(draw: st.DrawFn, plain: bool = False) -> tuple[tuple[str, str], tuple[str, str]]:
    """Two pairs of names that are one text, or nearly so, when they are joined."""
    parts = draw(st.lists(st.sampled_from(PARTS[:6] if plain else PARTS), min_size=3, max_size=4))
    joints = draw(st.lists(st.sampled_from(JOINTS[:1] + JOINTS[3:5] if plain else JOINTS), min_size=2, max_size=3))
    text = joined(parts, joints)
    one, other = (draw(st.integers(1, len(text) - 1)) for _ in range(2))
    made = []
    for at in (one, other):
        drops = draw(st.sampled_from(["", *(joint for joint in JOINTS if joint and text[at:].startswith(joint))]))
        made.append((text[:at], text[at + len(drops) :] or "a"))
    first, second = made
    if draw(st.booleans()):
        second = (second[0].swapcase(), second[1])
    assume(first != second and all(first) and all(second))
    return first, second


def job(name: str, uri: str = "file:///data") -> JobInfo:
    return JobInfo("j" * 32, name, 1, uri, {})


SERVER = RedisServer("redis://host", None, "sink", 1)

NAMES: dict[str, Callable[[str, str], Any]] = {
    "changelog topic": changelog_topic,
    "transactional ids": id_prefix,
    "rewriting ids": lambda prefix, uid: rewriter_id(prefix, uid, 1, "1f"),
    "outbox": lambda job, uid: (JobPaths.of(job).directory, "sinks", safe_name(uid), outbox_name(1, 2, 3, "c0ffee")),
    "state files": lambda job, uid: JobPaths.of(job).state_file(1, 2, uid, 3, "0a", "delta"),
    "in-progress files": lambda name, uid: _owner(job(name), uid),
    "local state": lambda name, uid: (state_directory("/tmp", name).path, safe_name(uid)),
    "keys in Redis": lambda name, uid: Staging(SERVER, job(name), uid).prefix,
    "tokens": lambda prefix, uid: (token_topic(prefix), Token.key(uid, 1, "1f", 2)),
}
"""By a job's name or a transactional id prefix, and a uid."""


@pytest.mark.parametrize("what", NAMES)
@settings(max_examples=examples(50))
@given(pairs())
def the_same_text_in_two_names_is_stored_apart(what: str, pair: tuple[tuple[str, str], tuple[str, str]]) -> None:
    (one, other), name = pair, NAMES[what]
    assert name(*one) != name(*other)


@settings(max_examples=examples(50))
@given(pairs(plain=True), st.booleans())
def an_application_has_sinks_of_its_own(pair: tuple[tuple[str, str], tuple[str, str]], percent: bool) -> None:
    """No topic's name has a percent sign."""
    (application, topic), (other, other_topic) = pair
    if percent:
        other = f"{other}%{len(application)}"
    assert _prefix(application, topic) != _prefix(other, other_topic)


numbers = st.integers(0, 12)


@settings(max_examples=examples(60))
@given(pairs(), st.tuples(numbers, numbers, numbers, numbers), st.sampled_from(["", "1", "1f"]))
def a_transactional_id_says_whose_it_is(
    pair: tuple[tuple[str, str], tuple[str, str]], given_numbers: tuple[int, int, int, int], identity: str
) -> None:
    (prefix, uid), (other, other_uid) = pair
    subtask, generation, slot, lane = given_numbers
    made = TransactionalId(prefix, uid, subtask, generation, "0a1b", slot, lane, identity)
    assert TransactionalId.parse(str(made), prefix, uid) == made
    assert TransactionalId.parse(str(made), other, other_uid) is None
    found = TransactionalId.of_sink(str(made), uid)
    assert found == made
    text = rewriter_id(prefix, uid, subtask, identity)
    assert rewriting_job(text, prefix, uid) == identity
    assert rewriting_job(text, other, other_uid) is None
    assert TransactionalId.of_sink(text, uid) is None


@settings(max_examples=examples(60))
@given(pairs(), numbers, numbers, numbers, numbers)
def the_key_of_a_token_is_that_of_one_writer(
    pair: tuple[tuple[str, str], tuple[str, str]], subtask: int, generation: int, other_subtask: int, other_generation: int
) -> None:
    (uid, tail), (other, _) = pair
    keys = {
        (each, at, identity, number): Token.key(each, at, identity, number)
        for each in (uid, other, f"{uid}/{subtask}", f"{uid}/{tail}")
        for at in (subtask, other_subtask)
        for identity, number in (("1f", generation), ("1f", other_generation), ("2e", generation), ("", 0))
    }
    assert len(set(keys.values())) == len(keys)


@settings(max_examples=examples(60))
@given(pairs())
def a_file_name_is_valid_and_is_that_of_one_name(pair: tuple[tuple[str, str], tuple[str, str]]) -> None:
    (one, other), _ = pair
    assume(one != other)
    assert safe_name(one) != safe_name(other)
    for name in (safe_name(one), safe_name(other)):
        assert 0 < len(name.encode()) <= 100
        assert not set(name) & set("/%: \n\\")
        assert name not in (".", "..")


def a_path_of_a_job_is_below_its_own_directory() -> None:
    names = ["a", "a/b", "a/log", "..", ".", "", "a-b", "a b", "A", "é", "a%2Fb", "x" * 300]
    directories = [JobPaths.of(name) for name in names]
    for one, other in itertools.permutations(directories, 2):
        for path in (*one_of_each(one), one.directory):
            assert not path.startswith(f"{other.directory}/")
            assert path != other.directory


def one_of_each(paths: JobPaths) -> Iterator[str]:
    yield from (paths.log_entry(1), paths.visible, paths.state_file(1, 2, "uid", 0, "0a", "sst"), paths.heartbeat("driver"))
    yield from (paths.hold(HoldName(1, 2, "0" * 32)), paths.standstill("host", 7), paths.archive(1, "0" * 32))


# ---- names that cannot be told apart are refused ----


def program(uids: tuple[str, str], hybrid: bool = False) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment().set_parallelism(1)
    numbers = NumberSequenceSource(1, 2)
    source = HybridSource.builder(numbers).add_source(numbers).build() if hybrid else numbers
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid(uids[0])
    stream.map(lambda x: x).uid(uids[1]).print()
    return env


@pytest.mark.parametrize(
    ("uids", "hybrid", "message"),
    [
        (("a b", safe_name("a b")), False, r"The uids 'a b' and 'a-b-\w+' give the same name"),
        (("a", "a-records"), False, r"The uids 'a-records \(of a\)' and 'a-records' give the same name"),
        (("a", "a-2"), True, r"The uids 'a-2 \(of a\)' and 'a-2' give the same name"),
        (("a", "b:changelog"), False, "The uid 'b:changelog' of .* ends as those of changelogs do"),
    ],
)
def a_uid_that_gives_the_name_of_another_operator_is_refused(uids: tuple[str, str], hybrid: bool, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        program(uids, hybrid)._plan("test")
    program(("a", "a-3"), hybrid)._plan("test")


def a_job_whose_name_gives_the_directory_of_another_one_is_refused() -> None:
    plan = program(("a", "b"))._plan("night / day")
    stored = CheckpointMetadata(checkpoint_id=1, generation=1, job_id="", job_name=safe_name(plan.name), created_at=0)
    (found,) = obstacles(plan, stored)
    assert found.reason.startswith("the directory 'night-day-")
    assert "is that of another one: it has checkpoint 1 of job 'night-day-" in found.reason
    assert not list(obstacles(plan, stored, "a savepoint of it"))
    assert not list(obstacles(plan, CheckpointMetadata(1, 1, "", plan.name, 0)))


def a_metric_keeps_a_name_of_its_own_in_prometheus() -> None:
    given = {"op.a.b": 1.0, "op.a_b": 2.0, "op.a-b": 3.0, "op.c": 4.0, "other.a.b": 5.0}
    found = _of_users(given)
    assert sorted(found.values()) == sorted(given.values())
    assert {name for operator, name in found if operator == "other"} == {"a_b"}
    assert all(name.startswith("a_b") for (operator, name), value in found.items() if value in (1.0, 2.0, 3.0))
