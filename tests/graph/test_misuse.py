"""Misuse of timers and state that a function's source shows is reported before the job starts, with the line."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from holdfast.common import Types
from holdfast.datastream import (
    BroadcastProcessFunction,
    CoProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    ProcessFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from holdfast.errors import ConfigurationError

RULES = MapStateDescriptor("rules", Types.STRING(), Types.LONG())


def streams() -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(spark=object()).set_parallelism(2)  # type: ignore[arg-type]
    return env, env.from_collection([1, 2]), env.from_collection([3])


class Timer(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        if value > 3:
            ctx.timer_service().register_event_time_timer(5)  # here


class CoTimer(CoProcessFunction):
    def process_element1(self, value: Any, ctx: Any) -> Any:
        return []

    def process_element2(self, value: Any, ctx: Any) -> Any:
        timers = ctx.timer_service()
        timers.delete_processing_time_timer(value)  # here


class State(MapFunction):
    def open(self, context: Any) -> None:  # type: ignore[override]
        name = "count"
        self.count = context.get_state(ValueStateDescriptor(name, Types.LONG()))  # here

    def map(self, value: Any) -> Any:
        return value


class PerhapsState(State):
    """For streams with and without keys."""

    def open(self, context: Any) -> None:  # type: ignore[override]
        try:
            self.count = context.get_state(ValueStateDescriptor("count", Types.LONG()))
        except RuntimeError:
            self.count = None


class OwnStore(State):
    def open(self, context: Any) -> None:  # type: ignore[override]
        store = self.connect()
        self.count = store.get_state("count")

    def connect(self) -> Any:
        return {}


class Keyed(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(5)


class Rules(BroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        seen = {}
        seen["a"] = ctx.get_broadcast_state(RULES)["a"]
        seen.clear()
        yield seen

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).put("a", value)


class Puts(Rules):
    def process_element(self, value: Any, ctx: Any) -> Any:
        rules = ctx.get_broadcast_state(RULES)
        yield rules["a"]
        rules.put("a", value)  # here


class Sets(Rules):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES)["a"] = value  # here


class Deletes(Rules):
    def process_element(self, value: Any, ctx: Any) -> Any:
        for rule in (rules := ctx.get_broadcast_state(RULES)):
            del rules[rule]  # here


class KeyedClears(KeyedBroadcastProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        return []

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        ctx.get_broadcast_state(RULES).clear()  # here

    def process_broadcast_element(self, value: Any, ctx: Any) -> Any:
        return []


def line(function: type) -> int:
    """The marked line of the class."""
    lines, first = inspect.getsourcelines(function)
    return first + next(i for i, text in enumerate(lines) if text.rstrip().endswith("# here"))


@pytest.mark.parametrize(
    ("build", "function", "told"),
    [
        (lambda one, two: one.process(Timer()), Timer, "calls register_event_time_timer(): timers belong to keys"),
        (lambda one, two: one.connect(two).process(CoTimer()), CoTimer, "calls delete_processing_time_timer(): timers"),
        (lambda one, two: one.map(State()), State, "calls get_state(): the state belongs to keys. Call key_by(...)"),
        (lambda one, two: one.connect(two.broadcast(RULES)).process(Puts()), Puts, "changes broadcast state"),
        (lambda one, two: one.connect(two.broadcast(RULES)).process(Sets()), Sets, "changes broadcast state"),
        (lambda one, two: one.connect(two.broadcast(RULES)).process(Deletes()), Deletes, "changes broadcast state"),
        (
            lambda one, two: one.key_by(abs).connect(two.broadcast(RULES)).process(KeyedClears()),
            KeyedClears,
            "changes broadcast state",
        ),
    ],
)
def test_misuse_is_reported_with_operator_and_line(build, function, told):
    env, one, two = streams()
    build(one, two).name("mine").print()
    pattern = rf"'mine' \(\w+, test_misuse.py:\d+\).* {function.__name__}\.\w+\(\) \(test_misuse.py:{line(function)}\) "
    with pytest.raises(ConfigurationError, match=pattern + re.escape(told)):
        env._plan("job")


def a_function_without_misuse_is_accepted():
    env, one, two = streams()
    one.key_by(abs).map(State()).print()
    one.map(PerhapsState()).print()
    one.map(OwnStore()).print()
    one.key_by(abs).process(Keyed()).print()
    one.connect(two.broadcast(RULES)).process(Rules()).print()
    one.map(lambda value: value + 1).print()
    env._plan("job")


def a_function_without_source_is_skipped():
    env, one, _ = streams()
    scope: dict[str, Any] = {"MapFunction": MapFunction}
    exec("class Bare(MapFunction):\n def open(self, c): c.get_state(1)\n def map(self, value): return value", scope)
    one.map(scope["Bare"]()).print()
    env._plan("job")
