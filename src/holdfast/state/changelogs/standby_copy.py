"""StandbyCopy: keeps this host's copy of a changelog up to date while the subtask runs on another host.

The copy holds only committed records. When the subtask moves to this host, its restore continues from the copy: it reads the
rest of the log, and the markers tell whether the copy then holds the checkpoint's state.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping

from holdfast.checkpoint.changelog import ChangelogReader
from holdfast.state.changelogs.changelog_copy import COPY, ChangelogCopy
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.store.host_lock import HostLock, path_of

__all__ = ["StandbyCopy"]


class StandbyCopy:
    """The copy of one operator's state in one subtask.

    Args:
        directory: The local directory of the operator and the subtask. Its lock excludes the subtask itself, and other
            drivers' copies.
        settings: Settings of RocksDB.
        follow: Opens the log.
        groups: The key groups of the subtask.
        max_parallelism: The number of key groups.
    """

    def __init__(
        self,
        directory: str,
        settings: Mapping[str, str],
        follow: Callable[[], ChangelogReader],
        groups: KeyGroupRange,
        max_parallelism: int,
    ) -> None:
        self._directory = directory
        self._settings = settings
        self._follow = follow
        self._groups = groups
        self._max_parallelism = max_parallelism
        self._lock = HostLock(directory)
        self._log: ChangelogReader | None = None
        self._copy: ChangelogCopy | None = None
        self.whole_at: float | None = None
        """When it was last complete, by the monotonic clock; None: never."""

    @property
    def lag(self) -> int | None:
        """The number of records that the copy lacks up to the log's last known end; None until it was complete once."""
        return None if self._copy is None or self.whole_at is None else self._copy.behind

    def catch_up(self, stopped: Callable[[], bool]) -> None:
        """Read the log up to its present end, or until ``stopped``. Does nothing while another process has the copy.

        After an error the copy keeps what was read; `close` it before the next attempt.
        """
        if self._copy is None and not self._open():
            return
        assert self._copy is not None
        began = time.monotonic()
        if self._copy.catch_up(stopped):
            self.whole_at = began

    def _open(self) -> bool:
        os.makedirs(self._directory, exist_ok=True)
        if not self._lock.acquire(patience=0):
            self._lock.release()
            return False
        log = self._log = self._follow()
        path = path_of(self._directory, COPY)
        self._copy = ChangelogCopy(path, self._settings, log, self._groups, self._max_parallelism)
        return True

    def close(self) -> None:
        """Release the copy to the next process on this host; it stays on the disk."""
        copy, self._copy = self._copy, None
        log, self._log = self._log, None
        try:
            if copy is not None:
                copy.close()
        finally:
            try:
                if log is not None:
                    log.close()
            finally:
                self._lock.release()
