"""LogReader: reads a job's checkpoint log without owning the job."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from holdfast.checkpoint.container import unpack
from holdfast.checkpoint.entries import CheckpointRecord, Completed, LogEntry, Takeover, decode_entry
from holdfast.checkpoint.ids import NO_CHECKPOINT, NO_POSITION, CheckpointId, LogPosition, checkpoint_at, position_of
from holdfast.checkpoint.milestones import find_tail, has_successor
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import NotFound, Storage
from holdfast.checkpoint.takeover import LogFacts, SavepointCopy
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
            hint: An end that was read before; the search starts there.

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
        """The name of the savepoint from which the job last started (`OpenSavepoint.name`); empty: none.

        Called by a driver before its take-over.

        Raises:
            CorruptFile: the log cannot be read.
            StorageError: the storage does not answer.
        """

        def read(tail: LogPosition) -> str:
            last = self._get(tail) if tail else None
            if isinstance(last, Completed) and last.trial:
                last = self._takeover(tail, last)[0]
            return last.savepoint if last is not None else ""

        return self._at_the_end(self._hint(), read)

    def read_retained(self) -> list[CheckpointRecord]:
        """The retained checkpoints, newest first. Called by readers that do not own the job.

        Raises:
            CorruptFile: the log cannot be read.
            StorageError: the storage does not answer, or refuses to list: a missing bucket is not an empty log.
        """
        return list(self._at_the_end(self._listed_tail(), self._read).completed)

    def locate(self, checkpoint_id: CheckpointId) -> str:
        """The full name of a checkpoint's entry, in the form for `execution.state-recovery.path`."""
        return self._where(position_of(checkpoint_id))

    def _at_the_end(self, hint: LogPosition, read: Callable[[LogPosition], T]) -> T:
        """Search the log's last position, starting at ``hint``, and return the result of ``read`` for it."""
        while True:
            tail = find_tail(self._exists, hint)
            try:
                return read(tail)
            except CorruptFile:
                if not has_successor(self._exists, tail):
                    raise
                hint = tail  # not damaged: the log has grown, and old entries were deleted

    def _takeover(self, tail: LogPosition, last: LogEntry) -> tuple[Takeover, LogPosition]:
        """The last take-over and its position, in a log that ends with this entry."""
        since = tail if isinstance(last, Takeover) else last.takeover
        takeover = last if since == tail else self._get(since)
        if not isinstance(takeover, Takeover):
            raise CorruptFile(self._where(tail), f"it refers to {self._where(since)} as a take-over, which it is not")
        return takeover, since

    def _read(self, tail: LogPosition) -> LogFacts:
        """Read the log's end: from ``tail`` back to the oldest retained checkpoint."""
        self._check_not_lost(tail)
        if tail == 0:
            return LogFacts(tail, 0, "", (), (), NO_CHECKPOINT)
        try:
            return self._read_end(tail)
        except CorruptFile as error:
            raise CorruptFile(error.path, f"{error.reason}. {self._mending(tail)}") from error

    def _read_end(self, tail: LogPosition) -> LogFacts:
        last = self._get(tail)
        takeover, since = self._takeover(tail, last)
        requested, own, at = takeover.requested, last, tail
        copy = None
        if isinstance(last, Takeover):
            copy = self._copy(last.copy)
        elif last.trial:
            copy = SavepointCopy(last.savepoint, last.checkpoint)
            own, at = takeover, since
        else:
            requested = last.requested or requested
        return LogFacts(
            tail,
            last.generation,
            takeover.driver,
            tuple(self._walk(own, at)),
            (*takeover.takeovers, since),
            requested,
            own.savepoint,
            takeover.job,
            own.claim,
            copy,
        )

    def _read_despite_damage(self, tail: LogPosition) -> LogFacts:
        """Read a log whose end cannot be read, for a driver that will not continue from it."""
        at = tail
        known: tuple[LogEntry, Takeover, LogPosition] | None = None
        while at and known is None:
            try:
                entry = self._get(at)
                known = (entry, *self._takeover(at, entry))
            except CorruptFile:
                at = LogPosition(at - 1)
        listed = map(self._paths.parse_state_file, self._storage.list(self._paths.state_prefix))
        generation = max((name.generation for name in listed if name is not None), default=0)
        unreadable = checkpoint_at(max(tail, self._visible()))
        if known is None:
            return LogFacts(tail, generation, "", (), (), NO_CHECKPOINT, unreadable=unreadable)
        entry, takeover, since = known
        # Each position raises the generation by at most one, except a start from a savepoint, which the state files show.
        generation = max(generation, entry.generation + unreadable - at)
        takeovers = (*takeover.takeovers, since, *map(LogPosition, range(at + 1, tail + 1)))
        requested = (entry.requested if isinstance(entry, Completed) else NO_CHECKPOINT) or takeover.requested
        own = takeover if isinstance(entry, Completed) and entry.trial else entry
        return LogFacts(
            tail,
            generation,
            takeover.driver,
            (),
            takeovers,
            requested,
            own.savepoint,
            takeover.job,
            own.claim,
            unreadable=unreadable,
        )

    def _copy(self, checkpoint_id: CheckpointId) -> SavepointCopy | None:
        """The copy of a savepoint that is on trial; None if there is none, or it cannot be read: it can be copied again."""
        if not checkpoint_id:
            return None
        try:
            entry = self._get(position_of(checkpoint_id))
        except CorruptFile:
            return None
        return SavepointCopy(entry.savepoint, entry.checkpoint) if isinstance(entry, Completed) else None

    def _walk(self, entry: LogEntry, position: LogPosition) -> list[CheckpointRecord]:
        """The retained checkpoints before and at an entry, newest first."""
        oldest = max(1, entry.oldest)
        completed: list[CheckpointRecord] = []
        while True:
            if isinstance(entry, Takeover):
                if entry.restored >= position:  # the take-over is at the position of an entry that was lost
                    raise CorruptFile(self._where(position_of(entry.restored)), "it was lost")
                position = position_of(entry.restored)
            else:
                completed.append(entry.checkpoint)
                position = LogPosition(position - 1)
            if position < oldest or len(completed) == self._num_retained:
                return completed
            entry = self._get(position)

    def _visible(self) -> LogPosition:
        """The newest position whose output may be visible, as far as recorded; 0: none."""
        path = self._paths.visible
        try:
            return LogPosition(int(unpack(self._storage.get(path), self._storage.locate(path))))
        except (NotFound, CorruptFile, ValueError):
            return NO_POSITION

    def _check_not_lost(self, tail: LogPosition) -> None:
        visible = self._visible()
        if visible > tail and not self._exists(LogPosition(tail + 1)):
            raise CorruptFile(self._where(visible), f"missing, and its output may be visible. {self._mending(tail)}")

    def _mending(self, tail: LogPosition) -> str:
        """The remedy for a log that ends at this position and cannot be read."""
        at = tail
        while at > 0 and tail - at < _LOOKED_AT:
            try:
                entry = decode_entry(self._storage.get(self._paths.log_entry(at)), "")
            except (NotFound, CorruptFile):
                entry = None
            if isinstance(entry, Completed) and position_of(entry.checkpoint.checkpoint_id) == at and not entry.trial:
                return (
                    f"{_MENDING}. To accept that output which is newer than checkpoint {at} is written again, start from "
                    f"that checkpoint: set execution.state-recovery.path to {self.locate(checkpoint_at(at))}"
                )
            at = LogPosition(at - 1)
        return f"{_MENDING}; or start the job under another name to begin afresh"

    def _requested(self, checkpoint_id: CheckpointId) -> CheckpointRecord:
        """The checkpoint that the user requests."""
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
            entry = decode_entry(self._storage.get(self._paths.log_entry(position)), where)
        except NotFound as error:
            raise CorruptFile(where, "missing") from error
        own = position_of(entry.checkpoint.checkpoint_id) if isinstance(entry, Completed) else entry.position
        if own not in (position, NO_POSITION):
            raise CorruptFile(where, f"it has the content of another entry, {self._where(own)}")
        return entry

    def _exists(self, position: LogPosition) -> bool:
        return self._storage.exists(self._paths.log_entry(position))

    def _where(self, position: LogPosition) -> str:
        return self._storage.locate(self._paths.log_entry(position))

    def _hint(self) -> LogPosition:
        """The highest listed position if the storage lists; otherwise 0, which only slows the search."""
        try:
            return self._listed_tail()
        except StorageError:
            return LogPosition(0)

    def _listed_tail(self) -> LogPosition:
        """The highest listed position. It may be too low, but never too high.

        Raises:
            StorageError: the storage does not list, for example without credentials or without the bucket.
        """
        listing = self._storage.list(self._paths.log_prefix)
        found = (self._paths.parse_log_entry(path) for path in listing if not self._paths.is_part(path))
        return max((position for position in found if position is not None), default=LogPosition(0))


_LOOKED_AT = 100
"""Number of positions before a damaged one in which to look for a checkpoint."""
_MENDING = (
    "It is an entry of the job's checkpoint log: what was complete, and which output may be visible, is not known "
    "without it. Put the object back from a backup (or an older version of it) and start the job again"
)
