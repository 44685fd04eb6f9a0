"""The checkpoint log: completed checkpoints and the ownership of the job, in one total order.

Each position of the log (1, 2, 3, ...) is one object, put if absent: a completed checkpoint, or a driver's take-over.
A driver completes a checkpoint by putting the position after its last one. A starting driver puts its take-over at the
end of the log; the older driver then finds its next position taken and is fenced. Of a completion and a take-over, exactly
one comes first, so the new driver restores exactly the checkpoints that the older one completed.

    position   1           2           3           4           5           6
               takeover    completed   completed   takeover    completed   ...
               by A        by A        by A        by B        by B
                                                   A's next completion fails: fenced

Take-overs stay forever, completions for a while (see `holdfast.checkpoint.milestones` and `retention`). A driver that slept
through any number of its successor's checkpoints therefore still finds its own next position taken.

The decisions are pure functions of the entries read (`holdfast.checkpoint.takeover`); `CheckpointLog` does the I/O. The
storage may have the log's objects in a topic (`holdfast.checkpoint.stores.log_router`).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from holdfast.checkpoint.container import pack
from holdfast.checkpoint.entries import (
    FORMAT_VERSION,
    CheckpointRecord,
    Completed,
    LogEntry,
    Takeover,
    encode_entry,
)
from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, LogPosition, checkpoint_at, position_of
from holdfast.checkpoint.log_reader import LogEnd, LogReader
from holdfast.checkpoint.manifests import StoredCheckpoint, load, rolled_up, successor
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.milestones import has_successor
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.savepoint import same_savepoint
from holdfast.checkpoint.stores.storage import AlreadyExists, Storage
from holdfast.checkpoint.takeover import (
    FromSavepoint,
    LogFacts,
    Start,
    after_takeover,
    newest_intact,
    next_takeover,
    started,
)
from holdfast.errors import CheckpointError, ConfigurationError, CorruptFile, Fenced

__all__ = ["CheckpointLog", "Ownership", "TakenOver"]

Verify = Callable[[CheckpointMetadata], None]
"""Raises CorruptFile if a checkpoint cannot be restored."""
_NOTED_S = 10.0  # seconds between two notes of what is visible, for a storage in a bucket
_Loaded = dict[CheckpointId, StoredCheckpoint | CorruptFile]


@dataclass(frozen=True)
class Ownership:
    """The owning driver's view of the log. Replaced as a whole, so that other threads always see a consistent one."""

    generation: int
    retained: tuple[CheckpointMetadata, ...]
    """The retained checkpoints, newest first, without damaged ones."""
    oldest: CheckpointId
    """The oldest checkpoint that the log's last entry refers to, damaged or not; later drivers read back to it. 0: none."""
    next_id: CheckpointId
    """The id of the next checkpoint to complete."""
    takeovers: tuple[LogPosition, ...]
    """The positions of all take-overs, this driver's last; their entries must stay."""
    requested: CheckpointId
    """The checkpoint of the user's last request to go back; 0: never requested."""
    savepoint: str
    """The name of the savepoint from which the job last started (`OpenSavepoint.name`); empty: none."""
    claim: bool = False
    """Whether that savepoint belongs to the job, and is not deleted yet."""
    trial: bool = False
    """Whether the start is on trial (see `holdfast.checkpoint.takeover`): nothing may be deleted."""


@dataclass(frozen=True)
class TakenOver:
    """The result of a take-over."""

    generation: int
    restored: CheckpointMetadata | None
    """The checkpoint to continue from; None: start with empty state."""
    next_id: CheckpointId
    """The id of the first checkpoint to complete."""
    begins_from_savepoint: bool
    """Whether the requested savepoint follows: its copy is the first checkpoint to complete."""
    job: str
    """The identity of the job, which is stored in its log and the same for all its drivers."""
    trial: bool
    """Whether the start is on trial (see `holdfast.checkpoint.takeover`)."""
    passed_over: CheckpointRecord | None
    """The job's own newest checkpoint, if the driver starts from another one. Its output is complete."""


