"""Every public operation is drawn, or stands here with the reason why not."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings

import holdfast.cep
import holdfast.datastream
import holdfast.table
from cep import patterns
from holdfast.datastream import (
    AsyncDataStream,
    DataStream,
    Evictor,
    Function,
    KeyedStream,
    StateDescriptor,
    Trigger,
    WindowAssigner,
    WindowedStream,
)
from holdfast.datastream.joined_streams import IntervalJoin, IntervalJoined
from holdfast.datastream.operations.data_stream_utils import DataStreamUtils
from holdfast.datastream.operations.temporal_join import TemporalJoin

from . import expiring, functions, more_functions, window_functions
from .drawing import Program
from .programs import OPERATIONS, programs

STREAMS = [
    *(DataStream, KeyedStream, WindowedStream, holdfast.datastream.AllWindowedStream),
    *(holdfast.datastream.ConnectedStreams, holdfast.datastream.BroadcastConnectedStream),
    *(IntervalJoin, IntervalJoined, TemporalJoin, AsyncDataStream, DataStreamUtils),
    *(holdfast.table.KStream, holdfast.table.KTable, holdfast.table.KGroupedStream, holdfast.table.KGroupedTable),
    *(
        holdfast.table.GlobalKTable,
        holdfast.table.CogroupedKStream,
        holdfast.table.TimeWindowedKStream,
        holdfast.table.SessionWindowedKStream,
    ),
    *(holdfast.table.TimeWindowedCogroupedKStream, holdfast.table.SessionWindowedCogroupedKStream),
    *(holdfast.cep.CEP, holdfast.cep.PatternStream, holdfast.cep.Pattern),
]
PARTS = (WindowAssigner, Trigger, Evictor, Function, StateDescriptor)

NOT_DRAWN = {
    "settings that change no result, or belong to whole jobs": {
        *("get_name", "get_type", "get_input_type", "get_execution_environment", "get_execution_config", "cache"),
        *("set_uid_hash", "set_max_parallelism", "force_non_parallel"),
    },
    "sinks, which have tests of their own": {
        *("print", "add_sink", "execute_and_collect", "execute_to_dataframe", "foreach_checkpoint", "to"),
    },
    "the callable, or the method that makes it, is drawn instead of the class": {
        *("KeySelector", "Partitioner", "PatternSelectFunction", "PatternFlatSelectFunction"),
        *("CountTumblingWindowAssigner", "CountSlidingWindowAssigner", "DynamicEventTimeSessionWindows"),
        "DynamicProcessingTimeSessionWindows",
    },
    "patterns have a generator of their own (tests/cep); a model of the time that is over is there": {
        *("or_where", "sequence", "subtype", "PatternTimeoutFunction", "PatternFlatTimeoutFunction"),
    },
    "all elements of a stream have no order": {"count_window_all"},
    "Spark's rule, with a test of its own (tests/engine/test_grouped_rows.py)": {
        "drop_duplicates_within_watermark",
    },
    "PySpark's processors are judged by PySpark's own tester (tests/engine/test_transform_with_state.py)": {
        *("transform_with_state", "transform_with_state_in_pandas", "apply_in_pandas_with_state"),
    },
}


def public(owner: Any) -> set[str]:
    return {name for name, _ in inspect.getmembers(owner, callable) if not name.startswith("_")}


def operations() -> set[str]:
    """The methods of streams, and the classes that a program gives them."""
    found = {name for stream in STREAMS for name in public(stream)}
    for module in (holdfast.datastream, holdfast.cep):
        for name, value in vars(module).items():
            if inspect.isclass(value) and issubclass(value, PARTS) and value not in PARTS:
                found.add(name)
    return found


def names(text: str) -> set[str]:
    """What a text names; tests/cep/patterns.py has names of methods in texts."""
    nodes = list(ast.walk(ast.parse(text)))
    return {str(getattr(node, "attr", getattr(node, "id", getattr(node, "value", "")))) for node in nodes}


def test_every_public_operation_is_drawn_or_has_a_reason():
    drawn: set[str] = set()
    for module in (expiring, functions, more_functions, window_functions, patterns):
        drawn |= names(Path(module.__file__ or "").read_text())

    def draw(program: Program) -> None:
        drawn.update(re.findall(r"\w+", " ".join([program.text, *program.offered])))

    few = {"max_examples": 40, "derandomize": True, "database": None, "phases": [Phase.generate]}
    for operation in dict.fromkeys(OPERATIONS):
        settings(suppress_health_check=list(HealthCheck), **few)(given(programs([operation], 2))(draw))()
    excused = {name for some in NOT_DRAWN.values() for name in some}
    assert sorted(operations() - drawn - excused) == []
    assert sorted(excused - operations()) == [], "what is no operation needs no reason"
    assert sorted(excused & drawn) == [], "what is drawn needs no reason"
