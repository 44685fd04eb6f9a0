"""The rolling aggregations as reduce functions."""

from __future__ import annotations

from collections import namedtuple
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.common import Row
from holdfast.datastream.operations.aggregations import Max, MaxBy, Min, MinBy, Sum

Payment = namedtuple("Payment", "user amount")


@pytest.mark.parametrize(
    ("make", "position"),
    [
        (lambda k, v: (k, v), 1),
        (lambda k, v: (k, v), -1),
        (lambda k, v: [k, v], 1),
        (lambda k, v: Row(k, v), 1),
        (lambda k, v: Row(user=k, amount=v), "amount"),
        (lambda k, v: {"user": k, "amount": v}, "amount"),
        (Payment, "amount"),
        (Payment, 1),
    ],
)
def test_every_kind_of_element_is_aggregated_by_position_or_name(make, position):
    elements = [make("a", 3), make("b", 1), make("c", 4), make("d", 1), make("e", 4)]
    assert reduce(Sum(position), elements) == make("a", 13)
    assert reduce(Min(position), elements) == make("a", 1)
    assert reduce(Max(position), elements) == make("a", 4)
    assert reduce(MinBy(position), elements) == make("b", 1)
    assert reduce(MaxBy(position), elements) == make("c", 4)
    assert type(reduce(Sum(position), elements)) is type(elements[0])


def test_the_elements_themselves_are_left_as_they_are():
    for first in (["a", 1], Row("a", 1), Row(user="a", amount=1), {1: 1}):
        before = repr(first)
        Sum(1)(first, first)
        assert repr(first) == before


@given(st.lists(st.integers(), min_size=1))
def test_plain_numbers_are_aggregated_as_a_whole(numbers):
    assert reduce(Sum(0), numbers) == sum(numbers)
    assert reduce(Min(0), numbers) == min(numbers)
    assert reduce(Max(0), numbers) == max(numbers)
    assert reduce(MinBy(0), numbers) == min(numbers)
    assert reduce(MaxBy(0), numbers) == max(numbers)


def test_a_position_in_a_plain_number_is_an_error():
    with pytest.raises(TypeError, match="no field 1 in a int"):
        Sum(1)(1, 2)


@pytest.mark.parametrize("position", [None, 1.5, True])
def test_a_position_is_an_index_or_a_name(position):
    with pytest.raises(TypeError, match="Sum takes a field's index or name"):
        Sum(position)
