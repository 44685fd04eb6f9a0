from __future__ import annotations

import itertools
import re
import time
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo
from hypothesis import given
from hypothesis import strategies as st

from awaiting import until
from holdfast.connectors.base import EpochInput
from holdfast.connectors.kafka.changelogs.changelog import changelog_topic
from holdfast.connectors.kafka.cluster import PendingOffsets
from holdfast.connectors.kafka.offsets import KafkaOffsetResetStrategy, KafkaOffsetsInitializer, KafkaTopicPartition
from holdfast.connectors.kafka.sink.tokens import token_topic
from holdfast.connectors.kafka.source import enumerator
from holdfast.connectors.kafka.source.fair_share import share
from holdfast.connectors.kafka.source.positions import Positions
from holdfast.connectors.kafka.source.source import KafkaSource
from holdfast.errors import ConfigurationError, InputLost, ServiceUnavailable
from kafka_fixtures import produce
from kafka_source_helpers import INFO, Job, source

E, L, NONE = KafkaOffsetResetStrategy.EARLIEST, KafkaOffsetResetStrategy.LATEST, KafkaOffsetResetStrategy.NONE
OFFSETS = KafkaOffsetsInitializer


@given(st.dictionaries(st.integers(), st.integers(0, 1000), max_size=20), st.integers(1, 5000))
def a_share_takes_all_it_may_and_is_fair(available: dict[int, int], limit: int) -> None:
    got = share(available, limit)
    assert set(got) == {k for k, n in available.items() if n > 0}
    assert all(1 <= got[k] <= available[k] for k in got)
    total = sum(got.values())
    assert total <= max(limit, len(got))
    if total < min(limit, sum(available.values())):
        pytest.fail("something was left although there was room")
    unfinished = [got[k] for k in got if got[k] < available[k]]
    if unfinished:
        assert max(got.values()) <= min(unfinished) + 1


def the_positions_survive_encoding() -> None:
    a, b = KafkaTopicPartition("a", 0), KafkaTopicPartition("b", 3)
    positions = Positions({"a": "id-a", "b": "id-b"}, {a: 5, b: 7}, {b: 9}, ["latest", 0, [], "NONE"], {a}, set(), {b: 2})
    assert Positions.decode(positions.encode()) == positions


@pytest.mark.kafka
def test_a_bounded_source_ends_where_partitions_begin_beyond_their_stopping_offsets(kafka: Any, new_topic: Any) -> None:
    topic = new_topic(partitions=2)
    p0, p1 = KafkaTopicPartition(topic, 0), KafkaTopicPartition(topic, 1)
    produce(kafka.bootstrap_servers, topic, ["a", "b", "c", "d"])
    produce(kafka.bootstrap_servers, topic, ["e", "f"], partition=1)
    Job.delete_before(kafka, topic, 3)
    src = source(kafka, topics=(topic,), bounded=OFFSETS.offsets({p0: 2, p1: 1}))
    with Job(src) as job:
        plan = job.enumerator.plan(100)
        assert plan.finished
        assert sorted(r.split for r in plan.ranges if r.last) == [str(p0), str(p1)]
        assert job.read(plan.ranges) == ["e"]


def _look_for_topics(job: Job) -> None:
    """What happens some hours later."""
    job.enumerator._discovered_at -= 36_000
    job.enumerator._apply_discovery()
    assert job.enumerator._discovery is not None
    job.enumerator._discovery.exception()
    job.enumerator._apply_discovery()


