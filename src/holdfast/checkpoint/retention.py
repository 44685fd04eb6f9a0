"""Retention: which stored objects may be deleted. Nothing that can still be needed, and all else in the end.

Kept are the files of the retained checkpoints and of those that are *held* (a savepoint or a restore reads them).
Two clean-ups follow from that:

- `Retention.collect`, after each checkpoint, deletes what the checkpoints that it displaced had for themselves. It
  knows them and lists nothing.
- `Retention.sweep`, at the start and now and then, lists the job's objects and deletes what nobody refers to: files
  of failed attempts, of dead drivers, of clean-ups and uploads that a crash cut short. A file's name tells how old it
  is (generation of the driver, epoch).

Why no file is deleted that somebody reads or will refer to:

- A file becomes part of a checkpoint only if it is in the checkpoint before, or was begun in an epoch that is not
  over: the sweep leaves the files of this driver alone whose epoch is not before ``oldest_open_epoch``.
- A *later* driver (another one, which took over) restores the newest checkpoint in the log, or falls back to an older
  retained one. This driver knows all checkpoints that were completed before it was fenced, because it completed them
  or read them when it took over; so what a later driver reads is kept by this one, even if it does not know yet that
  it is fenced. Only a checkpoint whose completion this driver is still waiting for may be unknown to it, and its files
  belong to an epoch that is not over. Files of later generations are never touched.
- *Earlier* drivers are fenced: no file of theirs that is not in a checkpoint already can get into one.
- Everything else that reads (a savepoint, a slow restore) is in this driver's hands and holds its checkpoint. It is
  given up when the driver takes over again: another one may have been there in between and known nothing of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator
from contextlib import contextmanager

from holdfast.checkpoint.ids import CheckpointId, Epoch, LogPosition, epoch_of, position_of
from holdfast.checkpoint.log import CheckpointLog, Ownership
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.milestones import is_milestone
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.references import References
from holdfast.checkpoint.storage import NotFound, Storage
from holdfast.errors import CorruptFile, StorageError

__all__ = ["Retention", "orphans", "referenced", "surplus_entries", "verify_files"]

_logger = logging.getLogger(__name__)
_HOUR_MS = 3_600_000


def referenced(checkpoints: Iterable[CheckpointMetadata]) -> set[str]:
    """The paths of all files that the checkpoints consist of."""
    return {file.path for checkpoint in checkpoints for file in checkpoint.files()}


def orphans(
    paths: JobPaths, listing: Iterable[str], needed: Container[str], generation: int, oldest_open_epoch: Epoch
) -> list[str]:
    """The state files of a listing that nobody needs.

    Args:
        paths: The job's paths.
        listing: Paths of state files; what is no state file of the job is left alone.
        needed: The paths that kept checkpoints refer to.
        generation: This driver's.
        oldest_open_epoch: The oldest epoch of this driver in which something may have been begun that is not yet in
            a completed checkpoint: the next checkpoint's id, or less while a background upload is under way.
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
    positions: Iterable[LogPosition], tail: LogPosition, oldest: LogPosition, takeovers: Collection[LogPosition]
) -> list[LogPosition]:
    """The positions of the log whose entries may go.

    Args:
        positions: Those that are there.
        tail: The last one.
        oldest: The oldest retained checkpoint.
        takeovers: Those of take-overs.
    """
    kept = set(takeovers)
    return [p for p in positions if p < oldest and p not in kept and not is_milestone(p, tail)]


def verify_files(storage: Storage, checkpoint: CheckpointMetadata) -> None:
    """Check that all files of a checkpoint are there, in their full length. Their content is checked when read.

    Raises:
        CorruptFile: one is missing or truncated.
        StorageError: the storage does not answer.
    """
    for file in {file.path: file for file in checkpoint.files()}.values():
        where = storage.locate(file.path)
        try:
            size = storage.size(file.path)
        except NotFound as error:
            raise CorruptFile(where, "missing") from error
        if size != file.size:
            raise CorruptFile(where, f"truncated or altered: {size} bytes instead of {file.size}")


