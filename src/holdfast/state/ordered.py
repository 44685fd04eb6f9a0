"""The ordered store: committed rows and entries by key, sorted. RocksDB is one (`holdfast.state.store`), memory another.

Only what a completed checkpoint holds may enter it (ADR 3). A family of rows that lives in the store therefore keeps an
epoch's changes to itself until the epoch is complete, and takes part in the life of the operator's state as a `Family`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from holdfast.state.delta import Change
from holdfast.state.key_groups import KeyGroupRange

__all__ = ["Family", "OrderedStore", "SortedMemory"]

_BLOCK = 512


class OrderedStore(Protocol):
    """Committed rows and entries of one subtask, by key (`holdfast.state.layout`), in the order of their bytes."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of these keys, None where there is none. Sorted keys are read faster.

        Raises:
            OSError: the store cannot be read.
        """

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Put values and delete keys, all or nothing.

        Raises:
            OSError: the store cannot be written.
        """

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all keys from ``start`` on, before ``end``."""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from ``start`` on, before ``end``, with their values, in order.

        Raises:
            OSError: the store cannot be read.
        """


class Family(Protocol):
    """The rows or entries of one state (one state id), as the operator's state drives them.

    An epoch: changes are kept in memory; `collect` gives them for the delta; then either `committed` lets them into the
    ordered store, or the whole state is thrown away. A restore: `apply` takes the changes of completed epochs in order.
    """

    def collect(self) -> Sequence[Change]:
        """The barrier: what changed since the last one, in stored form; each section at most once."""

    def committed(self) -> None:
        """The epoch that was last collected is complete: the store may follow."""

    def apply(self, change: Change, groups: KeyGroupRange | None) -> None:
        """Take over a change of a completed epoch, as far as it concerns ``groups`` (None: all).

        A dropped section loses the rows of these groups only: others may have been restored from elsewhere.
        """

    def flush(self) -> None:
        """Bring the store up to date: a materialisation begins. Nothing is uncommitted at that time."""

    def dump(self) -> Iterator[Change]:
        """Everything, in the form that `apply` takes, from memory and store: the materialisation of a heap."""


class SortedMemory:
    """An ordered store in memory, for the heap backend.

    Keys lie sorted in blocks, so that one more key moves a block's part and not all.
    """

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._blocks: list[list[bytes]] = []
        self._firsts: list[bytes] = []

    def __len__(self) -> int:
        return len(self._values)

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of these keys."""
        return list(map(self._values.get, keys))

    def write(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = ()) -> None:
        """Put values and delete keys."""
        values = self._values
        fresh = []
        for key, value in puts:
            if key not in values:
                fresh.append(key)
            values[key] = value
        if len(fresh) > len(values) // 8:
            self._arrange(sorted(values))
        else:
            for key in fresh:
                self._insert(key)
        for key in deletes:
            if values.pop(key, None) is not None:
                self._remove(key)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all keys from ``start`` on, before ``end``."""
        first, last = self._block_of(start), self._block_of(end)
        kept: list[list[bytes]] = []
        for block in self._blocks[first : last + 1]:
            low, high = bisect_left(block, start), bisect_left(block, end)
            for key in block[low:high]:
                del self._values[key]
            rest = block[:low] + block[high:]
            if rest:
                kept.append(rest)
        self._blocks[first : last + 1] = kept
        self._firsts[first : last + 1] = [block[0] for block in kept]

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Keys from ``start`` on, before ``end``, with their values, in order."""
        first, last = self._block_of(start), self._block_of(end)
        keys: list[bytes] = []
        for block in self._blocks[first : last + 1]:
            keys += block[bisect_left(block, start) : bisect_left(block, end)]
        return iter(list(zip(keys, map(self._values.__getitem__, keys))))

    def _arrange(self, keys: list[bytes]) -> None:
        self._blocks = [keys[at : at + _BLOCK] for at in range(0, len(keys), _BLOCK)]
        self._firsts = [block[0] for block in self._blocks]

    def _block_of(self, key: bytes) -> int:
        return max(bisect_right(self._firsts, key) - 1, 0)

    def _insert(self, key: bytes) -> None:
        if not self._blocks:
            self._arrange([key])
            return
        at = self._block_of(key)
        block = self._blocks[at]
        block.insert(bisect_left(block, key), key)
        self._firsts[at] = block[0]
        if len(block) > 2 * _BLOCK:
            self._blocks[at : at + 1] = [block[:_BLOCK], block[_BLOCK:]]
            self._firsts[at : at + 1] = [block[0], block[_BLOCK]]

    def _remove(self, key: bytes) -> None:
        at = self._block_of(key)
        block = self._blocks[at]
        del block[bisect_left(block, key)]
        if block:
            self._firsts[at] = block[0]
        else:
            del self._blocks[at], self._firsts[at]
