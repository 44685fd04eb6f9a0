"""A context knows the type of its key, if the function names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from typing_extensions import reveal_type

from holdfast.common import Types
from holdfast.datastream import (
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
)
from holdfast.datastream.state import MapStateDescriptor

env = StreamExecutionEnvironment.get_execution_environment()
RULES = MapStateDescriptor("rules", Types.STRING(), Types.INT())


class Named(KeyedProcessFunction[str, int, str]):
    def process_element(self, value: int, ctx: KeyedProcessFunction.Context[str]) -> Iterator[str]:
        reveal_type(ctx.get_current_key())  # str
        yield ctx.get_current_key()

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext[str]) -> Iterator[str]:
        reveal_type(ctx.get_current_key())  # str
        yield ctx.get_current_key()


class Short(KeyedProcessFunction[str, int, str]):
    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[str]:
        reveal_type(ctx.get_current_key())  # Any
        yield "short"

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> None:
        pass


class Unparametrised(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        yield value


class Both(KeyedCoProcessFunction[str, int, str, str]):
    def process_element1(self, value: int, ctx: KeyedCoProcessFunction.Context[str]) -> Iterable[str]:
        return [ctx.get_current_key()]

    def process_element2(self, value: str, ctx: KeyedCoProcessFunction.Context[object]) -> Iterable[str]:
        reveal_type(ctx.get_current_key())  # object
        return [value]

    def on_timer(self, timestamp: int, ctx: KeyedCoProcessFunction.OnTimerContext[str]) -> Iterable[str]:
        return [ctx.get_current_key()]


class ByRules(KeyedBroadcastProcessFunction[str, int, str, str]):
    def process_element(self, value: int, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext[str]) -> Iterable[str]:
        reveal_type(ctx.get_current_key())  # str
        return [ctx.get_current_key()]

    def process_broadcast_element(self, value: str, ctx: KeyedBroadcastProcessFunction.Context) -> Iterable[str]:
        ctx.get_broadcast_state(RULES).put(value, 1)
        return []


keyed = env.from_collection([1, 2]).key_by(str)
reveal_type(keyed.process(Named()))  # DataStream[str]
reveal_type(keyed.process(Short()))  # DataStream[str]
reveal_type(keyed.process(Unparametrised()))  # DataStream[Any]
words = env.from_collection(["a"])
reveal_type(keyed.connect(words.key_by(lambda word: word)).process(Both()))  # DataStream[str]
reveal_type(keyed.connect(words.broadcast(RULES)).process(ByRules()))  # DataStream[str]
