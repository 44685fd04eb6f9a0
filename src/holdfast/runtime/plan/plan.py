"""The job as the runtime executes it: vertices of chained operators, joined by channels.

`holdfast.graph` creates it from the program's transformations. It is pickled once per job and unpickled in every task slot,
so it holds operator *factories* (configuration and user functions), never open resources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from holdfast.runtime.plan.settings import JobSettings

if TYPE_CHECKING:
    from holdfast.common.formats.columns import ColumnForm
    from holdfast.common.typeinfo import TypeInformation
    from holdfast.connectors.base import Sink, Source
    from holdfast.runtime.plan.operator import OperatorFactory

__all__ = ["Chained", "ChainEdge", "Channel", "InputKind", "JobPlan", "Partitioning", "SourceSpec", "Vertex"]


class Partitioning(Enum):
    """How records are distributed to the subtasks of the next vertex."""

    FORWARD = "FORWARD"
    """To the subtask with the same number (needs equal parallelism)."""
    HASH = "HASH"
    """By the key group of the record's key: one key, one subtask."""
    REBALANCE = "REBALANCE"
    """Round robin."""
    RESCALE = "RESCALE"
    """Round robin over the receiver subtasks next to the sender."""
    SHUFFLE = "SHUFFLE"
    """At random, evenly."""
    BROADCAST = "BROADCAST"
    """To every subtask."""
    CUSTOM = "CUSTOM"
    """By the user's function (key, number of subtasks) -> subtask."""


class InputKind(Enum):
    """The kind of one input of a vertex."""

    KEYED = "KEYED"
    """Records with their keys; all records of a key reach the same subtask."""
    BROADCAST = "BROADCAST"
    """Every subtask gets each record."""
    PLAIN = "PLAIN"
    """Any records, each in one subtask."""


@dataclass(frozen=True)
class ChainEdge:
    """An edge within a chain: a function call, without a frame."""

    target: int
    """Position in the vertex's chain."""
    side_output: str | None = None
    """The OutputTag's id whose records take this edge; None: the main output."""
    key_selector: Callable[[Any], Any] | None = None
    """Record -> key, for a target with keyed state."""
    key_type: TypeInformation | None = None
    """The declared type of the keys; None: keys are not checked."""


@dataclass(frozen=True)
class Channel:
    """An edge between vertices: records leave as frames through Spark's shuffle."""

    id: int
    target: int
    """The receiving vertex's id."""
    partitioning: Partitioning
    side_output: str | None = None
    key_selector: Callable[[Any], Any] | None = None
    """For HASH and CUSTOM: record -> key."""
    key_type: TypeInformation | None = None
    """The declared type of the keys; None: keys are not checked."""
    partitioner: Callable[[Any, int], int] | None = None
    """For CUSTOM."""
    input_index: int = 0
    """The receiver's input, an index of ``Vertex.inputs``."""
    columns: ColumnForm | None = None
    """For HASH: the receiver takes columns, in this form."""


@dataclass(frozen=True)
class Chained:
    """One operator in a vertex's chain."""

    uid: str
    """Identifies the operator's state in checkpoints; given by the user, or derived from the graph."""
    uid_given: bool
    """Whether the user has given the uid."""
    name: str
    factory: OperatorFactory
    edges: tuple[ChainEdge, ...] = ()
    channels: tuple[Channel, ...] = ()
    output_type: TypeInformation | None = None
    """The declared type of the output, which is fitted to it; None: the output is not checked."""
    side_types: Mapping[str, TypeInformation] = field(default_factory=dict)
    """The declared types of the side outputs, by tag id."""
    key_type: TypeInformation | None = None
    """The declared type of the keys of the operator's state."""
    restored_key_type: TypeInformation | None = None
    """The type of the keys that functions get back from state: the declared one, or that of the fields that form the key."""


@dataclass(frozen=True)
class SourceSpec:
    """The head of a source vertex; its records go to chain position 0, which always exists."""

    uid: str
    uid_given: bool
    name: str
    source: Source
    watermark_strategy: Any
    """A `holdfast.common.watermark_strategy.WatermarkStrategy`."""


@dataclass(frozen=True)
class Vertex:
    """A chain of operators that run in one task."""

    id: int
    name: str
    parallelism: int
    max_parallelism: int
    level: int
    """Its Spark stage: 0 for sources; otherwise one more than the highest level of its inputs."""
    chain: tuple[Chained, ...]
    source: SourceSpec | None = None
    inputs: tuple[InputKind, ...] = ()
    """The inputs of the first operator; empty for a source."""
    max_parallelism_given: bool = True
    """Whether the program sets it; if not, that of an existing checkpoint holds."""


@dataclass(frozen=True)
class JobPlan:
    """A whole job."""

    name: str
    vertices: tuple[Vertex, ...]
    config: dict[str, str]
    """The effective configuration, Flink's keys and Holdfast's."""
    settings: JobSettings
    """The parsed configuration of the runtime."""
    class_aliases: Mapping[str, type[Any]] = field(default_factory=dict)
    """Former names of classes that have moved, for pickled state."""

    @property
    def levels(self) -> int:
        """The number of Spark stages of an epoch."""
        return 1 + max(v.level for v in self.vertices)

    @property
    def sinks(self) -> list[tuple[str, Sink]]:
        """The sinks with their uids."""
        written = [(each.uid, each.factory.written_sink) for vertex in self.vertices for each in vertex.chain]
        return [(uid, sink) for uid, sink in written if sink is not None]

    def at(self, level: int) -> list[Vertex]:
        """The vertices of one level, in the order of their partitions."""
        return [v for v in self.vertices if v.level == level]

    @cached_property
    def broadcast_sources(self) -> frozenset[str]:
        """The uids of the sources that feed a broadcast input of some vertex, and no other input beside a broadcast one."""
        broadcast: set[int] = set()
        others: set[int] = set()
        for vertex in self.vertices:
            if InputKind.BROADCAST in vertex.inputs and len(vertex.inputs) > 1:
                for index, kind in enumerate(vertex.inputs):
                    (broadcast if kind is InputKind.BROADCAST else others).update(self._upstream(vertex, index))
        return frozenset(v.source.uid for v in self.vertices if v.source is not None and v.id in broadcast - others)

    @cached_property
    def read_first(self) -> Mapping[str, frozenset[str]]:
        """By the uid of a source: the sources that an operator needs to read to their end before it."""
        found: dict[str, frozenset[str]] = {}
        for vertex in self.vertices:
            if (first := vertex.chain[0].factory.first_input) is not None:
                before = self.sources_of(vertex, first)
                for index in set(range(len(vertex.inputs))) - {first}:
                    for uid in self.sources_of(vertex, index):
                        found[uid] = found.get(uid, frozenset()) | before
        return found

    def sources_of(self, vertex: Vertex, index: int) -> frozenset[str]:
        """The uids of the sources whose records reach an input."""
        upstream = self._upstream(vertex, index)
        return frozenset(each.source.uid for each in self.vertices if each.source is not None and each.id in upstream)

    def _upstream(self, vertex: Vertex, index: int) -> set[int]:
        """The vertices whose records reach an input."""
        found: set[int] = set()
        waiting: list[tuple[int, int | None]] = [(vertex.id, index)]
        while waiting:
            target, wanted = waiting.pop()
            for sender in self.vertices:
                channels = [channel for chained in sender.chain for channel in chained.channels if channel.target == target]
                if sender.id not in found and any(wanted in (None, channel.input_index) for channel in channels):
                    found.add(sender.id)
                    waiting.append((sender.id, None))
        return found
