from __future__ import annotations

from collections import Counter

from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.runtime.spark.placement import neighbours, place, standby_hosts

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


@given(WIDTHS, HOSTS, HOSTS, st.integers(0, 3))
def a_standby_copy_is_on_another_host_and_stays_there(width, first, then, replicas):
    before = place(width, first)
    copies = standby_hosts(before, replicas)
    hosts = place(width, then, before, copies)
    after = standby_hosts(hosts, replicas, copies)
    others = len(set(hosts)) - 1
    for host, old, new in zip(hosts, copies, after):
        assert len(new) == min(replicas, others)
        assert len({host, *new}) == len(new) + 1
        assert {copy for copy in old if copy in hosts and copy != host} <= set(new)
    beside = neighbours(hosts, after)
    found = [(number, hosts[carrier]) for carrier, numbers in enumerate(beside) for number in numbers]
    assert sorted(found) == sorted((number, copy) for number, copies in enumerate(after) for copy in copies)


@given(WIDTHS, HOSTS, st.integers(1, 2))
def the_partitions_of_a_lost_host_go_to_their_standby_copies(width, cores, replicas):
    before = place(width, cores)
    copies = standby_hosts(before, replicas)
    lost = sorted(cores)[0]
    left = {host: count for host, count in cores.items() if host != lost}
    hosts = place(width, left, before, copies)
    if left:
        shares = Counter(place(width, left, before))
        assert Counter(hosts) == shares, "the shares stay fair"
    for number, host in enumerate(hosts):
        if before[number] == lost and host not in copies[number]:
            free = [copy for copy in copies[number] if copy in left]
            assert all(Counter(hosts)[copy] == shares[copy] for copy in free), "a standby's host has room"


def test_a_lost_host_has_its_partitions_resumed_by_its_standby():
    before = ["a", "b", "c", "a", "b", "c"]
    copies = standby_hosts(before, 1)
    assert copies == [["b"], ["a"], ["a"], ["c"], ["c"], ["b"]]
    after = place(6, {"b": 1, "c": 1}, before, copies)
    assert after == ["b", "b", "c", "c", "b", "c"]
