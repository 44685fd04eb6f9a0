"""BatchOperations: the calls of a stream whose functions take batches of elements, as record batches of Arrow."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic

from holdfast.common.typeinfo import TypeInformation
from holdfast.common.types import Row
from holdfast.common.values.type_variables import T
from holdfast.datastream.operations.function_checks import check_function
from holdfast.functions.batch_functions import BatchFilterFunction, BatchMapFunction
from holdfast.graph.transformations import Transformation
from holdfast.runtime.operators.batches import FilterBatch, MapBatch
from holdfast.runtime.operators.function_factory import FunctionFactory

if TYPE_CHECKING:
    import pyarrow

    from holdfast.datastream.data_stream import DataStream

__all__ = ["BatchOperations"]


class BatchOperations(Generic[T]):
    """The calls with functions of batches."""

    _transformation: Transformation

    if TYPE_CHECKING:

        def _then(self, kind: str, factory: Any, func: Any, output_type: Any, **settings: Any) -> DataStream[Any]: ...

    def map_batch(
        self,
        func: Callable[[pyarrow.RecordBatch], pyarrow.RecordBatch] | BatchMapFunction,
        output_type: TypeInformation | None = None,
    ) -> DataStream[Row]:
        """Convert batches of elements: each row to one row, which keeps its timestamp.

        A batch has as many elements as were read or received together. Functions of single elements before and after it
        see Rows; rows become columns, and columns rows, only where one kind of function follows the other.

        Args:
            func: A callable ``batch -> batch`` over ``pyarrow.RecordBatch``, or a BatchMapFunction.
            output_type: The declared type of the results, ``Types.ROW_NAMED(...)``.

        Raises:
            ConfigurationError: the function does not take one argument.
        """
        check_function(func, "map_batch", ("batch",), "map_batch()")
        factory = FunctionFactory(MapBatch, func, (self._transformation.output_type,))
        return self._then("MapBatch", factory, func, output_type)

    def filter_batch(self, func: Callable[[pyarrow.RecordBatch], Any] | BatchFilterFunction) -> DataStream[T]:
        """Keep rows of batches.

        Args:
            func: A callable ``batch -> mask``, or a BatchFilterFunction. The mask has one boolean for each row, as an array
                of Arrow or NumPy; null counts as false.

        Raises:
            ConfigurationError: the function does not take one argument.
        """
        check_function(func, "filter_batch", ("batch",), "filter_batch()")
        declared = self._transformation.output_type
        return self._then(
            "FilterBatch", FunctionFactory(FilterBatch, func, (declared,)), func, declared, passes_elements=True
        )
