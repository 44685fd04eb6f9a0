"""Base classes of user functions. A plain callable works wherever one method suffices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.common.system.jvm_only import refusing
from holdfast.functions.async_functions import AsyncFunction, AsyncRetryPredicate, AsyncRetryStrategy
from holdfast.functions.broadcast_functions import (
    BaseBroadcastProcessFunction,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
)
from holdfast.functions.checkpointed_function import (
    CheckpointedFunction,
    FunctionInitializationContext,
    FunctionSnapshotContext,
)
from holdfast.functions.co_functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from holdfast.functions.element_functions import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ReduceFunction,
)
from holdfast.functions.function import Function, RuntimeContext
from holdfast.functions.join_functions import CoGroupFunction, FlatJoinFunction, JoinFunction, ProcessJoinFunction
from holdfast.functions.process_functions import KeyedProcessFunction, ProcessFunction
from holdfast.functions.window_functions import (
    AllWindowFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from holdfast.state.api.interfaces import KeyedStateStore

__all__ = [
    "CoGroupFunction",
    "FlatJoinFunction",
    "JoinFunction",
    "ProcessJoinFunction",
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BaseBroadcastProcessFunction",
    "BroadcastProcessFunction",
    "CheckpointedFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "MapFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "RuntimeContext",
    "WindowFunction",
]


if not TYPE_CHECKING:
    __getattr__ = refusing(
        __name__,
        {
            "SourceFunction": "it wraps an object of the JVM; derive a source from holdfast.connectors.base.Source",
            "SinkFunction": "it wraps an object of the JVM; derive a sink from holdfast.connectors.base.Sink",
        },
    )
