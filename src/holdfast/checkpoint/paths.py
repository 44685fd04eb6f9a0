"""The names of all stored objects. Only this module builds and parses paths.

    <storage uri>/<job directory>/
        log/00000000000000000017                       one position of the checkpoint log
        kept/00000000000000000017                      the same, of a log in a topic whose record is deleted
        visible                                        the newest position of the log whose output may be visible
        state/0000000003-00000000000000000018-<operator>-<subtask>-<attempt>.<kind>
        check/<time>-<attempt>                         a probe object that tests the storage; deleted at once
        holds/<checkpoint>-<seconds>-<hold>            a checkpoint in use by a reader outside the driver
        leader/<driver>                                the heartbeat of the driver that owns the job
        slots/<host>-<process>                         a task slot's report of a task that is stuck; deleted when it goes on
        history/<start>-<job id>                       the pages of one run of the job, for the dashboard

A state file's name contains the generation of the driver and the epoch in which the write began, so the leftovers of dead
drivers and attempts are recognisable by name. Names are never reused: the attempt is unique.
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

__all__ = [
    "STORES",
    "HoldName",
    "JobPaths",
    "StateFileName",
    "canonical_uri",
    "entry_in",
    "manifest_in",
    "names_checkpoint",
    "new_attempt",
    "restored_position",
    "safe_name",
    "split_uri",
]

STORES = ("s3", "s3a", "gs", "hdfs", "abfs", "abfss", "wasb", "wasbs")
"""The URI schemes of object stores and HDFS."""
_ALIASES = {"s3a": "s3", "abfs": "abfss", "wasb": "abfss", "wasbs": "abfss"}
"""Aliases of the stores' URI schemes."""
_LONGEST = 80
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")
_STATE_FILE = re.compile(r"(\d{10})-(\d{20})-(.+)-(\d{5})-([0-9a-z]+)\.([a-z]+)")
_PROBE = re.compile(r"(\d{15})-[0-9a-f]{32}")
_HOLD = re.compile(r"(\d{20})-(\d+)-([0-9a-f]{32})")
_MANIFEST = "manifest"
_LOG_ENTRY = re.compile(r"\d{20}")
PART_SUFFIX = ".part"
"""Suffix of a local store's unfinished files (`<name>.<random>.part`)."""
_PART = re.compile(r"(.+)\.[0-9a-z]+\.part")


def safe_name(name: str) -> str:
    """A file name that is valid everywhere and distinct for distinct names.

    >>> safe_name("fraud-alerts")
    'fraud-alerts'
    >>> safe_name("Zahlungen / Minute")
    'Zahlungen-Minute-161bfbcf'
    """
    safe = _UNSAFE.sub("-", name).strip("-.")[:_LONGEST]
    if safe == name and safe:
        return safe
    # Characters were replaced or cut, so two names may have become equal; the hash keeps them distinct.
    return f"{safe or 'job'}-{xxhash.xxh3_64_hexdigest(name.encode())[:8]}"


def names_checkpoint(path: str) -> bool:
    """Whether `execution.state-recovery.path` names a checkpoint, by its number; if not, it names a savepoint.

    >>> names_checkpoint("s3://bucket/job/log/00000000000000000017"), names_checkpoint("s3://bucket/savepoint-5e1f07-ab")
    (True, False)
    """
    return re.fullmatch(r"\d{1,20}", path.strip().rstrip("/").rpartition("/")[2]) is not None


def restored_position(path: str, log: str) -> CheckpointId:
    """Parse the checkpoint id in `execution.state-recovery.path`.

    >>> restored_position("file:///data/job/log/00000000000000000017", "/data/job/log")
    17

    Args:
        path: The full name of a log entry, or its number alone.
        log: The full name of the job's log directory.

    Raises:
        ConfigurationError: the path is not a checkpoint of this job and storage.
    """
    match = re.fullmatch(r"(?:(.*)/)?0*(\d{1,20})/*", path.strip())
    example = f"{log.rstrip('/')}/{17:020d}"
    if match is None:
        raise ConfigurationError(f"execution.state-recovery.path is {path!r}; it must name a checkpoint, as {example}")
    directory, number = match.groups()
    if directory is not None and canonical_uri(directory) != canonical_uri(log):
        raise ConfigurationError(
            f"execution.state-recovery.path is {path!r}: a checkpoint of another job or another storage. This job's are "
            f"named like {example}. A checkpoint is restored by the job that made it: set pipeline.name and "
            "execution.checkpointing.dir to that job's"
        )
    return CheckpointId(int(number))


