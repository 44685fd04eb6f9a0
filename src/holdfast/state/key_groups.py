"""Key groups: the unit in which keyed state is distributed over subtasks (Flink's key groups).

Keys are equal as in Python (``1 == 1.0 == True``, as in a dict). A key's group is computed from a hash of its canonical
form (`holdfast.state.key_codec`), so it is the same in every process, on every host and in every Python version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import xxhash

from holdfast.state.key_codec import canonical_core, encode_core

__all__ = ["KeyGroupRange", "group_assigner", "key_group", "key_group_range", "key_grouper"]

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class KeyGroupRange:
    """The contiguous key groups ``[first, last]`` of one subtask."""

    first: int
    last: int

    def __contains__(self, group: int) -> bool:
        return self.first <= group <= self.last


def key_group_range(max_parallelism: int, parallelism: int, subtask: int) -> KeyGroupRange:
    """The key groups of a subtask: those which ``group * parallelism // max_parallelism`` maps to it.

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
        return int(xxhash.xxh3_64_intdigest(key.encode("utf-8", "surrogatepass"))) % max_parallelism
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
    return int(xxhash.xxh3_64_intdigest(encode_core(core))) % max_parallelism


def group_assigner(max_parallelism: int, parallelism: int, memo_size: int = 200_000) -> Callable[[list[Any]], list[int]]:
    """Create a function that maps a list of keys to the subtasks that own them; it caches recent keys."""
    memo: dict[Any, int] = {}
    digest = xxhash.xxh3_64_intdigest

    def assign(keys: list[Any]) -> list[int]:
        kinds = set(map(type, keys))
        if kinds == {int}:
            return [((((key * _GOLDEN) & _MASK) >> 32) % max_parallelism) * parallelism // max_parallelism for key in keys]
        if len(memo) > memo_size:
            memo.clear()
        try:
            return [memo[key] for key in keys]
        except (KeyError, TypeError):
            pass  # some keys are not in the cache
        result = []
        known = memo.get
        for key in keys:
            try:
                subtask = known(key)
            except TypeError:
                subtask = None  # not hashable: `key_group` raises the error
            if subtask is None:
                try:
                    group = digest(key.encode()) % max_parallelism if type(key) is str else key_group(key, max_parallelism)
                except UnicodeEncodeError:
                    group = key_group(key, max_parallelism)
                subtask = memo[key] = group * parallelism // max_parallelism
            result.append(subtask)
        return result

    return assign


def key_grouper(max_parallelism: int) -> Callable[[list[Any]], list[int]]:
    """Create a function that maps a list of keys to their key groups.

    >>> key_grouper(128)([7, 7.0, "a"]) == [key_group(key, 128) for key in (7, 7, "a")]
    True
    """
    assign = group_assigner(max_parallelism, max_parallelism, memo_size=20_000)
    digest = xxhash.xxh3_64_intdigest

    def groups_of(keys: list[Any]) -> list[int]:
        kinds = set(map(type, keys))
        if kinds == {str}:
            try:
                return [hashed % max_parallelism for hashed in map(digest, map(str.encode, keys))]
            except UnicodeEncodeError:
                pass  # a lone surrogate: the general path handles it
        if kinds == {int}:
            return [(((key * _GOLDEN) & _MASK) >> 32) % max_parallelism for key in keys]
        return assign(keys)

    return groups_of
