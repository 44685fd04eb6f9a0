"""Retention: decides which stored objects may be deleted. Everything needed stays; everything else is deleted eventually.

The files of retained checkpoints stay. So do the files and log entries of *held* checkpoints, which a savepoint, a query or
another reader is using (`holdfast.checkpoint.holds`). There are two clean-ups:

- `Retention.collect`, after each checkpoint, deletes the objects that only displaced checkpoints used. It lists nothing.
- `Retention.sweep`, at the start and from time to time, lists the job's objects and deletes the unreferenced ones: files of
  failed attempts and dead drivers, and of clean-ups and uploads cut short by a crash. A file's name tells its age
  (generation of the driver, and epoch).

Why no clean-up deletes a file that is in use or will be referenced:

- A file becomes part of a checkpoint only if the previous checkpoint has it, or if it was begun in an open epoch. The sweep
  spares this driver's files from ``oldest_open_epoch`` on.
- A *later* driver (after a take-over) restores the newest checkpoint in the log, or falls back to an older retained one.
  This driver knows all checkpoints completed before it was fenced, because it completed them or read them at its take-over.
  So it keeps every file that a later driver reads, even before it notices that it is fenced. Only a checkpoint whose
  completion is pending may be unknown, and its files belong to an open epoch. Files of later generations are never touched.
- *Earlier* drivers are fenced: their files outside checkpoints can no longer get into one.
- While a start is on trial (`holdfast.checkpoint.takeover`), nothing is deleted at all: the next driver may continue from
  what this one passed over. The first sweep after the trial makes up for it.
- All other readers hold their checkpoint with this driver. A hold lasts through this driver's own take-overs; another
  driver's take-over in between would fence this one. Holds of readers outside the driver are stored, and a *later* driver
  adopts them before it deletes anything. A hold is valid only if this driver still owned the job after the hold was stored,
  so the later driver's listing, which follows its take-over, contains it. A later driver does not know holds of readers in
  this process, which die with it. A reader that outlives its hold misses a file and fails. It never gets a part, because it
  reads what the checkpoint's metadata names, and every file is verified.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable, Iterator
from contextlib import contextmanager
from math import ceil, inf

from holdfast.checkpoint.holds import LONGEST_S, Hold, Holds
from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, Epoch, LogPosition, epoch_of, position_of
from holdfast.checkpoint.log import CheckpointLog, Ownership
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.milestones import is_milestone
from holdfast.checkpoint.paths import HoldName, JobPaths
from holdfast.checkpoint.references import References
from holdfast.checkpoint.stores.storage import NotFound, Storage
from holdfast.errors import CheckpointError, CorruptFile, StorageError

__all__ = ["Retention", "missing_files", "orphans", "referenced", "surplus_entries", "verify_files"]

_logger = logging.getLogger(__name__)
_HOUR_MS = 3_600_000
_TRIM_EVERY = 1000
"""Number of checkpoints between two deletions of old records of a log in a topic."""


def referenced(checkpoints: Iterable[CheckpointMetadata]) -> set[str]:
    """The paths of all files of the checkpoints."""
    return {file.path for checkpoint in checkpoints for file in checkpoint.files()}


def orphans(
    paths: JobPaths, listing: Iterable[str], needed: Container[str], generation: int, oldest_open_epoch: Epoch
) -> list[str]:
    """The unreferenced state files of a listing.

    Args:
        paths: The job's paths.
        listing: Paths of state files; other paths are ignored.
        needed: The paths referenced by the checkpoints to keep.
        generation: This driver's generation.
        oldest_open_epoch: The oldest epoch of this driver with work that may not be in a completed checkpoint yet: the next
            checkpoint's id, or an earlier epoch during a background upload.
    """
    found = []
    for path in listing:
        name = paths.parse_state_file(path)
        if name is None or path in needed:
            continue
        if name.generation < generation or (name.generation == generation and name.epoch < oldest_open_epoch):
            found.append(path)
    return found


def surplus_entries(
    positions: Iterable[LogPosition], tail: LogPosition, oldest: LogPosition, needed: Collection[LogPosition]
) -> list[LogPosition]:
    """The positions of log entries that may be deleted.

    Args:
        positions: The existing positions.
        tail: The last position.
        oldest: The oldest checkpoint to which the last entry refers.
        needed: The positions of take-overs and of held checkpoints.
    """
    kept = set(needed)
    return [p for p in positions if p < oldest and p not in kept and not is_milestone(p, tail)]


def verify_files(storage: Storage, checkpoint: CheckpointMetadata) -> None:
    """Check that all files of a checkpoint exist with their full length. Reads verify their content later.

    Raises:
        CorruptFile: a file is missing or truncated.
        StorageError: the storage does not answer.
    """
    for error in missing_files(storage, checkpoint):
        raise error


def missing_files(storage: Storage, checkpoint: CheckpointMetadata) -> Iterator[CorruptFile]:
    """The files of a checkpoint that do not exist with their full length.

    Raises:
        StorageError: the storage does not answer.
    """
    for file in {file.path: file for file in checkpoint.files()}.values():
        where = storage.locate(file.path)
        try:
            size = storage.size(file.path)
        except NotFound:
            yield CorruptFile(where, "missing")
        else:
            if size != file.size:
                yield CorruptFile(where, f"truncated or altered: {size} bytes instead of {file.size}")


class Retention:
    """Deletes objects that a driver's job no longer needs. Thread-safe.

    One instance serves a driver for its whole life, through every `CheckpointLog.take_over`. After a take-over, older
    uploads must be dropped, because their files carry an earlier generation. A failed deletion is logged and left to a later
    sweep; it does not fail the job.

    Args:
        storage: The storage of the job's checkpoints.
        paths: The job's paths.
        log: The driver's log.
        clock: A monotonic clock in seconds, for holds that end by themselves.
    """

    def __init__(
        self, storage: Storage, paths: JobPaths, log: CheckpointLog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._storage = storage
        self._paths = paths
        self._log = log
        self._lock = threading.RLock()
        self._known: dict[CheckpointId, CheckpointMetadata] = {}
        self._references = References()
        self.holds = Holds(clock)
        """The checkpoints in use."""
        self._entries: set[LogPosition] = set()
        self._stored_holds: dict[str, HoldName] = {}
        """The holds in the storage, for later drivers, by id."""
        self._adopted = False
        self._trimmed = NO_CHECKPOINT
        """The id of the next checkpoint at the time when the log was last trimmed."""

    @contextmanager
    def hold(self, checkpoint_id: CheckpointId | None = None) -> Iterator[CheckpointMetadata]:
        """Protect a checkpoint's files and log entry while they are read.

        Args:
            checkpoint_id: A retained checkpoint; None: the newest one.

        Raises:
            CheckpointError: no checkpoint has been completed yet.
            KeyError: the checkpoint is not retained.
        """
        hold, checkpoint = self._hold(checkpoint_id, inf)
        try:
            yield checkpoint
        finally:
            self.holds.remove(hold.id)

    def hold_newest(self, seconds: float) -> Hold:
        """Protect the newest checkpoint for a time, for a reader outside the driver, which may die. Later drivers do too."""
        hold = self._hold(None, seconds)[0]
        try:
            self._store_hold(hold, seconds)
            if not self._log.still_mine():
                raise CheckpointError(
                    "another driver may have taken the job over: hold again, with that driver if there is one"
                )
        except BaseException:  # whatever fails, the caller never learns of the hold
            self.holds.remove(hold.id)  # the next clean-up deletes its file
            raise
        return hold

    def renew(self, hold_id: str, seconds: float) -> Hold:
        """Extend a hold to this many seconds from now, also in a later driver.

        Raises:
            KeyError: it has ended, and its checkpoint is no longer protected.
            StorageError: the storage does not answer.
        """
        hold = self.holds.renew(hold_id, seconds)
        self._store_hold(hold, seconds)
        return hold

    def _store_hold(self, hold: Hold, seconds: float) -> None:
        """Store a hold for later drivers, unless it is already stored."""
        name = HoldName(hold.checkpoint_id, ceil(seconds), hold.id)
        before = self._stored_holds.get(hold.id)
        if name == before:
            return
        self._stored_holds[hold.id] = name
        self._storage.put(self._paths.hold(name), hold.id.encode())
        if before is not None:
            self._storage.delete([self._paths.hold(before)])

    def adopt_holds(self) -> None:
        """Continue the holds of earlier drivers. Called once, after the first take-over and before any clean-up.

        Each lasts for its full time from now, because nobody could renew it while no driver was running. A hold whose
        checkpoint is gone has ended.

        Raises:
            StorageError: the holds cannot be listed, or a held checkpoint cannot be read.
        """
        with self._lock:
            if self._adopted:
                return
            over = []
            for path in self._storage.list(self._paths.holds_prefix):
                name = self._paths.parse_hold(path)
                if name is None:
                    continue
                known = self._stored_holds.get(name.id)
                if self._paths.is_part(path) or (known is not None and known.seconds >= name.seconds):
                    over.append(path)  # its driver died while it wrote or renamed the hold
                    continue
                try:
                    checkpoint = read_checkpoint(self._storage, self._paths, name.checkpoint_id)
                    verify_files(self._storage, checkpoint)
                except (CorruptFile, CheckpointError):
                    over.append(path)
                    continue
                if known is not None:
                    over.append(self._paths.hold(known))
                self._learn_checkpoint(checkpoint)
                hold = Hold(name.id, name.checkpoint_id, self._log.locate(name.checkpoint_id), inf)
                self.holds.adopt(hold, min(name.seconds, LONGEST_S))
                self._stored_holds[name.id] = name
            self._adopted = True
            self._delete(over)

    def _ended_holds(self) -> list[str]:
        """Forget the stored holds that have ended; returns their paths."""
        alive = {hold.id for hold, _ in self.holds.current()}
        ended = [hold_id for hold_id in tuple(self._stored_holds) if hold_id not in alive]
        return [self._paths.hold(self._stored_holds.pop(hold_id)) for hold_id in ended]

    def _hold(self, wanted: CheckpointId | None, seconds: float) -> tuple[Hold, CheckpointMetadata]:
        """Hold a retained checkpoint, or the newest one; waits neither for the storage nor for a clean-up.

        A clean-up first reads which checkpoints are retained, then which are held. So if a checkpoint is still retained
        after its hold has begun, no clean-up that misses the hold deletes it.
        """
        while True:
            retained = self._log.retained
            if wanted is None and not retained:
                raise CheckpointError(
                    "no checkpoint has been completed yet: ask again after the first epoch"
                    if self._log.begun
                    else "the job is starting, and its checkpoints are not known yet: ask again when it runs"
                )
            found = [each for each in retained if wanted in (None, each.checkpoint_id)]
            if not found:
                raise KeyError(wanted)
            checkpoint = found[0]
            hold = self.holds.add(checkpoint.checkpoint_id, self._log.locate(checkpoint.checkpoint_id), seconds)
            if any(each.checkpoint_id == checkpoint.checkpoint_id for each in self._log.retained):
                return hold, checkpoint
            self.holds.remove(hold.id)  # a newer checkpoint has displaced it meanwhile

    def collect(self) -> int:
        """Delete the objects that only displaced checkpoints used. Called after each completed checkpoint.

        Returns:
            The number of deleted objects.
        """
        with self._lock:
            if self._log.owned.trial:
                return 0
            owned = self._learn()
            deleted = self._delete([*self._ended_holds(), *self._surplus(owned), *self._forget(owned)])
            if owned.retained and owned.next_id >= self._trimmed + _TRIM_EVERY:
                self._trim(owned)
            return deleted

    def _trim(self, owned: Ownership) -> None:
        """Delete unneeded records of a log in a topic."""
        self._trimmed = owned.next_id
        held = {position_of(checkpoint) for checkpoint in self.holds.checkpoints()}
        try:
            self._storage.trim_log(self._paths, position_of(owned.oldest), {owned.takeovers[-1], *held})
        except StorageError as error:
            _logger.warning("Deleting old entries of the checkpoint log failed; the next clean-up will retry: %s", error)

    def sweep(self, oldest_open_epoch: Epoch | None = None) -> int:
        """Delete all unneeded objects of the job. Called at the start, after failures, and from time to time.

        Args:
            oldest_open_epoch: See `orphans`; the default is the next checkpoint's id (no uploads across epochs).

        Returns:
            The number of deleted objects.

        Raises:
            StorageError: listing the objects failed.
        """
        with self._lock:
            before = self._log.owned
            if before.trial:
                return 0
            open_epoch = epoch_of(before.next_id) if oldest_open_epoch is None else oldest_open_epoch
            state = self._storage.list(self._paths.state_prefix)
            log = self._storage.list(self._paths.log_prefix)
            probes = self._storage.list(self._paths.probe_prefix)
            # Read the ownership after the listing, and the epoch limit before it: then the files of a checkpoint completed
            # in between are in both.
            owned = self._learn()
            gone = self._forget(owned)
            log_parts = self._learn_entries(log, position_of(before.next_id))
            lost = set(orphans(self._paths, state, self._references, before.generation, open_epoch))
            doomed = [*self._surplus(owned), *log_parts, *self._old_probes(probes), *sorted(lost.union(gone))]
            return self._delete([*self._ended_holds(), *doomed])

    def _learn(self) -> Ownership:
        """Read the log's state, and record all checkpoints that are or were retained."""
        # Read displaced checkpoints before the state. In the opposite order, a checkpoint completed in between would be
        # unknown, while a displaced one that shares its files would not.
        displaced = list(self._log.displaced())
        owned = self._log.owned
        for checkpoint in (*displaced, *owned.retained):
            self._learn_checkpoint(checkpoint)
        return owned

    def _learn_checkpoint(self, checkpoint: CheckpointMetadata) -> None:
        if checkpoint.checkpoint_id not in self._known:
            self._known[checkpoint.checkpoint_id] = checkpoint
            self._references.add(checkpoint)
            self._entries.add(position_of(checkpoint.checkpoint_id))

    def _forget(self, owned: Ownership) -> list[str]:
        """Forget checkpoints that are neither retained nor held; returns the files that only they referenced."""
        needed = {c.checkpoint_id for c in owned.retained} | self.holds.checkpoints()
        gone = [c for i, c in self._known.items() if i not in needed]
        files: list[str] = []
        for checkpoint in gone:
            del self._known[checkpoint.checkpoint_id]
            files += self._references.remove(checkpoint)
        return files

    def _learn_entries(self, listing: Iterable[str], end: LogPosition) -> list[str]:
        """Record the existing log entries; returns the part files of finished puts."""
        parts = []
        for path in listing:
            position = self._paths.parse_log_entry(path)
            if position is None:
                continue
            if not self._paths.is_part(path):
                self._entries.add(position)
            elif position < end:
                parts.append(path)
        return parts

    def _surplus(self, owned: Ownership) -> list[str]:
        """The log entries that may be deleted."""
        if not owned.retained:
            return []
        tail = LogPosition(owned.next_id - 1)
        held = map(position_of, self.holds.checkpoints())
        surplus = surplus_entries(self._entries, tail, position_of(owned.oldest), {*owned.takeovers, *held})
        self._entries.difference_update(surplus)
        return [self._paths.log_entry(position) for position in sorted(surplus)]

    def _old_probes(self, listing: Iterable[str]) -> list[str]:
        """Old probes of interrupted storage checks; recent ones may belong to a driver that is just starting."""
        limit = time.time_ns() // 1_000_000 - _HOUR_MS
        return [path for path in listing if (self._paths.parse_probe(path) or limit) < limit]

    def _delete(self, paths: list[str]) -> int:
        try:
            self._storage.delete(paths)
        except StorageError as error:
            _logger.warning("Deleting old checkpoint files failed; the next clean-up will retry: %s", error)
            return 0
        return len(paths)
