"""Key groups: which one a key has, which subtask has a group, and that all ways to compute them agree."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast import compiled
from holdfast.state.keys.key_groups import group_assigner, integer_groups, key_group, key_group_range, key_grouper

QUICK = settings(deadline=None, max_examples=examples(60))
widths = st.integers(1, 300) | st.sampled_from([1, 2, 4, 64, 128, 256, 32768])
sizes = widths.flatmap(
    lambda most: st.tuples(st.just(most), st.integers(1, most) | st.sampled_from([1, most // 2 or 1, most]))
)
integers = st.integers(-20, 20) | st.integers(-(2**63), 2**63 - 1) | st.sampled_from([2**63, -(2**63) - 1, 2**90])
texts = st.text(max_size=5) | st.just("\ud800")
tuples = st.lists(integers | texts, max_size=3).map(tuple)
anything = integers | texts | tuples | st.none() | st.just(1.5) | st.just(("a", 1.5))


@QUICK
@given(sizes)
def the_ranges_of_the_subtasks_part_all_groups(sizes: tuple[int, int]):
    max_parallelism, parallelism = sizes
    ranges = [key_group_range(max_parallelism, parallelism, i) for i in range(parallelism)]
    assert [g for r in ranges for g in range(r.first, r.last + 1)] == list(range(max_parallelism))
    for r in ranges:
        assert [group in r for group in (r.first - 1, r.first, r.last, r.last + 1)] == [False, True, True, False]


@pytest.mark.parametrize("in_use", [False, True])
def the_integers_go_to_the_subtask_whose_range_has_their_group(in_use: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(compiled, "IN_USE", in_use)
    keys = [*range(-20, 20), 2**63 - 1, -(2**63)]
    for max_parallelism in (*range(1, 20), 128, 32768):
        groups = [key_group(key, max_parallelism) for key in keys]
        for parallelism in range(1, min(20, max_parallelism + 1)):
            owners = [group * parallelism // max_parallelism for group in groups]
            assert group_assigner(max_parallelism, parallelism)(keys) == owners, (max_parallelism, parallelism)


@pytest.mark.parametrize("in_use", [False, True])
@QUICK
@given(sizes, st.one_of(*(st.lists(each, min_size=1) for each in (integers, texts, tuples, anything))))
def a_key_goes_to_the_subtask_whose_range_has_its_group(in_use: bool, sizes: tuple[int, int], keys: list[Any]):
    """Keys of one class, which take short cuts, and mixed ones; again, when some of them are known."""
    max_parallelism, parallelism = sizes
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled, "IN_USE", in_use)
        groups = [key_group(key, max_parallelism) for key in keys]
        assert all(0 <= group < max_parallelism for group in groups)
        assign = group_assigner(max_parallelism, parallelism, memo_size=3)
        for _ in range(2):
            found = assign(keys)
            assert found == [group * parallelism // max_parallelism for group in groups]
            assert all(0 <= subtask < parallelism for subtask in found)
        assert key_grouper(max_parallelism)(keys) == groups


@QUICK
@given(st.lists(st.integers(-(2**63), 2**63 - 1)), widths)
def the_integers_of_an_array_are_in_the_groups_of_the_integers(keys: list[int], max_parallelism: int):
    expected = [key_group(key, max_parallelism) for key in keys]
    assert integer_groups(np.array(keys, dtype="int64"), max_parallelism).tolist() == expected


@pytest.mark.parametrize("step", [1, 2, 128, 1000, 2**32, 10**12])
def test_whole_numbers_spread_over_the_groups(step: int):
    groups = [key_group(n * step, 128) for n in range(12_800)]
    assert len(set(groups)) == 128
    assert max(groups.count(group) for group in range(128)) < 400


def the_group_of_a_key_never_changes():
    keys = [0, 1, -1, 2**90, "", "a", "\ud800", ("a", 1), (), None, 1.5, Decimal("1.5"), True, b"a"]
    groups = [0, 31161, 1606, 0, 5314, 19999, 27088, 26429, 5324, 25676, 13800, 13800, 31161, 5976]
    assert [key_group(key, 32768) for key in keys] == groups
