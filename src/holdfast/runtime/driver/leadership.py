"""Leadership: of a job's concurrent drivers, one owns the job and the others stand by.

The owner writes a heartbeat beside the checkpoint log. A standby driver takes over when the owner reports that it has
stepped down, or when neither heartbeat nor log have changed for a while *by the standby's own clock*: clocks are never
compared. The heartbeat only decides when a driver tries. The log decides who owns the job: a take-over is written only if
the log has not grown since (`CheckpointLog.claim`), and it fences the old owner, dead or not.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from enum import Enum, auto

import msgspec

from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.log_reader import LogEnd
from holdfast.checkpoint.parsing import PARSE_ERRORS
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import NotFound, RetryPolicy, Storage
from holdfast.errors import CorruptFile, Fenced, IncompatibleState, StorageError
from holdfast.runtime.driver.launch import Launch
from holdfast.runtime.plan.settings import HeartbeatSettings

__all__ = ["UNKNOWN_HOST", "Heartbeat", "Leadership", "Watch"]

log = logging.getLogger("holdfast")

FAILED = "FAILED"
STEPPED_DOWN = "SUSPENDED"
"""The final state of a driver that leaves the job to another driver."""


UNKNOWN_HOST = "another host"
"""Stands for the owner's host as long as no heartbeat was seen."""
_MOST_POLLS = 4
"""Limit of the time that counts between two observations, in poll intervals: on a busy machine observations come late."""


class Heartbeat(msgspec.Struct, frozen=True, omit_defaults=True):
    """Written by the driver that owns the job, at intervals."""

    job_id: str
    host: str
    number: int = 0
    """Counts the heartbeats, so that successive ones differ."""
    state: str = ""
    """The final state; empty while the driver owns the job."""
    failure: str = ""
    """The failure that ended the job, with the user's traceback."""


class Watch:
    """How long nothing has changed, by the watcher's own clock. Pure.

    The time between two observations counts only up to a limit: a watcher that was paused, or could not reach the storage,
    does not know whether the owner was silent meanwhile.
    """

    def __init__(self, most: float) -> None:
        """``most``: the limit of the time that counts between two observations, in seconds."""
        self._most = most
        self._last: object = None
        self._at: float | None = None
        self.silent = 0.0
        """Seconds without a change."""

    def accept(self, evidence: object) -> None:
        """Treat this as already seen: when it changed is unknown."""
        self._last = evidence

    def observe(self, evidence: object, now: float) -> None:
        """Record an observation at a time of the watcher's clock."""
        if evidence != self._last:
            self._last, self.silent = evidence, 0.0
        elif self._at is not None:
            self.silent += min(now - self._at, self._most)
        self._at = now


class _Verdict(Enum):
    WAIT = auto()
    CLAIM = auto()
    ENDED = auto()


def _verdict(beat: Heartbeat | None, vacant: bool, dead: bool) -> _Verdict:
    """Decide what a standby driver does.

    Args:
        beat: The owner's heartbeat; None: it has none.
        vacant: Whether the job had no owner, or had ended, before the user started this driver, which starts it again.
        dead: Whether the owner is dead.
    """
    if vacant or dead or (beat is not None and beat.state == STEPPED_DOWN):
        return _Verdict.CLAIM
    return _Verdict.ENDED if beat is not None and beat.state else _Verdict.WAIT


