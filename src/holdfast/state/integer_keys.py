"""The owners of integer keys, computed in one loop. Compiled (`holdfast.compiled`)."""

from __future__ import annotations

from typing import Any

__all__ = ["integer_owners"]

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
