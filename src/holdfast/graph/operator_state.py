"""Checks before the job starts that functions with operator state are in operators that support it."""

from __future__ import annotations

from holdfast.errors import ConfigurationError
from holdfast.functions.checkpointed_function import CheckpointedFunction
from holdfast.graph.stream_graph import StreamGraph
from holdfast.graph.transformations import OperatorTransformation
from holdfast.runtime.plan.operator import StateKind

__all__ = ["check_operator_state"]


def check_operator_state(graph: StreamGraph) -> None:
    """Refuse functions with operator state in operators that do not support it.

    Raises:
        ConfigurationError: such a function exists; its methods would never be called.
    """
    for operator in graph.operators:
        if isinstance(operator, OperatorTransformation) and StateKind.LISTED not in operator.factory.state:
            for role, function in operator.functions:
                if isinstance(function, CheckpointedFunction):
                    raise ConfigurationError(
                        f"The {role} of {operator} is the CheckpointedFunction {type(function).__name__}, but functions "
                        "have operator state only in map, flat_map, filter, reduce and process of streams: move it there."
                    )
