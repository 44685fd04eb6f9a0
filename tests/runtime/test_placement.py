from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.runtime.placement import place

HOSTS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 8), min_size=1)
WIDTHS = st.integers(1, 40)


@given(WIDTHS, HOSTS, HOSTS)
@example(2, {"a": 1}, {"a": 3, "b": 1, "c": 1, "d": 1})
def test_every_host_has_its_fair_share_whatever_was_before(width, first, then):
    for cores, placed in ((first, place(width, first)), (then, place(width, then, place(width, first)))):
        assert len(placed) == width
        counts = Counter(placed)
        for host, count in cores.items():
            exact = width * count / sum(cores.values())
            assert exact - 1 < counts[host] < exact + 1


@given(WIDTHS, HOSTS, HOSTS)
def a_partition_moves_only_if_its_host_went_or_has_too_many(width, first, then):
    before = place(width, first)
    after = place(width, then, before)
    held, share = Counter(before), Counter(after)
    stayed = Counter(old for old, new in zip(before, after) if old == new)
    assert all(stayed[host] == min(held[host], share[host]) for host in then)


@given(WIDTHS, HOSTS)
def test_nothing_moves_while_the_executors_stay(width, cores):
    placed = place(width, cores)
    assert place(width, cores, placed) == placed


def test_without_executors_there_is_no_place():
    assert place(4, {}) == []


def test_a_host_that_comes_gets_no_partition_where_there_are_not_enough():
    assert place(2, {"a": 1, "b": 1, "c": 1}, ["b", "a"]) == ["b", "a"]
