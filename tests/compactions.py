"""When bases and merges of deltas begin in tests: soon, and in any order that is correct."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.state.backends.backend import size_of
from holdfast.state.backends.compaction import Base, Merge

MOST = 6
"""The most deltas before a base begins."""


def anything(seed: int) -> Callable[[Sequence[KeyedHandle], bool, int, int], Base | Merge | None]:
    """A substitute for `compaction.due`: some base, some merge, or nothing, the same for the same handles."""

    def due(handles: Sequence[KeyedHandle], linked: bool, epochs: int, kept: int) -> Base | Merge | None:
        *_, own = handles
        count = len(own.deltas)
        if len(handles) > 1 or count >= MOST:
            return Base()
        size = sum(map(size_of, own.deltas))
        chance = random.Random(f"{seed} {own.first} {own.base_epoch} {count} {size}")
        what = chance.random()
        if what < 0.1 and count:
            return Base()
        if what < 0.6 and count > 2:
            first, end = sorted(chance.sample(range(count), 2))
            return Merge(first, end)
        return None

    return due
