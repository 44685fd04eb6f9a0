"""Versions: the versions of a table's rows, in keyed state."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Any

from holdfast.common.typeinfo import TypeInformation, Types
from holdfast.state.api.descriptors import MapStateDescriptor
from holdfast.state.api.interfaces import KeyedStateStore

__all__ = ["Versions"]


class Versions:
    """The versions of the current key's row. Each is valid from its timestamp until that of the next one.

    Args:
        space: The state space that holds them.
        value_type: The declared type of the rows.
    """

    def __init__(self, space: KeyedStateStore, value_type: TypeInformation | None) -> None:
        self._values = space.get_map_state(MapStateDescriptor("versions", Types.LONG(), value_type))
        self._deletions = space.get_map_state(MapStateDescriptor("deletions", Types.LONG(), Types.BOOLEAN()))

    def put(self, stamp: int, value: Any) -> None:
        """Add a version. It replaces one with the same timestamp."""
        self._deletions.remove(stamp)
        self._values.put(stamp, value)

    def delete(self, stamp: int) -> None:
        """End at ``stamp`` the version before it: the key has no row until the next version."""
        self._values.remove(stamp)
        self._deletions.put(stamp, True)

    def stamps(self) -> deque[int]:
        """The timestamps of all versions and deletions, in order."""
        return deque(sorted({*self._values.keys(), *self._deletions.keys()}))

    def get(self, stamp: int | None) -> Any:
        """The row of the version with this timestamp; None for a deletion, and for None."""
        return None if stamp is None else self._values.get(stamp)

    def valid_at(self, when: int, *, newest_only: bool = False) -> Any:
        """The row that is valid at ``when``, if any. ``newest_only``: None also if a newer version has replaced it."""
        stamps = self.stamps()
        if newest_only:
            return self.get(stamps[-1]) if stamps and stamps[-1] <= when else None
        at = bisect_right(stamps, when)
        return self.get(stamps[at - 1]) if at else None

    def forget_before(self, stamps: deque[int], when: int) -> int | None:
        """Remove the versions that were replaced by ``when``.

        Args:
            stamps: All `stamps` of the key; removed ones are deleted from it.
            when: The time.

        Returns:
            The timestamp of the version that is valid at ``when``; None without one.
        """
        while len(stamps) > 1 and stamps[1] <= when:
            self._remove(stamps.popleft())
        if not stamps or stamps[0] > when:
            return None
        if self._deletions.contains(stamps[0]):
            self._remove(stamps.popleft())
            return None
        return stamps[0]

    def _remove(self, stamp: int) -> None:
        self._values.remove(stamp)
        self._deletions.remove(stamp)
