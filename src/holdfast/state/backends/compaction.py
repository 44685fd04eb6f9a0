"""Decides when to write a new base and when to merge deltas. Pure.

Bases limit the bytes that a restore reads; merges limit the number of files. Both write bytes again, so both depend on
bytes:

- A base is due when the deltas since the last one are `RATIO` times as large. So an epoch's changes are written ``1 + 1 /
  RATIO`` times, and a restore reads at most ``1 + RATIO`` times the base.
- The base of a small state is small too, but costs some requests and a flush of the local store. So it also waits for
  `AMORTISED` epochs, unless the deltas exceed `ENOUGH` bytes.
- A base of linked files writes nothing again. It is due at `LINKED_RATIO`, so that a large state and its checkpoints take
  less disk space.
- The newest small deltas are merged when the checkpoint's metadata (`InlineFile`) holds more bytes of them than the subtask
  may keep there. The driver holds all of them in memory, and every restoring task reads them.
- `ALIKE` deltas of similar size are merged into one. Sizes are similar if they lie in the same band; each band is `ALIKE`
  times as wide as the one below, so a byte is merged about once per band. A delta that is large beside the base is never
  merged: the next base comes before there are many.

The newest delta is never merged: changelogs and local stores recognise a state by its name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from holdfast.checkpoint.handles import Handle, InlineFile, kept_inline_limit
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.state.backends.backend import size_of

__all__ = ["Base", "Merge", "due", "part_of"]

RATIO = 2.5
"""Bytes of deltas, for each byte of the last base, at which the next one is due."""
LEAST = 4 << 20
"""Bytes of deltas that never make a base due, however small the last base is: a restore applies them within a second."""
ENOUGH = 64 << 20
"""Bytes of deltas up to which no base is due before `AMORTISED` epochs."""
AMORTISED = 64
"""Epochs over which the requests of a base are amortised."""
LINKED_RATIO = 0.0625
"""The ratio for bases that share their files with the local store."""
LINKED_ENOUGH = 256 << 20
"""Minimum bytes of deltas for such a base, which must first flush the rows in memory."""
ALIKE = 64
"""Number of deltas of similar size that are merged."""
_FEW, _MANY = 16, 256
"""Number of small deltas that are merged whatever their sizes: between larger ones, or at the end."""
_BAND = 64 << 10
"""Upper bound of the smallest band of sizes, in bytes."""
_SMALL, _SMALL_SHARE = 256 << 10, 1024
"""A delta is small below this size, or below this part of the base."""
_MERGED, _MERGED_SHARE = 64 << 20, 64
"""Limit of the stored bytes that a merge reads: a size, or a part of the base."""
MOST_DELTAS = 8192
"""Number of deltas that makes a base due, whatever their sizes."""


class Base(NamedTuple):
    """A new base is due."""


class Merge(NamedTuple):
    """A merge of the handle's deltas ``[first, end)`` is due."""

    first: int
    end: int


def due(
    handles: Sequence[KeyedHandle], linked: bool = False, epochs: int = 0, kept: int = kept_inline_limit(1)
) -> Base | Merge | None:
    """Decide what to write after a checkpoint with these handles. Handles of several predecessors always become one base.

    Args:
        handles: The handles of a subtask.
        linked: Whether a base would hard-link the local store's files.
        epochs: The number of epochs since the last base began.
        kept: The most bytes of deltas in the metadata.

    >>> from holdfast.checkpoint.handles import IndexedFile
    >>> due([KeyedHandle(0, 127, deltas=[IndexedFile(str(n), 1000, b"") for n in range(65)])])
    Merge(first=0, end=64)
    """
    if len(handles) > 1:
        return Base()
    sizes = [size_of(each) for handle in handles for each in handle.deltas]
    base = sum(size_of(each) for handle in handles for each in handle.base)
    most = max(LEAST if epochs >= AMORTISED else ENOUGH, RATIO * base)
    if linked:
        most = min(most, max(LINKED_ENOUGH, LINKED_RATIO * base))
    if sum(sizes) > most or len(sizes) >= MOST_DELTAS:
        return Base()
    merge = _inline(handles[0].deltas, kept) if handles else None
    return merge or _merge(sizes, max(_SMALL, base // _SMALL_SHARE), max(_MERGED, base // _MERGED_SHARE))


def part_of(merge: Merge, first: int) -> Merge | None:
    """The rest of a merge from the delta ``first`` on, if it is still worth a merge.

    >>> part_of(Merge(0, 80), 10), part_of(Merge(0, 80), 50)
    (Merge(first=10, end=80), None)
    """
    first = max(merge.first, first)
    return Merge(first, merge.end) if merge.end - first >= ALIKE else None


def _inline(deltas: Sequence[Handle], kept: int) -> Merge | None:
    """The merge due because more than ``kept`` bytes of deltas are in the metadata, if any; never of the newest delta."""
    end = at = first = len(deltas) - 1
    inline = 0
    while at > 0 and size_of(deltas[at - 1]) < _SMALL:
        at -= 1
        if isinstance(delta := deltas[at], InlineFile):
            first, inline = at, inline + delta.size
    return Merge(first, end) if inline > kept else None


def _merge(sizes: Sequence[int], small: int, most: int) -> Merge | None:
    """The merge due by sizes, if any: never of the newest delta, nor of more than ``most`` bytes at once."""
    end = first = len(sizes) - 1
    total, least, bound = 0, 0, min(_BAND, small)
    while first > 0 and sizes[first - 1] < small:
        alike = 0
        while first > 0 and sizes[first - 1] < bound:
            first -= 1
            total += sizes[first]
            if total > most:
                return Merge(first + 1, end)
            alike += sizes[first] >= least
        if alike >= ALIKE or end - first >= _MANY:
            return Merge(first, end)
        least, bound = bound, min(bound * ALIKE, small)
    while first > 0:  # small deltas between large ones
        end = first = first - 1
        total = 0
        while first > 0 and sizes[first - 1] < small and total + sizes[first - 1] <= most:
            first -= 1
            total += sizes[first]
        if end - first >= _FEW:
            return Merge(first, end)
    return None
