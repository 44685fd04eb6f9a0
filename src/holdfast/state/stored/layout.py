"""The ordered key space of keyed state, shared by the local store, deltas and dumps.

The key of a stored row or entry is

    state id (u16) | slice (8 bytes) | key group (u16) | key | entry

with big-endian integers, so that bytes sort like their values. A *state* is a family of rows of one operator; its id comes
from the operator's schema. A *slice* (a window's start, or a bucket of timers) is a signed 64-bit integer with its sign
bit flipped; a state without slices has no slice bytes. The *key* is the user's key in canonical form
(`holdfast.state.keys.key_codec`). It is self-delimiting, so an *entry* (a map key, or a list chunk's number) can follow it.

One range delete removes a slice. Within a slice, a range of key groups is one contiguous range.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from holdfast.errors import CorruptFile
from holdfast.state.keys.key_groups import KeyGroupRange

__all__ = [
    "END",
    "FIRST",
    "GROUP_SIZE",
    "META",
    "Section",
    "after",
    "group_prefix",
    "group_range",
    "section",
    "section_of",
    "slice_of",
    "split_key",
    "state_of",
]

META: Final = b"\x00\x00meta"
"""Key of the local store's metadata. No state has the id 0."""
FIRST: Final = b"\x00\x01"
END: Final = b"\xff" * 12
"""All stored rows and entries lie in ``[FIRST, END)``."""

_STATE = struct.Struct(">H")
_SLICE = struct.Struct(">HQ")
_GROUP = struct.Struct(">H")
GROUP_SIZE: Final = _GROUP.size
"""Bytes of the key group in a key, right after the section's prefix."""
_SIGN = 1 << 63


class Section(NamedTuple):
    """The part of the key space that belongs to one slice of a state: all keys with this prefix."""

    state: int
    slice: int | None
    prefix: bytes


def section(state: int, slice: int | None = None) -> Section:
    """The section of a state, or of one slice of it.

    >>> section(1).prefix.hex(), section(2, -1).prefix.hex()
    ('0001', '00027fffffffffffffff')
    """
    return Section(state, slice, _STATE.pack(state) if slice is None else _SLICE.pack(state, slice + _SIGN))


def section_of(key: bytes, sliced: Callable[[int], bool]) -> Section:
    """The section of a stored key; ``sliced`` returns whether a state id has slices."""
    state: int = _STATE.unpack_from(key)[0]
    return section(state, slice_of(key) if sliced(state) else None)


def state_of(key: bytes) -> int:
    """The id of the state in a stored key; 0 in a key that belongs to no state."""
    return int.from_bytes(key[:2], "big") if len(key) > 2 else 0


def slice_of(key: bytes) -> int:
    """The slice in a stored key of a state that has slices.

    >>> slice_of(section(2, -60_000).prefix)
    -60000
    """
    try:
        number: int = _SLICE.unpack_from(key)[1]
    except struct.error:
        raise _short(key) from None
    return number - _SIGN


def _short(key: bytes) -> CorruptFile:
    return CorruptFile("a store of state", f"the key {key!r} is too short: Holdfast did not write it")


def group_prefix(prefix: bytes, group: int) -> bytes:
    """The prefix of one key group's keys in a section.

    >>> group_prefix(section(1).prefix, 127).hex()
    '0001007f'
    """
    return prefix + _GROUP.pack(group)


def split_key(key: bytes, start: int) -> tuple[int, bytes]:
    """Split a stored key after the section's prefix of ``start`` bytes: the key group, and the key with its entry."""
    try:
        return _GROUP.unpack_from(key, start)[0], key[start + _GROUP.size :]
    except struct.error:
        raise _short(key) from None


def group_range(prefix: bytes, groups: KeyGroupRange) -> tuple[bytes, bytes]:
    """The keys of these groups in a section, as the half-open range ``[start, end)``.

    >>> [end.hex() for end in group_range(section(1).prefix, KeyGroupRange(0, 63))]
    ['00010000', '00010040']
    """
    return prefix + _GROUP.pack(groups.first), after(prefix + _GROUP.pack(groups.last))


def after(prefix: bytes) -> bytes:
    """The smallest key after all keys that begin with ``prefix``.

    >>> after(bytes.fromhex("0001ffff")).hex()
    '0002'
    """
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1])
