"""Whatever sinks, records and properties there are: ids that no two sinks share, warnings that are due, quiet clients."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.common import kafka_properties as config
from holdfast.common.kafka_properties import (
    admin_properties,
    consumer_properties,
    producer_properties,
    transactional_properties,
)
from holdfast.common.time import MIN_TIMESTAMP
from holdfast.connectors.kafka.changelogs.changelog import changelog_topic
from holdfast.connectors.kafka.sink.committable import TransactionalId, rewriter_id, rewriting_job
from holdfast.connectors.kafka.sink.outbox import OutgoingBatch
from holdfast.connectors.kafka.sink.retention import RetentionCheck
from holdfast.connectors.kafka.sink.tokens import Token
from holdfast.table.cluster import _prefix as application_prefix

names = st.lists(
    st.sampled_from(["a", "-", "0", "g1", "-0-g1-ab-0.0", "rewrite", "-rewrite-0", "%2D", "%", "/", "/ab/g1"]), min_size=1
).map("".join)
sinks = st.tuples(names, names)
jobs = st.sampled_from(["", "0", "ab", "abc"])


@settings(deadline=None, max_examples=examples(60))
@given(sinks, sinks, jobs)
def test_no_sink_takes_an_id_of_another_one_for_its_own(one: tuple[str, str], other: tuple[str, str], job: str) -> None:
    for mine, its in ((one, other), (other, one)):
        written = str(TransactionalId(*mine, 0, 1, "ab", 0, 0, job))
        rewritten = rewriter_id(*mine, 0, job)
        assert (TransactionalId.parse(written, *its) is not None) == (mine == its)
        assert (rewriting_job(rewritten, *its) is not None) == (mine == its)
        assert TransactionalId.parse(rewritten, *its) is None
        assert rewriting_job(written, *its) is None


@settings(deadline=None, max_examples=examples(60))
@given(sinks, st.integers(0, 30), jobs, st.integers(1, 30))
def test_a_transactional_id_tells_all_its_parts(sink: tuple[str, str], subtask: int, job: str, generation: int) -> None:
    one = TransactionalId(*sink, subtask, generation, "ab", 3, 4, job)
    assert TransactionalId.of_sink(str(one), sink[1]) == one
    assert rewriting_job(rewriter_id(*sink, subtask, job), *sink) == job


@settings(deadline=None, max_examples=examples(100))
@given(*[st.tuples(names, st.integers(0, 11), jobs, st.integers(0, 11))] * 2)
def test_no_two_writers_share_a_token(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    writers = [(uid, subtask, job, generation if job else 0) for uid, subtask, job, generation in (one, other)]
    assert (len({Token.key(*writer) for writer in writers}) == 1) == (writers[0] == writers[1])


words = st.lists(st.sampled_from(["a", "b", "-", ".", "_", "1", "8", "-1", " ", "ü", "changelog"]), min_size=1, max_size=6)
texts = words.map("".join)


@settings(deadline=None, max_examples=examples(160))
@given(st.tuples(texts, texts), st.tuples(texts, texts))
def test_no_two_operators_share_a_changelog_topic(one: tuple[str, str], other: tuple[str, str]) -> None:
    topics = {changelog_topic(*each) for each in (one, other)}
    assert (len(topics) == 1) == (one == other)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) for topic in topics)


def test_no_two_splits_of_one_text_share_a_changelog_topic_or_a_transactional_id_prefix() -> None:
    text = "payments-eu-counts-8-11"
    splits = [(text[:i], text[i + 1 :]) for i in range(1, len(text) - 1) if text[i] == "-"]
    assert len({changelog_topic(*split) for split in splits}) == len(splits)
    assert len({application_prefix(*split) for split in splits}) == len(splits)


topic_names = st.lists(st.sampled_from(["a", "-", ".", "1", "7"]), min_size=1, max_size=6).map("".join)


@settings(deadline=None, max_examples=examples(160))
@given(st.tuples(texts | names, topic_names), st.tuples(texts | names, topic_names))
def test_no_two_applications_share_a_transactional_id_prefix(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (application_prefix(*one) == application_prefix(*other)) == (one == other)


@pytest.mark.kafka
def test_the_warning_of_old_records_comes_when_it_is_due_and_only_then(kafka: Any, new_topic: Any) -> None:
    hour = 3_600_000
    limits = {
        new_topic(retention_ms=str(hour)): hour,
        new_topic(retention_ms=str(24 * hour), cleanup_policy="compact,delete"): 24 * hour,
        new_topic(retention_ms="-1"): None,
        new_topic(retention_ms=str(hour), cleanup_policy="compact"): None,
        new_topic(retention_ms=str(hour), message_timestamp_type="LogAppendTime"): None,
    }
    asked = RetentionCheck({"bootstrap.servers": kafka.bootstrap_servers}, "sink", lambda subject, text: None)._ask(
        set(limits)
    )
    assert asked == limits
    ages = st.integers(0, 60).map(lambda hours: hours * hour) | st.just(80 * 366 * 24 * hour) | st.none()
    records = st.lists(st.tuples(st.sampled_from(sorted(limits)), ages), min_size=1, max_size=6)

    @settings(deadline=None, max_examples=examples(50))
    @given(st.lists(records, min_size=1, max_size=4))
    def check(batches: list[list[tuple[str, int | None]]]) -> None:
        told: list[str] = []
        watched = RetentionCheck({}, "sink", lambda subject, text: told.append(text))
        watched._retention = dict(asked)
        now = time.time_ns() // 1_000_000
        due = False
        for batch in batches:
            times = [MIN_TIMESTAMP if age is None else now - age - 60_000 for _, age in batch]
            watched.look_at(OutgoingBatch([topic for topic, _ in batch], [b""] * len(batch), None, times))
            due = due or any(
                age is not None and (limit := limits[topic]) is not None and age + 60_000 > limit for topic, age in batch
            )
            assert len(told) == due

    check()


SERVERS = {"bootstrap.servers": "127.0.0.1:1", "log_level": 4}


@settings(deadline=None, max_examples=40)
@given(
    st.integers(1_000, 900_000),
    st.fixed_dictionaries(
        {},
        optional={
            "delivery.timeout.ms": st.sampled_from([0, 1_500, 120_000, 2_000_000_000]),
            "message.timeout.ms": st.sampled_from([0, "2500", 700_000]),
            "socket.timeout.ms": st.sampled_from([10, "5000", 300_000]),
        },
    ),
)
def test_no_wait_of_a_writer_outlasts_its_transaction(timeout_ms: int, given_by_user: dict[str, Any]) -> None:
    used = transactional_properties({**SERVERS, "log_level": 0, **given_by_user}, "id", timeout_ms)
    Producer(used)  # the client library accepts them
    assert 0 < used["message.timeout.ms"] <= timeout_ms
    assert 0 < used["socket.timeout.ms"] <= min(timeout_ms, max(timeout_ms // 3, 2_000))


VALUES = ("1000", "5", "1", "true", "none", "g", "roundrobin", "gzip", "all", "earliest", "fifo", "classic", "100000000")


def test_every_property_goes_to_the_clients_that_know_it_and_to_no_other(capfd: pytest.CaptureFixture[str]) -> None:
    properties = sorted((config._PRODUCERS_ONLY | config._CONSUMERS_ONLY | {"client.id"}) - config._OURS.keys())
    tried = 0
    for name in properties:
        for value in VALUES:
            capfd.readouterr()
            try:
                Producer(producer_properties({**SERVERS, name: value}))
                Consumer(consumer_properties({**SERVERS, name: value})).close()
                AdminClient(admin_properties({**SERVERS, name: value}))
            except (KafkaException, ValueError, TypeError):
                continue  # not a value of this property
            tried += 1
            assert not re.search(r"is a (producer|consumer) property", capfd.readouterr().err), (name, value)
            break
    assert tried > 40
