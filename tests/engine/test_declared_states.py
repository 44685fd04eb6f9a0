"""States that a function's class declares, beside those that it asks for in `open`."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import pytest

from holdfast.cep import CEP, Pattern, PatternProcessFunction
from holdfast.common import Time, Types
from holdfast.datastream import (
    AggregateFunction,
    AggregatingState,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ListState,
    MapFunction,
    MapState,
    MapStateDescriptor,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    ReducingState,
    StateTtlConfig,
    StreamExecutionEnvironment,
    ValueState,
    ValueStateDescriptor,
)
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.testing import OneInputTestHarness, ProcessFunctionTestHarnesses


class Count(KeyedProcessFunction[str, str, tuple[str, int]]):
    count = ValueState("n", int)

    def process_element(self, value: str, ctx: KeyedProcessFunction.Context[str]) -> Iterable[tuple[str, int]]:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value, count


def _keyed(function: Any, **harness: Any) -> OneInputTestHarness[Any, Any]:
    return OneInputTestHarness(
        lambda stream: stream.key_by(lambda value: value[0]).process(function).uid("function"), **harness
    )


def _outputs(harness: OneInputTestHarness[Any, Any], *values: Any) -> list[Any]:
    with harness:
        for value in values:
            harness.process_element(value)
        return harness.extract_output_values()


def a_declared_state_belongs_to_the_key_as_one_of_open_does() -> None:
    assert _outputs(_keyed(Count()), "a", "b", "a") == [("a", 1), ("b", 1), ("a", 2)]


def a_declared_state_goes_on_with_what_open_has_stored_and_the_other_way_round() -> None:
    class Opened(Count):
        def open(self, runtime_context: Any) -> None:
            self.count = runtime_context.get_state(ValueStateDescriptor("n", Types.LONG()))

    for first, second in ((Count(), Opened()), (Opened(), Count())):
        with _keyed(first) as harness:
            snapshot = harness.process_element("a").snapshot()
        assert _outputs(_keyed(second, snapshot=snapshot), "a") == [("a", 2)]


class Mean(AggregateFunction[int, tuple[int, int], float]):
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]


class Larger(ReduceFunction[int]):
    def reduce(self, value1: int, value2: int) -> int:
        return max(value1, value2)


class EveryKind(KeyedProcessFunction):
    last = ValueState("last", int)
    every = ListState("every", int)
    times = MapState("times", str, int)
    most = ReducingState("most", Larger(), int)
    total = ReducingState("total", lambda a, b: a + b, Types.LONG())
    mean = AggregatingState("mean", Mean())
    anything = ValueState("anything")

    def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
        number = value[1]
        self.last.update(number)
        self.every.add(number)
        self.times[str(number)] = (self.times[str(number)] or 0) + 1
        for state in (self.most, self.total, self.mean):
            state.add(number)
        self.anything.update({number})
        yield (
            self.last.value(),
            [*self.every],
            dict(self.times.items()),
            self.most.get(),
            self.total.get(),
            self.mean.get(),
        )
        yield self.anything.value()


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def a_class_may_declare_every_kind_of_keyed_state(backend: str) -> None:
    harness = _keyed(EveryKind(), configuration={"state.backend.type": backend})
    assert _outputs(harness, ("a", 3), ("a", 1))[-2:] == [(1, [3, 1], {"3": 1, "1": 1}, 3, 4, 2.0), {1}]


@dataclass(frozen=True)
class Order:
    shop: str
    amount: float


@pytest.mark.parametrize(
    ("declared", "meant"),
    [
        (int, Types.LONG()),
        (float, Types.DOUBLE()),
        (str, Types.STRING()),
        (bool, Types.BOOLEAN()),
        (list[int], Types.LIST(Types.LONG())),
        (dict[str, float], Types.MAP(Types.STRING(), Types.DOUBLE())),
        (Order, Types.POJO(Order)),
        (Types.INT(), Types.INT()),
        (set, None),
        (None, None),
    ],
)
def a_class_stands_for_the_type_of_its_values(declared: Any, meant: Any) -> None:
    assert ValueState("s", declared).descriptor.type_info == meant
    assert ListState("s", declared).descriptor.type_info == meant
    assert MapState("s", str, declared).descriptor.value_type_info == meant


def a_declared_state_may_expire() -> None:
    class Once(KeyedProcessFunction):
        seen = ValueState("seen", bool, ttl=Time.seconds(1))

        def process_element(self, value: str, ctx: Any) -> Iterable[str]:
            if not self.seen.value():
                yield value
            self.seen.update(True)

    with _keyed(Once()) as harness:
        harness.process_element("a").process_element("a").set_processing_time(1_500).process_element("a")
        assert harness.extract_output_values() == ["a", "a"]


def a_time_to_live_may_be_a_whole_configuration() -> None:
    config = StateTtlConfig.new_builder(Time.seconds(1)).update_ttl_on_read_and_write().build()
    assert ListState("s", int, ttl=config).descriptor.ttl_config is config
    assert str(MapState("s", str, int, ttl=Time.seconds(1)).descriptor.ttl_config) == str(
        StateTtlConfig.new_builder(Time.seconds(1)).build()
    )


def the_states_of_the_classes_above_are_open_too_and_may_be_replaced() -> None:
    class Both(Count):
        total = ValueState("total", int)

        def process_element(self, value: str, ctx: Any) -> Iterable[Any]:
            self.total.update((self.total.value() or 0) + 10)
            for text, count in super().process_element(value, ctx):
                yield text, count, self.total.value()

    class Renamed(Count):
        count = ValueState("other", int)

    assert _outputs(_keyed(Both()), "a", "a") == [("a", 1, 10), ("a", 2, 20)]
    with _keyed(Renamed()) as harness:
        harness.process_element("a")
        assert harness.get_keyed_state(Renamed.count.descriptor, "a") == 1
        with pytest.raises(LookupError):
            harness.get_keyed_state(Count.count.descriptor, "a")


def an_object_may_declare_a_state_of_its_own() -> None:
    @dataclass
    class Last(KeyedProcessFunction):
        kept: ValueState[Any]

        def process_element(self, value: Any, ctx: Any) -> Iterable[Any]:
            yield self.kept.value()
            self.kept.update(value)

    assert _outputs(_keyed(Last(ValueState("kept", str))), "a", "ab") == [None, "a"]


def a_state_is_open_when_open_begins() -> None:
    class Opened(Count):
        def open(self, runtime_context: Any) -> None:
            self.value, self.update = self.count.value, self.count.update

        def process_element(self, value: str, ctx: Any) -> Iterable[Any]:
            self.update((self.value() or 0) + 1)
            yield self.value()

    assert _outputs(_keyed(Opened()), "a", "a") == [1, 2]


def an_open_state_is_an_attribute_of_the_object_like_one_that_open_has_set() -> None:
    seen: list[Any] = []

    class Told(Count):
        def process_element(self, value: str, ctx: Any) -> Iterable[Any]:
            yield type(vars(self)["count"]).__name__

    assert _outputs(_keyed(Told()), "a", *seen) == ["ValueHandle"]


def a_function_with_declared_states_is_pickled_as_any_other() -> None:
    class Local(Count):
        pass

    assert pickle.loads(pickle.dumps(Count())).count.descriptor.name == "n"
    assert pickle.loads(cloudpickle.dumps(Local())).count.descriptor.type_info == Types.LONG()


def a_function_of_two_streams_may_declare_states() -> None:
    class Joined(KeyedCoProcessFunction):
        left = ListState("left", str)

        def process_element1(self, value: str, ctx: Any) -> None:
            self.left.add(value)

        def process_element2(self, value: str, ctx: Any) -> Iterable[Any]:
            yield value, [*self.left]

    key = {"key_selector1": lambda value: value[0], "key_selector2": lambda value: value[0]}
    with ProcessFunctionTestHarnesses.for_keyed_co_process_function(Joined(), **key) as harness:
        harness.process_element1("ab").process_element1("xy").process_element2("a")
        assert harness.extract_output_values() == [("a", ["ab"])]


def a_function_with_broadcast_state_may_declare_states_and_apply_to_them() -> None:
    rules = MapStateDescriptor("rules", Types.STRING(), Types.LONG())

    class Counted(KeyedBroadcastProcessFunction):
        count = ValueState("n", int)

        def process_element(self, value: str, ctx: Any) -> Iterable[Any]:
            self.count.update((self.count.value() or 0) + 1)
            yield value, self.count.value()

        def process_broadcast_element(self, value: str, ctx: Any) -> Iterable[Any]:
            found: list[Any] = []
            ctx.apply_to_keyed_state(Counted.count.descriptor, lambda key, state: found.append((key, state.value())))
            return found

    made = ProcessFunctionTestHarnesses.for_keyed_broadcast_process_function(Counted(), lambda value: value[0], rules)
    with made as harness:
        harness.process_element1("a").process_element1("a").process_element2("now")
        assert harness.extract_output_values() == [("a", 1), ("a", 2), ("a", 2)]


def a_function_of_single_elements_windows_or_patterns_may_declare_states() -> None:
    class Numbered(MapFunction):
        count = ValueState("n", int)

        def map(self, value: Any) -> Any:
            self.count.update((self.count.value() or 0) + 1)
            return value, self.count.value()

    class NumberedWindow(ProcessWindowFunction):
        count = ValueState("n", int)

        def process(self, key: Any, context: Any, elements: Any) -> Iterable[Any]:
            self.count.update((self.count.value() or 0) + 1)
            yield key, self.count.value()

    class OfAll(ProcessAllWindowFunction):
        count = ValueState("n", int)

        def process(self, context: Any, elements: Any) -> Iterable[Any]:
            self.count.update((self.count.value() or 0) + 1)
            yield self.count.value()

    class Matched(PatternProcessFunction):
        count = ValueState("n", int)

        def process_match(self, match: Any, ctx: Any) -> Iterable[Any]:
            self.count.update((self.count.value() or 0) + 1)
            yield match["a"], self.count.value()

    first = lambda value: value[0]
    assert _outputs(OneInputTestHarness(lambda s: s.key_by(first).map(Numbered())), "a", "a") == [("a", 1), ("a", 2)]
    windows = lambda s: s.key_by(first).count_window(1).process(NumberedWindow())
    assert _outputs(OneInputTestHarness(windows), "a", "b", "a") == [("a", 1), ("b", 1), ("a", 2)]
    assert _outputs(OneInputTestHarness(lambda s: s.count_window_all(1).process(OfAll())), "a", "b") == [1, 2]
    any_a = Pattern.begin("a").where(lambda value: value.startswith("a"))
    matches = lambda s: CEP.pattern(s.key_by(first), any_a).in_processing_time().process(Matched())
    assert _outputs(OneInputTestHarness(matches), "a", "a") == [(["a"], 1), (["a"], 2)]


def the_same_name_twice_is_refused_when_the_program_is_built() -> None:
    class Twice(Count):
        again = ListState("n", int)

    told = r"Twice declares the state 'n' twice, as count and as again: a name is unique within an operator"
    with pytest.raises(ConfigurationError, match=told):
        _keyed(Twice())


class Plain(MapFunction):
    count = ValueState("n", int)

    def map(self, value: Any) -> Any:
        return value


def a_declared_state_on_a_stream_without_keys_is_refused_when_the_program_is_built() -> None:
    told = r"(?s)without keys, but Plain declares the state 'n' \(count\).*Call key_by\(...\) before it"
    with pytest.raises(ConfigurationError, match=told):
        OneInputTestHarness(lambda stream: stream.map(Plain()))


def a_key_selector_that_declares_a_state_is_refused() -> None:
    class Selector(MapFunction):
        count = ValueState("n", int)

        def map(self, value: Any) -> Any:
            return value

        get_key = map

    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"Selector has an .* or a declared state"):
        env.from_collection([1]).key_by(Selector())


def a_function_of_windows_that_reduces_may_not_declare_a_state() -> None:
    class Sum(ReduceFunction):
        count = ValueState("n", int)

        def reduce(self, value1: Any, value2: Any) -> Any:
            return value1 + value2

    with pytest.raises(UserCodeError, match="functions that reduce or aggregate windows have no state of their own"):
        OneInputTestHarness(lambda s: s.key_by(len).window(TumblingEventTimeWindows.of(Time.seconds(1))).reduce(Sum()))


def a_state_that_nothing_has_opened_says_so() -> None:
    with pytest.raises(RuntimeError, match=r"the state 'n' is not open.*declared by the class of a function"):
        Count().count.value()
    for state in (ListState("s"), MapState("s"), ReducingState("s", max), AggregatingState("s", Mean())):
        with pytest.raises(RuntimeError, match="the state 's' is not open"):
            state.clear()


def a_declaration_without_a_name_or_with_a_wrong_type_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="a state's name must not be empty"):
        ValueState()
    with pytest.raises(TypeError, match=r"the type of state 's' must be a class or a type like Types.LONG"):
        ValueState("s", 5)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"the type of state 's' must be a class or a type like Types.LONG"):
        ListState("s", Types.LONG)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match=r"needs a ReduceFunction or a function of two values"):
        ReducingState("s", 5)  # type: ignore[call-overload]
