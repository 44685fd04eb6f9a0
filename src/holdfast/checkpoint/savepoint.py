"""Savepoints: a job's complete state in a separate directory, in canonical form.

    <savepoint directory>/savepoint-<job>-<random>/
        _metadata                       put last: without it, the savepoint does not exist
        <operator>-<attempt>.dump       the keyed state of some key groups
        <operator>-<attempt>.list       elements of listed state

A savepoint depends on no other directory, state backend or parallelism: its paths are relative, its keyed state consists of
dumps by key group, and ``_metadata`` (msgpack in the container of `holdfast.checkpoint.files`) names every state with its
uid, type and schema. It is immutable. The model is Flink's savepoint in canonical format.

A job that starts from a savepoint first copies its files, so that its checkpoints never refer to the savepoint. The
savepoint stays with the user (NO_CLAIM) or is deleted (CLAIM).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
import xxhash

from holdfast import __version__
from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.handles import FileHandle
from holdfast.checkpoint.ids import CheckpointId, epoch_of
from holdfast.checkpoint.metadata import (
    CheckpointMetadata,
    KeyedHandle,
    ListPart,
    OperatorCheckpoint,
    SubtaskState,
)
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.paths import JobPaths, new_attempt
from holdfast.checkpoint.stores.in_parallel import in_parallel
from holdfast.checkpoint.stores.storage import NotFound, Storage
from holdfast.errors import CheckpointError, ConfigurationError, CorruptFile, IncompatibleState, StorageError

__all__ = [
    "BEGUN",
    "METADATA",
    "REMEDY",
    "OpenSavepoint",
    "Savepoint",
    "copy_files",
    "delete_savepoint",
    "directory_of",
    "import_savepoint",
    "is_still",
    "put_metadata",
    "read_savepoint",
    "renamed_operator",
    "renamed_lists",
    "same_savepoint",
    "savepoint_directory",
]

METADATA = "_metadata"
BEGUN = "_in-progress"
"""A file that marks the directory of an unfinished or failed savepoint."""
_DIGEST = "#digest="
_SUFFIXES = (".dump", ".list")
_VERSION = 1
REMEDY = "put it back from a copy of the savepoint, or start from another one"
"""The remedy for a damaged file of a savepoint."""
Verify = Callable[[str, bytes], None]


class Savepoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of ``_metadata``."""

    format_version: int
    release: str
    """The release of Holdfast that wrote it."""
    checkpoint: CheckpointMetadata
    """The saved checkpoint. Its output is committed, so it has no committables."""
    drained: bool = False
    """Whether event time had ended (`stop_with_savepoint` with ``drain``)."""


class _Version(msgspec.Struct):
    format_version: int


@dataclass(frozen=True)
class OpenSavepoint:
    """An existing savepoint, with all its files."""

    storage: Storage
    savepoint: Savepoint
    digest: str

    @property
    def uri(self) -> str:
        """The savepoint's directory."""
        return self.storage.uri

    @property
    def name(self) -> str:
        """The directory and the digest of the metadata, so that another savepoint in the same directory has another name."""
        return f"{self.uri}{_DIGEST}{self.digest}"


def directory_of(name: str) -> str:
    """The directory part of a savepoint's name."""
    return name.partition(_DIGEST)[0]


def same_savepoint(stored: str, name: str) -> bool:
    """Whether a stored name is this one. Earlier releases stored only the directory; then only that is compared."""
    return stored in (name, directory_of(name))


def is_still(storage: Storage, name: str) -> bool:
    """Whether a directory still has the savepoint of this name, or remains of it.

    Raises:
        StorageError: the storage does not answer.
    """
    try:
        return same_savepoint(name, f"{directory_of(name)}{_DIGEST}{_digest(storage.get(METADATA))}")
    except NotFound:
        return True


def _digest(metadata: bytes) -> str:
    return xxhash.xxh3_128_hexdigest(metadata)


