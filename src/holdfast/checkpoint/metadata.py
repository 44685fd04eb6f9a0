"""The content of a completed checkpoint: everything needed to continue from it, and nothing else.

`CheckpointMetadata` is a whole checkpoint in memory. It is stored as *layers*: a layer holds the changes between two
checkpoints. `holdfast.checkpoint.layers` computes and adds layers; `holdfast.checkpoint.entries` defines their stored
form. Fields may be added with a default; readers skip unknown fields.

*Plain data* means values of msgpack: None, bool, int (64 bits), float, str, bytes, and lists and dicts of these. Tuples
become lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.checkpoint.handles import ContainedFile, FileHandle, Handle, InlineFile, contents_of
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.errors import ConfigurationError

__all__ = [
    "BROADCAST",
    "CHANNEL_STATE",
    "OWN",
    "PLAIN_DATA",
    "SPLIT",
    "UNION",
    "WHOLE",
    "CheckpointMetadata",
    "KeyedHandle",
    "ListPart",
    "ListedState",
    "OperatorCheckpoint",
    "SourceState",
    "SubtaskState",
    "changelog_uid",
    "has_output",
    "plain_copy",
]

_CHANGELOG = ":changelog"

SPLIT = "split"
"""Redistribution of listed state: at another parallelism, the elements of all subtasks are divided evenly, in order."""
WHOLE = "whole"
"""Redistribution of listed state: at another parallelism, the list of each subtask stays in one piece."""
UNION = "union"
"""Redistribution of listed state: every subtask gets all subtasks' elements (Flink's union list state)."""
BROADCAST = "broadcast"
"""Redistribution of listed state: all subtasks have the same elements, and so does every new one."""

OWN = "own"
"""Redistribution of listed state: each subtask gets its own elements. At another parallelism each gets all subtasks'
elements, and takes its share itself.
"""
CHANNEL_STATE = "@channel-state"
"""The listed state with frames that the first operator of a chain had received but not processed (mode `OWN`)."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder()
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
PLAIN_DATA = "plain data (None, bool, 64-bit int, float, str in UTF-8, bytes, lists and dicts of these)"
"""What the metadata may contain, for errors."""


