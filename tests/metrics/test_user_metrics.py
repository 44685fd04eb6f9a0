from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.metrics import MetricGroup, merge


def a_snapshot_holds_what_changed_since_the_one_before() -> None:
    group = MetricGroup("op")
    hits = group.counter("hits")
    hits.inc()
    hits.inc(4)
    hits.dec(2)
    assert group.drain() == {"op.hits": ("counter", 3)}
    hits.inc()
    assert group.drain() == {"op.hits": ("counter", 1)}
    assert hits.get_count() == 4


def the_same_name_gives_the_same_metric_and_groups_nest() -> None:
    group = MetricGroup("op")
    assert group.add_group("a", "b").meter("m") is group.add_group("a").add_group("b").meter("m")
    assert list(group.drain()) == ["op.a.b.m"]


def a_name_cannot_be_two_kinds_of_metric() -> None:
    group = MetricGroup("op")
    group.counter("x")
    with pytest.raises(ValueError, match=r"metric 'op\.x' is a counter already, it cannot be a meter too"):
        group.meter("x")


def a_gauge_is_read_when_asked() -> None:
    group, values = MetricGroup(), [1]
    group.gauge("size", lambda: len(values))
    values.append(2)
    assert group.drain() == {"size": ("gauge", 2)}


def a_gauge_that_fails_is_left_out_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    group = MetricGroup("op")
    group.gauge("broken", lambda: 1 // 0)
    group.gauge("text", lambda: "five")  # type: ignore[arg-type, return-value]
    group.counter("hits").inc()
    with caplog.at_level(logging.WARNING):
        assert group.drain() == group.drain() | {"op.hits": ("counter", 1)}
    assert sorted(record.getMessage()[:18] for record in caplog.records) == ["gauge 'op.broken' ", "gauge 'op.text' ga"]


def a_gauge_needs_a_function() -> None:
    with pytest.raises(TypeError, match="gauge 'size' needs a function"):
        MetricGroup().gauge("size", 5)  # type: ignore[arg-type]


def a_distribution_without_values_says_nothing() -> None:
    group = MetricGroup()
    spread = group.distribution("ms")
    assert group.drain() == {}
    for value in (3, -1, 7):
        spread.update(value)
    assert group.drain() == {"ms": ("distribution", 3, 9, -1, 7)}
    assert group.drain() == {}


@given(st.lists(st.lists(st.integers(-100, 100), min_size=1), min_size=1))
def test_merging_tasks_gives_what_one_task_would_have_given(parts: list[list[int]]) -> None:
    def run(values: list[int]) -> dict[str, tuple[object, ...]]:
        group = MetricGroup()
        counter, meter, spread = group.counter("c"), group.meter("m", 5), group.distribution("d")
        for value in values:
            counter.inc(value)
            meter.mark_event(value)
            spread.update(value)
        return group.drain()

    assert merge(map(run, parts)) == run([value for part in parts for value in part])


def test_merging_takes_samples_that_came_as_lists() -> None:
    assert merge([{"g": ["gauge", 1]}, {"g": ["gauge", 5]}]) == {"g": ("gauge", 5)}  # type: ignore[dict-item]