def delete_savepoint(storage: Storage) -> int:
    """Delete the savepoint in a directory, finished or not: ``_metadata`` first, so that the rest does not look like one.

    An interrupted call can be repeated. Other files in the directory stay.

    Returns:
        The number of deleted files.

    Raises:
        StorageError: some files were not deleted.
    """
    files = [path for path in storage.list("") if path in (METADATA, BEGUN) or path.endswith(_SUFFIXES)]
    if METADATA in files:
        storage.delete([METADATA])
    storage.delete([path for path in files if path != METADATA])
    return len(files)


def put_metadata(storage: Storage, checkpoint: CheckpointMetadata, drained: bool) -> None:
    """Complete a savepoint from files already stored.

    Args:
        storage: The savepoint's directory.
        checkpoint: The checkpoint, whose handles refer to these files.
        drained: Whether event time has ended. A job that starts from the savepoint then starts event time over.

    Raises:
        CheckpointError: the metadata contains something other than plain data.
        StorageError: the storage refused the write, or the retry budget ran out.
    """
    if drained:
        checkpoint = checkpoint.without_event_time()
    whole = msgspec.structs.replace(checkpoint, committables=[], manifests=[])
    try:
        data = msgspec.msgpack.encode(Savepoint(_VERSION, __version__, whole, drained))
    except (TypeError, OverflowError, ValueError) as error:
        raise CheckpointError(f"the savepoint's metadata cannot be stored: {error}") from error
    storage.put_new(METADATA, pack(data))


def savepoint_directory(uri: str, options: Mapping[str, str] | None = None) -> str:
    """The canonical form of the savepoint's directory.

    Raises:
        ConfigurationError: the storage is unusable.
    """
    return _storage(uri, options).uri


def _storage(uri: str, options: Mapping[str, str] | None) -> Storage:
    return Storage.open(uri.strip().rstrip("/").removesuffix(f"/{METADATA}"), options)


def read_savepoint(uri: str, options: Mapping[str, str] | None = None) -> OpenSavepoint:
    """Read the metadata of the savepoint in a directory.

    Args:
        uri: The directory, or its ``_metadata``.
        options: Settings of the storage, as for `Storage.open`.

    Raises:
        ConfigurationError: the storage is unusable, or the directory contains no savepoint.
        CorruptFile: the metadata is altered.
        IncompatibleState: this release does not read the savepoint's format.
        StorageError: the storage does not answer.
    """
    storage = _storage(uri, options)
    where = storage.locate(METADATA)
    try:
        data = storage.get(METADATA)
    except StorageError as error:
        if isinstance(error, NotFound):
            reason = f"{where} does not exist{_instead(storage)}"
        elif isinstance(error.__cause__, NotADirectoryError):
            reason = "it is a file; a savepoint is a directory"
        elif isinstance(error.__cause__, IsADirectoryError):
            reason = f"{where} is a directory"
        else:
            raise
        raise ConfigurationError(
            f"{uri!r} is not a savepoint: {reason}. Give the path that trigger_savepoint() or "
            "stop_with_savepoint() returned (as execution.state-recovery.path, for a job that starts from it)"
        ) from error
    try:
        payload = unpack(data, where)
        with parsing(where, "the metadata of a savepoint"):
            version = msgspec.msgpack.decode(payload, type=_Version).format_version
            if version != _VERSION:
                raise IncompatibleState(
                    f"{where} is a savepoint of format {version}; this release of Holdfast reads format {_VERSION}: run "
                    "the release that wrote it, or a later one"
                )
            savepoint = msgspec.msgpack.decode(payload, type=Savepoint)
    except CorruptFile as error:
        raise CorruptFile(where, f"{error.reason}; {REMEDY}") from None
    return OpenSavepoint(storage, savepoint, _digest(data))


def _instead(storage: Storage) -> str:
    """Describe a directory without ``_metadata``, for the error."""
    try:
        if storage.exists(BEGUN):
            return ": this savepoint was not completed"
    except StorageError:
        return ""
    local = storage.local_path("")  # listing an object store may take long
    inside = [] if local is None else sorted(glob.glob(f"*/{METADATA}", root_dir=local))
    return f"; the directory contains {' and '.join(map(os.path.dirname, inside[-3:]))}" if inside else ""


