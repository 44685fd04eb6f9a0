"""The key space: fixed bytes, and an order that slices and key groups can be cut out of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.state.keys.key_codec import encode_key
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.stored.layout import META, after, group_prefix, group_range, section, slice_of, split_key

numbers = st.integers(-(2**63), 2**63 - 1)
slices = st.none() | numbers


@pytest.mark.parametrize(
    ("state", "slice", "group", "key", "entry", "stored"),
    [
        (1, None, 0, "a", b"", "00010000a161"),
        (1, None, 127, 7, b"", "0001007f07"),
        (2, 0, 3, ("a", 1), b"", "00028000000000000000000392a16101"),
        (2, -60_000, 3, b"\xff", b"", "00027fffffffffff15a00003c401ff"),
        (256, 2**63 - 1, 1000, None, b"\x01\x02", "0100ffffffffffffffff03e8c00102"),
    ],
)
def the_stored_form_of_a_key_is_fixed(state, slice, group, key, entry, stored):
    assert (group_prefix(section(state, slice).prefix, group) + encode_key(key) + entry).hex() == stored


def the_stores_own_note_lies_before_all_states():
    assert section(1).prefix > META


@given(st.integers(1, 65535), slices, st.integers(0, 1023), st.integers(0, 1023), st.integers(0, 1023), st.binary())
def a_range_of_key_groups_is_one_range_of_keys(state, slice, first, last, group, rest):
    prefix = section(state, slice).prefix
    start, end = group_range(prefix, KeyGroupRange(min(first, last), max(first, last)))
    key = group_prefix(prefix, group) + rest
    assert (start <= key < end) == (min(first, last) <= group <= max(first, last))
    assert split_key(key, len(prefix)) == (group, rest)
    assert slice is None or slice_of(key) == slice


@given(st.integers(1, 65535), numbers, numbers)
def test_slices_sort_as_their_numbers_do(state, one, other):
    assert (one < other) == (section(state, one).prefix < section(state, other).prefix)


@given(st.binary(min_size=1).filter(lambda b: set(b) != {255}), st.binary(), st.binary())
def test_keys_with_a_prefix_lie_before_its_end(prefix, rest, other):
    assert prefix <= prefix + rest < after(prefix)
    assert other.startswith(prefix) == (prefix <= other < after(prefix))
