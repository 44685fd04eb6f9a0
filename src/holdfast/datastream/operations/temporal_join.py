"""TemporalJoin: a stream with a versioned table, by event time."""

from __future__ import annotations

from collections.abc import Callable

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.values.type_variables import A, B, R
from holdfast.datastream.data_stream import DataStream
from holdfast.datastream.functions import FlatJoinFunction, JoinFunction
from holdfast.datastream.operations.function_checks import check_function, check_object
from holdfast.datastream.operations.two_inputs import LateSides, two_inputs
from holdfast.runtime.operators.joins.temporal_join import TemporalJoinOperator

__all__ = ["TemporalJoin"]


class TemporalJoin(LateSides[A, B]):
    """A keyed stream and the versions of a keyed table, as returned by ``temporal_join``.

    An element of the table is a version of its key, valid from its timestamp until that of the next one. A Row of kind
    DELETE or UPDATE_BEFORE ends the version before it.
    """

    def __init__(self, streams: tuple[DataStream[A], DataStream[B]]) -> None:
        super().__init__(streams)
        self._left_outer = False

    def left_outer(self) -> TemporalJoin[A, B | None]:
        """Emit the elements for whose timestamp there is no version, too: the function gets None in its place."""
        self._left_outer = True
        return self

    def apply(
        self,
        function: Callable[[A, B], R] | JoinFunction[A, B, R] | FlatJoinFunction[A, B, R],
        output_type: TypeInformation | None = None,
    ) -> DataStream[R]:
        """Apply a function to each element and the version of its key that is valid at the element's timestamp.

        An element is joined when the watermark of both streams has reached it. Results have its timestamp.

        Args:
            function: A callable ``(element, version) -> result``, a JoinFunction or a FlatJoinFunction.
            output_type: The declared type of the results: they are checked and converted to it (a tuple becomes a Row).
        """
        where = "apply() after temporal_join()"
        if isinstance(function, FlatJoinFunction):
            check_object(function, FlatJoinFunction, {}, where)
        else:
            check_function(function, "join", ("element", "version"), where)
        factory = TemporalJoinOperator(function, self._left_outer, *self._types(), self._late[0], self._late[1])
        return two_inputs(self._streams, "TemporalJoin", factory, (("join function", function),), output_type)
