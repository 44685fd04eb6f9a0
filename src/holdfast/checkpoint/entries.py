"""The stored entries of the checkpoint log: msgpack maps in the container of `holdfast.checkpoint.files`.

The current form is 3. Form 2, without `holdfast.checkpoint.handles.InlineFile`, can be read too. Fields may be added with a
default; readers skip unknown fields. A change that an older reader would misunderstand must raise `FORMAT_VERSION`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.handles import ContainedFile
from holdfast.checkpoint.ids import NO_CHECKPOINT, NO_POSITION, CheckpointId, LogPosition
from holdfast.checkpoint.layers import Layer
from holdfast.checkpoint.metadata import PLAIN_DATA
from holdfast.checkpoint.parsing import parsing
from holdfast.checkpoint.stores.log_router import moved_to
from holdfast.errors import ConfigurationError, IncompatibleState

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

FORMAT_VERSION = 3
_OLDEST_VERSION = 2


class CheckpointRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stored checkpoint: its state is the sum of its manifests and its layer."""

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
    """Oldest first."""
    layer: Layer = Layer()


class Takeover(msgspec.Struct, frozen=True, omit_defaults=True, tag="takeover"):
    """A log entry: from here on, a new driver owns the job."""

    format_version: int
    generation: int
    driver: str
    """Unique to this take-over. It identifies the driver's own entry after a put without an answer."""
    restored: CheckpointId = NO_CHECKPOINT
    """The checkpoint from which the new driver continues; 0: none. Later ones are abandoned for good."""
    oldest: CheckpointId = NO_CHECKPOINT
    """The oldest retained checkpoint; 0: none. Older entries may be deleted."""
    takeovers: list[LogPosition] = []
    """The positions of all earlier take-overs. Their entries stay, because they fence the replaced drivers."""
    requested: CheckpointId = NO_CHECKPOINT
    """The checkpoint of the user's last request to go back; 0: never requested."""
    created_at: int = 0
    """In ms since 1970."""
    savepoint: str = ""
    """The name of the savepoint from which the job last started (`OpenSavepoint.name`); empty: none."""
    job: str = ""
    """The identity of the job, the same in all take-overs of a log; empty: written by a release that had none."""
    claim: bool = False
    """Whether that savepoint belongs to the job (CLAIM), and is not deleted yet."""
    copy: CheckpointId = NO_CHECKPOINT
    """A copy of a savepoint on trial (see `holdfast.checkpoint.takeover`), from which the driver may continue; 0: none."""
    position: LogPosition = NO_POSITION
    """The entry's own position; 0: written by a release that did not store it."""


class Completed(msgspec.Struct, frozen=True, omit_defaults=True, tag="completed"):
    """A log entry: a completed checkpoint. The commit point."""

    format_version: int
    generation: int
    checkpoint: CheckpointRecord
    oldest: CheckpointId
    """The oldest retained checkpoint, up to and including this one. Older entries may be deleted."""
    takeover: LogPosition
    """The position of the take-over by which this driver acquired the job."""
    savepoint: str = ""
    """The name of the savepoint from which the job last started (`OpenSavepoint.name`); empty: none."""
    trial: bool = False
    """Whether it is the copy of that savepoint, on trial (see `holdfast.checkpoint.takeover`)."""
    requested: CheckpointId = NO_CHECKPOINT
    """The checkpoint of the user's last request to go back, if the take-over does not have it; 0: as in the take-over."""
    claim: bool = False
    """Whether that savepoint belongs to the job (CLAIM), and is not deleted yet."""


LogEntry = Takeover | Completed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogEntry)


class Manifest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file shared by several checkpoints: one layer of their state."""

    format_version: int
    layer: Layer


_manifest_decoder = msgspec.msgpack.Decoder(Manifest)


class _Version(msgspec.Struct):
    format_version: int


_version_decoder = msgspec.msgpack.Decoder(_Version)


def encode_entry(entry: LogEntry) -> bytes:
    """Encode a log entry.

    Raises:
        ConfigurationError: the metadata contains something other than plain data.
    """
    return pack(_encode(entry))


def encode_manifest(layer: Layer) -> bytes:
    """Encode a layer as a manifest's payload.

    Raises:
        ConfigurationError: the metadata contains something other than plain data.
    """
    return _encode(Manifest(FORMAT_VERSION, layer))


def _encode(value: LogEntry | Manifest) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, OverflowError, ValueError) as error:
        raise ConfigurationError(
            f"the checkpoint's metadata cannot be stored: {error}. Watermarks and schemas must be {PLAIN_DATA}"
        ) from error


def decode_entry(data: bytes, where: str) -> LogEntry:
    """Decode a log entry.

    Args:
        data: The object's content.
        where: The object's name, for error messages.

    Raises:
        CorruptFile: the entry is truncated or altered.
        IncompatibleState: this release does not read the entry's form.
        ConfigurationError: the entry says that the log continues in a topic.
    """
    payload = unpack(data, where)
    if (moved := moved_to(payload)) is not None:
        raise ConfigurationError(
            f"{where}: the job's checkpoint log goes on in topic {moved.topic} since position {moved.begin}. Set "
            "execution.checkpointing.log to kafka, with execution.checkpointing.log.kafka.bootstrap.servers. To have the "
            "log in the storage again, stop the job with a savepoint, and start it from that under another name"
        )
    with parsing(where, "an entry of a checkpoint log"):
        _check_version(payload, where)
        entry: LogEntry = _decoder.decode(payload)
    return entry


def _check_version(payload: bytes, where: str) -> None:
    version = _version_decoder.decode(payload).format_version
    if version > FORMAT_VERSION:
        raise IncompatibleState(
            f"{where} has metadata of version {version}; this release of Holdfast reads up to {FORMAT_VERSION}: run the "
            "release that wrote it, or a later one"
        )
    if version < _OLDEST_VERSION:
        raise IncompatibleState(
            f"{where} has metadata of version {version}, a form older than Holdfast's first stable one, which this release "
            "does not read: start the job under another name, or in another execution.checkpointing.dir"
        )


def decode_manifest(payload: bytes, where: str) -> Layer:
    """Decode the layer in a manifest's payload.

    Raises:
        CorruptFile: the payload is not a manifest.
        IncompatibleState: this release does not read the manifest's form.
    """
    with parsing(where, "a manifest of a checkpoint"):
        _check_version(payload, where)
        layer = _manifest_decoder.decode(payload).layer
    return layer
