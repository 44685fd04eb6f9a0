"""The execution plan as JSON for Flink's plan visualizer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from holdfast.graph.job_graph import display_name
from holdfast.graph.stream_graph import StreamGraph
from holdfast.graph.transformations import OperatorTransformation, Physical, SourceTransformation

__all__ = ["execution_plan"]


def execution_plan(roots: Iterable[OperatorTransformation]) -> str:
    """Return one node per operator, for these transformations and all their inputs: ``{"nodes": [...]}``.

    Raises:
        ConfigurationError: the program cannot run as written.
    """
    graph = StreamGraph.of(roots)
    nodes: list[dict[str, Any]] = []
    for operator in graph.operators:
        node: dict[str, Any] = {
            "id": operator.id,
            "type": display_name(operator),
            "pact": _pact(operator),
            "contents": operator.description or display_name(operator),
            "parallelism": operator.parallelism,
        }
        predecessors = [
            {
                "id": edge.producer.id,
                "ship_strategy": edge.partitioning.value,
                "side": "second" if i else "first",
            }
            for i, edge in enumerate(graph.into(operator))
        ]
        if predecessors:
            node["predecessors"] = predecessors
        nodes.append(node)
    return json.dumps({"nodes": nodes}, indent=2)


def _pact(operator: Physical) -> str:
    if isinstance(operator, SourceTransformation):
        return "Data Source"
    return "Data Sink" if isinstance(operator, OperatorTransformation) and operator.is_sink else "Operator"
