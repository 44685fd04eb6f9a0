"""Key groups: the unit in which keyed state is distributed over subtasks (Flink's key groups).

Keys are equal as in Python (``1 == 1.0 == True``, as in a dict). A key's group is computed from a hash of its canonical
form (`holdfast.state.keys.key_codec`), so it is the same in every process, on every host and in every Python version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import msgspec
import xxhash

from holdfast import compiled
from holdfast.state.keys.key_codec import canonical_core, encode_core
from holdfast.state.keys.key_owners import all_plain_tuples, integer_owners, owners_of_digests, string_owners

__all__ = [
    "MAX_KEY_GROUPS",
    "KeyGroupRange",
    "group_assigner",
    "integer_groups",
    "key_group",
    "key_group_range",
    "key_grouper",
]

MAX_KEY_GROUPS = 32768
"""The upper bound of max parallelism, as in Flink."""

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MOST_INTEGERS = 16_384
"""Number of cached integers. Beyond the processor's cache, a lookup takes as long as computing the group."""
_digest = xxhash.xxh3_64_intdigest
_encode = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True)
class KeyGroupRange:
    """The contiguous key groups ``[first, last]`` of one subtask."""

    first: int
    last: int

    def __contains__(self, group: int) -> bool:
        return self.first <= group <= self.last


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> KeyGroupRange:
    """The key groups of a subtask: those that ``group * parallelism // max_parallelism`` maps to it.

    >>> key_group_range(128, 3, 0), key_group_range(128, 3, 2)
    (KeyGroupRange(first=0, last=42), KeyGroupRange(first=86, last=127))
    """
    first = (subtask * max_parallelism + parallelism - 1) // parallelism
    last = ((subtask + 1) * max_parallelism - 1) // parallelism
    return KeyGroupRange(first, last)


def key_group(key: Any, max_parallelism: int) -> int:
    """The key's group in ``range(max_parallelism)``.

    >>> key_group(7, 128) == key_group(7.0, 128)
    True

    Raises:
        TypeError: the key is not hashable, does not equal itself (NaN), or has a class with unknown equality.
    """
    kind = type(key)
    if kind is str:
        return int(_digest(key.encode("utf-8", "surrogatepass"))) % max_parallelism
    if kind is int:
        return int((((key * _GOLDEN) & _MASK) >> 32) % max_parallelism)
    try:
        hash(key)
    except TypeError:
        raise TypeError(
            f"a key must be hashable, but this one is a {kind.__name__}: {key!r:.200}; make it a tuple or a string"
        ) from None
    core = canonical_core(key)
    if type(core) is int or type(core) is str:
        return key_group(core, max_parallelism)
    return int(_digest(encode_core(core))) % max_parallelism


def integer_groups(keys: Any, max_parallelism: int) -> Any:
    """The key groups of a NumPy array of integers, as an array.

    >>> import numpy
    >>> keys = [7, -7, 2**63 - 1]
    >>> integer_groups(numpy.array(keys), 128).tolist() == [key_group(key, 128) for key in keys]
    True
    """
    wide = keys.astype("uint64")
    return (wide * wide.dtype.type(_GOLDEN) >> wide.dtype.type(32)).astype("int64") % max_parallelism


def group_assigner(max_parallelism: int, parallelism: int, memo_size: int = 200_000) -> Callable[[list[Any]], list[int]]:
    """Create a function that maps a list of keys to the subtasks that own them; it caches recent keys.

    >>> group_assigner(128, 2)([7, 7.0, "a"]) == [key_group(key, 128) * 2 // 128 for key in (7, 7, "a")]
    True
    """
    owners = [group * parallelism // max_parallelism for group in range(max_parallelism)]
    memo: dict[Any, int] = {}
    # Powers of two need no division: the group is some bits of the product, and the subtask the highest of these.
    by_bits = max_parallelism.bit_count() == parallelism.bit_count() == 1
    factor, shift, mask = (
        _GOLDEN % (max_parallelism << 32),
        32 + (max_parallelism // parallelism).bit_length() - 1,
        parallelism - 1,
    )

    def assign(keys: list[Any]) -> list[int]:
        if compiled.IN_USE and type(keys) is list and keys:
            computed = _compiled_owners(keys, max_parallelism, parallelism)
            if computed is not None:
                return computed
        try:
            return list(map(memo.__getitem__, keys))
        except (KeyError, TypeError):
            pass  # some keys are not in the cache, or not hashable: `key_group` raises for the latter
        kinds = set(map(type, keys))
        if kinds == {int}:
            if by_bits:
                result = [key * factor >> shift & mask for key in keys]
            else:
                result = [owners[(((key * _GOLDEN) & _MASK) >> 32) % max_parallelism] for key in keys]
            if len(memo) < _MOST_INTEGERS:
                memo.update(zip(keys, result))
            return result
        if len(memo) > memo_size:
            memo.clear()
        result = [owners[group] for group in _groups(kinds, keys, max_parallelism)]
        memo.update(zip(keys, result))
        return result

    return assign


def _compiled_owners(keys: list[Any], max_parallelism: int, parallelism: int) -> list[int] | None:
    """The owners of integers, strings, and tuples of these, computed as fast as a cache answers; None for other keys."""
    kind = type(keys[0])
    try:
        if kind is int:
            return integer_owners(keys, max_parallelism, parallelism)
        if kind is str:
            return string_owners(keys, _digest, max_parallelism, parallelism)
        if kind is tuple and all_plain_tuples(keys):
            return owners_of_digests(map(_digest, map(_encode, keys)), max_parallelism, parallelism)
    except (OverflowError, UnicodeEncodeError):
        pass  # an integer beyond 64 bits, or a lone surrogate
    return None


def _groups(kinds: set[type], keys: list[Any], max_parallelism: int) -> list[int]:
    """The key groups of keys of these classes. Strings, and tuples of strings and integers, need no Python call each."""
    try:
        if kinds == {str}:
            return [digest % max_parallelism for digest in map(_digest, map(str.encode, keys))]
        if kinds == {tuple} and set(map(type, chain.from_iterable(keys))) <= {int, str}:
            return [digest % max_parallelism for digest in map(_digest, map(_encode, keys))]
    except (OverflowError, UnicodeEncodeError):
        pass  # an integer beyond 64 bits, or a lone surrogate: `key_group` handles both
    return [key_group(key, max_parallelism) for key in keys]


def key_grouper(max_parallelism: int) -> Callable[[list[Any]], list[int]]:
    """Create a function that maps a list of keys to their key groups.

    >>> key_grouper(128)([7, 7.0, "a"]) == [key_group(key, 128) for key in (7, 7, "a")]
    True
    """
    return group_assigner(max_parallelism, max_parallelism, memo_size=20_000)
