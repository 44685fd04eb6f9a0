"""Complex event processing: Flink CEP's Pattern API. Finds sequences of events in a stream."""

from __future__ import annotations

from holdfast.cep.checks import PatternWarning
from holdfast.cep.conditions import Context, TimeContext
from holdfast.cep.functions import (
    PatternFlatSelectFunction,
    PatternFlatTimeoutFunction,
    PatternProcessFunction,
    PatternSelectFunction,
    PatternTimeoutFunction,
    TimedOutPartialMatchHandler,
)
from holdfast.cep.pattern import GroupPattern, Pattern, WithinType
from holdfast.cep.pattern_stream import CEP, PatternStream
from holdfast.cep.skip import AfterMatchSkipStrategy

__all__ = [
    "CEP",
    "AfterMatchSkipStrategy",
    "Context",
    "GroupPattern",
    "Pattern",
    "PatternFlatSelectFunction",
    "PatternFlatTimeoutFunction",
    "PatternProcessFunction",
    "PatternSelectFunction",
    "PatternStream",
    "PatternTimeoutFunction",
    "PatternWarning",
    "TimeContext",
    "TimedOutPartialMatchHandler",
    "WithinType",
]
