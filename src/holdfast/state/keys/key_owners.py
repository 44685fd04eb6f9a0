"""The subtasks that own integers, strings and tuples, computed in one loop. Compiled (`holdfast.compiled`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

__all__ = ["all_plain_tuples", "integer_owners", "owners_of_digests", "string_owners"]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def integer_owners(keys: list[Any], max_parallelism: int, parallelism: int) -> list[int] | None:
    """The subtasks of integers; None if there are other keys.

    >>> integer_owners([7, -7, True], 128, 2), integer_owners([7, -7], 128, 2)
    (None, [0, 1])

    Raises:
        OverflowError: a key is beyond 64 bits (in the compiled form; plain Python computes its owner).
    """
    owners = []
    for key in keys:
        if type(key) is not int:
            return None
        whole = key
        mixed = ((whole * _GOLDEN) & _MASK) >> 32
        owners.append(mixed % max_parallelism * parallelism // max_parallelism)
    return owners


def string_owners(
    keys: list[Any], digest: Callable[[bytes], int], max_parallelism: int, parallelism: int
) -> list[int] | None:
    """The subtasks of strings; None if there are other keys.

    Args:
        keys: The keys.
        digest: The hash of a key's bytes in UTF-8, of 64 bits.
        max_parallelism: The number of key groups.
        parallelism: The number of subtasks.

    >>> string_owners(["a", 7], len, 128, 2), string_owners(["a", "b" * 64], len, 128, 2)
    (None, [0, 1])

    Raises:
        UnicodeEncodeError: a key has a lone surrogate.
    """
    owners = []
    for key in keys:
        if type(key) is not str:
            return None
        hashed = digest(key.encode())
        owners.append(hashed % max_parallelism * parallelism // max_parallelism)
    return owners


def all_plain_tuples(keys: list[Any]) -> bool:
    """Whether all keys are tuples of integers and strings.

    >>> all_plain_tuples([(1, "a"), ()]), all_plain_tuples([(1, True)]), all_plain_tuples(["a"])
    (True, False, False)
    """
    for key in keys:
        if type(key) is not tuple:
            return False
        for each in key:
            if type(each) is not int and type(each) is not str:
                return False
    return True


def owners_of_digests(digests: Iterable[int], max_parallelism: int, parallelism: int) -> list[int]:
    """The subtasks of keys with these hashes, of 64 bits.

    >>> owners_of_digests([0, 64, 2**64 - 1], 128, 2)
    [0, 1, 1]
    """
    owners = []
    for digest in digests:
        hashed = digest
        owners.append(hashed % max_parallelism * parallelism // max_parallelism)
    return owners
