"""Upkeep of a checkpoint directory: damaged files, unreferenced files, and the removal of old checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from holdfast.checkpoint import savepoint
from holdfast.checkpoint.container import unpack
from holdfast.checkpoint.manifests import load, read_checkpoint
from holdfast.checkpoint.paths import JobPaths, entry_in
from holdfast.checkpoint.retention import Retention, referenced
from holdfast.checkpoint.savepoint import BEGUN, METADATA
from holdfast.checkpoint.stores.log_router import moved_to
from holdfast.checkpoint.stores.signed_store import KEY_FILE, SignedStore, read_keys, sign_again
from holdfast.checkpoint.stores.storage import Storage, open_store
from holdfast.errors import CheckpointError, ConfigurationError, CorruptFile, IncompatibleState
from holdfast.state.stored.delta_files import damaged_files, verify_contents
from holdfast.state_api.snapshots.catalog import Snapshot, job_log, split_job, why_missing

__all__ = ["Orphan", "Pruned", "delete_savepoint", "find_orphans", "prune", "sign", "verify"]


@dataclass(frozen=True)
class Orphan:
    """A state file that no retained or held checkpoint refers to."""

    path: str
    size: int
    """In bytes."""
    in_use: bool
    """Whether it may belong to an epoch or upload of a driver that still runs."""


@dataclass(frozen=True)
class Pruned:
    """The result of `prune`."""

    kept: int
    """The number of checkpoints left."""
    deleted: int
    """The number of deleted objects."""


def verify(snapshot: Snapshot, verified: Callable[[int], None] = lambda size: None) -> list[CorruptFile]:
    """Read all files of a checkpoint or savepoint and verify their checksums; returns an error for each damaged file.

    Args:
        snapshot: The checkpoint or savepoint, from `open_snapshot`.
        verified: Called after each file with its size in bytes.

    Raises:
        StorageError: the storage does not answer.
    """
    damaged = damaged_files(snapshot.storage, snapshot.checkpoint, lambda handle: verified(handle.size))
    return [why_missing(error, snapshot.path, snapshot.storage) for error in damaged]


def sign(directory: str, options: Mapping[str, str], *, adopt_unsigned: bool = False) -> int:
    """Sign the files of a stopped job or a savepoint with the first key, after verifying them with the key that signed them.

    Args:
        directory: The job's directory in its checkpoint directory, or the savepoint's.
        options: The ``s3.*`` settings, and ``security.checkpoints.key-file``.
        adopt_unsigned: Sign unsigned files, too. Their content, which may be pickles, is trusted as it is.

    Returns:
        The number of files that were signed.

    Raises:
        ConfigurationError: there are no keys, or the job's checkpoint log is in a topic, whose records never change.
        CorruptFile: a file is signed with none of the keys, or was altered since, or is unsigned and not adopted.
        StorageError: the storage does not answer.
    """
    key_file = options.get(KEY_FILE)
    if not key_file:
        raise ConfigurationError(f"name the file with the keys: -D {KEY_FILE}=PATH")
    own = {key: value for key, value in options.items() if key != KEY_FILE}
    directory = directory.rstrip("/").removesuffix(f"/{METADATA}")
    if Storage.open(directory, own).exists(METADATA):
        uri, prefix = directory, ""
    else:
        uri, paths = split_job(directory)
        prefix = f"{paths.directory}/"
    store = open_store(uri, own)
    keys = read_keys(key_file)
    found = [path for path in store.list(prefix) if not JobPaths.is_part(path)]
    _refuse_records(SignedStore(store, keys), directory, found)
    return sign_again(store, keys, found, adopt_unsigned=adopt_unsigned)


def _refuse_records(store: SignedStore, directory: str, found: Iterable[str]) -> None:
    """Refuse to sign a log that is in a topic: its newest entry in the store says so."""
    newest = max((path for path in found if entry_in(path) is not None), default=None)
    if newest is None:
        return
    payload = b""
    with suppress(CorruptFile, IncompatibleState):  # `sign_again` finds and names it
        payload = unpack(store.content(newest), newest)
    if (moved := moved_to(payload)) is not None:
        raise ConfigurationError(
            f"the checkpoint log of {directory} is in topic {moved.topic}, and records of a topic cannot be signed again. "
            "Keep the keys that have signed them. To change the keys, or to sign what was not signed: stop the job with a "
            "savepoint, sign the savepoint, and start the job from that under another name (pipeline.name)"
        )


def find_orphans(directory: str, options: Mapping[str, str] | None = None) -> list[Orphan]:
    """Find the state files of a job that no retained or held checkpoint refers to.

    The job deletes them itself while it runs, and `prune` does so for a stopped job.

    Args:
        directory: The job's directory in its checkpoint directory.
        options: The ``s3.*`` settings.

    Raises:
        ConfigurationError: the directory is not that of a job.
        CorruptFile: the job's log or a manifest is damaged, so that the files in use are unknown.
        StorageError: the storage does not answer.
    """
    storage, paths, log = job_log(directory, options)
    # The listing comes first: a checkpoint completed in between then has its files in both answers.
    listing = storage.list(paths.state_prefix)
    records = log.read_retained()
    if not listing and not records:
        raise ConfigurationError(f"{directory} is not the directory of a job: it has neither checkpoints nor state files")
    needed = referenced(load(storage, record).checkpoint for record in records)
    for hold in filter(None, map(paths.parse_hold, storage.list(paths.holds_prefix))):
        with suppress(CorruptFile, CheckpointError):  # the hold has ended
            needed |= referenced([read_checkpoint(storage, paths, hold.checkpoint_id)])
    newest = max((record.generation for record in records), default=0)
    found = []
    for path in sorted(set(listing) - needed):
        name = paths.parse_state_file(path)
        if name is not None:
            found.append(Orphan(storage.locate(path), storage.size(path), name.generation >= newest))
    return found


def prune(directory: str, keep: int = 1, options: Mapping[str, str] | None = None) -> Pruned:
    """Delete the old checkpoints of a stopped job, and all files that the kept ones do not need.

    It takes the job over like a starting driver: a driver that still runs is fenced and stops. If it is interrupted, the
    next call or the job's next start completes it. The kept checkpoints are read and verified first.

    Args:
        directory: The job's directory in its checkpoint directory.
        keep: The number of newest checkpoints to keep; at least one.
        options: The ``s3.*`` settings.

    Raises:
        ConfigurationError: there is no checkpoint, or ``keep`` is less than one.
        CorruptFile: the job's log or a checkpoint to keep is damaged; nothing was deleted.
        Fenced: a driver started meanwhile.
        StorageError: the storage does not answer.
    """
    storage, paths, log = job_log(directory, options, keep)
    records = log.read_retained()
    if not records:
        raise ConfigurationError(f"{directory} has no completed checkpoint: give a job's directory, as <storage>/<job name>")
    for record in records:  # the others may be needed in place of a damaged one
        verify_contents(storage, load(storage, record).checkpoint)
    log.take_over()
    deleted = Retention(storage, paths, log).sweep()
    return Pruned(len(log.owned.retained), deleted)


def delete_savepoint(path: str, options: Mapping[str, str] | None = None) -> int:
    """Delete a savepoint, finished or not; returns the number of deleted files.

    Do not delete an unfinished savepoint while its job still writes it.

    Args:
        path: The savepoint's directory.
        options: The ``s3.*`` settings.

    Raises:
        ConfigurationError: the directory is no savepoint.
        StorageError: the storage does not answer.
    """
    storage = Storage.open(path.rstrip("/").removesuffix(f"/{METADATA}"), options)
    if not {METADATA, BEGUN} & {*storage.list("")}:
        raise ConfigurationError(f"{path} is not a savepoint: it contains neither {METADATA} nor {BEGUN}")
    return savepoint.delete_savepoint(storage)
