"""Snapshots: the checkpoints and savepoints below a directory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import load, read_checkpoint
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.paths import JobPaths, names_checkpoint
from holdfast.checkpoint.savepoint import BEGUN, METADATA, read_savepoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import ConfigurationError, CorruptFile, HoldfastError

__all__ = ["Listed", "Snapshot", "explained", "job_log", "list_snapshots", "open_snapshot", "split_job", "why_missing"]

_LOG_ENTRY = re.compile(r"(?:(.*)/)?log/\d{20}")
EVERY = 1 << 30
"""More checkpoints than a log retains."""


@dataclass(frozen=True)
class Snapshot:
    """A completed checkpoint or a savepoint."""

    path: str
    """Its name, as for ``execution.state-recovery.path``."""
    kind: Literal["checkpoint", "savepoint"]
    storage: Storage
    """The storage to which the paths of its files are relative."""
    checkpoint: CheckpointMetadata
    drained: bool = False
    """Whether event time had ended when the savepoint was written."""
    release: str = ""
    """The release of Holdfast that wrote the savepoint; empty for a checkpoint."""


@dataclass(frozen=True)
class Listed:
    """A line of `list_snapshots`."""

    path: str
    kind: Literal["checkpoint", "savepoint"]
    job_name: str = ""
    checkpoint_id: int = 0
    created_at: int = 0
    """In ms since 1970."""
    size: int = 0
    """Stored bytes of all its files. Checkpoints of a job share files."""
    problem: str = ""
    """Why it cannot be restored: a damaged or unfinished one. Empty for a usable one."""


def list_snapshots(directory: str, options: Mapping[str, str] | None = None) -> list[Listed]:
    """List the retained checkpoints of all jobs and the savepoints below a directory, newest first for each job.

    Reads metadata only; `holdfast.state_api.verify` reads the files.

    Args:
        directory: A checkpoint directory, a job's directory in it, or a directory of savepoints, at any depth above.
        options: The ``s3.*`` settings.

    Raises:
        ConfigurationError: the directory is on no usable storage.
        StorageError: the storage does not answer.
    """
    storage = Storage.open(directory, options)
    jobs: set[str] = set()
    finished: set[str] = set()
    begun: set[str] = set()
    for path in storage.list(""):
        entry = _LOG_ENTRY.fullmatch(path)
        if entry is not None:
            jobs.add(entry.group(1) or "")
            continue
        parent, _, name = path.rpartition("/")
        if name == METADATA:
            finished.add(parent)
        elif name == BEGUN:
            begun.add(parent)
    listed = [line for job in sorted(jobs) for line in _checkpoints(storage.locate(job) if job else storage.uri, options)]
    listed += [_savepoint(storage.locate(at) if at else storage.uri, options) for at in sorted(finished)]
    for at in sorted(begun - finished):
        where = storage.locate(at) if at else storage.uri
        listed.append(Listed(where, "savepoint", problem="unfinished: it is being written, or its writing failed"))
    return listed


def _checkpoints(directory: str, options: Mapping[str, str] | None) -> list[Listed]:
    try:
        storage, _, log = job_log(directory, options)
        records = log.read_retained()
    except HoldfastError as error:
        return [Listed(directory, "checkpoint", problem=str(error))]
    listed = []
    for record in records:
        problem = ""
        try:
            load(storage, record)
        except CorruptFile as error:
            problem = str(error)
        path = log.locate(record.checkpoint_id)
        listed.append(
            Listed(path, "checkpoint", record.job_name, record.checkpoint_id, record.created_at, record.full_size, problem)
        )
    return listed


def _savepoint(directory: str, options: Mapping[str, str] | None) -> Listed:
    try:
        found = read_savepoint(directory, options).savepoint.checkpoint
    except HoldfastError as error:
        return Listed(directory, "savepoint", problem=str(error))
    return Listed(directory, "savepoint", found.job_name, found.checkpoint_id, found.created_at, found.full_size)


def split_job(directory: str) -> tuple[str, JobPaths]:
    """The checkpoint storage and the paths of the job in a directory."""
    parent, _, name = directory.rstrip("/").rpartition("/")
    return parent or "/", JobPaths(name)


def job_log(
    directory: str, options: Mapping[str, str] | None, retained: int = EVERY
) -> tuple[Storage, JobPaths, CheckpointLog]:
    """The checkpoint log of the job in a directory, with its storage and paths."""
    uri, paths = split_job(directory)
    storage = Storage.open(uri, options)
    return storage, paths, CheckpointLog(storage, paths, retained)


def open_snapshot(path: str, options: Mapping[str, str] | None = None) -> Snapshot:
    """Open a checkpoint or a savepoint. Reads metadata only.

    Args:
        path: A checkpoint's log entry, a savepoint's directory (or ``_metadata``), or a job's directory for its newest
            checkpoint.
        options: The ``s3.*`` settings.

    Raises:
        ConfigurationError: there is no checkpoint and no savepoint.
        CorruptFile: the metadata is missing or altered.
        IncompatibleState: this release does not read its format.
        StorageError: the storage does not answer.
    """
    at = path.strip().rstrip("/")
    if names_checkpoint(at):
        directory, _, number = at.rpartition("/")
        job = directory.removesuffix("/log")
        if job == directory:
            raise ConfigurationError(
                f"{path!r} is not a checkpoint: its path ends with the job's directory, log, and number"
            )
        storage, paths, log = job_log(job, options)
        with explained(at, storage):
            checkpoint = read_checkpoint(storage, paths, CheckpointId(int(number)))
        return Snapshot(log.locate(checkpoint.checkpoint_id), "checkpoint", storage, checkpoint)
    storage, paths, log = job_log(at, options)
    while records := log.read_retained():
        try:
            found = load(storage, records[0]).checkpoint
        except CorruptFile:
            if [record.checkpoint_id for record in log.read_retained()[:1]] != [records[0].checkpoint_id]:
                continue  # the job goes on, and has removed that checkpoint meanwhile
            raise
        return Snapshot(log.locate(found.checkpoint_id), "checkpoint", storage, found)
    opened = read_savepoint(at, options)
    saved = opened.savepoint
    return Snapshot(opened.uri, "savepoint", opened.storage, saved.checkpoint, saved.drained, saved.release)


@contextmanager
def explained(path: str, storage: Storage) -> Iterator[None]:
    """Explain the error of a missing file of a checkpoint.

    Raises:
        CorruptFile: the error, which says so if the file is missing because the job goes on.
    """
    try:
        yield
    except CorruptFile as error:
        raise why_missing(error, path, storage) from None


def why_missing(error: CorruptFile, path: str, storage: Storage) -> CorruptFile:
    """The error of a checkpoint's file, which says so if the file is missing because the job goes on.

    Args:
        error: The error.
        path: The checkpoint, or a savepoint, which no job removes.
        storage: Its storage.
    """
    if not error.reason.startswith("missing") or not names_checkpoint(path):
        return error
    job, _, number = path.rpartition("/log/")
    try:
        records = CheckpointLog(storage, split_job(job)[1], EVERY).read_retained()
    except HoldfastError:
        return error
    if not records or any(record.checkpoint_id == int(number) for record in records):
        return error
    return CorruptFile(
        error.path,
        f"missing, because the job goes on and has removed its checkpoint {int(number)}: read the newest one, and hold it "
        "meanwhile, with SavepointReader.scan, hold_checkpoint or `holdfast checkpoints hold`",
    )
