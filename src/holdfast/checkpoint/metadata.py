"""What a completed checkpoint consists of: all that is needed to go on from it, and nothing else.

Encoded as msgpack maps inside the container of `holdfast.checkpoint.files`. Fields may be added with a default;
readers skip what they do not know. A change that an older reader would misunderstand raises `FORMAT_VERSION`.

*Plain data* means what msgpack holds: None, bool, int (64 bits), float, str, bytes, lists and dicts of these. Tuples
come back as lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.checkpoint.files import FileHandle, pack, unpack
from holdfast.errors import CheckpointError, CorruptFile, IncompatibleState

__all__ = [
    "FORMAT_VERSION",
    "CheckpointMetadata",
    "Completed",
    "LogEntry",
    "OperatorState",
    "SourceState",
    "SubtaskState",
    "Takeover",
    "decode_entry",
    "encode_entry",
]

FORMAT_VERSION = 1


class SourceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a source stands."""

    enumerator: Any = None
    """What the source's enumerator returned as its snapshot: plain data."""
    watermarks: dict[str, dict[str, Any]] = {}
    """Per split the state of its watermark generator: plain data."""


class SubtaskState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one subtask: a materialisation and the deltas since."""

    key_group_first: int
    key_group_last: int
    """The key groups it holds, both inclusive."""
    token: str = ""
    """Identifies the version of the local store that has this state."""
    watermark: int = -(2**63)
    """In ms; the lowest value before the first watermark."""
    base: list[FileHandle] = []
    """The files of the latest materialisation; none before the first."""
    base_kind: str = ""
    """What the base's files are; the state backend knows."""
    base_epoch: int = 0
    """The epoch at whose end the base was taken."""
    deltas: list[FileHandle] = []
    """What changed after the base, in order."""
    extra: dict[str, Any] = {}
    """Plain data of the state backend or the operator."""

    def files(self) -> Iterator[FileHandle]:
        """All files that the state consists of."""
        yield from self.base
        yield from self.deltas


class OperatorState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one operator."""

    name: str
    uid_given: bool = False
    """Whether the user chose the uid."""
    max_parallelism: int = 128
    parallelism: int = 1
    schema: dict[str, Any] = {}
    """The schema of its state: plain data (see `holdfast.state.schema`)."""
    subtasks: list[SubtaskState] = []


class CheckpointMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """A completed checkpoint."""

    checkpoint_id: int
    """Its position in the log: 1, 2, 3, ..., with gaps where drivers took over."""
    generation: int
    """Of the driver that completed it."""
    job_id: str
    job_name: str
    created_at: int
    """The processing time of its epoch, in ms since 1970: the next one's is not before it."""
    duration_ms: int = 0
    sources: dict[str, SourceState] = {}
    """By the source's uid."""
    operators: dict[str, OperatorState] = {}
    """By the operator's uid."""
    committables: list[tuple[str, int, Any]] = []
    """Prepared output of the epoch: uid of the sink, subtask, plain data."""
    full_size: int = 0
    """Bytes of all files it refers to."""
    delta_size: int = 0
    """Bytes written for this checkpoint alone."""

    def files(self) -> Iterator[FileHandle]:
        """All files that it refers to; files shared by subtasks come up more than once."""
        for operator in self.operators.values():
            for subtask in operator.subtasks:
                yield from subtask.files()


class Takeover(msgspec.Struct, frozen=True, omit_defaults=True, tag="takeover"):
    """A log entry: from here on, a new driver owns the job."""

    format_version: int
    generation: int
    driver: str
    """Unique to this take-over: tells whose entry it is when the answer of its put was lost."""
    restored: int = 0
    """The checkpoint that the new driver goes on from; 0 for none. Those between are skipped for good."""
    oldest: int = 0
    """The oldest retained checkpoint; 0 for none. Entries before it may be gone."""
    takeovers: list[int] = []
    """The positions of all take-overs before this one. Their entries stay: they fence the drivers they replaced."""
    requested: int = 0
    """The checkpoint that the user last asked to go back to; 0 for never."""
    created_at: int = 0
    """In ms since 1970."""


class Completed(msgspec.Struct, frozen=True, omit_defaults=True, tag="completed"):
    """A log entry: a completed checkpoint. The commit point."""

    format_version: int
    generation: int
    checkpoint: CheckpointMetadata
    oldest: int
    """The oldest retained checkpoint, this one included. Entries before it may be gone."""
    takeover: int
    """The position of the take-over by which the driver came to own the job."""


LogEntry = Takeover | Completed

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(LogEntry)


class _Version(msgspec.Struct):
    format_version: int


_version_decoder = msgspec.msgpack.Decoder(_Version)


def encode_entry(entry: LogEntry) -> bytes:
    """The stored bytes of a log entry.

    Raises:
        CheckpointError: the metadata holds something that is not plain data.
    """
    try:
        return pack(_encoder.encode(entry))
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
        IncompatibleState: written by a release with a newer format.
    """
    payload = unpack(data, where)
    try:
        version = _version_decoder.decode(payload).format_version
        if version > FORMAT_VERSION:
            raise IncompatibleState(
                f"{where} has metadata of version {version}; this release of Holdfast reads up to {FORMAT_VERSION}: "
                "run the release that wrote it, or a later one"
            )
        entry: LogEntry = _decoder.decode(payload)
        return entry
    except msgspec.MsgspecError as error:
        # The checksum holds, so nobody altered it by accident: it was not written by Holdfast.
        raise CorruptFile(where, f"not an entry of a checkpoint log: {error}") from error