def import_savepoint(
    source: OpenSavepoint,
    target: Storage,
    paths: JobPaths,
    checkpoint_id: CheckpointId,
    generation: int,
    verify: Callable[[Storage, FileHandle, bytes], None],
) -> CheckpointMetadata:
    """Copy a savepoint to a job's storage, as the checkpoint that the job continues from.

    If the attempt dies, the job's sweep deletes the copied files.

    Args:
        source: The savepoint.
        target: The storage of the job's checkpoints.
        paths: The job's paths.
        checkpoint_id: The id of the new checkpoint.
        generation: The driver's generation.
        verify: Raises CorruptFile if this content of a file is not what was written.

    Raises:
        CorruptFile: a file of the savepoint is missing or altered.
        StorageError: a storage refused the call, or the retry budget ran out.
    """
    names: dict[str, str] = {}
    handles: dict[str, FileHandle] = {}
    checkpoint = source.savepoint.checkpoint
    for uid, operator in checkpoint.operators.items():
        for n, state in enumerate(operator.subtasks):
            for file in state.files():
                kind = file.path.rpartition(".")[2]
                if file.path not in names:
                    names[file.path] = paths.state_file(generation, epoch_of(checkpoint_id), uid, n, new_attempt(), kind)
                    handles[file.path] = file
    copy_files(source.storage, target, names, lambda path, data: verify(source.storage, handles[path], data))
    operators = {uid: renamed_operator(operator, names) for uid, operator in checkpoint.operators.items()}
    return msgspec.structs.replace(
        checkpoint, checkpoint_id=checkpoint_id, generation=generation, operators=operators, duration_ms=0
    )


def copy_files(source: Storage, target: Storage, names: Mapping[str, str], verify: Verify = lambda path, data: None) -> None:
    """Copy state files unchanged, several at a time.

    Args:
        source: The storage with the files.
        target: The storage that gets the copies.
        names: By the path of each file, the path of its copy.
        verify: Gets each path and its content before the content is written; raises CorruptFile to stop.

    Raises:
        CorruptFile: a file is missing or altered.
        StorageError: a storage refused the call, or the retry budget ran out.
    """
    for _ in in_parallel(lambda path: copy_file(source, path, target, names[path], verify), names):
        pass


def copy_file(source: Storage, path: str, target: Storage, new_path: str, verify: Verify = lambda path, data: None) -> None:
    """Copy one state file unchanged; for the arguments see `copy_files`.

    Raises:
        CorruptFile: the file is missing or altered.
        StorageError: a storage refused the call, or the retry budget ran out.
    """
    try:
        data = source.get(path)
    except NotFound as error:
        raise CorruptFile(source.locate(path), "missing") from error
    verify(path, data)
    target.put(new_path, data)


def renamed_lists(state: SubtaskState, names: Mapping[str, str]) -> dict[str, list[ListPart]]:
    """The listed states of a subtask, referring to the copies of their files."""

    def part(each: ListPart) -> ListPart:
        return each if each.file is None else msgspec.structs.replace(each, file=_renamed_file(each.file, names))

    return {name: [part(each) for each in parts] for name, parts in state.lists.items()}


def _renamed_file(handle: FileHandle, names: Mapping[str, str]) -> FileHandle:
    return msgspec.structs.replace(handle, path=names[handle.path])


def renamed_operator(operator: OperatorCheckpoint, names: Mapping[str, str]) -> OperatorCheckpoint:
    """The state of an operator, referring to the copies of its files."""

    def keyed(handle: KeyedHandle) -> KeyedHandle:
        base = [_renamed_file(each, names) for each in handle.base]  # type: ignore[arg-type]
        return msgspec.structs.replace(handle, base=base)

    subtasks = [SubtaskState(list(map(keyed, state.keyed)), renamed_lists(state, names)) for state in operator.subtasks]
    return msgspec.structs.replace(operator, subtasks=subtasks)
