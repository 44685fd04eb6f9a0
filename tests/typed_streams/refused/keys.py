"""A key of another type than the function's."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()


class Named(KeyedProcessFunction[str, int, str]):
    def process_element(self, value: int, ctx: KeyedProcessFunction.Context[str]) -> Iterator[str]:
        yield ctx.get_current_key() + 1  # Unsupported operand types for + ("str" and "int")


Context = KeyedProcessFunction.Context[int]


class OfNumbers(KeyedProcessFunction[str, int, str]):
    def process_element(self, value: int, ctx: Context) -> Iterator[str]:  # Argument 2 of "process_element" is incompatible
        yield str(ctx.get_current_key())


env.from_collection([1]).key_by(lambda n: n).process(Named())  # expected "KeyedProcessFunction[int, int, str]"
