"""Stored checkpoints: conversion between a log record with its manifests and the whole checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from holdfast.checkpoint.container import pack
from holdfast.checkpoint.entries import (
    CheckpointRecord,
    Completed,
    decode_entry,
    decode_manifest,
    encode_manifest,
)
from holdfast.checkpoint.files import read_file, write_file
from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, epoch_of, position_of
from holdfast.checkpoint.layers import Layer, added, difference, kept_manifests, merged
from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import NotFound, Storage
from holdfast.errors import CheckpointError, ConfigurationError, CorruptFile, HoldfastError

__all__ = ["StoredCheckpoint", "load", "read_checkpoint", "rolled_up", "successor"]

LARGEST_LAYER = 256 << 10
"""Limit of a layer that stays in the log's entries, in bytes before compression. The small deltas of a job with little state
stay there until they are merged, so that its epochs write no manifests. File handles compress to a third; the content of
small deltas is already compressed.
"""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A whole checkpoint with the layers that add up to it."""

    checkpoint: CheckpointMetadata
    manifests: tuple[tuple[ContainedFile, Layer], ...] = ()
    """Oldest first."""
    layer: Layer = field(default_factory=Layer)
    """The changes since the last manifest."""

    @property
    def record(self) -> CheckpointRecord:
        """The checkpoint's stored record."""
        whole = self.checkpoint
        return CheckpointRecord(
            checkpoint_id=whole.checkpoint_id,
            generation=whole.generation,
            job_id=whole.job_id,
            job_name=whole.job_name,
            created_at=whole.created_at,
            duration_ms=whole.duration_ms,
            committables=whole.committables,
            full_size=whole.full_size,
            delta_size=whole.delta_size,
            manifests=whole.manifests,
            layer=self.layer,
        )


def successor(before: StoredCheckpoint | None, checkpoint: CheckpointMetadata) -> StoredCheckpoint:
    """Build the next checkpoint on its predecessor's layers."""
    old = StoredCheckpoint(_NOTHING) if before is None else before
    change = difference(old.checkpoint, checkpoint)
    whole = msgspec.structs.replace(checkpoint, manifests=old.checkpoint.manifests)
    return StoredCheckpoint(whole, old.manifests, merged([old.layer, change]))


def rolled_up(storage: Storage, paths: JobPaths, stored: StoredCheckpoint) -> StoredCheckpoint:
    """Return the checkpoint with a layer small enough for its log entry; a layer that is too large moves to a manifest.

    Raises:
        ConfigurationError: the metadata contains something other than plain data.
        StorageError: the storage refused the write, or the retry budget ran out.
    """
    encoded = encode_manifest(stored.layer)
    if len(encoded) <= LARGEST_LAYER:
        return stored
    kept = kept_manifests([handle.size for handle, _ in stored.manifests], len(pack(encoded)))
    layer = merged([*(layer for _, layer in stored.manifests[kept:]), stored.layer])
    whole = stored.checkpoint
    # If the driver crashes before it puts the log's entry, the file stays unreferenced; the orphan sweep recognises its
    # name.
    handle = write_file(storage, paths.manifest(whole.generation, epoch_of(whole.checkpoint_id)), encode_manifest(layer))
    manifests = (*stored.manifests[:kept], (handle, layer))
    whole = msgspec.structs.replace(whole, manifests=[handle for handle, _ in manifests])
    return StoredCheckpoint(whole, manifests)


def load(storage: Storage, record: CheckpointRecord, known: Mapping[str, Layer] | None = None) -> StoredCheckpoint:
    """Load the whole checkpoint of a record.

    Args:
        storage: The checkpoint's storage.
        record: The record in its log entry.
        known: Layers already read, by the manifest's path.

    Raises:
        CorruptFile: a manifest is missing or altered.
        StorageError: the storage refused the read, or the retry budget ran out.
    """
    manifests = []
    for handle in record.manifests:
        layer = (known or {}).get(handle.path)
        manifests.append((handle, layer or decode_manifest(read_file(storage, handle), storage.locate(handle.path))))
    with parsing(f"{storage.uri}: checkpoint {record.checkpoint_id}", "a sum of its manifests"):
        content = added(_NOTHING, [*(layer for _, layer in manifests), record.layer])
    whole = CheckpointMetadata(
        checkpoint_id=record.checkpoint_id,
        generation=record.generation,
        job_id=record.job_id,
        job_name=record.job_name,
        created_at=record.created_at,
        duration_ms=record.duration_ms,
        sources=content.sources,
        operators=content.operators,
        committables=record.committables,
        full_size=record.full_size,
        delta_size=record.delta_size,
        manifests=record.manifests,
    )
    return StoredCheckpoint(whole, tuple(manifests), record.layer)


def read_checkpoint(storage: Storage, paths: JobPaths, checkpoint_id: CheckpointId) -> CheckpointMetadata:
    """Read a completed checkpoint from the storage.

    Raises:
        CorruptFile: its log entry or one of its manifests is missing or altered.
        CheckpointError: the log's position holds no completed checkpoint.
        StorageError: the storage refused the read, or the retry budget ran out.
    """
    path = paths.log_entry(position_of(checkpoint_id))
    where = storage.locate(path)
    try:
        entry = decode_entry(storage.get(path), where)
    except NotFound as error:
        raise CorruptFile(where, f"missing{_moved(storage, paths)}") from error
    if not isinstance(entry, Completed):
        raise CheckpointError(f"{where} is not a completed checkpoint")
    return load(storage, entry.checkpoint).checkpoint


def _moved(storage: Storage, paths: JobPaths) -> str:
    """Where the log continues, if the storage's last entry says that it is in a topic."""
    try:
        last = max(path for path in storage.list(paths.log_prefix) if paths.parse_log_entry(path) is not None)
        decode_entry(storage.get(last), storage.locate(last))
    except ConfigurationError as moved:
        return f". {moved}"
    except (HoldfastError, ValueError):  # there is no such entry, or it cannot be read
        pass
    return ""


_NOTHING = CheckpointMetadata(checkpoint_id=NO_CHECKPOINT, generation=0, job_id="", job_name="", created_at=0)
