"""The names of all stored objects. No other module builds or takes apart a path.

    <storage uri>/<job directory>/
        log/00000000000000000017                       one position of the checkpoint log
        state/0000000003-00000000000000000018-<operator>-<subtask>-<attempt>.<kind>
        check/<time>-<attempt>                         by which a storage is tried out; gone at once

A state file's name carries the generation of the driver and the epoch in which it was begun, so that what a dead
driver or attempt left behind is recognised by its name alone. Names are never used twice: the attempt is unique.
"""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import xxhash

from holdfast.checkpoint.ids import CheckpointId, Epoch, LogPosition
from holdfast.errors import ConfigurationError

__all__ = ["JobPaths", "StateFileName", "new_attempt", "restored_position", "safe_name"]

_LONGEST = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_STATE_FILE = re.compile(r"(\d{10})-(\d{20})-(.+)-(\d{5})-([0-9a-z]+)\.([a-z]+)")
_PROBE = re.compile(r"(\d{15})-[0-9a-f]{32}")
_LOG_ENTRY = re.compile(r"\d{20}")
PART_SUFFIX = ".part"
"""Ends the names of files that a local store has not finished (`<name>.<random>.part`)."""
_PART = re.compile(r"(.+)\.[0-9a-z]+\.part")


def safe_name(name: str) -> str:
    """A name for files that is valid everywhere and differs for different names.

    >>> safe_name("fraud-alerts")
    'fraud-alerts'
    >>> safe_name("Zahlungen / Minute")
    'Zahlungen-Minute-161bfbcf'
    """
    safe = _UNSAFE.sub("-", name).strip("-.")[:_LONGEST]
    if safe == name and safe:
        return safe
    # Something was lost on the way, so that two names may have become one: the hash tells them apart.
    return f"{safe or 'job'}-{xxhash.xxh3_64_hexdigest(name.encode())[:8]}"


def restored_position(path: str, log: str) -> CheckpointId:
    """The checkpoint that `execution.state-recovery.path` names.

    >>> restored_position("file:///data/job/log/00000000000000000017", "/data/job/log")
    17

    Args:
        path: The full name of a log entry, or its number alone.
        log: The full name of the directory of the job's log.

    Raises:
        ConfigurationError: it names no checkpoint, or one of another job or storage.
    """
    match = re.fullmatch(r"(?:(.*)/)?0*(\d{1,20})/*", path.strip())
    example = f"{log.rstrip('/')}/{17:020d}"
    if match is None:
        raise ConfigurationError(f"execution.state-recovery.path is {path!r}; it must name a checkpoint, as {example}")
    directory, number = match.groups()
    if directory is not None and _place(directory) != _place(log):
        raise ConfigurationError(
            f"execution.state-recovery.path is {path!r}: a checkpoint of another job or another storage. This job's are "
            f"named like {example}. A checkpoint is restored by the job that made it: set pipeline.name and "
            "execution.checkpointing.dir to that job's"
        )
    return CheckpointId(int(number))


def _place(uri: str) -> str:
    """A directory's name, the same however it is written."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        return os.path.realpath(unquote(parts.path) if parts.scheme else uri)
    return f"{parts.scheme.replace('s3a', 's3')}://{parts.netloc}/{parts.path.strip('/')}"


def new_attempt() -> str:
    """A name for one attempt to do something, unlike every other ever made."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class StateFileName:
    """What a state file's name says."""

    generation: int
    epoch: Epoch
    operator: str
    subtask: int
    attempt: str
    kind: str


@dataclass(frozen=True)
class JobPaths:
    """The paths of one job, relative to the storage's URI."""

    directory: str

    @classmethod
    def of(cls, job_name: str) -> JobPaths:
        """The paths of the job with this name."""
        return cls(safe_name(job_name))

    @property
    def log_prefix(self) -> str:
        """Under which the log's entries are."""
        return f"{self.directory}/log/"

    @property
    def state_prefix(self) -> str:
        """Under which the state files are."""
        return f"{self.directory}/state/"

    @property
    def probe_prefix(self) -> str:
        """Under which the objects are by which a storage is tried out."""
        return f"{self.directory}/check/"

    def probe(self, now_ms: int) -> str:
        """A new object to try a storage out."""
        return f"{self.probe_prefix}{now_ms:015d}-{new_attempt()}"

    def parse_probe(self, path: str) -> int | None:
        """When a probe was made (ms since 1970); None if the path is none."""
        name = self._name_in(self.probe_prefix, path)
        match = _PROBE.fullmatch(name) if name else None
        return int(match.group(1)) if match else None

    def log_entry(self, position: LogPosition) -> str:
        """The log's entry at a position (1, 2, 3, ...)."""
        return f"{self.log_prefix}{position:020d}"

    def state_file(self, generation: int, epoch: int, uid: str, subtask: int, attempt: str, kind: str) -> str:
        """A new state file.

        Args:
            generation: The generation of the driver that planned the work.
            epoch: The epoch in which the work began. A file of a background upload keeps the epoch of its beginning.
            uid: The operator's uid.
            subtask: The subtask's number.
            attempt: Unique to this attempt (see `new_attempt`); a task that writes several files of one kind makes
                one attempt for each.
            kind: The file's role in lower-case letters, e.g. ``delta``, ``base``, ``sst``.
        """
        return f"{self.state_prefix}{generation:010d}-{epoch:020d}-{safe_name(uid)}-{subtask:05d}-{attempt}.{kind}"

    def manifest(self, generation: int, epoch: Epoch) -> str:
        """A new manifest of checkpoint metadata, among the state files: it is kept and swept like them."""
        return self.state_file(generation, epoch, "metadata", 0, new_attempt(), "manifest")

    def parse_log_entry(self, path: str) -> LogPosition | None:
        """The position that a path (or its unfinished part file) belongs to; None if it is no log entry."""
        name = self._name_in(self.log_prefix, path)
        return LogPosition(int(name)) if name and _LOG_ENTRY.fullmatch(name) else None

    def parse_state_file(self, path: str) -> StateFileName | None:
        """What the path of a state file (or of its unfinished part file) says; None if it is no state file."""
        name = self._name_in(self.state_prefix, path)
        match = _STATE_FILE.fullmatch(name) if name else None
        if match is None:
            return None
        generation, epoch, operator, subtask, attempt, kind = match.groups()
        return StateFileName(int(generation), Epoch(int(epoch)), operator, int(subtask), attempt, kind)

    @staticmethod
    def part_file(path: str) -> str:
        """Where a local store gathers the bytes of ``path`` before it gives them that name."""
        return f"{path}.{uuid.uuid4().hex[:12]}{PART_SUFFIX}"

    @staticmethod
    def is_part(path: str) -> bool:
        """Whether the path is one of `part_file`."""
        return path.endswith(PART_SUFFIX)

    @staticmethod
    def _name_in(prefix: str, path: str) -> str | None:
        if not path.startswith(prefix):
            return None
        name = path[len(prefix) :]
        match = _PART.fullmatch(name)
        return match.group(1) if match else name
