"""The stream graph: the program's operators and the edges between them, with virtual transformations resolved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from holdfast.common.formats.columns import ColumnForm
from holdfast.common.typeinfo import TypeInformation
from holdfast.errors import ConfigurationError
from holdfast.graph.transformations import (
    OperatorTransformation,
    Partitioned,
    Physical,
    SideOutput,
    Transformation,
    Union,
)
from holdfast.graph.uids import assign_uids
from holdfast.runtime.plan.plan import Partitioning

__all__ = ["Edge", "StreamGraph"]


@dataclass(frozen=True)
class Edge:
    """The path of records from one operator to another."""

    producer: Physical
    consumer: OperatorTransformation
    partitioning: Partitioning
    input_index: int
    """The index of the consumer's input."""
    side_output: str | None = None
    key_selector: Callable[[Any], Any] | None = None
    partitioner: Callable[[Any, int], int] | None = None
    side_type: TypeInformation | None = None
    """The declared type of the side output's elements."""
    key_type: TypeInformation | None = None
    """The declared type of the keys."""
    columns: ColumnForm | None = None
    """The form of the columns that the consumer takes."""
    partitioned_type: TypeInformation | None = None
    """The declared type of the elements that are partitioned."""


@dataclass(frozen=True)
class StreamGraph:
    """The operators in program order (producers before consumers), and their edges."""

    operators: tuple[Physical, ...]
    edges: tuple[Edge, ...]
    uids: dict[int, str]
    """Operator id -> uid, set by the user or derived."""

    @classmethod
    def of(cls, roots: Iterable[OperatorTransformation]) -> StreamGraph:
        """Create the graph of these operators and all their inputs.

        Raises:
            ConfigurationError: the program cannot run as written.
        """
        found: dict[int, Transformation] = {}
        waiting: list[Transformation] = list(roots)
        while waiting:
            node = waiting.pop()
            if node.id not in found:
                found[node.id] = node
                waiting.extend(node.inputs)
        operators = tuple(n for _, n in sorted(found.items()) if isinstance(n, Physical))
        if not any(isinstance(n, OperatorTransformation) for n in operators):
            raise ConfigurationError(
                "No operators defined in streaming topology: nothing would be computed. End a stream with sink_to(...), "
                "add_sink(...) or print() before execute(), or read its results with execute_and_collect()."
            )
        edges = tuple(e for n in operators if isinstance(n, OperatorTransformation) for e in _edges_into(n))
        return cls(operators, edges, assign_uids(operators, _producers(edges)))

    def into(self, operator: Physical) -> list[Edge]:
        """The edges that end in ``operator``, in the order of its inputs."""
        return [e for e in self.edges if e.consumer is operator]

    def out_of(self, operator: Physical) -> list[Edge]:
        """The edges that begin in ``operator``."""
        return [e for e in self.edges if e.producer is operator]


def _producers(edges: Iterable[Edge]) -> dict[int, list[tuple[int, str | None]]]:
    producers: dict[int, list[tuple[int, str | None]]] = {}
    for edge in edges:
        producers.setdefault(edge.consumer.id, []).append((edge.producer.id, edge.side_output))
    return producers


def _edges_into(consumer: OperatorTransformation) -> Iterator[Edge]:
    for index, node in enumerate(consumer.inputs):
        for path in _paths(node):
            yield _edge(path, consumer, index)


@dataclass(frozen=True)
class _Path:
    """The output of a producer, as far as the nodes visited so far describe it."""

    producer: Physical
    partitioned: Partitioned | None = None
    side_output: str | None = None
    side_type: TypeInformation | None = None


def _paths(node: Transformation) -> list[_Path]:
    """Return all paths of records to the consumer of ``node``. The last of consecutive partitionings applies."""
    if isinstance(node, Physical):
        return [_Path(node)]
    inner = [path for each in node.inputs for path in _paths(each)]
    if isinstance(node, Partitioned):
        return [replace(path, partitioned=node) for path in inner]
    if isinstance(node, SideOutput):
        return [replace(path, side_output=node.tag, side_type=node.output_type) for path in inner]
    assert isinstance(node, Union), node
    return inner


def _edge(path: _Path, consumer: OperatorTransformation, index: int) -> Edge:
    producer, partitioned = path.producer, path.partitioned
    same = producer.parallelism == consumer.parallelism
    if partitioned is None:
        partitioning = Partitioning.FORWARD if same else Partitioning.REBALANCE
        return Edge(producer, consumer, partitioning, index, path.side_output, side_type=path.side_type)
    if partitioned.partitioning is Partitioning.FORWARD and not same:
        raise ConfigurationError(
            f"forward() needs equal parallelism, but {producer} has {producer.parallelism} and {consumer} has "
            f"{consumer.parallelism}. Set the same parallelism on both, or use rebalance()."
        )
    return Edge(
        producer,
        consumer,
        partitioned.partitioning,
        index,
        path.side_output,
        partitioned.key_selector,
        partitioned.partitioner,
        path.side_type,
        partitioned.key_type,
        partitioned.columns,
        partitioned.output_type,
    )
