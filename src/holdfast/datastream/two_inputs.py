"""Operators on two streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.function_checks import check_type

if TYPE_CHECKING:
    from holdfast.runtime.operators.base import OperatorFactory

__all__ = ["two_inputs"]


def two_inputs(
    streams: tuple[DataStream, DataStream],
    kind: str,
    factory: OperatorFactory,
    functions: tuple[tuple[str, Any], ...],
    output_type: Any,
) -> DataStream:
    """Add an operator on two streams.

    Args:
        streams: The inputs, keyed ones partitioned by their keys.
        kind: The kind of operator.
        factory: The operator.
        functions: The user's objects in it with their names in messages.
        output_type: The declared type of the results, not yet checked.
    """
    env = streams[0]._env
    node = env._add_operator(
        inputs=tuple(stream._transformation for stream in streams),
        kind=kind,
        name=kind,
        factory=factory,
        functions=functions,
        output_type=check_type(output_type, f"the output_type of {kind}"),
        side_outputs=True,
    )
    return DataStream(env, node)