@pytest.mark.kafka
class TestPlanning:
    def test_ranges_follow_each_other_and_the_group_hears_of_completed_checkpoints(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic(partitions=2)
        produce(kafka.bootstrap_servers, topic, [f"v{i}" for i in range(10)])
        src = source(kafka, topics=(topic,), **{"group.id": f"g-{topic}"})
        with Job(src) as job:
            first = job.epoch()
            assert first == [f"v{i}" for i in range(10)]
            produce(kafka.bootstrap_servers, topic, ["x"], partition=1)
            job.enumerator.wait(10)
            assert job.epoch() == ["x"]
            p0, p1 = KafkaTopicPartition(topic, 0), KafkaTopicPartition(topic, 1)
            view = job.enumerator._view  # type: ignore[attr-defined]
            deadline = time.monotonic() + 600
            for number in itertools.count(1):  # an attempt may fail while the group gets its coordinator
                job.enumerator.checkpoint_completed(number, job.enumerator.snapshot())
                committed = view.committed(f"g-{topic}", [p0, p1])
                if committed == {p0: 10, p1: 1}:
                    break
                assert time.monotonic() < deadline, committed

    def test_a_restored_source_continues_at_the_checkpoints_positions(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic()
        produce(kafka.bootstrap_servers, topic, [f"v{i}" for i in range(10)])
        with Job(source(kafka, topics=(topic,))) as job:
            assert job.epoch(4) == ["v0", "v1", "v2", "v3"]
            state = job.enumerator.snapshot()
            job.epoch()
        with Job(source(kafka, topics=(topic,)), state) as job:
            assert job.epoch() == [f"v{i}" for i in range(4, 10)]

    @pytest.mark.parametrize(
        ("starting", "expected"),
        [
            ("earliest", ["a", "b", "c"]),
            ("latest", []),
            (OFFSETS.timestamp(2000), ["b", "c"]),
            (OFFSETS.timestamp(9000), []),
        ],
    )
    def test_starting_offsets(self, kafka: Any, new_topic: Any, starting: Any, expected: list[str]) -> None:
        topic = new_topic()
        produce(kafka.bootstrap_servers, topic, ["a", "b", "c"], timestamps=[1000, 2000, 3000])
        with Job(source(kafka, topics=(topic,), starting_offsets=OFFSETS.of(starting))) as job:
            assert job.epoch() == expected

    def test_starting_at_given_offsets_resets_those_that_do_not_exist(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic(partitions=2)
        produce(kafka.bootstrap_servers, topic, ["a", "b", "c"])
        produce(kafka.bootstrap_servers, topic, ["d", "e"], partition=1)
        at = {KafkaTopicPartition(topic, 0): 1}
        with Job(source(kafka, topics=(topic,), starting_offsets=OFFSETS.offsets(at))) as job:
            assert sorted(job.epoch()) == ["b", "c", "d", "e"]
        at = {KafkaTopicPartition(topic, 0): 99, KafkaTopicPartition(topic, 1): 1}
        with Job(source(kafka, topics=(topic,), starting_offsets=OFFSETS.offsets(at, L))) as job:
            assert job.epoch() == ["e"]
        with pytest.raises(InputLost, match=r"partition 0: the starting offset is 99, but Kafka holds the offsets 0 to 3"):
            Job(source(kafka, topics=(topic,), starting_offsets=OFFSETS.offsets(at, NONE)))

    def test_committed_offsets_need_a_reset_strategy_where_there_are_none(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic()
        produce(kafka.bootstrap_servers, topic, ["a", "b"])
        options = {"group.id": f"never-{topic}"}
        with pytest.raises(ConfigurationError, match="has committed no offset"):
            Job(source(kafka, topics=(topic,), starting_offsets=OFFSETS.committed_offsets(), **options))
        with Job(source(kafka, topics=(topic,), starting_offsets=OFFSETS.committed_offsets(E), **options)) as job:
            assert job.epoch() == ["a", "b"]

    def test_a_bounded_source_ends_at_its_stopping_offsets(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic(partitions=2)
        produce(kafka.bootstrap_servers, topic, ["a", "b"])
        src = source(kafka, topics=(topic,), bounded=OFFSETS.latest())
        with Job(src) as job:
            produce(kafka.bootstrap_servers, topic, ["late"])
            plan = job.enumerator.plan(1)
            assert not plan.finished
            plan = job.enumerator.plan(100)
            assert plan.finished
            assert [r.last for r in plan.ranges if r.start < r.end] == [True]
            assert not job.enumerator.plan(100).ranges

    def test_new_partitions_and_new_topics_are_read_from_their_beginning(self, kafka: Any, new_topic: Any) -> None:
        from confluent_kafka.admin import NewPartitions

        topic = new_topic()
        src = source(kafka, topic_pattern=re.compile(topic + ".*"), **{"partition.discovery.interval.ms": 50})
        with Job(src) as job:
            job.epoch()
            kafka.admin().create_partitions([NewPartitions(topic, 2)])[topic].result()
            kafka.create_topic(topic + "-b")
            produce(kafka.bootstrap_servers, topic + "-b", ["in-b"])
            while len(kafka.admin().list_topics(topic, timeout=120).topics[topic].partitions) < 2:
                time.sleep(0.02)
            produce(kafka.bootstrap_servers, topic, ["in-1"], partition=1)
            found: list[str] = []
            while len(found) < 2:
                job.enumerator.wait(1)
                found += job.epoch()
            assert sorted(found) == ["in-1", "in-b"]

    def test_without_discovery_a_job_that_runs_for_hours_reads_no_new_partitions(self, kafka: Any, new_topic: Any) -> None:
        from confluent_kafka.admin import NewPartitions

        topic = new_topic()
        never = {"partition.discovery.interval.ms": "0", "auto.offset.reset": "earliest"}
        with Job(source(kafka, topic_pattern=re.compile(topic + ".*"), **never)) as job:
            job.epoch()
            before = job.enumerator.snapshot()
            kafka.admin().create_partitions([NewPartitions(topic, 2)])[topic].result()
            kafka.create_topic(topic + "-b")
            _look_for_topics(job)
            assert job.enumerator.snapshot() == before
            kafka.delete_topic(topic)
            kafka.create_topic(topic, partitions=3)
            while (now := job.enumerator.snapshot())["topics"] == before["topics"]:
                _look_for_topics(job)  # that the topic is another one is noticed nevertheless
            assert [number for _, number, *_ in now["partitions"]] == [0, 1, 2]
            assert list(now["topics"]) == [topic]

    def test_a_partition_that_the_program_no_longer_gives_is_left_and_its_split_ends(
        self, kafka: Any, new_topic: Any
    ) -> None:
        topic = new_topic(partitions=3)
        here, there, new = (KafkaTopicPartition(topic, number) for number in range(3))
        for number in range(3):
            produce(kafka.bootstrap_servers, topic, [f"{number} a", f"{number} b"], partition=number)
        with Job(source(kafka, partitions={here, there}, bounded=OFFSETS.offsets({here: 1, there: 9}))) as job:
            job.epoch()
            state = job.enumerator.snapshot()
        with Job(source(kafka, partitions={here, new}, bounded=OFFSETS.offsets({here: 2, new: 1})), state) as job:
            plan = job.enumerator.plan(10)
            assert (str(there), True) in [(part.split, part.last) for part in plan.ranges]
            assert (sorted(job.read([p for p in plan.ranges if p.end])), plan.finished) == (["0 b", "2 a"], True)

    def test_an_empty_partition_is_announced_once_and_then_leaves_no_ranges(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic(partitions=2)
        produce(kafka.bootstrap_servers, topic, ["a"])
        with Job(source(kafka, topics=(topic,))) as job:
            assert {(r.split, r.start, r.end) for r in job.enumerator.plan(10).ranges} == {
                (f"{topic}-0", 0, 1),
                (f"{topic}-1", 0, 0),
            }
            assert job.enumerator.plan(10).ranges == ()

    def test_a_paused_partition_gets_no_ranges_and_ends_no_wait(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic(partitions=2)
        for partition in (0, 1):
            produce(kafka.bootstrap_servers, topic, ["a", "b"], partition=partition)
        with Job(source(kafka, topics=(topic,), bounded=OFFSETS.latest())) as job:
            job.enumerator.pause({f"{topic}-0"})
            plan = job.enumerator.plan(10)
            assert {(r.split, r.start, r.end) for r in plan.ranges} == {(f"{topic}-0", 0, 0), (f"{topic}-1", 0, 2)}
            assert (plan.backlog, plan.finished) == (2, False)
            assert not job.enumerator._news()
            job.enumerator.pause(())
            assert job.enumerator._news()
            plan = job.enumerator.plan(10)
            assert [(r.split, r.start, r.end) for r in plan.ranges] == [(f"{topic}-0", 0, 2)]
            assert plan.finished

    def test_records_below_retention_stop_the_job_unless_a_policy_says_otherwise(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic()
        produce(kafka.bootstrap_servers, topic, [f"v{i}" for i in range(10)])
        with Job(source(kafka, topics=(topic,))) as job:
            assert job.epoch(3) == ["v0", "v1", "v2"]
            state = job.enumerator.snapshot()
        job.delete_before(kafka, topic, 6)
        with pytest.raises(InputLost, match=rf"topic {topic}, partition 0: .*offset 3, the first that is left at 6"):
            Job(source(kafka, topics=(topic,)), state)
        with Job(source(kafka, topics=(topic,), **{"auto.offset.reset": "earliest"}), state) as job:
            assert job.epoch() == ["v6", "v7", "v8", "v9"]

    def test_a_recreated_topic_is_detected_by_its_id(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic()
        produce(kafka.bootstrap_servers, topic, ["a", "b"])
        src = source(kafka, topics=(topic,), **{"partition.discovery.interval.ms": 50})
        with Job(src) as job:
            job.epoch()
            state = job.enumerator.snapshot()
            kafka.delete_topic(topic)
            kafka.create_topic(topic)
            produce(kafka.bootstrap_servers, topic, ["x", "y", "z"])
            with pytest.raises(InputLost, match="was deleted and created again"):  # noqa: PT012
                while True:
                    job.enumerator.wait(0.1)
                    job.enumerator.plan(10)
        with pytest.raises(InputLost, match="was deleted and created again"):
            Job(src, state)

    @pytest.mark.parametrize(("policy", "first"), [("earliest", ["x", "y"]), ("latest", [])])
    def test_a_recreated_topic_is_read_if_a_policy_says_so(
        self, kafka: Any, new_topic: Any, policy: str, first: list[str]
    ) -> None:
        topic = new_topic()
        produce(kafka.bootstrap_servers, topic, ["a", "b", "c"])
        src = source(kafka, topics=(topic,), **{"partition.discovery.interval.ms": 50, "auto.offset.reset": policy})
        with Job(src) as job:
            assert job.epoch() == ["a", "b", "c"]
            state = job.enumerator.snapshot()
            kafka.delete_topic(topic)
            kafka.create_topic(topic)
            produce(kafka.bootstrap_servers, topic, ["x", "y"])
            with Job(src, state) as restarted:
                assert restarted.epoch() == first
            while job.enumerator.snapshot()["topics"] == state["topics"]:
                job.enumerator.wait(0.1)
            produce(kafka.bootstrap_servers, topic, ["z"])
            found: list[str] = []
            while "z" not in found:
                job.enumerator.wait(1)
                found += job.epoch()
            assert found == [*first, "z"]

    @pytest.mark.parametrize(("policy", "first"), [("earliest", ["x"]), ("latest", [])])
    def test_a_recreated_topic_of_given_partitions_leaves_those_of_other_topics_where_they_are(
        self, kafka: Any, new_topic: Any, policy: str, first: list[str]
    ) -> None:
        topics = [new_topic(), new_topic(partitions=2)]
        chosen = {KafkaTopicPartition(topics[0], 0), KafkaTopicPartition(topics[1], 1)}
        produce(kafka.bootstrap_servers, topics[0], ["a"])
        produce(kafka.bootstrap_servers, topics[1], ["b"], partition=1)
        src = source(kafka, partitions=chosen, **{"auto.offset.reset": policy})
        with Job(src) as job:
            assert sorted(job.epoch()) == ["a", "b"]
            state = job.enumerator.snapshot()
        kafka.delete_topic(topics[0])
        kafka.create_topic(topics[0], partitions=2)
        produce(kafka.bootstrap_servers, topics[0], ["x"])
        produce(kafka.bootstrap_servers, topics[0], ["not chosen"], partition=1)
        produce(kafka.bootstrap_servers, topics[1], ["c"], partition=1)
        with Job(src, state) as job:
            assert sorted(job.epoch()) == ["c", *first]
            assert {(topic, number) for topic, number, *_ in job.enumerator.snapshot()["partitions"]} == chosen

    def test_a_topic_of_the_pattern_that_was_deleted_while_the_job_was_down_is_lost_input(
        self, kafka: Any, new_topic: Any
    ) -> None:
        topic = new_topic()
        kafka.create_topic(topic + "-b")
        with Job(source(kafka, topic_pattern=re.compile(topic + ".*"))) as job:
            job.epoch()
            state = job.enumerator.snapshot()
        kafka.delete_topic(topic + "-b")
        with pytest.raises(InputLost, match=f"topic {topic}-b was deleted"):
            Job(source(kafka, topic_pattern=re.compile(topic + ".*")), state)
        with Job(source(kafka, topic_pattern=re.compile(topic)), state) as job:  # which no longer asks for the topic
            assert list(job.enumerator.snapshot()["topics"]) == [topic]
        policy = {"auto.offset.reset": "latest"}
        with Job(source(kafka, topic_pattern=re.compile(topic + ".*"), **policy), state) as job:
            assert list(job.enumerator.snapshot()["topics"]) == [topic]
            assert [(r.split, r.last) for r in job.enumerator.plan(10).ranges] == [(f"{topic}-b-0", True)]
            assert job.enumerator.plan(10).ranges == ()

    @pytest.mark.parametrize("policy", ["none", "latest"])
    def test_a_topic_of_the_pattern_that_is_deleted_under_the_job_is_lost_input_or_its_splits_end(
        self, kafka: Any, new_topic: Any, monkeypatch: pytest.MonkeyPatch, policy: str
    ) -> None:
        monkeypatch.setattr(enumerator, "_MISSING_S", 0.0)
        topic = new_topic()
        kafka.create_topic(topic + "-b")
        options = {"partition.discovery.interval.ms": "100", "auto.offset.reset": policy}
        with Job(source(kafka, topic_pattern=re.compile(topic + ".*"), **options)) as job:
            job.epoch()
            kafka.delete_topic(topic + "-b")
            found: list[Any] = []

            def plan() -> bool:
                found.extend(job.enumerator.plan(10).ranges)
                return bool(found)

            if policy == "none":
                with pytest.raises(InputLost, match=f"topic {topic}-b was deleted"):
                    until(plan)
            else:
                until(plan)
                assert [(r.split, r.start, r.end, r.last) for r in found] == [(f"{topic}-b-0", 0, 0, True)]
                produce(kafka.bootstrap_servers, topic, ["x"])
                job.enumerator.wait(60)
                assert job.epoch() == ["x"]

    def test_a_pattern_does_not_match_the_topics_with_tokens_of_sinks(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic()
        kafka.create_topic(token_topic(topic))
        with Job(source(kafka, topic_pattern=re.compile(topic + ".*"))) as job:
            assert list(job.enumerator.snapshot()["topics"]) == [topic]

    def test_a_pattern_does_not_match_the_changelogs_of_its_own_job(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic()
        changelog, other = changelog_topic(topic, "counts"), changelog_topic(topic, "sums")
        for name in (changelog, other):
            kafka.create_topic(name)
        src = source(kafka, topic_pattern=re.compile(topic + ".*"))
        enumerator = src.create_enumerator(replace(INFO, own_topics=frozenset({changelog})), "u")
        try:
            enumerator.start(None)
            assert list(enumerator.snapshot()["topics"]) == [topic, other]
        finally:
            enumerator.close()

    def test_the_stopping_offsets_are_those_of_the_program(self, kafka: Any, new_topic: Any) -> None:
        topic = new_topic()
        at = KafkaTopicPartition(topic, 0)
        produce(kafka.bootstrap_servers, topic, ["a", "b", "c", "d", "e"])
        two = source(kafka, topics=(topic,), bounded=OFFSETS.offsets({at: 2}))
        latest = source(kafka, topics=(topic,), bounded=OFFSETS.latest())
        unbounded = source(kafka, topics=(topic,))
        with Job(two) as job:
            plan = job.enumerator.plan(10)
            assert (job.read(plan.ranges), plan.finished) == (["a", "b"], True)
            state = job.enumerator.snapshot()
        with Job(two, state) as job:
            assert job.enumerator.plan(10) == EpochInput((), 0, True)
        with Job(unbounded, state) as job:
            assert job.epoch() == ["c", "d", "e"]
            after = job.enumerator.snapshot()
        produce(kafka.bootstrap_servers, topic, ["f"])
        with Job(latest, after) as job:
            stopping = job.enumerator.snapshot()
            produce(kafka.bootstrap_servers, topic, ["g"])
            plan = job.enumerator.plan(10)
            assert (job.read(plan.ranges), plan.finished) == (["f"], True)
        with Job(latest, stopping) as job:  # the same program: they stay as they were at its first start
            plan = job.enumerator.plan(10)
            assert (job.read(plan.ranges), plan.finished) == (["f"], True)

    def test_a_checkpoint_of_a_release_that_stored_no_initializer_keeps_its_stopping_offsets(
        self, kafka: Any, new_topic: Any
    ) -> None:
        topic = new_topic()
        produce(kafka.bootstrap_servers, topic, ["a", "b"])
        latest = source(kafka, topics=(topic,), bounded=OFFSETS.latest())
        with Job(latest) as job:
            state = job.enumerator.snapshot()
            del state["stopping"]
        produce(kafka.bootstrap_servers, topic, ["c"])
        with Job(latest, state) as job:
            assert job.epoch() == ["a", "b"]
        with Job(source(kafka, topics=(topic,)), state) as job:
            assert job.epoch() == ["a", "b", "c"]

    def test_unreadable_input_is_refused_before_the_job_starts(self, kafka: Any, new_topic: Any) -> None:
        with pytest.raises(ConfigurationError, match="there is no topic nowhere"):
            Job(source(kafka, topics=("nowhere",)))
        with pytest.raises(ConfigurationError, match=r"no topic at .* matches 'nothing-like-it'"):
            Job(source(kafka, topic_pattern=re.compile("nothing-like-it")))
        topic = new_topic()
        with pytest.raises(ConfigurationError, match="there is no partition"):
            Job(source(kafka, partitions=frozenset({KafkaTopicPartition(topic, 5)})))
        with pytest.raises(ConfigurationError, match=r"fetch\.sise"):
            source(kafka, topics=("t",), **{"fetch.sise": 5})


def a_broker_that_is_not_there_is_told_within_seconds() -> None:
    with pytest.raises(ServiceUnavailable, match="Check that the broker runs"):
        Job(KafkaSource(bootstrap_servers="127.0.0.1:1", topics="t"))


def test_an_answer_that_came_after_its_plan_is_not_taken_for_the_present_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the epoch after a slow answer ends where the partition ended when the epoch before was planned."""
    partition = KafkaTopicPartition("t", 0)
    asked: list[Future[Any]] = []

    def ask_ends(partitions: Any) -> PendingOffsets:
        asked.append(Future())
        if len(asked) > 1:
            asked[-1].set_result(ListOffsetsResultInfo(30, -1, 0))
        return PendingOffsets({TopicPartition("t", 0): asked[-1]})

    made = KafkaSource(bootstrap_servers="127.0.0.1:1", topics="t").create_enumerator(INFO, "u")
    try:
        monkeypatch.setattr(made, "_positions", Positions({"t": "id"}, {partition: 0}))
        monkeypatch.setattr(made, "_discovered_at", time.monotonic() + 1e6)
        monkeypatch.setattr(made._view, "ask_ends", ask_ends)  # type: ignore[attr-defined]
        assert [(r.start, r.end) for r in made.plan(100).ranges] == [(0, 0)]  # the brokers have not answered yet
        asked[0].set_result(ListOffsetsResultInfo(10, -1, 0))
        assert [(r.start, r.end) for r in made.plan(100).ranges] == [(0, 30)]
    finally:
        made.close()


def test_a_partition_whose_broker_does_not_answer_has_no_end_rather_than_a_low_one() -> None:
    """The client gives an invalid offset and no error for it: it must not look like a lost tail."""
    asked = [TopicPartition("t", 0), TopicPartition("t", 1)]
    answers = [ListOffsetsResultInfo(17, -1, 3), ListOffsetsResultInfo(OFFSET_INVALID, -1, -1)]
    futures: dict[TopicPartition, Future[Any]] = {partition: Future() for partition in asked}
    for partition, answer in zip(asked, answers, strict=True):
        futures[partition].set_result(answer)
    offsets, epochs, errors = PendingOffsets(futures).take()
    assert epochs == {KafkaTopicPartition("t", 0): 3}
    assert offsets == {KafkaTopicPartition("t", 0): 17}
    assert [error.code() for error in errors.values()] == [KafkaError.LEADER_NOT_AVAILABLE]