def canonical_uri(uri: str) -> str:
    """The canonical form of a directory's URI."""
    parts = urlsplit(uri)
    if parts.scheme in ("", "file"):
        return os.path.realpath(unquote(parts.path) if parts.scheme else uri)
    scheme, authority, path = split_uri(uri)
    return f"{scheme}://{authority}/{path}"


def split_uri(uri: str) -> tuple[str, str, str]:
    """Split a store's URI into the canonical scheme; the bucket, container or host; and the path in it, as written.

    >>> split_uri("s3a://bucket/team #1/")
    ('s3', 'bucket', 'team #1')
    """
    scheme, _, rest = uri.partition("://")
    authority, _, path = rest.partition("/")
    return _ALIASES.get(scheme.lower(), scheme.lower()), authority, path.strip("/")


def new_attempt() -> str:
    """A globally unique name for one attempt."""
    return uuid.uuid4().hex


@dataclass(frozen=True)
class StateFileName:
    """The parts of a state file's name."""

    generation: int
    epoch: Epoch
    operator: str
    subtask: int
    attempt: str
    kind: str


@dataclass(frozen=True)
class HoldName:
    """The parts of a stored hold's name."""

    checkpoint_id: CheckpointId
    seconds: int
    """How long the hold lasts, from its start or from the start of a later driver."""
    id: str


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
        """Prefix of the log's entries."""
        return f"{self.directory}/log/"

    @property
    def visible(self) -> str:
        """The path of the newest log position whose output may be visible: a log that ends before it has lost entries."""
        return f"{self.directory}/visible"

    @property
    def state_prefix(self) -> str:
        """Prefix of the state files."""
        return f"{self.directory}/state/"

    @property
    def probe_prefix(self) -> str:
        """Prefix of probe objects, written to test the storage."""
        return f"{self.directory}/check/"

    @property
    def holds_prefix(self) -> str:
        """Prefix of stored holds."""
        return f"{self.directory}/holds/"

    def hold(self, name: HoldName) -> str:
        """The path of a hold."""
        return f"{self.holds_prefix}{name.checkpoint_id:020d}-{name.seconds}-{name.id}"

    def parse_hold(self, path: str) -> HoldName | None:
        """Parse the path of a hold or its unfinished part file; None if it is not a hold."""
        name = self._name_in(self.holds_prefix, path)
        match = _HOLD.fullmatch(name) if name else None
        return HoldName(CheckpointId(int(match.group(1))), int(match.group(2)), match.group(3)) if match else None

    @property
    def leader_prefix(self) -> str:
        """Prefix of drivers' heartbeats."""
        return f"{self.directory}/leader/"

    def heartbeat(self, driver: str) -> str:
        """The path of the heartbeat of a driver that owns, or has owned, the job."""
        return f"{self.leader_prefix}{driver}"

    @property
    def standstills_prefix(self) -> str:
        """Prefix of the task slots' reports of long tasks."""
        return f"{self.directory}/slots/"

    def standstill(self, host: str, process: int) -> str:
        """The path of a task slot's report of its task."""
        return f"{self.standstills_prefix}{safe_name(host)}-{process}"

    @property
    def history_prefix(self) -> str:
        """Prefix of the archives of the job's runs."""
        return f"{self.directory}/history/"

    def archive(self, started_ms: int, job_id: str) -> str:
        """The path of the archive of one run of the job."""
        return f"{self.history_prefix}{started_ms:015d}-{job_id}"

    def probe(self, now_ms: int) -> str:
        """The path of a new probe object."""
        return f"{self.probe_prefix}{now_ms:015d}-{new_attempt()}"

    def parse_probe(self, path: str) -> int | None:
        """The time of a probe, in ms since 1970; None if the path is not a probe."""
        name = self._name_in(self.probe_prefix, path)
        match = _PROBE.fullmatch(name) if name else None
        return int(match.group(1)) if match else None

    def log_entry(self, position: LogPosition) -> str:
        """The path of the log's entry at a position (1, 2, 3, ...)."""
        return f"{self.log_prefix}{position:020d}"

    def state_file(self, generation: int, epoch: Epoch, uid: str, subtask: int, attempt: str, kind: str) -> str:
        """The path of a new state file.

        Args:
            generation: The generation of the driver that planned the work.
            epoch: The epoch in which the work began; for a background upload, the epoch of its start.
            uid: The operator's uid.
            subtask: The subtask's number.
            attempt: Unique to this attempt (see `new_attempt`); a task that writes several files of one kind uses one
                attempt for each.
            kind: The file's role in lower-case letters, e.g. ``delta``, ``base``, ``sst``.
        """
        return f"{self.state_prefix}{generation:010d}-{epoch:020d}-{safe_name(uid)}-{subtask:05d}-{attempt}.{kind}"

    def manifest(self, generation: int, epoch: Epoch) -> str:
        """The path of a new manifest of checkpoint metadata: a state file, retained and swept like the others."""
        return self.state_file(generation, epoch, "metadata", 0, new_attempt(), _MANIFEST)

    @property
    def kept_prefix(self) -> str:
        """Prefix of entries that outlive their records in a topic."""
        return f"{self.directory}/kept/"

    def kept_entry(self, position: LogPosition) -> str:
        """The path of an entry that outlives its record in a topic."""
        return f"{self.kept_prefix}{position:020d}"

    def parse_kept_entry(self, path: str) -> LogPosition | None:
        """The position of such an entry, from its path; None if it is not one."""
        name = self._name_in(self.kept_prefix, path)
        return LogPosition(int(name)) if name and _LOG_ENTRY.fullmatch(name) else None

    def parse_log_entry(self, path: str) -> LogPosition | None:
        """The position of a log entry, from its path or that of its unfinished part file; None if it is not a log entry."""
        name = self._name_in(self.log_prefix, path)
        return LogPosition(int(name)) if name and _LOG_ENTRY.fullmatch(name) else None

    def parse_state_file(self, path: str) -> StateFileName | None:
        """Parse the path of a state file or its unfinished part file; None if it is not a state file."""
        name = self._name_in(self.state_prefix, path)
        match = _STATE_FILE.fullmatch(name) if name else None
        if match is None:
            return None
        generation, epoch, operator, subtask, attempt, kind = match.groups()
        return StateFileName(int(generation), Epoch(int(epoch)), operator, int(subtask), attempt, kind)

    @staticmethod
    def part_file(path: str) -> str:
        """The temporary path in which a local store writes ``path``."""
        return f"{path}.{uuid.uuid4().hex[:12]}{PART_SUFFIX}"

    @staticmethod
    def is_part(path: str) -> bool:
        """Whether the path is a `part_file`."""
        return path.endswith(PART_SUFFIX)

    @staticmethod
    def whole(path: str) -> str:
        """The path for which a `part_file` is written; any other path unchanged."""
        match = _PART.fullmatch(path)
        return match.group(1) if match else path

    @staticmethod
    def _name_in(prefix: str, path: str) -> str | None:
        if not path.startswith(prefix):
            return None
        return JobPaths.whole(path[len(prefix) :])


def entry_in(path: str) -> tuple[str, LogPosition] | None:
    """The job's directory and the position, from a log entry's path; None for another path.

    >>> entry_in("payments/log/00000000000000000017"), entry_in("payments/visible")
    (('payments', 17), None)
    """
    directory = path.partition("/")[0]
    position = JobPaths(directory).parse_log_entry(path)
    return None if position is None or JobPaths.is_part(path) else (directory, position)


def manifest_in(path: str) -> str:
    """The job's directory, from a manifest's path; empty for another path."""
    directory = path.partition("/")[0]
    name = JobPaths(directory).parse_state_file(path)
    return directory if name is not None and name.kind == _MANIFEST and not JobPaths.is_part(path) else ""