class CheckpointLog(LogReader):
    """The log of one job, as seen by one driver. Thread-safe.

    Args:
        storage: The storage of the job's checkpoints.
        paths: The job's paths.
        num_retained: The number of completed checkpoints to retain (``execution.checkpointing.num-retained``).
        now_ms: The wall clock, in ms; only recorded.
    """

    def __init__(
        self,
        storage: Storage,
        paths: JobPaths,
        num_retained: int = 3,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(storage, paths, num_retained)
        self._now_ms = now_ms
        self._driver = new_attempt()
        self._lock = threading.RLock()
        self._owned: Ownership | None = None
        self._displaced: deque[CheckpointMetadata] = deque()
        self._stored: StoredCheckpoint | None = None
        """The newest retained checkpoint, with its layers."""
        self._settled = False
        """False while the outcome of a put is unknown, and once this driver is fenced."""
        self._noted = -_NOTED_S  # when `output_becomes_visible` last made a note

    @property
    def driver(self) -> str:
        """The name of this driver in its take-overs."""
        return self._driver

    @property
    def owned(self) -> Ownership:
        """This driver's view of the log since its take-over.

        Raises:
            CheckpointError: the driver has not taken over yet.
        """
        if self._owned is None:
            raise CheckpointError("this driver does not own the job: call take_over first")
        return self._owned

    @property
    def begun(self) -> bool:
        """Whether the driver has taken over, and so knows the job's checkpoints."""
        return self._owned is not None

    @property
    def retained(self) -> tuple[CheckpointMetadata, ...]:
        """The retained checkpoints, newest first; empty before the take-over."""
        owned = self._owned
        return () if owned is None else owned.retained

    def displaced(self) -> Iterator[CheckpointMetadata]:
        """The checkpoints that are no longer retained, each yielded once (for the retention's clean-up)."""
        while self._displaced:
            yield self._displaced.popleft()

    def take_over(
        self,
        verify: Verify | None = None,
        restore_from: CheckpointId | None = None,
        savepoint: FromSavepoint | None = None,
        judge: Callable[[CheckpointMetadata], object] = lambda checkpoint: None,
    ) -> TakenOver:
        """Become the job's driver; the previous driver is fenced from now on.

        The same driver calls it again after `complete` raised StorageError, and whenever it must return to the log's state.
        A driver that has lost the job meanwhile does not regain it.

        Args:
            verify: Raises CorruptFile if a checkpoint cannot be restored (`holdfast.checkpoint.retention.verify_files`
                checks that all files exist). An older checkpoint is used if that cannot harm the sinks.
            restore_from: Go back to this checkpoint at the user's request, whatever came after. A request takes effect once:
                later drivers with the same request continue from the newest checkpoint.
            savepoint: Start from this savepoint at the user's request. Takes effect once, like ``restore_from``.
            judge: Raises an error if the program cannot continue from a checkpoint. A driver that does not own the job yet
                calls it before it takes over: after an error, the owner continues, and the log stays as it is.

        Raises:
            CorruptFile: no checkpoint is usable; the message says what to do.
            ConfigurationError: checkpoint ``restore_from`` does not exist.
            Fenced: another driver took over at the same time or later.
            StorageError: the storage does not answer; retrying is safe.
        """
        with self._lock:
            facts, start, loaded = self._fence(restore_from, savepoint, verify, judge)
            self._settle(facts, start, loaded)

            def check(record: CheckpointRecord) -> None:
                found = loaded[record.checkpoint_id]
                if isinstance(found, CorruptFile):
                    raise found
                if verify:
                    verify(found.checkpoint)

            if start.candidates:
                try:
                    index = newest_intact(start.candidates, check, self.locate)
                except CorruptFile:
                    if self.still_mine():
                        raise
                    # The file is not damaged: another driver has taken over and deleted it.
                    raise self._fenced("another driver took over") from None
                if index > 0:
                    self._fall_back(facts, start, start.candidates[index:], loaded)
            owned = self.owned
            restored = owned.retained[0] if owned.retained else None
            newest = facts.completed[0] if start.trial and facts.completed else None
            if newest is not None and restored is not None and restored.checkpoint_id == newest.checkpoint_id:
                newest = None
            return TakenOver(owned.generation, restored, owned.next_id, start.copies, facts.job, start.trial, newest)

    def claim(self, seen: LogEnd) -> bool:
        """Take over from an owner that seems to be dead, unless the log has grown since its end was read.

        Of several drivers that have seen the same end, one succeeds; it must then call `take_over`. The owner is fenced,
        dead or not.

        Args:
            seen: The log's end as this driver has read it.

        Raises:
            CorruptFile: the log cannot be read.
            StorageError: the storage does not answer. Whether this driver owns the job is *unknown*: read the end again.
        """
        with self._lock:
            facts = self._at_the_end(seen.tail, self._read)
            if facts.owner == self._driver:  # an earlier claim succeeded, but its answer was lost
                self._settle(facts, Start(()), {})
                return True
            if facts.tail != seen.tail:
                return False
            record = next_takeover(facts, self._driver, self._now_ms())
            position = LogPosition(facts.tail + 1)
            try:
                self._storage.put_new(self._paths.log_entry(position), encode_entry(record))
                if has_successor(self._exists, position):
                    self._give_way(position, record)
                    return False
            except (AlreadyExists, Fenced):
                return False
            self._settle(after_takeover(facts, record), Start(()), {})
            return True

    def complete(self, checkpoint: CheckpointMetadata, savepoint: str = "") -> None:
        """Complete a checkpoint: the commit point. The id and generation must be this driver's next.

        Args:
            checkpoint: The checkpoint.
            savepoint: The savepoint of which it is a copy; empty for the checkpoint of an epoch, which ends a trial.

        Raises:
            Fenced: another driver has taken over; the checkpoint is not completed, and its output must not be committed.
            CheckpointError: the metadata cannot be stored; the checkpoint is not completed.
            StorageError: the storage did not answer. Whether the checkpoint exists is *unknown*: call `take_over`.
        """
        with self._lock:
            owned = self.owned
            if (checkpoint.checkpoint_id, checkpoint.generation) != (owned.next_id, owned.generation):
                raise CheckpointError(
                    f"checkpoint {checkpoint.checkpoint_id} of generation {checkpoint.generation} cannot be "
                    f"completed: the next is {owned.next_id} of generation {owned.generation}"
                )
            stored = rolled_up(self._storage, self._paths, successor(self._stored, checkpoint))
            older = () if owned.trial else owned.retained
            on_trial = owned.trial and bool(savepoint)
            retained = (stored.checkpoint, *older)[: self._num_retained]
            self._append(
                Completed(
                    format_version=FORMAT_VERSION,
                    generation=owned.generation,
                    checkpoint=stored.record,
                    oldest=retained[-1].checkpoint_id,
                    takeover=owned.takeovers[-1],
                    savepoint=savepoint or owned.savepoint,
                    trial=on_trial,
                    requested=owned.requested,
                    claim=owned.claim,
                )
            )
            self._stored = stored
            self._set(
                replace(
                    owned,
                    retained=retained,
                    oldest=retained[-1].checkpoint_id,
                    next_id=CheckpointId(owned.next_id + 1),
                    savepoint=savepoint or owned.savepoint,
                    trial=on_trial,
                )
            )

    def output_becomes_visible(self, checkpoint_id: CheckpointId) -> None:
        """Store a note, before a completed checkpoint's output is committed, that the log must not end before it.

        In a bucket, which loses nothing, not every call stores one: a request per checkpoint would cost too much.

        Raises:
            StorageError: the storage does not answer.
        """
        now = time.monotonic()
        if now >= self._noted + _NOTED_S or self._storage.in_file_system:
            self._storage.put(self._paths.visible, pack(str(checkpoint_id).encode()))
            self._noted = now

    def claimed(self) -> None:
        """Record in the next checkpoint that the claimed savepoint is deleted."""
        with self._lock:
            self._set(replace(self.owned, claim=False))

    def still_mine(self) -> bool:
        """Whether this driver still owns the job. Checked before a sink's commit, to fail early.

        The check does not make the commit safe, because the driver may be paused right after it. Commits are safe because
        the next driver commits the same committables, and because commits are idempotent.
        """
        with self._lock:
            return self._settled and not self._exists(position_of(self.owned.next_id))

    def is_last(self) -> bool:
        """Whether the log is known to end with this driver's last entry. Does not wait for a take-over or a completion."""
        return self._settled and not self._exists(position_of(self.owned.next_id))

    def check_ownership_at_once(self) -> None:
        """Like `check_ownership`, but does not wait for a thread that takes over or completes; that thread finds out itself.

        Raises:
            Fenced: another driver has taken over.
            StorageError: the storage does not answer.
        """
        if self._settled and self._exists(position_of(self.owned.next_id)) and self._lock.acquire(blocking=False):
            try:
                self.check_ownership()
            finally:
                self._lock.release()

    def check_ownership(self) -> None:
        """Check, after a failure, whether another driver owns the job and may have deleted the files that this driver needs.

        Raises:
            Fenced: another driver has taken over.
            StorageError: the storage does not answer.
        """
        with self._lock:
            if self._settled and self._exists(position_of(self.owned.next_id)):
                raise self._fenced("another driver took over")

    def _append(self, entry: LogEntry) -> None:
        """Put this driver's next entry at the log's end."""
        owned, data = self.owned, encode_entry(entry)
        if not self._settled:
            raise CheckpointError("whether this driver still owns the job is unknown: call take_over first")
        self._settled = False
        try:
            self._storage.put_new(self._paths.log_entry(position_of(owned.next_id)), data)
        except AlreadyExists:
            whose = "it has moved the log to a topic"
            with suppress(ConfigurationError):
                whose = f"generation {self._get(position_of(owned.next_id)).generation}; this one is {owned.generation}"
            raise self._fenced(f"another driver ({whose}) took over") from None
        self._settled = True

    def _fence(
        self,
        restore_from: CheckpointId | None,
        savepoint: FromSavepoint | None,
        verify: Verify | None,
        judge: Callable[[CheckpointMetadata], object],
    ) -> tuple[LogFacts, Start, _Loaded]:
        """Put a take-over at the log's end; returns the log's new state, and the checkpoint from which the driver starts."""
        hint = self._hint()
        while True:
            facts = self._at_the_end(hint, lambda tail: self._read_for(tail, restore_from, savepoint))
            if self._owned is not None and facts.owner != self._driver:
                self._settled = False
                raise self._fenced(f"another driver (generation {facts.generation}) took over")
            going_back = self._requested(restore_from) if restore_from and restore_from != facts.requested else None
            start = started(facts, going_back, savepoint)
            loaded = self._load(start.candidates)
            if start.trial and not start.copies and going_back is None and not _intact(loaded, verify):
                facts = replace(facts, copy=None)  # the savepoint will be copied again
                start, loaded = started(facts, None, savepoint), {}
            if not start.trial:
                facts = replace(facts, copy=None)
            newest = loaded[start.candidates[0].checkpoint_id] if start.candidates else None
            if self._owned is None and isinstance(newest, StoredCheckpoint):
                judge(newest.checkpoint)
            least = savepoint.generation if savepoint is not None and start.copies else 0
            record = next_takeover(facts, self._driver, self._now_ms(), least)
            hint = position = LogPosition(facts.tail + 1)
            try:
                self._storage.put_new(self._paths.log_entry(position), encode_entry(record))
            except AlreadyExists:
                continue  # the log has grown meanwhile
            if not has_successor(self._exists, position):
                return after_takeover(facts, record), start, loaded
            self._give_way(position, record)

    def _read_for(self, tail: LogPosition, restore_from: CheckpointId | None, savepoint: FromSavepoint | None) -> LogFacts:
        """Read the log's end for a driver with these requests of the user.

        If the end cannot be read, a new request is obeyed nevertheless: what was complete is unknown then, and the user has
        decided to start from elsewhere.
        """
        try:
            return self._read(tail)
        except CorruptFile:
            if self._owned is not None or not (restore_from or savepoint) or has_successor(self._exists, tail):
                raise
            facts = self._read_despite_damage(tail)
            back = restore_from == facts.requested
            if back if savepoint is None else same_savepoint(facts.savepoint, savepoint.name):
                raise
            return facts

    def _load(self, records: Sequence[CheckpointRecord]) -> _Loaded:
        """Load the checkpoints by id; for corrupt metadata, the error instead."""
        layers = dict(() if self._stored is None else ((h.path, layer) for h, layer in self._stored.manifests))
        loaded: _Loaded = {}
        for record in records:
            try:
                found = load(self._storage, record, layers)
            except CorruptFile as error:
                loaded[record.checkpoint_id] = error
                continue
            loaded[record.checkpoint_id] = found
            layers.update((handle.path, layer) for handle, layer in found.manifests)
        return loaded

    def _settle(self, facts: LogFacts, start: Start, loaded: _Loaded) -> None:
        found = [loaded[record.checkpoint_id] for record in start.candidates]
        intact = [stored for stored in found if isinstance(stored, StoredCheckpoint)]
        self._stored = intact[0] if intact else None
        self._set(
            Ownership(
                generation=facts.generation,
                retained=tuple(stored.checkpoint for stored in intact),
                oldest=min((record.checkpoint_id for record in start.candidates), default=NO_CHECKPOINT),
                next_id=checkpoint_at(LogPosition(facts.tail + 1)),
                takeovers=facts.takeovers,
                requested=start.requested,
                savepoint=start.savepoint,
                claim=start.claim,
                trial=start.trial,
            )
        )
        self._settled = True

    def _set(self, owned: Ownership) -> None:
        before, self._owned = self._owned, owned
        if before is not None:
            retained = {checkpoint.checkpoint_id for checkpoint in owned.retained}
            self._displaced.extend(c for c in before.retained if c.checkpoint_id not in retained)

    def _fall_back(self, facts: LogFacts, start: Start, intact: tuple[CheckpointRecord, ...], loaded: _Loaded) -> None:
        """Record for all later drivers that an older checkpoint than the newest one is used."""
        facts = replace(facts, completed=intact)
        record = next_takeover(facts, self._driver, self._now_ms())
        self._append(record)
        self._settle(after_takeover(facts, record), replace(start, candidates=intact), loaded)

    def _give_way(self, position: LogPosition, record: Takeover) -> None:
        """Handle a log that continues after this driver's take-over.

        Either another driver took over right after. Or this driver was paused between finding the log's end and putting its
        record; meanwhile the log grew and the old entry at that position was deleted. Then the record is misplaced and
        must be deleted.
        """
        if self._at_the_end(position, lambda tail: self._get(tail).generation) > record.generation:
            raise self._fenced("another driver took over at the same time")
        self._storage.delete([self._paths.log_entry(position)])

    def _fenced(self, what: str) -> Fenced:
        return Fenced(
            f"{what}: this driver of the job {self._paths.directory} stops. Is the job running twice? Jobs that share "
            "a storage need different names"
        )


def _intact(loaded: _Loaded, verify: Verify | None) -> bool:
    """Whether all of these checkpoints can be restored."""
    try:
        for found in loaded.values():
            if isinstance(found, CorruptFile):
                return False
            if verify:
                verify(found.checkpoint)
    except CorruptFile:
        return False
    return True
