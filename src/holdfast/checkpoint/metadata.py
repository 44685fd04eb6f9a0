"""What a completed checkpoint consists of: all that is needed to go on from it, and nothing else.

`CheckpointMetadata` is a whole checkpoint in memory. It is stored as *layers*: a layer holds what changed between two
checkpoints. `holdfast.checkpoint.layers` takes the difference and adds layers up; `holdfast.checkpoint.log` has the
entries in which they are stored. Fields may be added with a default; readers skip what they do not know.

*Plain data* means what msgpack holds: None, bool, int (64 bits), float, str, bytes, lists and dicts of these. Tuples
come back as lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.checkpoint.handles import ContainedFile, FileHandle, Handle, LogRange
from holdfast.checkpoint.ids import CheckpointId, Epoch

__all__ = [
    "BROADCAST",
    "NO_WATERMARK",
    "SPLIT",
    "UNION",
    "CheckpointMetadata",
    "KeyedHandle",
    "ListPart",
    "ListedState",
    "OperatorCheckpoint",
    "SourceState",
    "SubtaskState",
]

NO_WATERMARK = -(2**63)

SPLIT = "split"
"""Redistribution of listed state: the elements of all subtasks are dealt out in turn."""
UNION = "union"
"""Redistribution of listed state: every subtask gets the elements of all."""
BROADCAST = "broadcast"
"""Redistribution of listed state: the subtasks have the same elements, and every new one gets them."""


class SourceState(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a source stands."""

    enumerator: Any = None
    """What the source's enumerator returned as its snapshot: plain data."""
    watermarks: dict[str, dict[str, Any]] = {}
    """Per split the state of its watermark generator: plain data."""


class KeyedHandle(msgspec.Struct, frozen=True, omit_defaults=True):
    """The keyed state of a range of key groups: a materialisation and the deltas since.

    After a change of parallelism the files hold more key groups than the handle: the others belong to other subtasks.
    """

    first: int
    last: int
    """The key groups, both inclusive."""
    schema: str = ""
    """The fingerprint of the schema that its rows were written by (or by an earlier version of it)."""
    kind: str = ""
    """What the base's files are; the state backend knows."""
    base_epoch: Epoch = Epoch(0)
    """The epoch at whose end the base was taken."""
    base: list[Handle] = []
    """The files of the latest materialisation; none before the first."""
    deltas: list[Handle] = []
    """What changed after the base, in order."""

    def handles(self) -> Iterator[Handle]:
        """Everything that the state consists of."""
        yield from self.base
        yield from self.deltas


class ListPart(msgspec.Struct, frozen=True, omit_defaults=True):
    """Some elements of a listed state, here or in a file."""

    elements: list[bytes] = []
    """The elements in stored form; none if they are in the file."""
    file: FileHandle | None = None
    first: int = 0
    count: int = 0
    """Which elements of the file."""

    def __len__(self) -> int:
        return self.count if self.file is not None else len(self.elements)


class SubtaskState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one operator in one subtask."""

    keyed: list[KeyedHandle] = []
    """One handle; several after a change of parallelism, until the next materialisation. Later ones are newer."""
    lists: dict[str, list[ListPart]] = {}
    """Listed state by name."""

    @property
    def empty(self) -> bool:
        """Whether there is nothing to restore."""
        return not any(next(each.handles(), None) for each in self.keyed) and not any(
            len(part) for parts in self.lists.values() for part in parts
        )

    def files(self) -> Iterator[FileHandle]:
        """All files that the state consists of."""
        for keyed in self.keyed:
            for handle in keyed.handles():
                if not isinstance(handle, LogRange):
                    yield handle
        for parts in self.lists.values():
            for part in parts:
                if part.file is not None:
                    yield part.file


class ListedState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A listed state of an operator: how it is redistributed, and what its elements are."""

    mode: str
    """`SPLIT`, `UNION` or `BROADCAST`."""
    type: dict[str, Any] | None = None
    """Serializer snapshot of the elements' type; None: they are pickled."""


class OperatorCheckpoint(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one operator, at any position of a chain. All lists are by subtask."""

    name: str
    uid_given: bool = False
    """Whether the user chose the uid."""
    max_parallelism: int = 128
    parallelism: int = 1
    schemas: dict[str, Any] = {}
    """By fingerprint: the schemas of the keyed state, plain data (see `holdfast.state.schema`)."""
    listed: dict[str, ListedState] = {}
    """The listed states by name."""
    subtasks: list[SubtaskState] = []
    """Empty if the operator has neither keyed nor listed state."""
    watermarks: list[int] = []
    """In ms; for the head of a chain, else empty."""
    generators: list[Any] = []
    """The states of watermark generators: plain data; empty if the operator makes no watermarks."""
    attempts: list[str] = []
    """Of the head of a chain: the attempts that made the checkpoint. Known to the driver that saw them, not stored."""


class CheckpointMetadata(msgspec.Struct, frozen=True, omit_defaults=True):
    """A completed checkpoint."""

    checkpoint_id: CheckpointId
    """Its position in the log: 1, 2, 3, ..., with gaps where drivers took over."""
    generation: int
    """Of the driver that completed it."""
    job_id: str
    job_name: str
    created_at: int
    """When its epoch was planned, in ms since 1970."""
    duration_ms: int = 0
    sources: dict[str, SourceState] = {}
    """By the source's uid."""
    operators: dict[str, OperatorCheckpoint] = {}
    """By the operator's uid."""
    committables: list[tuple[str, int, Any]] = []
    """Prepared output of the epoch: uid of the sink, subtask, plain data."""
    full_size: int = 0
    """Bytes of all files it refers to."""
    delta_size: int = 0
    """Bytes written for this checkpoint alone."""
    manifests: list[ContainedFile] = []
    """The files that hold the part of the metadata that older checkpoints have, too. Known once it is stored."""

    def files(self) -> Iterator[FileHandle]:
        """All files that it refers to; files shared by subtasks come up more than once."""
        yield from self.manifests
        for operator in self.operators.values():
            for subtask in operator.subtasks:
                yield from subtask.files()
