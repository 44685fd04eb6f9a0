"""A function that does not fit its stream."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.common import Time, Types
from holdfast.datastream import (
    CoMapFunction,
    KeyedProcessFunction,
    MapFunction,
    OutputTag,
    ProcessWindowFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    TimeWindow,
    ValueState,
)
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.datastream.window import TumblingEventTimeWindows

env = StreamExecutionEnvironment.get_execution_environment()


class Halve(MapFunction[int, float]):
    def map(self, value: int) -> float:
        return value / 2


class Wrong(MapFunction[int, float]):
    def map(self, value: int) -> str:  # Return type "str" of "map" incompatible with return type "float"
        return "half"


class Count(KeyedProcessFunction[str, str, int]):
    count: ValueState[str]

    def open(self, runtime_context: RuntimeContext) -> None:
        declared = ValueStateDescriptor("count", Types.LONG())
        self.count = runtime_context.get_state(declared)  # expected "ValueStateDescriptor[str]"

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context) -> Iterable[int]:
        yield value  # Incompatible types in "yield" (actual type "str", expected type "int")


class OfLists(ProcessWindowFunction[list[int], str, str, TimeWindow]):
    def process(self, key: str, context: Any, elements: Iterable[list[int]]) -> Iterable[str]:
        return []


class Both(CoMapFunction[int, str, str]):
    def map1(self, value: int) -> str:
        return ""

    def map2(self, value: str) -> str:
        return value


def shorten(text: str) -> str:
    return text[:5]


words = env.from_collection(["a", "b"])
numbers = words.map(len)
numbers.map(shorten)  # has incompatible type "Callable[[str], str]"; expected "Callable[[int]
words.map(Halve())  # has incompatible type "Halve"; expected "Callable[[str]
numbers.map(Halve()).map(shorten)  # expected "Callable[[float]
words.map(lambda word: word + 1)  # Unsupported operand types for + ("str" and "int")
words.flat_map(len)  # has incompatible type "Callable[[Sized], int]"
words.filter(lambda word: word.upperr())  # "str" has no attribute "upperr"
words.map(shorten, Types.INT).print()  # No overload variant of "map" of "DataStream"
numbers.key_by(shorten)  # has incompatible type "Callable[[str], str]"
words.window(TumblingEventTimeWindows.of(Time.seconds(1)))  # "DataStream[str]" has no attribute "window"
words.key_by(len).process(Count())  # has incompatible type "Count"; expected "KeyedProcessFunction[int, str
words.key_by(lambda word: word).reduce(lambda a, b: len(a))  # Incompatible return value type (got "int", expected "str")
words.key_by(shorten).window(TumblingEventTimeWindows.of(Time.seconds(1))).process(OfLists())  # incompatible type "OfLists"
words.connect(numbers).map(Both())  # has incompatible type "Both"; expected "CoMapFunction[str, int
words.get_side_output(OutputTag("late", Types.LONG())).map(shorten)  # expected "Callable[[int]
words.connect(numbers).key_by(shorten, shorten)  # Argument 2 to "key_by" of "ConnectedStreams" has incompatible type
words.join(numbers).where(len).equal_to(shorten)  # Argument 1 to "equal_to" of "_Where" has incompatible type