class Leadership:
    """One driver's part: it stands by, or owns the job, and tells the others how the job has ended.

    Args:
        storage: The storage of the job's checkpoints.
        paths: The job's paths.
        checkpoint_log: This driver's log.
        job_id: The job's id in this driver.
        settings: When an owner counts as dead.
        died: Whether the driver of a job with this id is known to have died on this machine.
        launch: The launch of this driver; None if its user started it once.
    """

    def __init__(
        self,
        storage: Storage,
        paths: JobPaths,
        checkpoint_log: CheckpointLog,
        job_id: str,
        settings: HeartbeatSettings,
        died: Callable[[str], bool],
        launch: Launch | None = None,
    ) -> None:
        self._patient = storage
        self._storage = storage.with_retries(RetryPolicy(settings.interval, 0.1, 0.5))
        self._paths = paths
        self._log = checkpoint_log
        self._beat = Heartbeat(job_id, socket.gethostname())
        self._settings = settings
        self._died = died
        self._launch = launch
        self._given_up = threading.Event()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._end: LogEnd | None = None
        self._owners: Heartbeat | None = None
        self._reads_log = False
        """Whether the latest observation read the log's end again."""
        self._verdict: _Verdict | None = None
        """The latest verdict; None before the first observation."""
        self._vacant: str | None = None
        """The owner with which the job had ended before this launch; empty: it had none; None: it had a live one."""
        self._watch = Watch(_MOST_POLLS * settings.poll)

    @property
    def owner(self) -> str:
        """The host of the driver that owns the job, if known."""
        return self._owners.host if self._owners is not None else UNKNOWN_HOST

    @property
    def leads(self) -> bool:
        """Whether this driver has become the job's owner."""
        return self._thread is not None

    def look(self) -> bool:
        """Check once, without taking over, whether the job seems to have no owner.

        Raises:
            CorruptFile: the log cannot be read.
        """
        self._look()
        return self._verdict is _Verdict.CLAIM

    def stand_by(self, lost: Callable[[Exception], None]) -> Heartbeat | None:
        """Wait until this driver owns the job; it then writes heartbeats.

        Args:
            lost: Called in another thread, with the error, when another driver takes the job over.

        Returns:
            None: this driver owns the job, or was told to stop. Otherwise the last heartbeat of the owner that ended the
                job.

        Raises:
            CorruptFile: the log cannot be read.
        """
        if self._verdict is None:
            self._look()
        while not self._given_up.is_set():
            if self._verdict is _Verdict.ENDED:
                return self._owners
            if self._verdict is _Verdict.CLAIM and self._claim():
                self._lead(lost)
                return None
            self._given_up.wait(self._settings.poll)
            self._look()
        return None

    def stop(self) -> None:
        """Make `stand_by` return soon; an owner continues. Thread-safe."""
        self._given_up.set()

    def end(self, state: str, failure: str = "") -> None:
        """Tell the standby drivers how the job has ended here; does nothing unless this driver owns it. Never raises."""
        self._ended.set()
        if self._thread is None:
            return
        self._thread.join()
        beat = msgspec.structs.replace(self._beat, number=self._beat.number + 1, state=state, failure=failure)
        try:
            self._put(self._patient, beat)
        except StorageError as error:
            log.warning("the standby drivers were not told that the job has ended (%s): %s", state, error)

    # standing by

    def _look(self) -> None:
        try:
            end, beat = self._observe()
        except CorruptFile:
            raise
        except StorageError as error:
            log.debug("the job's owner cannot be observed: %s", error)
            self._verdict = self._verdict and _Verdict.WAIT
            return
        if self._end is None:
            self._vacant = self._ended_before(end, beat)
        self._end, self._owners = end, beat
        self._watch.observe((end, beat), time.monotonic())
        dead = self._watch.silent >= self._settings.timeout
        if not dead and beat is not None and beat.host == self._beat.host:
            dead = self._died(beat.job_id)
        self._verdict = _verdict(beat, end.owner == self._vacant, dead)

    def _ended_before(self, end: LogEnd, beat: Heartbeat | None) -> str | None:
        vacant = end.owner if not end.owner or (beat is not None and beat.state) else None
        if self._launch is None:
            return vacant
        first = self._launch.ended_before(f"{self._storage.uri}/{self._paths.directory}", vacant)
        failed = beat is not None and beat.state == FAILED
        return vacant if failed and self._launch.restarts_failed else first

    def _observe(self) -> tuple[LogEnd, Heartbeat | None]:
        """The log's end, read only if the heartbeat is late, and the owner's heartbeat."""
        end = self._end or self._log.end()
        beat = self._read(end.owner)
        late = self._watch.silent > 1.5 * self._settings.interval
        read_before, self._reads_log = self._reads_log, beat is None or bool(beat.state) or (beat == self._owners and late)
        if self._reads_log:
            newer = self._log.end(end)
            if newer.owner != end.owner:
                beat = self._read(newer.owner)
            elif beat == self._owners and not read_before:
                self._watch.accept((newer, beat))  # the log grew while there were heartbeats
            end = newer
        return end, beat

    def _read(self, owner: str) -> Heartbeat | None:
        if not owner:
            return None
        path = self._paths.heartbeat(owner)
        try:
            data = self._storage.get(path)
        except NotFound:
            return None
        try:
            return msgspec.msgpack.decode(unpack(data, self._storage.locate(path)), type=Heartbeat)
        except (CorruptFile, IncompatibleState, *PARSE_ERRORS) as error:
            log.debug("the owner's heartbeat cannot be read: %s", error)
            return None

    def _claim(self) -> bool:
        assert self._end is not None
        try:
            return self._log.claim(self._end)
        except CorruptFile:
            raise
        except StorageError as error:
            log.debug("the job cannot be claimed: %s", error)
            return False

    # leading

    def _lead(self, lost: Callable[[Exception], None]) -> None:
        self._thread = threading.Thread(target=self._keep_beating, args=(lost,), name="holdfast-heartbeat", daemon=True)
        self._thread.start()

    def _keep_beating(self, lost: Callable[[Exception], None]) -> None:
        try:
            forgotten = False
            while not self._ended.is_set():
                forgotten = forgotten or self._forget_earlier_owners()
                self._beat_once()
                self._ended.wait(self._settings.interval)
        except Exception as error:
            lost(error)

    def _beat_once(self) -> None:
        self._beat = msgspec.structs.replace(self._beat, number=self._beat.number + 1)
        try:
            self._put(self._storage, self._beat)
            self._log.check_ownership_at_once()
        except Fenced:
            raise
        except StorageError as error:
            log.warning("no heartbeat: %s. A standby driver may take over", error)

    def _forget_earlier_owners(self) -> bool:
        """Delete the heartbeats of earlier owners, unless a later owner may have one; returns whether it did so."""
        own = self._paths.heartbeat(self._log.driver)
        try:
            earlier = [path for path in self._storage.list(self._paths.leader_prefix) if path != own]
            if not self._log.is_last():  # read after the listing, so that the listing has no heartbeat of a later owner
                return False
            self._storage.delete(earlier)
        except StorageError as error:
            log.debug("heartbeats of earlier owners stay: %s", error)
        return True

    def _put(self, storage: Storage, beat: Heartbeat) -> None:
        storage.put(self._paths.heartbeat(self._log.driver), pack(msgspec.msgpack.encode(beat)))
