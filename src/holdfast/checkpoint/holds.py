"""Holds: which checkpoints of a job are in use, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.paths import new_attempt
from holdfast.errors import CheckpointError

__all__ = ["LONGEST_S", "MOST", "Hold", "Holds"]

LONGEST_S = 3600.0
"""Maximum time in seconds that a reader outside the driver may hold a checkpoint without renewing the hold."""
MOST = 32
"""Maximum number of holds by readers outside the driver."""


@dataclass(frozen=True)
class Hold:
    """A checkpoint in use."""

    id: str
    checkpoint_id: CheckpointId
    path: str
    """The checkpoint's path, as for ``execution.state-recovery.path``."""
    until: float
    """When the hold ends by itself, by the clock of `Holds`; infinite for a reader in the driver, which removes the hold."""


class Holds:
    """The holds of one driver. Thread-safe; no call waits for the storage.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._holds: dict[str, Hold] = {}

    def add(self, checkpoint_id: CheckpointId, path: str, seconds: float = inf) -> Hold:
        """Start a hold; it protects its checkpoint only if the checkpoint is still retained afterwards.

        Raises:
            CheckpointError: there are too many holds.
        """
        with self._lock:
            self._expire()
            if seconds < inf and sum(each.until < inf for each in self._holds.values()) >= MOST:
                raise CheckpointError(
                    f"the job's checkpoints are held {MOST} times already: release a hold, or wait until one ends"
                )
            hold = Hold(new_attempt(), checkpoint_id, path, self._clock() + seconds)
            self._holds[hold.id] = hold
            return hold

    def adopt(self, hold: Hold, seconds: float) -> None:
        """Continue a hold of an earlier driver for this many seconds from now, whatever its ``until`` is."""
        with self._lock:
            self._holds[hold.id] = replace(hold, until=self._clock() + seconds)

    def renew(self, hold_id: str, seconds: float) -> Hold:
        """Extend a hold to this many seconds from now.

        Raises:
            KeyError: it has ended, and its checkpoint is no longer protected.
        """
        with self._lock:
            self._expire()
            self._holds[hold_id] = hold = replace(self._holds[hold_id], until=self._clock() + seconds)
            return hold

    def remove(self, hold_id: str) -> None:
        """End a hold, unless it has ended already."""
        with self._lock:
            self._holds.pop(hold_id, None)

    def current(self) -> list[tuple[Hold, float]]:
        """The holds that have not ended, each with the seconds left."""
        with self._lock:
            now = self._expire()
            return [(hold, hold.until - now) for hold in self._holds.values()]

    def checkpoints(self) -> set[CheckpointId]:
        """The held checkpoints."""
        return {hold.checkpoint_id for hold, _ in self.current()}

    def _expire(self) -> float:
        now = self._clock()
        self._holds = {number: hold for number, hold in self._holds.items() if hold.until > now}
        return now
