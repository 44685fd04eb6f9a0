"""Savepoints of a running job: written from a completed checkpoint while epochs run, and restored at a start."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.metadata import CheckpointMetadata, KeyedHandle, OperatorCheckpoint, SubtaskState
from holdfast.checkpoint.paths import JobPaths, new_attempt, safe_name
from holdfast.checkpoint.retention import verify_files
from holdfast.checkpoint.savepoint import (
    BEGUN,
    METADATA,
    REMEDY,
    OpenSavepoint,
    copy_files,
    delete_savepoint,
    directory_of,
    import_savepoint,
    is_still,
    put_metadata,
    read_savepoint,
    renamed_lists,
    same_savepoint,
    savepoint_directory,
)
from holdfast.checkpoint.stores.storage import Storage
from holdfast.checkpoint.takeover import FromSavepoint
from holdfast.errors import CheckpointError, ConfigurationError, CorruptFile, Fenced, HoldfastError, SparkGone, StorageError
from holdfast.runtime.plan.settings import JobSettings
from holdfast.state.backends.backend import StateBackendSettings
from holdfast.state.backends.canonical import DUMP, MORE, Part, parts_of, write_part
from holdfast.state.stored.damage import with_content, with_remedy
from holdfast.state.stored.delta_files import verify_data

__all__ = ["ClaimedSavepoint", "SavepointWriter", "StartFromSavepoint", "new_savepoint", "savepoint_failure"]

log = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")
Written = tuple[KeyedHandle, dict[str, Any]]
"""A part of a savepoint, with its schema as plain data."""
_DAMAGED = "put it back from a copy, because the job could not restore from it either"
"""The class of a failure, with which the text of a failed Spark task begins."""
_CLASS = re.compile(r"^holdfast\.errors\.\w+: ")
"""The class of a failure in a task of Spark, which is its text there."""
Each = Callable[[Callable[[T], R], Sequence[T]], list[R]]
"""Runs a function for each item on the executors."""


def new_savepoint(directory: str, job_id: str, options: Mapping[str, str]) -> str:
    """Check that a savepoint can be written into a directory; returns the new savepoint's own directory.

    Raises:
        ConfigurationError: it cannot; the message gives the reason.
    """
    uri = f"{directory.rstrip('/')}/savepoint-{job_id[:6]}-{new_attempt()[:12]}"
    storage = Storage.open(uri, options)
    try:
        storage.put_new(BEGUN, job_id.encode())
    except StorageError as error:
        raise ConfigurationError(f"no savepoint can be written into {directory}: {error}") from error
    return storage.uri


def savepoint_failure(uri: str, failure: Exception) -> Exception:
    """The error for the caller whose savepoint was not written; ``failure`` is the reason."""
    if isinstance(failure, (SparkGone, Fenced)):
        return failure  # concerns the whole job
    reason = _CLASS.sub("", str(failure) or repr(failure))
    error = CheckpointError(f"the savepoint {uri} was not written, and the job goes on: {reason}")
    error.__cause__ = failure
    return error


@dataclass(frozen=True)
class _WritePart:
    """Writes a part of a savepoint, in any process."""

    source: str
    target: str
    options: Mapping[str, str]
    backend: StateBackendSettings
    scratch: str

    def __call__(self, part: Part) -> Written:
        scratch = self.scratch or tempfile.gettempdir()
        os.makedirs(scratch, exist_ok=True)
        source, target = Storage.open(self.source, self.options), Storage.open(self.target, self.options)
        try:
            return write_part(part, source, target, self.backend, scratch)
        except CorruptFile as error:
            raise with_remedy(error, _DAMAGED) from None


class SavepointWriter:
    """Writes savepoints of a job's checkpoints.

    Args:
        storage: The storage of the job's checkpoints.
        settings: The settings of the job.
    """

    def __init__(self, storage: Storage, settings: JobSettings) -> None:
        self._storage = storage
        self._settings = settings
        self._parts: dict[str, int] = {}
        """The number of parts of each savepoint that is being written, by its directory."""

    def progress(self, uri: str) -> tuple[int, int] | None:
        """The number of written parts of a savepoint, and of all parts; None if it is not being written.

        Raises:
            StorageError: the storage does not answer.
        """
        total = self._parts.get(uri)
        if total is None:
            return None
        files = Storage.open(uri, self._settings.storage_options).list("")
        written = sum(path.endswith(DUMP) and not path.endswith(MORE) for path in files)
        return min(written, total), total

    def write(self, checkpoint: CheckpointMetadata, uri: str, drained: bool, each: Each[Part, Written]) -> None:
        """Write a savepoint; it exists once this returns, and not before.

        Args:
            checkpoint: The checkpoint, which is kept until this returns. Its output is committed.
            uri: The directory, from `new_savepoint`.
            drained: Whether event time has ended.
            each: Runs a function for each part.

        Raises:
            HoldfastError: writing failed. The savepoint's files are deleted if the storage allows it.
        """
        options = self._settings.storage_options
        target = Storage.open(uri, options)
        try:
            parts = [part for uid, operator in checkpoint.operators.items() for part in parts_of(uid, operator)]
            task = _WritePart(
                self._storage.uri, uri, options, self._settings.state_backend, self._settings.temporary_directory
            )
            keyed: dict[str, list[Written]] = {}
            self._parts[uri] = len(parts)
            for part, written in zip(parts, each(task, parts), strict=True):
                keyed.setdefault(part.uid, []).append(written)
            try:
                operators = {
                    uid: self._canonical(uid, operator, keyed.get(uid, []), target)
                    for uid, operator in checkpoint.operators.items()
                }
            except CorruptFile as error:
                raise with_content(error, self._storage, checkpoint, _DAMAGED) from None
            size = sum(file.size for o in operators.values() for subtask in o.subtasks for file in subtask.files())
            whole = msgspec.structs.replace(checkpoint, operators=operators, full_size=size, delta_size=size)
            put_metadata(target, whole, drained)
        except BaseException:
            with contextlib.suppress(StorageError):  # report the first failure only
                target.delete([METADATA])  # a put may have succeeded without an answer
                target.delete([path for path in target.list("") if path != BEGUN])
            raise
        finally:
            self._parts.pop(uri, None)
        try:
            target.delete([BEGUN])
        except StorageError as error:
            log.warning("the savepoint %s is complete; its mark of an unfinished one was not deleted: %s", uri, error)

    def _canonical(
        self, uid: str, operator: OperatorCheckpoint, keyed: list[Written], target: Storage
    ) -> OperatorCheckpoint:
        files = {
            part.file.path: part.file
            for state in operator.subtasks
            for parts in state.lists.values()
            for part in parts
            if part.file is not None
        }
        names = {path: f"{safe_name(uid)}-{new_attempt()}.list" for path in files}
        copy_files(self._storage, target, names, lambda path, data: verify_data(self._storage, files[path], data))
        subtasks = [
            SubtaskState([handle for handle, _ in keyed] if n == 0 else [], renamed_lists(state, names))
            for n, state in enumerate(operator.subtasks)
        ]
        return msgspec.structs.replace(
            operator,
            subtasks=subtasks,
            attempts=[],
            schemas={handle.schema: schema for handle, schema in keyed},
        )


@dataclass(frozen=True)
class StartFromSavepoint:
    """The savepoint that a job starts from."""

    source: OpenSavepoint
    storage: Storage
    """The storage of the job's checkpoints."""
    paths: JobPaths
    claim: bool
    """Whether the savepoint is deleted once the job has a checkpoint of its own."""

    @classmethod
    def open(
        cls, uri: str, options: Mapping[str, str], storage: Storage, paths: JobPaths, claim: bool
    ) -> StartFromSavepoint:
        """Open the savepoint in a directory; checks that all its files exist in full length.

        Raises:
            CorruptFile: a file is missing or truncated.
            HoldfastError: as for `read_savepoint`.
        """
        opened = cls(read_savepoint(uri, options), storage, paths, claim)
        with opened._named():
            verify_files(opened.source.storage, opened.source.savepoint.checkpoint)
        return opened

    @classmethod
    def unless_started(
        cls, started_from: str, uri: str, options: Mapping[str, str], storage: Storage, paths: JobPaths, claim: bool
    ) -> StartFromSavepoint | None:
        """Open the savepoint in a directory, unless the job has already started from it: it may be gone by now.

        ``started_from`` is the name of the savepoint from which the job last started; for the others see `open`.

        Raises:
            HoldfastError: as for `open`.
        """
        if directory_of(started_from) == savepoint_directory(uri, options):
            try:
                found = read_savepoint(uri, options)
            except HoldfastError as error:
                log.info("the job has started from savepoint %s, and goes on from its checkpoints: %s", uri, error)
                return None
            if same_savepoint(started_from, found.name):
                return None
        return cls.open(uri, options, storage, paths, claim)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except CorruptFile as error:
            raise with_content(error, self.source.storage, self.source.savepoint.checkpoint, REMEDY) from None

    @property
    def request(self) -> FromSavepoint:
        """The argument for `CheckpointLog.take_over`."""
        return FromSavepoint(self.source.name, self.source.savepoint.checkpoint.generation, self.claim)

    def copy(self, checkpoint_id: CheckpointId, generation: int) -> CheckpointMetadata:
        """Copy the savepoint as the job's next checkpoint, which the caller completes.

        Raises:
            CorruptFile: a file of the savepoint is missing or altered.
            StorageError: a storage did not answer within the retry budget, or refused.
        """
        with self._named():
            return import_savepoint(self.source, self.storage, self.paths, checkpoint_id, generation, verify_data)


class ClaimedSavepoint:
    """Deletes the savepoint that a job has claimed, once the job has a checkpoint of its own.

    The log records that the deletion is due, so a later driver makes up for a crash.

    Args:
        checkpoint_log: The driver's log.
        settings: The settings of the job.
    """

    def __init__(self, checkpoint_log: CheckpointLog, settings: JobSettings) -> None:
        self._log = checkpoint_log
        self._settings = settings
        self._tried = False

    def delete(self, *, again: bool) -> None:
        """Delete it if that is due. Called after each checkpoint of the job; ``again``: retry a failed deletion."""
        if not self._log.owned.claim or (self._tried and not again):
            return
        self._tried = True
        name = self._log.owned.savepoint
        uri = directory_of(name)
        try:
            storage = Storage.open(uri, self._settings.storage_options)
            if is_still(storage, name):
                delete_savepoint(storage)
            else:
                log.warning("the savepoint %s, which the job has claimed, was replaced by another one, which stays", uri)
        except (StorageError, ConfigurationError) as error:
            log.warning("the savepoint %s, which the job has claimed, is not deleted yet: %s", uri, error)
        else:
            self._log.claimed()
