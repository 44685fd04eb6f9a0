from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.milestones import find_tail, has_successor, is_milestone


def kept(tail: int, retained: int) -> set[int]:
    return {p for p in range(1, tail + 1) if p > tail - retained or is_milestone(p, tail)}


@given(st.integers(1, 40_000), st.integers(1, 5), st.data())
def test_the_end_is_found_from_any_hint_over_any_gap(tail, retained, data):
    log = kept(tail, retained)
    hint = data.draw(st.integers(0, tail))
    assert find_tail(log.__contains__, hint) == tail


def test_an_empty_log_ends_at_zero():
    assert find_tail(set().__contains__) == 0


@given(st.integers(1, 40_000), st.integers(0, 2000))
def test_entries_needed_later_are_kept_now(tail, more):
    later = {p for p in range(1, tail + 1) if is_milestone(p, tail + more)}
    assert later <= kept(tail, 0)


@given(st.integers(1, 10**12))
def test_few_entries_are_kept(tail):
    power, count = 1, 0
    while power <= tail:
        block = tail // (power * 32) * 32
        count += sum(is_milestone(p * power, tail) for p in range(max(1, block), tail // power + 1))
        power *= 32
    assert count < 32 * 9


@given(st.integers(1, 5000), st.integers(0, 3000), st.lists(st.integers(0, 1500), min_size=12, max_size=12))
def test_a_log_that_grows_during_the_probes_is_seen_to_grow(position, ahead, growth):
    tail = [position + ahead]
    pauses = iter(growth)

    def exists(p: int) -> bool:
        found = p <= tail[0] and (p == tail[0] or is_milestone(p, tail[0]))
        tail[0] += next(pauses, 0) if ahead else 0
        return found

    assert has_successor(exists, position) == (ahead > 0)


def the_milestones_of_a_log_are_the_multiples_of_each_power_in_the_block_of_its_end():
    assert [p for p in range(1, 2086) if is_milestone(p, 2085)] == [1024, 2048, *range(2080, 2086)]
    assert [p for p in range(1, 34) if is_milestone(p, 33)] == [32, 33]
    assert [p for p in range(1, 32) if is_milestone(p, 31)] == list(range(1, 32))


def a_multiple_of_the_highest_power_stays_for_ever():
    assert is_milestone(32**7, 2 * 32**8)
    assert not is_milestone(32**6, 2 * 32**8)
