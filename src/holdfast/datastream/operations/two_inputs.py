"""Operators on two streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic

from holdfast.common.output_tag import OutputTag
from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import A, B
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.operations.function_checks import check_type

if TYPE_CHECKING:
    from typing_extensions import Self

    from holdfast.runtime.plan.operator import OperatorFactory

__all__ = ["LateSides", "two_inputs"]


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


class LateSides(Generic[A, B]):
    """Two streams of an operator that drops late elements."""

    def __init__(self, streams: tuple[DataStream[A], DataStream[B]]) -> None:
        self._streams = streams
        self._late: list[OutputTag | None] = [None, None]

    def _types(self) -> tuple[TypeInformation | None, TypeInformation | None]:
        """The declared types of the elements."""
        left, right = (stream._transformation.output_type for stream in self._streams)
        return tuple(None if each is None or each.is_pickled else each for each in (left, right))  # type: ignore[return-value]

    def side_output_left_late_data(self, output_tag: OutputTag) -> Self:
        """Send late elements of the left stream to a side output instead of dropping them."""
        return self._send_late(0, output_tag)

    def side_output_right_late_data(self, output_tag: OutputTag) -> Self:
        """Send late elements of the right stream to a side output instead of dropping them."""
        return self._send_late(1, output_tag)

    def _send_late(self, side: int, output_tag: OutputTag) -> Self:
        if not isinstance(output_tag, OutputTag):
            raise TypeError(f"the side output of late elements takes an OutputTag, not {output_tag!r}.")
        self._late[side] = output_tag
        return self