class Retention:
    """Deletes what a driver's job no longer needs. Safe to use from several threads.

    One serves a driver for all its life, through every `CheckpointLog.take_over`. After a take-over, uploads that
    were begun before it must be dropped: their files are an earlier generation's. A deletion that fails is logged
    and made up for by a later sweep; it is no reason for a job to fail.
    """

    def __init__(self, storage: Storage, paths: JobPaths, log: CheckpointLog) -> None:
        self._storage = storage
        self._paths = paths
        self._log = log
        self._lock = threading.RLock()
        self._known: dict[CheckpointId, CheckpointMetadata] = {}
        self._references = References()
        self._holds: Counter[CheckpointId] = Counter()
        self._entries: set[LogPosition] = set()

    @contextmanager
    def hold(self, checkpoint_id: CheckpointId) -> Iterator[CheckpointMetadata]:
        """Keep a retained checkpoint's files while they are read.

        Raises:
            KeyError: the checkpoint is not retained.
        """
        with self._lock:
            self._learn()
            checkpoint = self._known[checkpoint_id]
            self._holds[checkpoint_id] += 1
        try:
            yield checkpoint
        finally:
            with self._lock:
                self._holds[checkpoint_id] -= 1

    def collect(self) -> int:
        """Delete what displaced checkpoints had for themselves; after each completed checkpoint.

        Returns:
            How many objects were deleted.
        """
        with self._lock:
            owned = self._learn()
            return self._delete([*self._surplus(owned), *self._forget(owned)])

    def sweep(self, oldest_open_epoch: Epoch | None = None) -> int:
        """Delete everything of the job that nobody needs; at the start, after failures, and now and then.

        Args:
            oldest_open_epoch: See `orphans`; by default the next checkpoint's id (no upload outlasts its epoch).

        Returns:
            How many objects were deleted.

        Raises:
            StorageError: the storage did not list its objects.
        """
        with self._lock:
            before = self._log.owned
            open_epoch = epoch_of(before.next_id) if oldest_open_epoch is None else oldest_open_epoch
            state = self._storage.list(self._paths.state_prefix)
            log = self._storage.list(self._paths.log_prefix)
            probes = self._storage.list(self._paths.probe_prefix)
            # Who owns the listed files is asked after the listing, which files may be old before it: a checkpoint
            # that is completed in between has its files in both answers.
            owned = self._learn()
            gone = self._forget(owned)
            log_parts = self._learn_entries(log, position_of(before.next_id))
            lost = set(orphans(self._paths, state, self._references, before.generation, open_epoch))
            doomed = [*self._surplus(owned), *log_parts, *self._old_probes(probes), *sorted(lost.union(gone))]
            return self._delete(doomed)

    def _learn(self) -> Ownership:
        """The state of the log; notes all checkpoints that are or were retained."""
        # In this order: what is displaced was so before the state that is read afterwards. The other way round, a
        # checkpoint completed in between would be unknown while one that it shares files with seems displaced.
        displaced = list(self._log.displaced())
        owned = self._log.owned
        for checkpoint in (*displaced, *owned.retained):
            if checkpoint.checkpoint_id not in self._known:
                self._known[checkpoint.checkpoint_id] = checkpoint
                self._references.add(checkpoint)
                self._entries.add(position_of(checkpoint.checkpoint_id))
        return owned

    def _forget(self, owned: Ownership) -> list[str]:
        """Forget the checkpoints that are neither retained nor held; returns the files that only they referred to."""
        retained = {c.checkpoint_id for c in owned.retained}
        gone = [c for i, c in self._known.items() if i not in retained and not self._holds[i]]
        files: list[str] = []
        for checkpoint in gone:
            del self._known[checkpoint.checkpoint_id]
            files += self._references.remove(checkpoint)
        return files

    def _learn_entries(self, listing: Iterable[str], end: LogPosition) -> list[str]:
        """Note which log entries there are; returns the part files of puts that are over."""
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
        """The log entries that may go."""
        if not owned.retained:
            return []
        oldest = position_of(owned.retained[-1].checkpoint_id)
        surplus = surplus_entries(self._entries, LogPosition(owned.next_id - 1), oldest, owned.takeovers)
        self._entries.difference_update(surplus)
        return [self._paths.log_entry(position) for position in sorted(surplus)]

    def _old_probes(self, listing: Iterable[str]) -> list[str]:
        """Probes of storage checks that were cut short; those of a driver that starts right now are left alone."""
        limit = time.time_ns() // 1_000_000 - _HOUR_MS
        return [path for path in listing if (self._paths.parse_probe(path) or limit) < limit]

    def _delete(self, paths: list[str]) -> int:
        try:
            self._storage.delete(paths)
        except StorageError as error:
            _logger.warning("Old checkpoint files were not deleted; the next clean-up will try again: %s", error)
            return 0
        return len(paths)
