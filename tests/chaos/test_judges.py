"""The judges of the campaigns: an output that is as it must be passes, and every kind of fault in it is told."""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from holdfast.errors import HoldfastError, UserCodeError
from holdfast.testing import OneInputTestHarness, ProcessFunctionTestHarnesses
from holdfast.testing.chaos.programs import clocked, mixed, numbered
from holdfast.testing.chaos.report import Injection, Report, summary
from holdfast.testing.chaos.topics import read_topic
from holdfast.testing.kafka import KafkaBroker

SENT = 7


def numbers() -> list[list[numbered.Record]]:
    times = range(0, 100 * numbered.MINUTE_MS, numbered.MINUTE_MS // 4)
    return [[(f"k{p}", n + 1, at, SENT) for n, at in enumerate(times)] for p in range(2)]


def as_read(outputs: Counter[Any]) -> list[list[Any]]:
    return [list(output) for output in sorted(outputs.elements(), key=lambda o: (o[0], o[1], o[2]))]


def test_lost_repeated_and_reordered_output_of_a_numbered_job_is_reported() -> None:
    expected = numbered.Expected.of(numbers()).elements
    right = as_read(expected)
    assert numbered.compare("elements", expected, right) == []
    assert "1 lost" in numbered.compare("elements", expected, right[1:])[0]
    assert "1 twice" in numbered.compare("elements", expected, [*right, right[-1]])[0]
    assert "out of order" in numbered.compare("elements", expected, [right[1], right[0], *right[2:]])[0]


def a_record_that_the_input_has_twice_counts_twice() -> None:
    part, other = numbers()
    expected = numbered.Expected.of([[*part[:7], *part[5:]], other])
    assert expected.totals[("side", "k0", 7)] == 2
    assert expected.elements[("seen", "k0", 8, 10, 7, (6, 7, 8), SENT)] == 1
    with pytest.raises(HoldfastError, match="not numbered"):
        numbered.Expected.of([[*part[:7], *part[8:]], other])


def test_sparse_output_has_some_elements_and_all_totals() -> None:
    every, some = (numbered.Expected.of(numbers(), n) for n in (1, 5))
    assert some.totals == every.totals
    assert 0 < some.elements.total() < every.elements.total() / 10


def test_a_large_value_of_another_record_is_reported() -> None:
    def job(value_bytes: int, **options: Any) -> OneInputTestHarness[Any, Any]:
        track = numbered.Track(slow_ms=0, value_bytes=value_bytes)
        return ProcessFunctionTestHarnesses.for_keyed_process_function(track, lambda record: record[0], **options)

    with job(600) as harness:
        for number in range(1, 14):
            harness.process_element(("k0", number, number, SENT), number)
        snapshot = harness.snapshot()
        harness.process_element(("k0", 14, 14, SENT), 14)
    told = "key k0 has not the large value of record 13, but another one"
    with job(700, snapshot=snapshot) as harness, pytest.raises(UserCodeError, match=told):
        harness.process_element(("k0", 14, 14, SENT), 14)


def test_split_keys_and_lost_or_repeated_records_are_reported() -> None:
    records = [(1, 1), (1, 2), (2, 1)]
    right = [["seen", 1, 1, 1, SENT], ["seen", 1, 2, 2, SENT], ["seen", 2, 1, 1, SENT]]
    assert mixed.problems(records, right) == []
    assert "not counted one by one" in mixed.problems(records, [right[0], ["seen", 1, 2, 1, SENT], right[2]])[0]
    assert "lost" in mixed.problems(records, right[:2])[0]
    assert "twice" in mixed.problems(records, [*right, right[0]])[0]


@pytest.mark.parametrize("number", range(1, 4))
def test_all_forms_of_a_key_are_equal_and_of_several_types(number: int) -> None:
    forms = [mixed.key_of(number, form) for form in range(mixed.FORMS)]
    assert len(set(forms)) == 1
    assert len(set(map(repr, forms))) >= 3


# ---- time ----------------------------------------------------------------------------------------------------------------

EVENTS = [[("k0", 1, 0, SENT), ("k0", 2, 7_000, SENT), ("k0", 3, 4_000, SENT), ("end0", 1, 90_000, SENT)]]
"""The third comes when an earlier one has moved the watermark past its window."""
RIGHT: list[tuple[list[Any], int]] = [
    (["window", "k0", 0, [["k0", 1]], SENT], 4_999),
    (["window", "k0", 5_000, [["k0", 2]], SENT], 9_999),
    (["late window", "k0", 3], 4_000),
    (["tick", "0", 100, [["k0", 1], ["k0", 2]], SENT], 119),
    (["tick", "0", 120, [["k0", 3]], SENT], 139),
    (["ttl", "k0", 1, 100, None], 1),
    (["ttl", "k0", 2, 100, 1], 7_000),
    (["ttl", "k0", 3, 400, None], 4_000),
]


def told(change: dict[int, tuple[list[Any], int] | None]) -> str:
    written = [change.get(n, output) for n, output in enumerate(RIGHT)]
    return "; ".join(clocked.problems(EVENTS, [], [output for output in written if output is not None]))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, ""),
        ({0: None}, "windows of event time: 1 lost"),
        ({2: None}, "late records: 1 lost"),
        ({0: (["window", "k0", 0, [["k0", 1], ["k0", 3]], SENT], 4_999), 2: None}, "late records: 1 lost"),
        ({1: (RIGHT[1][0], 7)}, "another timestamp than their end's"),
        ({4: (["tick", "0", 100, [["k0", 3]], SENT], 119)}, "more than one each"),
        ({4: None}, "windows of processing time: 1 lost"),
        ({6: (["ttl", "k0", 2, 100, None], 7_000)}, "shows what it must not"),
        ({7: (["ttl", "k0", 3, 400, 2], 4_000)}, "shows what it must not"),
        ({5: (RIGHT[5][0], 1_700_000_000_000)}, "another timestamp than that of their input"),
    ],
)
def test_errors_of_time_are_reported(change: dict[int, tuple[list[Any], int] | None], expected: str) -> None:
    assert (expected in told(change)) if expected else told(change) == ""


def test_a_report_sums_kills_and_lists_violations(tmp_path: Any) -> None:
    first = Report("time", 1, tmp_path, kills=Counter(driver=2), injections=[Injection(0, "driver killed", "", 1.5)])
    second = Report("tail", 2, tmp_path, kills=Counter(driver=1, broker=1))
    assert "killed: 4 processes (1 brokers, 3 drivers)" in summary([first, second])
    assert "verdict: nothing lost" in summary([first, second])
    second.violations.append("2 lost")
    assert "VIOLATION: 2 lost" in summary([first, second])
    assert "verdict" not in summary([first, second])
    assert "verdict" not in summary([])


@pytest.mark.kafka
def a_reader_of_a_topic_that_the_broker_does_not_know_yet_waits_for_it(kafka: KafkaBroker) -> None:
    topic = f"known-later-{os.getpid()}"
    with ThreadPoolExecutor(1) as reader:
        read = reader.submit(read_topic, kafka.bootstrap_servers, topic)
        done, _ = wait([read], 1)  # it begins before the topic is there
        kafka.create_topic(topic, 2)
        assert (read.result(), done) == ([[], []], set())
