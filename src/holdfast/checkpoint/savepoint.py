"""Savepoints: a job's whole state in a directory of its own, in canonical form.

    <savepoint directory>/savepoint-<job>-<random>/
        _metadata                       put last: without it there is no savepoint
        <operator>-<attempt>.dump       the keyed state of some key groups
        <operator>-<attempt>.list       elements of listed states

A savepoint depends on no other directory, state backend or parallelism: its paths are relative, its keyed state consists
of dumps by key group, and ``_metadata`` (msgpack in the container of `holdfast.checkpoint.files`) names every state with
its uid, type and schema. Nothing in it is ever changed. Compare Flink's savepoints in canonical format.

A job that starts from a savepoint copies the files first, so that its checkpoints never refer to the savepoint: the
savepoint stays the user's (NO_CLAIM) or is deleted (CLAIM).
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from holdfast import __version__
from holdfast.checkpoint.files import pack, unpack
from holdfast.checkpoint.handles import FileHandle
from holdfast.checkpoint.ids import CheckpointId, epoch_of
from holdfast.checkpoint.metadata import (
    CheckpointMetadata,
    KeyedHandle,
    ListPart,
    OperatorCheckpoint,
    SourceState,
    SubtaskState,
)
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.retention import verify_files
from holdfast.checkpoint.storage import NotFound, Storage
from holdfast.errors import CheckpointError, ConfigurationError, CorruptFile, IncompatibleState

__all__ = [
    "METADATA",
    "OpenSavepoint",
    "Savepoint",
    "copy_file",
    "import_savepoint",
    "open_savepoint",
    "put_metadata",
    "savepoint_directory",
]

METADATA = "_metadata"
_VERSION = 1
_COPIES_AT_ONCE = 4


class Savepoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of ``_metadata``."""

    format_version: int
    release: str
    """The release of Holdfast that wrote it."""
    checkpoint: CheckpointMetadata
    """The checkpoint that it was taken of. Its output is committed, so it has no committables."""
    drained: bool = False
    """Whether event time had come to its end (`stop_with_savepoint` with ``drain``)."""


class _Version(msgspec.Struct):
    format_version: int


@dataclass(frozen=True)
class OpenSavepoint:
    """A savepoint that is there, with all its files."""

    storage: Storage
    savepoint: Savepoint

    @property
    def uri(self) -> str:
        """The savepoint's directory."""
        return self.storage.uri

    def delete(self) -> None:
        """Delete the savepoint; ``_metadata`` first, so that what is left does not look whole.

        Raises:
            StorageError: some of it was not deleted.
        """
        self.storage.delete([METADATA])
        self.storage.delete({file.path for file in self.savepoint.checkpoint.files()})


def put_metadata(storage: Storage, checkpoint: CheckpointMetadata, drained: bool) -> None:
    """Make a savepoint of files that are stored already.

    Args:
        storage: The savepoint's directory.
        checkpoint: Refers to these files.
        drained: Whether event time has come to its end. A job that starts from the savepoint begins event time anew.

    Raises:
        CheckpointError: the metadata holds something that is not plain data.
        StorageError: not stored within the retry budget, or refused.
    """
    if drained:
        checkpoint = _without_event_time(checkpoint)
    whole = msgspec.structs.replace(checkpoint, committables=[], manifests=[])
    try:
        data = msgspec.msgpack.encode(Savepoint(_VERSION, __version__, whole, drained))
    except (TypeError, OverflowError, ValueError) as error:
        raise CheckpointError(f"the savepoint's metadata cannot be stored: {error}") from error
    storage.put_new(METADATA, pack(data))


def _without_event_time(checkpoint: CheckpointMetadata) -> CheckpointMetadata:
    return msgspec.structs.replace(
        checkpoint,
        sources={uid: SourceState(source.enumerator) for uid, source in checkpoint.sources.items()},
        operators={
            uid: msgspec.structs.replace(operator, watermarks=[], generators=[])
            for uid, operator in checkpoint.operators.items()
        },
    )


def savepoint_directory(uri: str, options: Mapping[str, str] | None = None) -> str:
    """The savepoint's directory, the same however it is written.

    Raises:
        ConfigurationError: the storage cannot be used.
    """
    return _storage(uri, options).uri


