"""Pieces of entries: what they hold, their newest version, and the size of each key's entries."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptFile
from holdfast.state.keys.key_codec import encode_key
from holdfast.state.stored import entry_pieces
from holdfast.state.stored.delta import Piece
from holdfast.state.stored.entry_pieces import (
    DELETE,
    DROP,
    PUT,
    Entry,
    entry_piece,
    newest_entries,
    sizes_by_key,
    unpack_entries,
)
from holdfast.state.stored.layout import group_prefix

SECTION = b"section"
groups = st.integers(0, 3)
keys = st.sampled_from(["a", 7, ("a", "b")])


def stored(group: int, key: object, within: bytes) -> bytes:
    return group_prefix(SECTION, group) + encode_key(key) + within


inner = st.sampled_from(["x", "y"]).map(encode_key) | st.integers(0, 3).map(lambda n: n.to_bytes(4, "big"))
entries = st.lists(
    st.builds(
        lambda kind, group, key, within, value: (
            (kind, stored(group, key, b"" if kind is DROP else within), value if kind is PUT else b"")
        ),
        st.sampled_from([PUT, PUT, PUT, DELETE, DROP]),
        groups,
        keys,
        inner,
        st.binary(max_size=3),
    ),
    min_size=1,
    max_size=12,
)


def apply(held: dict[bytes, bytes], pieces: list[Piece]) -> dict[bytes, bytes]:
    """What a store holds behind these pieces: in each, drops come first, and deletes last."""
    held = dict(held)
    for piece in pieces:
        drops, puts, values, deletes = unpack_entries(piece)
        held = {key: value for key, value in held.items() if not key.startswith(tuple(drops))}
        held.update(zip(puts, values, strict=True))
        for key in deletes:
            held.pop(key, None)
    return held


def piece_of(some: list[Entry]) -> Piece:
    last = {key: entry for entry in some if (key := entry[1])}  # one write of each key
    return entry_piece(sorted(last.values(), key=lambda entry: entry[1]), len(SECTION))


@given(st.lists(entries, max_size=6), entries)
def the_newest_entries_are_those_of_all_pieces(several: list[list[Entry]], before: list[Entry]):
    pieces = [piece_of(some) for some in several]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(entry_pieces, "MOST_IN_PIECE", 3)
        newest = newest_entries(pieces)
    held = apply({}, [piece_of(before)])
    assert apply(held, newest) == apply(held, pieces)
    for piece in newest:
        drops, puts, _, deletes = unpack_entries(piece)
        written = [*drops, *puts, *deletes]
        assert (piece.first, piece.last) == tuple(int.from_bytes(each(written)[:2], "big") for each in (min, max))
        if not drops:
            assert len(written) <= 3
    between = [piece for piece in newest if not unpack_entries(piece)[0]]
    if len(between) == len(newest):
        written = [key for piece in newest for key in sorted(unpack_entries(piece)[1] + unpack_entries(piece)[3])]
        assert written == sorted(set(written)), "in order, each once"


def the_sizes_of_a_pieces_entries_are_told_by_their_keys():
    some = [
        (PUT, stored(1, "a", encode_key("x")), b"12345"),
        (PUT, stored(1, "a", bytes(4)), b"1"),
        (DELETE, stored(1, "b", bytes(4)), b""),
        (PUT, stored(2, ("a", "b"), encode_key(7)), b""),
    ]
    sizes: Counter[bytes] = Counter()
    for key, size in sizes_by_key(entry_piece(some, len(SECTION))):
        sizes[key] += size
    assert sizes == {encode_key("a"): (2 + 2 + 2 + 5) + (2 + 2 + 4 + 1), encode_key(("a", "b")): 2 + 5 + 1}


@pytest.mark.parametrize(
    "content",
    [([], [b"\0\1a"], [], []), ([], [b"\0"], [b""], []), ([b"\0"], [], [], []), ([], [], [], [b""]), ([], [], []), "a"],
    ids=str,
)
def a_piece_that_is_none_of_entries_is_told(content: object):
    with pytest.raises(CorruptFile, match="a piece of entries"):
        unpack_entries(Piece(0, 0, msgspec.msgpack.encode(content)))
