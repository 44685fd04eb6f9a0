"""JobRecord: the record of a user's job on this machine, by which the command line finds it without a port.

A driver writes a record when its job starts, keeps it locked while the job lives, and rewrites it when the job ends. An
unlocked record without a final state belongs to a driver that died.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import msgspec

from holdfast.checkpoint.parsing import PARSE_ERRORS
from holdfast.common.system.directories import make_directories
from holdfast.errors import ConfigurationError
from holdfast.runtime.host.local_directory import LocalDirectory, temporary_directory

__all__ = ["DIED", "JobRecord", "Registration", "died", "records", "register", "starts_again", "user_directory"]

_log = logging.getLogger("holdfast")

_KEPT = 50
"""The most records of ended jobs to keep."""

DIED = "DIED"
"""The state of a job whose driver ended without recording one (``kill -9``, power loss)."""


class JobRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job of this user on this machine."""

    job_id: str
    name: str
    pid: int
    """The driver's process id."""
    host: str
    url: str
    """The address of the driver's REST API."""
    token: str
    """The token that requests need in order to change the job."""
    started_ms: int
    certificate: str = ""
    """The certificate of the REST API, as PEM; empty without TLS."""
    keystore: str = ""
    """The file with the client certificate that requests must show; empty if they need none."""
    program: str = ""
    """The program's path."""
    checkpoints: str = ""
    """The URI of the checkpoint storage; empty if the job keeps none."""
    slots: str = ""
    """The local directory with the logs of the job's task slots."""
    log: str = ""
    """The log file of `holdfast run`; empty if another command started the program."""
    launch: str = ""
    """The id of the `holdfast run` that started the program."""
    stands_by_for: str = ""
    """The host of the job's owner, while this driver stands by; empty if this driver owns the job."""
    attempts: int = 0
    """While `holdfast run --restart always` pauses before it starts the job again: the number of its starts so far, with
    that command's process as ``pid``, and the latest attempt's failure as ``failure``. Otherwise 0.
    """
    state: str = ""
    """The final state; empty while the job lives."""
    ended_ms: int = 0
    failure: str = ""
    """The failure that ended the job, with the user's traceback."""


class Registration:
    """The record of a running job, locked by its driver.

    Args:
        path: The record's file.
        record: The record.

    Raises:
        OSError: the record cannot be written.
    """

    def __init__(self, path: Path, record: JobRecord) -> None:
        self._path, self._record = path, record
        self._file: IO[Any] | None = _written(path, record, lock=True)

    def change(self, record: JobRecord) -> None:
        """Replace the record of the running job. Never raises."""
        if self._file is None:
            return
        try:
            file = _written(self._path, record, lock=True)
        except OSError as error:
            _log.warning("the record of job %r in %s was not changed: %s", record.name, self._path, error)
            return
        self._file.close()
        self._file, self._record = file, record

    def end(self, state: str, failure: str = "") -> None:
        """Write the job's final state and release the record. Never raises: the job is over."""
        if self._file is None:
            return
        final = msgspec.structs.replace(
            self._record,
            state=state,
            ended_ms=time.time_ns() // 1_000_000,
            failure=failure,
            token="",
            stands_by_for="",
            attempts=0,
        )
        try:
            _written(self._path, final)
        except OSError as error:
            _log.warning("the final state of job %r could not be written to %s: %s", self._record.name, self._path, error)
        self._file.close()
        self._file = None


def user_directory() -> LocalDirectory:
    """The directory of this user's jobs and logs: ``~/.local/state/holdfast`` (honours ``XDG_STATE_HOME``).

    Without a home that can be written to, as in some containers, it is in the temporary directory.
    """
    parent = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    try:
        make_directories(parent, 0o700)
        usable = os.access(parent, os.W_OK)
    except OSError:
        usable = False
    return LocalDirectory(parent, os.path.join(parent, "holdfast")) if usable else temporary_directory("user")


def register(record: JobRecord) -> Registration | None:
    """Make a job known to the command line; None, with a logged warning, if that is impossible."""
    try:
        directory = _directory()
        _forget_old(directory)
        return Registration(directory / f"{record.job_id}.json", record)
    except (OSError, ConfigurationError) as error:
        _log.warning("the command line will not find job %r: %s", record.name, error)
        return None


def starts_again(record: JobRecord, attempts: int) -> Registration | None:
    """Keep an ended job's record as that of a job which this process will start again.

    Returns None, with a logged warning, if that is impossible.
    """
    paused = msgspec.structs.replace(
        record,
        pid=os.getpid(),
        url="",
        token="",
        state="",
        ended_ms=0,
        attempts=attempts,
        failure=record.failure or record.state,
    )
    return register(paused)


def records() -> list[JobRecord]:
    """The known jobs of this user on this machine, the latest first.

    Raises:
        ConfigurationError: the directory is open to other users.
        OSError: it cannot be read.
    """
    found = [record for path in _directory().glob("*.json") if (record := _read(path)) is not None]
    here = socket.gethostname()
    return sorted((record for record in found if record.host == here), key=lambda record: -record.started_ms)


def died(job_id: str) -> bool:
    """Whether a job's driver is known to have died on this machine: it has a record, and no longer holds its lock."""
    try:
        record = _read(_directory() / f"{job_id}.json")
    except (OSError, ConfigurationError):
        return False
    return record is not None and (record.state == DIED or record.attempts > 0)


def _directory() -> Path:
    directory = Path(user_directory().make(), "jobs")
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _written(path: Path, record: JobRecord, *, lock: bool = False) -> IO[Any] | None:
    """Write a record atomically, readable only by its owner; returns the open file if it is to stay locked."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".")  # mkstemp sets mode 0600
    file = os.fdopen(handle, "wb")
    try:
        file.write(msgspec.json.encode(record))
        file.flush()
        if lock:
            fcntl.flock(file, fcntl.LOCK_EX)
        os.replace(name, path)
    except BaseException:
        file.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    if lock:
        return file
    file.close()
    return None


def _read(path: Path) -> JobRecord | None:
    """The record; None if it was removed just now, or was written by another release."""
    try:
        with path.open("rb") as file:
            record = msgspec.json.decode(file.read(), type=JobRecord)
            if record.state or _locked(file):
                return record
            ended = round(os.fstat(file.fileno()).st_mtime * 1000)
    except (FileNotFoundError, *PARSE_ERRORS):
        return None
    return msgspec.structs.replace(record, state=DIED, ended_ms=ended, token="")


def _locked(file: IO[Any]) -> bool:
    """Whether the driver that wrote this record is alive."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _forget_old(directory: Path) -> None:
    ended = [(path, record) for path in directory.glob("*.json") if (record := _read(path)) is not None and record.state]
    for path, record in sorted(ended, key=lambda each: -each[1].started_ms)[_KEPT:]:
        path.unlink(missing_ok=True)
        if record.log:
            Path(record.log).unlink(missing_ok=True)
