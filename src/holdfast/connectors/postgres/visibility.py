"""Which transactions a snapshot has seen, so that the log's changes complete it exactly. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["Region", "Snapshot", "first_unseen", "succeeds"]

_HALF = 1 << 31
_WORD = (1 << 32) - 1


@dataclass(frozen=True)
class Snapshot:
    """A snapshot of the database, as ``pg_current_snapshot()`` describes it."""

    xmin: int
    """All transactions before have ended."""
    xmax: int
    """No transaction from here on had ended."""
    running: frozenset[int]
    """Those between that had not."""

    @staticmethod
    def parse(text: str) -> Snapshot:
        """Read the server's text.

        >>> Snapshot.parse("10:20:12,15").running == {12, 15}
        True
        """
        xmin, xmax, running = text.split(":")
        return Snapshot(int(xmin), int(xmax), frozenset(int(xid) for xid in running.split(",") if xid))

    def sees(self, xid: int) -> bool:
        """Whether it has seen what a transaction has committed.

        Args:
            xid: The transaction's number as the log has it, in 32 bits.
        """
        full = self.xmax + (((xid - (self.xmax & _WORD)) + _HALF) & _WORD) - _HALF
        return full < self.xmin or (full < self.xmax and full not in self.running)


def succeeds(later: Snapshot, earlier: Snapshot) -> bool:
    """Whether a snapshot sees everything that an earlier one saw.

    A transaction whose commit is in the log can still count as running, while it waits for a synchronous standby: the slot's
    first snapshot sees it and the log does not repeat it, so a later snapshot must see it, too.
    """
    return all(xid >= earlier.xmax or xid in earlier.running for xid in later.running) and later.xmax >= earlier.xmax


@dataclass(frozen=True)
class Region:
    """The rows of a table up to a key, which were read under one snapshot."""

    upto: tuple[str, ...] | None
    """The last key, in text form; None: all further rows."""
    snapshot: Snapshot


def first_unseen(
    regions: Sequence[Region], xid: int, key: tuple[str, ...] | None, ordered: Callable[[Sequence[tuple[str, ...]]], int]
) -> bool | None:
    """Whether the snapshot has not seen a change of a key, so that the change is to be emitted.

    Args:
        regions: The regions of the table, in order of their keys; the last one has no end.
        xid: The transaction.
        key: The row's key; None for a change of all rows.
        ordered: Returns how many of some keys (in order) are less than ``key``, as the server orders them.

    Returns:
        None for a change of all rows that some regions have seen and others have not.
    """
    unseen = [not region.snapshot.sees(xid) for region in regions]
    if all(unseen) or not any(unseen):
        return unseen[0]
    if key is None:
        return None
    return unseen[ordered([region.upto for region in regions if region.upto is not None])]