def _storage(uri: str, options: Mapping[str, str] | None) -> Storage:
    return Storage.open(uri.strip().rstrip("/").removesuffix(f"/{METADATA}"), options)


def open_savepoint(uri: str, options: Mapping[str, str] | None = None) -> OpenSavepoint:
    """The savepoint in a directory, once all its files have been found in full length.

    Args:
        uri: The directory, or its ``_metadata``.
        options: Settings of the storage, as for `Storage.open`.

    Raises:
        ConfigurationError: the storage cannot be used, or there is no savepoint in the directory.
        CorruptFile: a file is missing or truncated, or the metadata altered.
        IncompatibleState: written in a format that this release does not read.
        StorageError: the storage does not answer.
    """
    storage = _storage(uri, options)
    where = storage.locate(METADATA)
    try:
        data = storage.get(METADATA)
    except NotFound as error:
        raise ConfigurationError(
            f"execution.state-recovery.path is {uri!r}, where no savepoint is: {where} does not exist. Give the path that "
            "trigger_savepoint() or stop_with_savepoint() returned"
        ) from error
    payload = unpack(data, where)
    try:
        version = msgspec.msgpack.decode(payload, type=_Version).format_version
        if version != _VERSION:
            raise IncompatibleState(
                f"{where} is a savepoint of format {version}; this release of Holdfast reads format {_VERSION}: run the "
                "release that wrote it, or a later one"
            )
        savepoint = msgspec.msgpack.decode(payload, type=Savepoint)
    except msgspec.MsgspecError as error:
        raise CorruptFile(where, f"not the metadata of a savepoint: {error}") from error
    verify_files(storage, savepoint.checkpoint)
    return OpenSavepoint(storage, savepoint)


def import_savepoint(
    source: OpenSavepoint, target: Storage, paths: JobPaths, checkpoint_id: CheckpointId, generation: int
) -> CheckpointMetadata:
    """Copy a savepoint into a job's own storage, as the checkpoint that the job goes on from.

    What an attempt that dies leaves is found by the job's sweep.

    Args:
        source: The savepoint.
        target: The storage of the job's checkpoints.
        paths: The job's paths.
        checkpoint_id: The checkpoint to make.
        generation: Of the driver.

    Raises:
        CorruptFile: a file of the savepoint is missing or truncated.
        StorageError: a storage did not answer within the retry budget, or refused.
    """
    names: dict[str, str] = {}
    checkpoint = source.savepoint.checkpoint
    for uid, operator in checkpoint.operators.items():
        for n, state in enumerate(operator.subtasks):
            for file in state.files():
                kind = file.path.rpartition(".")[2]
                if file.path not in names:
                    names[file.path] = paths.state_file(generation, epoch_of(checkpoint_id), uid, n, new_attempt(), kind)
    with ThreadPoolExecutor(_COPIES_AT_ONCE) as copies:
        list(copies.map(lambda name: copy_file(source.storage, name, target, names[name]), names))
    operators = {uid: _renamed(operator, names) for uid, operator in checkpoint.operators.items()}
    return msgspec.structs.replace(
        checkpoint, checkpoint_id=checkpoint_id, generation=generation, operators=operators, duration_ms=0
    )


def copy_file(source: Storage, path: str, target: Storage, new_path: str) -> None:
    """Copy a state file as it is.

    Raises:
        CorruptFile: it is missing.
        StorageError: a storage did not answer within the retry budget, or refused.
    """
    try:
        target.put(new_path, source.get(path))
    except NotFound as error:
        raise CorruptFile(source.locate(path), "missing") from error


def _renamed(operator: OperatorCheckpoint, names: Mapping[str, str]) -> OperatorCheckpoint:
    def file(handle: FileHandle) -> FileHandle:
        return msgspec.structs.replace(handle, path=names[handle.path])

    def keyed(handle: KeyedHandle) -> KeyedHandle:
        return msgspec.structs.replace(handle, base=[file(each) for each in handle.base])  # type: ignore[arg-type]

    def part(each: ListPart) -> ListPart:
        return each if each.file is None else msgspec.structs.replace(each, file=file(each.file))

    return msgspec.structs.replace(
        operator,
        subtasks=[
            SubtaskState(
                [keyed(handle) for handle in state.keyed],
                {name: [part(each) for each in parts] for name, parts in state.lists.items()},
            )
            for state in operator.subtasks
        ],
    )
