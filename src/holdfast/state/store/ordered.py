"""Ordered stores of checkpointed rows and entries, sorted by key: the interface, and its implementation in memory.

Only the content of completed checkpoints enters a store (ADR 3), whether RocksDB (`holdfast.state.store.store`) or memory.
So a family of rows in the store keeps an epoch's changes in memory until the epoch completes, and follows the life cycle of
the operator's state as a `Family`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import NamedTuple, Protocol

from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.stored.delta import Change

__all__ = ["NO_STUBS", "Family", "OrderedStore", "SortedMemory", "Writes"]

_BLOCK = 512
_MIGRATED = 2_000
"""Rows read in one step of a migration: it takes as long as a small epoch can spare."""


NO_STUBS: Mapping[bytes, bytes] = MappingProxyType({})
"""No value is written with a stub."""


class OrderedStore(Protocol):
    """Checkpointed rows and entries of one subtask, sorted by the bytes of their keys (`holdfast.state.stored.layout`)."""

    on_disk: bool
    """Whether its rows take no memory."""

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of these keys; None for a missing key. Sorted keys are read faster.

        Raises:
            OSError: the store cannot be read.
        """

    def get_stubs(self, keys: list[bytes], kind: bytes) -> tuple[list[bytes | None], set[int]]:
        """Like `get_many`, but values written with a stub of this kind are replaced by it; also returns where.

        Raises:
            OSError: the store cannot be read.
        """

    def keeps_apart(self, prefix: bytes) -> bool:
        """Whether large values of the state with this prefix are stored apart, so that their stubs are faster to read."""

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), stubs: Mapping[bytes, bytes] = NO_STUBS
    ) -> None:
        """Put values and delete keys, atomically.

        Args:
            puts: The keys with their values.
            deletes: The keys to delete.
            stubs: Empty, or for each key what `get_stubs` may return in place of its value (kind and stub), or nothing.

        Raises:
            OSError: the store cannot be written.
        """

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete all keys in ``[start, end)``."""

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys in ``[start, end)`` with their values, in order.

        Raises:
            OSError: the store cannot be read.
        """

    def first_key(self, start: bytes, end: bytes) -> bytes | None:
        """The first key in ``[start, end)``; None without one.

        Raises:
            OSError: the store cannot be read.
        """


class Writes(NamedTuple):
    """Writes to an ordered store, in this order: delete all keys with a prefix in ``drops``, put rows, delete keys."""

    drops: Sequence[bytes]
    puts: Sequence[tuple[bytes, bytes]]
    deletes: Sequence[bytes]


class Family(Protocol):
    """The rows or entries of one state (one state id), driven by the operator's state.

    In an epoch, changes stay in memory and `collect` returns them for the delta. Then either `completed` moves them into the
    ordered store, or the whole state is discarded. In a restore, `apply` takes the changes of completed epochs in order.
    """

    def collect(self) -> Sequence[Change]:
        """At the barrier: drain the changes since the last one, in stored form; each section at most once."""

    def completed(self) -> None:
        """Complete the last collected epoch: its changes may enter the store."""

    def apply(self, change: Change, groups: KeyGroupRange | None) -> None:
        """Apply a change of a completed epoch, restricted to ``groups`` (None: all).

        A dropped section loses only the rows of these groups: other groups may come from another predecessor.
        """

    def writes(self, change: Change) -> Iterator[Writes]:
        """The pieces of a change as writes to the store, in order, without the drop of the section."""

    def flush(self) -> None:
        """Write all changes to the store for a new base. By then all changes are checkpointed."""

    def migration(self) -> Iterator[None]:
        """Rewrite the store's content of former types, some with each step; epochs may run between two steps."""

    def dump(self) -> Iterator[Change]:
        """The complete family, from memory and store, in the form that `apply` takes: a base of the heap backend."""


class SortedMemory:
    """An ordered store in memory, for the heap backend.

    Sorted keys lie in blocks, so that an insertion moves only part of a block.
    """

    on_disk = False

    def __init__(self) -> None:
        self._values: dict[bytes, bytes] = {}
        self._blocks: list[list[bytes]] = []
        self._firsts: list[bytes] = []

    def __len__(self) -> int:
        return len(self._values)

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """All keys with their values, in order; the store must not change meanwhile."""
        for block in self._blocks:
            yield from zip(block, map(self._values.__getitem__, block))

    def get_many(self, keys: list[bytes]) -> list[bytes | None]:
        """The values of these keys."""
        return list(map(self._values.get, keys))

    def get_stubs(self, keys: list[bytes], kind: bytes) -> tuple[list[bytes | None], set[int]]:
        """Return whole values: reading a stub would not be faster."""
        return self.get_many(keys), set()

    def keeps_apart(self, prefix: bytes) -> bool:
        """Never: large values are not stored apart."""
        return False

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), stubs: Mapping[bytes, bytes] = NO_STUBS
    ) -> None:
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
        """Delete all keys in ``[start, end)``."""
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
        """The keys in ``[start, end)`` with their values, in order."""
        first, last = self._block_of(start), self._block_of(end)
        keys: list[bytes] = []
        for block in self._blocks[first : last + 1]:
            keys += block[bisect_left(block, start) : bisect_left(block, end)]
        return iter(list(zip(keys, map(self._values.__getitem__, keys))))

    def first_key(self, start: bytes, end: bytes) -> bytes | None:
        """The first key in ``[start, end)``."""
        for block in self._blocks[self._block_of(start) : self._block_of(end) + 1]:
            at = bisect_left(block, start)
            if at < len(block):
                return block[at] if block[at] < end else None
        return None

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


def migrate(
    store: OrderedStore, start: bytes, end: bytes, migrated: Callable[[bytes, bytes], bytes | None]
) -> Iterator[None]:
    """Rewrite the values in ``[start, end)``, some with each step. Between two steps the store may change.

    Args:
        store: The store, with checkpointed content only.
        start: The first key.
        end: The key after the last.
        migrated: Returns the new form of a value, given its key; None: it stays.
    """
    while True:
        # Each step needs its own scan: a scan shows the store as of its start.
        rows = list(islice(store.scan(start, end), _MIGRATED))
        if not rows:
            return
        puts = [(key, new) for key, old in rows if (new := migrated(key, old)) is not None]
        if puts:
            store.write(puts)
        start = rows[-1][0] + b"\x00"
        yield
