"""LogReader: reads a job's checkpoint log without owning the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.checkpoint.entries import CheckpointRecord, Completed, LogEntry, Takeover, decode_entry
from holdfast.checkpoint.ids import NO_CHECKPOINT, NO_POSITION, CheckpointId, LogPosition, position_of
from holdfast.checkpoint.milestones import find_tail, has_successor
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.storage import NotFound, Storage
from holdfast.checkpoint.takeover import LogFacts
from holdfast.errors import ConfigurationError, CorruptFile, StorageError

__all__ = ["LogEnd", "LogReader"]

T = TypeVar("T")


@dataclass(frozen=True)
class LogEnd:
    """The end of a job's log."""

    tail: LogPosition
    """The last position; 0 if the log is empty."""
    owner: str
    """The driver of the last take-over; empty: no take-over."""


class LogReader:
    """Reads the log of one job. Thread-safe.

    Args:
        storage: The storage of the job's checkpoints.
        paths: The job's paths.
        num_retained: The number of completed checkpoints to retain (``execution.checkpointing.num-retained``).
    """

    def __init__(self, storage: Storage, paths: JobPaths, num_retained: int = 3) -> None:
        if num_retained < 1:
            raise ConfigurationError(
                f"execution.checkpointing.num-retained is {num_retained}; at least one checkpoint must be retained"
            )
        self._storage = storage
        self._paths = paths
        self._num_retained = num_retained

    def end(self, hint: LogEnd | None = None) -> LogEnd:
        """Read the log's end.

        Args:
            hint: An end that was read before; the search begins there.

        Raises:
            CorruptFile: the log cannot be read.
            StorageError: the storage does not answer.
        """

        def read(tail: LogPosition) -> LogEnd:
            if hint is not None and tail == hint.tail:
                return hint
            return LogEnd(tail, self._takeover(tail, self._get(tail))[0].driver) if tail else LogEnd(NO_POSITION, "")

        return self._at_the_end(self._hint() if hint is None else hint.tail, read)

    def started_from(self) -> str:
        """The savepoint from which the job last started; empty: none. For a driver before its take-over.

        Raises:
            CorruptFile: the log cannot be read.
            StorageError: the storage does not answer.
        """
        return self._at_the_end(self._hint(), lambda tail: self._get(tail).savepoint if tail else "")

    def read_retained(self) -> list[CheckpointRecord]:
        """The retained checkpoints, newest first. For a reader that does not own the job.

        Raises:
            CorruptFile: the log cannot be read.
            StorageError: the storage does not answer, or refuses to list: a bucket that is missing is no empty log.
        """
        return self._at_the_end(self._listed_tail(), lambda tail: self._walk(self._get(tail), tail) if tail else [])

    def locate(self, checkpoint_id: CheckpointId) -> str:
        """The full name of a checkpoint's entry, in the form for `execution.state-recovery.path`."""
        return self._where(position_of(checkpoint_id))

    def _at_the_end(self, hint: LogPosition, read: Callable[[LogPosition], T]) -> T:
        """Read the log's last position, searching from ``hint`` on, and return the result of ``read``."""
        while True:
            tail = find_tail(self._exists, hint)
            try:
                return read(tail)
            except CorruptFile:
                if not has_successor(self._exists, tail):
                    raise
                hint = tail  # not damaged: the log grew meanwhile, and old entries were deleted

    def _takeover(self, tail: LogPosition, last: LogEntry) -> tuple[Takeover, LogPosition]:
        """The last take-over in a log that ends with an entry, and its position."""
        since = tail if isinstance(last, Takeover) else last.takeover
        takeover = last if since == tail else self._get(since)
        if not isinstance(takeover, Takeover):
            raise CorruptFile(self._where(tail), f"it refers to {self._where(since)} as a take-over, which it is not")
        return takeover, since

    def _read(self, tail: LogPosition, restore_from: CheckpointId | None) -> LogFacts:
        """Read the log's end: from ``tail`` back to the oldest retained checkpoint."""
        if tail == 0:
            if restore_from:
                raise ConfigurationError(
                    f"there is no checkpoint {restore_from}: {self._where(LogPosition(1))} does not exist"
                )
            return LogFacts(tail, 0, "", (), (), NO_CHECKPOINT)
        last = self._get(tail)
        takeover, since = self._takeover(tail, last)
        requested = takeover.requested
        if restore_from and restore_from != requested:
            requested = restore_from
            completed = [self._requested(restore_from)]
        else:
            completed = self._walk(last, tail)
        takeovers = (*takeover.takeovers, since)
        return LogFacts(
            tail, last.generation, takeover.driver, tuple(completed), takeovers, requested, last.savepoint, takeover.job
        )

    def _walk(self, entry: LogEntry, position: LogPosition) -> list[CheckpointRecord]:
        """The retained checkpoints before and at an entry, newest first."""
        oldest = max(1, entry.oldest)
        completed: list[CheckpointRecord] = []
        while True:
            if isinstance(entry, Takeover):
                position = position_of(entry.restored)
            else:
                completed.append(entry.checkpoint)
                position = LogPosition(position - 1)
            if position < oldest or len(completed) == self._num_retained:
                return completed
            entry = self._get(position)

    def _requested(self, checkpoint_id: CheckpointId) -> CheckpointRecord:
        """The checkpoint of the user's request."""
        path = self._paths.log_entry(position_of(checkpoint_id))
        try:
            entry = decode_entry(self._storage.get(path), self.locate(checkpoint_id))
        except NotFound:
            entry = None
        if not isinstance(entry, Completed):
            raise ConfigurationError(
                f"execution.state-recovery.path: {self.locate(checkpoint_id)} is not a completed checkpoint"
            )
        return entry.checkpoint

    def _get(self, position: LogPosition) -> LogEntry:
        where = self._where(position)
        try:
            return decode_entry(self._storage.get(self._paths.log_entry(position)), where)
        except NotFound as error:
            raise CorruptFile(where, f"missing. {_MENDING}") from error
        except CorruptFile as error:
            raise CorruptFile(where, f"{error.reason}. {_MENDING}") from error

    def _exists(self, position: LogPosition) -> bool:
        return self._storage.exists(self._paths.log_entry(position))

    def _where(self, position: LogPosition) -> str:
        return self._storage.locate(self._paths.log_entry(position))

    def _hint(self) -> LogPosition:
        """The highest listed position if the storage lists; otherwise 0, from which a search is only slower."""
        try:
            return self._listed_tail()
        except StorageError:
            return LogPosition(0)

    def _listed_tail(self) -> LogPosition:
        """The highest listed position; it may be too low, never too high.

        Raises:
            StorageError: the storage does not list, as without credentials or without the bucket.
        """
        listing = self._storage.list(self._paths.log_prefix)
        found = (self._paths.parse_log_entry(path) for path in listing if not self._paths.is_part(path))
        return max((position for position in found if position is not None), default=LogPosition(0))


_MENDING = (
    "It is an entry of the job's checkpoint log: what was complete, and which output may be visible, is not known "
    "without it. Put the object back from a backup (or an older version of it) and start the job again; or start the "
    "job under another name to begin afresh"
)