def plain_copy(value: Any, what: str) -> Any:
    """Copy plain data that a connector gives, as it comes back from a checkpoint.

    A connector may go on changing what it has given. And a value that comes back as another one, such as a set as a list,
    would let a job run until its first restart.

    Args:
        value: The plain data.
        what: What it is, for the error.

    Raises:
        ConfigurationError: it is not plain data.
    """
    try:
        copy = _decoder.decode(_encoder.encode(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        problem = str(error)
    else:
        if (foreign := _foreign(value)) is None:
            return copy
        problem = f"it contains a {foreign.__qualname__}, which would come back as something else"
    raise ConfigurationError(f"{what} is not {PLAIN_DATA}: {problem}")


def _foreign(value: Any) -> type | None:
    """The class of a part that is not plain data, nor a tuple; None without one."""
    kind = type(value)
    if kind is dict:
        parts = [*value, *value.values()]
    elif kind is list or kind is tuple:
        parts = value
    else:
        return None if kind in _SCALARS else kind
    if _SCALARS.issuperset(map(type, parts)):
        return None
    return next((found for part in parts if (found := _foreign(part)) is not None), None)


class SourceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a source."""

    enumerator: Any = None
    """The snapshot of the source's enumerator: plain data."""
    watermarks: dict[str, dict[str, Any]] = {}
    """The state of each split's watermark generator: plain data."""


class KeyedHandle(msgspec.Struct, frozen=True, omit_defaults=True):
    """The keyed state of a range of key groups: a base and the deltas after it.

    After a change of parallelism, the files may also contain other subtasks' key groups.
    """

    first: int
    last: int
    """The last key group, inclusive."""
    schema: str = ""
    """The fingerprint of the schema that wrote the rows, or of a later version of that schema."""
    kind: str = ""
    """The kind of the base's files, defined by the state backend."""
    base_epoch: Epoch = Epoch(0)
    """The epoch at whose end the base was begun."""
    base: list[Handle] = []
    """The files of the latest base; empty before the first."""
    deltas: list[Handle] = []
    """The changes after the base, in order."""

    def handles(self) -> Iterator[Handle]:
        """The handles of base and deltas."""
        yield from self.base
        yield from self.deltas


class ListPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some elements of a listed state, inline or in a file."""

    elements: list[bytes] = []
    """Inline elements in stored form; empty if they are in the file."""
    file: FileHandle | None = None
    first: int = 0
    count: int = 0
    """The range of the file's elements."""

    def __len__(self) -> int:
        return self.count if self.file is not None else len(self.elements)


class SubtaskState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one operator in one subtask."""

    keyed: list[KeyedHandle] = []
    """One handle, or several between a change of parallelism and the next base. Later handles are newer."""
    lists: dict[str, list[ListPart]] = {}
    """Listed state by name."""

    @property
    def empty(self) -> bool:
        """Whether there is no state to restore."""
        return not any(next(each.handles(), None) for each in self.keyed) and not any(
            len(part) for parts in self.lists.values() for part in parts
        )

    @property
    def has_channel_state(self) -> bool:
        """Whether the subtask had received frames that it had not processed."""
        return bool(self.lists.get(CHANNEL_STATE))

    def files(self) -> Iterator[FileHandle]:
        """All files of the state."""
        for each in self.contents():
            if not isinstance(each, InlineFile):
                yield each

    def contents(self) -> Iterator[FileHandle | InlineFile]:
        """All files of the state, and content stored in handles instead of files."""
        for keyed in self.keyed:
            yield from contents_of(keyed.handles())
        for parts in self.lists.values():
            for part in parts:
                if part.file is not None:
                    yield part.file


class ListedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A listed state of an operator: its redistribution and the type of its elements."""

    mode: str
    """`SPLIT`, `WHOLE`, `UNION`, `BROADCAST` or `OWN`."""
    type: dict[str, Any] | None = None
    """Serializer snapshot of the element type; None: elements are pickled."""


class OperatorCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one operator, at any position of a chain. All lists are indexed by subtask."""

    name: str
    uid_given: bool = False
    """Whether the user set the uid."""
    max_parallelism: int = 128
    parallelism: int = 1
    schemas: dict[str, Any] = {}
    """The schemas of the keyed state by fingerprint: plain data (see `holdfast.state.stored.schema`)."""
    listed: dict[str, ListedState] = {}
    """The listed states by name."""
    subtasks: list[SubtaskState] = []
    """Empty for an operator without keyed and listed state."""
    definition: dict[str, Any] | None = None
    """What the state depends on besides its schema, such as the windows' assigner: plain data of the operator's factory.

    None: nothing, or an earlier release wrote the checkpoint.
    """
    watermarks: list[int] = []
    """By subtask, the event time in ms up to which the operator has fired. Empty for an operator without state inside a
    chain.
    """
    ahead: list[tuple[int, int, int]] = []
    """Key groups that have fired further than the rest of their subtask: the first and last one, and the event time."""
    generators: list[Any] = []
    """The states of watermark generators: plain data; empty for an operator without watermark generation."""
    attempts: list[str] = []
    """For the head of a chain: the attempts that produced the checkpoint. Known only to the driver that ran them; not
    stored.
    """


class CheckpointMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """A completed checkpoint."""

    checkpoint_id: CheckpointId
    """The position in the log: 1, 2, 3, ..., with gaps at take-overs."""
    generation: int
    """The generation of the driver that completed the checkpoint."""
    job_id: str
    job_name: str
    created_at: int
    """When its epoch was planned, in ms since 1970."""
    duration_ms: int = 0
    sources: dict[str, SourceState] = {}
    """By source uid."""
    operators: dict[str, OperatorCheckpoint] = {}
    """By operator uid."""
    committables: list[tuple[str, int, Any]] = []
    """The epoch's prepared output: uid of the sink, subtask, plain data."""
    full_size: int = 0
    """Total bytes of all its files, and of content stored in handles instead of files."""
    delta_size: int = 0
    """Bytes written for this checkpoint."""
    manifests: list[ContainedFile] = []
    """Manifest files, with metadata shared with older checkpoints. Set when the checkpoint is stored."""

    def without_event_time(self) -> CheckpointMetadata:
        """The checkpoint of a job whose event time has ended: a job that continues from it starts event time over."""
        sources = {uid: SourceState(source.enumerator) for uid, source in self.sources.items()}
        operators = {
            uid: msgspec.structs.replace(operator, watermarks=[], generators=[], attempts=[])
            for uid, operator in self.operators.items()
        }
        return msgspec.structs.replace(self, sources=sources, operators=operators)

    def files(self) -> Iterator[FileHandle]:
        """All files of the checkpoint; a file shared by subtasks occurs more than once."""
        yield from self.manifests
        for operator in self.operators.values():
            for subtask in operator.subtasks:
                yield from subtask.files()


def changelog_uid(uid: str) -> str:
    """The uid of the committables of an operator's changelog.

    >>> changelog_uid("counts")
    'counts:changelog'
    """
    return uid + _CHANGELOG


def has_output(uid: str) -> bool:
    """Whether committables under this uid are output. Those of a changelog may be lost: the checkpoint has the rows."""
    return not uid.endswith(_CHANGELOG)
