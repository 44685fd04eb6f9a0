"""DataStreamUtils: operations on streams that need care."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.common.typeinfo import TypeInformation
from holdfast.datastream.data_stream import DataStream, KeyedStream
from holdfast.datastream.operations.function_checks import check_function, check_type, selector_callable
from holdfast.errors import ConfigurationError
from holdfast.graph.transformations import Partitioned
from holdfast.runtime.plan.plan import Partitioning

__all__ = ["DataStreamUtils"]


class DataStreamUtils:
    """Operations on streams that need care."""

    @staticmethod
    def reinterpret_as_keyed_stream(
        stream: DataStream, key_selector: Callable[[Any], Any] | Any, key_type: TypeInformation | None = None
    ) -> KeyedStream:
        """Interpret a stream that is already partitioned by a key as a KeyedStream, without a shuffle, in the same task.

        Use it for the results of keyed operators whose elements keep their key, at the same parallelism. An element whose
        key belongs to another subtask fails the job.

        Args:
            stream: The stream, without a following partitioning.
            key_selector: A callable ``value -> key`` or a KeySelector.
            key_type: The declared type of the keys.

        Raises:
            ConfigurationError: the stream has a partitioning, which would move its elements to other subtasks.
        """
        where = "reinterpret_as_keyed_stream()"
        if not isinstance(stream, DataStream):
            raise TypeError(f"{where} takes a stream, not {stream!r}.")
        if isinstance(stream._transformation, Partitioned):
            raise ConfigurationError(
                f"{where} takes a stream without a partitioning, not a {stream._what()}: call it on the operator before it."
            )
        check_function(key_selector, "get_key", ("value",), where)
        check_type(key_type, f"the key_type of {where}")
        select = selector_callable(key_selector, "get_key")
        return KeyedStream(stream, stream._partitioned(Partitioning.FORWARD, key_selector=select, key_type=key_type))
