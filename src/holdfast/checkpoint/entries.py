"""The entries of the checkpoint log, as stored: msgpack maps inside the container of `holdfast.checkpoint.files`.

Form 2. Fields may be added with a default; readers skip what they do not know. A change that an older reader would
misunderstand raises `FORMAT_VERSION`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.checkpoint.files import pack, unpack
from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.ids import NO_CHECKPOINT, CheckpointId, LogPosition
from holdfast.checkpoint.layers import Layer
from holdfast.errors import CheckpointError, CorruptFile, IncompatibleState

__all__ = [
    "FORMAT_VERSION",
    "CheckpointRecord",
    "Completed",
    "LogEntry",
    "Takeover",
    "decode_entry",
    "decode_manifest",
    "encode_entry",
    "encode_manifest",
]

FORMAT_VERSION = 2


class CheckpointRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A completed checkpoint as it is stored: its state is the sum of the manifests and the layer."""

    checkpoint_id: CheckpointId
    generation: int
    job_id: str
    job_name: str
    created_at: int
    duration_ms: int = 0
    committables: list[tuple[str, int, Any]] = []
    full_size: int = 0
    delta_size: int = 0
    manifests: list[ContainedFile] = []
    """The oldest first."""
    layer: Layer = Layer()


class Takeover(msgspec.Struct, frozen=True, omit_defaults=True, tag="takeover"):
    """A log entry: from here on, a new driver owns the job."""

    format_version: int
    generation: int
    driver: str
    """Unique to this take-over: tells whose entry it is when the answer of its put was lost."""
    restored: CheckpointId = NO_CHECKPOINT
    """The checkpoint that the new driver goes on from; 0 for none. Those between are skipped for good."""
    oldest: CheckpointId = NO_CHECKPOINT
    """The oldest retained checkpoint; 0 for none. Entries before it may be gone."""
    takeovers: list[LogPosition] = []
    """The positions of all take-overs before this one. Their entries stay: they fence the drivers they replaced."""
    requested: CheckpointId = NO_CHECKPOINT
    """The checkpoint that the user last asked to go back to; 0 for never."""
    created_at: int = 0
    """In ms since 1970."""


class Completed(msgspec.Struct, frozen=True, omit_defaults=True, tag="completed"):
    """A log entry: a completed checkpoint. The commit point."""

    format_version: int
    generation: int
    checkpoint: CheckpointRecord
    oldest: CheckpointId
    """The oldest retained checkpoint, this one included. Entries before it may be gone."""
    takeover: LogPosition
    """The position of the take-over by which the driver came to own the job."""


LogEntry = Takeover | Completed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogEntry)


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file that checkpoints share: a layer of their state."""

    format_version: int
    layer: Layer


_manifest_decoder = msgspec.msgpack.Decoder(Manifest)


class _Version(msgspec.Struct):
    format_version: int


_version_decoder = msgspec.msgpack.Decoder(_Version)


def encode_entry(entry: LogEntry) -> bytes:
    """The stored bytes of a log entry.

    Raises:
        CheckpointError: the metadata holds something that is not plain data.
    """
    return pack(_encode(entry))


def encode_manifest(layer: Layer) -> bytes:
    """The payload of a manifest.

    Raises:
        CheckpointError: the metadata holds something that is not plain data.
    """
    return _encode(Manifest(FORMAT_VERSION, layer))


def _encode(value: LogEntry | Manifest) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, OverflowError, ValueError) as error:
        raise CheckpointError(
            f"the checkpoint's metadata cannot be stored: {error}. Snapshots of enumerators, committables, watermarks "
            "and schemas must be plain data (None, bool, 64-bit int, float, str, bytes, lists and dicts of these)"
        ) from error


def decode_entry(data: bytes, where: str) -> LogEntry:
    """The log entry in stored bytes.

    Args:
        data: The object's content.
        where: The object's name, for errors.

    Raises:
        CorruptFile: truncated or altered.
        IncompatibleState: of another form than this release reads.
    """
    payload = unpack(data, where)
    try:
        _check_version(payload, where)
        entry: LogEntry = _decoder.decode(payload)
        return entry
    except msgspec.MsgspecError as error:
        # The checksum holds, so nobody altered it by accident: it was not written by Holdfast.
        raise CorruptFile(where, f"not an entry of a checkpoint log: {error}") from error


def _check_version(payload: bytes, where: str) -> None:
    version = _version_decoder.decode(payload).format_version
    if version > FORMAT_VERSION:
        raise IncompatibleState(
            f"{where} has metadata of version {version}; this release of Holdfast reads up to {FORMAT_VERSION}: run the "
            "release that wrote it, or a later one"
        )
    if version < FORMAT_VERSION:
        raise IncompatibleState(
            f"{where} has metadata of version {version}, from before Holdfast's stored form was settled, which this release "
            "does not read: start the job under another name, or in another execution.checkpointing.dir"
        )


def decode_manifest(payload: bytes, where: str) -> Layer:
    """The layer in a manifest's payload.

    Raises:
        CorruptFile: it is no manifest.
        IncompatibleState: of another form than this release reads.
    """
    try:
        _check_version(payload, where)
        return _manifest_decoder.decode(payload).layer
    except msgspec.MsgspecError as error:
        raise CorruptFile(where, f"not a manifest of a checkpoint: {error}") from error
