"""What is wrong with windows is told at the call that is wrong, before anything runs."""

from __future__ import annotations

import re

import pytest

from holdfast.common import Time, Types
from holdfast.datastream import (
    AggregateFunction,
    OutputTag,
    ProcessWindowFunction,
    WindowFunction,
)
from holdfast.datastream.data_stream import DataStream, WindowedStream
from holdfast.datastream.window import (
    CountEvictor,
    CountTrigger,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from holdfast.errors import ConfigurationError
from holdfast.runtime.operators.windows.window_content import Elements


class Collect(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, list(elements)

    def clear(self, context):
        pass


class Apply(WindowFunction):
    def apply(self, key, window, inputs):
        yield key, list(inputs)


class Average(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a, acc_b):
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


@pytest.fixture
def windows(keyed) -> WindowedStream:
    return keyed.window(TumblingEventTimeWindows.of(Time.seconds(1)))


class TestWindows:
    def test_windows_give_streams_whatever_makes_the_results(self, windows):
        for made in (
            windows.reduce(max),
            windows.reduce(max, Collect()),
            windows.reduce(max, window_function=Apply()),
            windows.aggregate(Average()),
            windows.aggregate(Average(), Collect(), output_type=Types.STRING()),
            windows.apply(Apply()),
            windows.process(Collect()),
        ):
            assert isinstance(made, DataStream)
            assert made._transformation.keyed

    def test_the_operator_is_told_what_the_program_says(self, keyed):
        late = OutputTag("late")
        made = (
            keyed.window(TumblingEventTimeWindows.of(Time.minutes(1), Time.seconds(5)))
            .allowed_lateness(2000)
            .side_output_late_data(late)
            .process(collect := Collect())
        )
        factory = made._transformation.factory
        assigner = factory.assigner
        assert (assigner.size, assigner.offset, assigner.is_event_time()) == (60_000, 5000, True)
        assert (factory.content, factory.window_function) == (Elements(), ("process", collect))
        assert isinstance(factory.trigger, EventTimeTrigger)
        assert (factory.allowed_lateness_ms, factory.late_tag) == (2000, late)
        assert isinstance(made.get_side_output(late), DataStream)

    def test_processing_time_windows_know_no_lateness(self, keyed):
        windows = keyed.window(TumblingProcessingTimeWindows.of(Time.seconds(1)))
        assert not windows.reduce(max)._transformation.factory.assigner.is_event_time()
        with pytest.raises(ConfigurationError, match="nothing is late in processing time"):
            windows.allowed_lateness(1)

    def test_triggers_and_evictors_are_checked(self, keyed, windows):
        assert windows.trigger(EventTimeTrigger()) is windows
        assert windows.evictor(CountEvictor.of(3)) is windows
        with pytest.raises(TypeError, match=r"trigger\(\) takes a Trigger, not max"):
            windows.trigger(max)
        with pytest.raises(TypeError, match=r"evictor\(\) takes a Evictor, not a CountTrigger"):
            windows.evictor(CountTrigger.of(1))
        with pytest.raises(ConfigurationError, match="fires after a positive number"):
            CountTrigger.of(0)

    def test_a_trigger_that_does_not_merge_is_refused_for_sessions(self, keyed):
        sessions = keyed.window(EventTimeSessionWindows.with_gap(Time.seconds(1)))
        with pytest.raises(TypeError, match=r"EventTimeSessionWindows merge, and the trigger DeltaTrigger.* cannot"):
            sessions.trigger(DeltaTrigger.of(1, max))
        with pytest.raises(TypeError, match="cannot: its can_merge"):
            sessions.trigger(PurgingTrigger.of(DeltaTrigger.of(1, max)))
        sessions.trigger(PurgingTrigger.of(CountTrigger.of(1)))

    def test_an_aggregate_without_merge_is_refused_for_sessions(self, keyed):
        class Unmerged(AggregateFunction):
            def create_accumulator(self):
                return 0

            def add(self, value, accumulator):
                return accumulator + 1

            def get_result(self, accumulator):
                return accumulator

        class Passes(Unmerged):
            def merge(self, acc_a, acc_b):
                pass

        class Merged(Unmerged):
            def merge(self, acc_a, acc_b):
                return acc_a + acc_b

        sessions = keyed.window(ProcessingTimeSessionWindows.with_gap(Time.seconds(1)))
        for function in (Unmerged(), Passes()):
            with pytest.raises(ConfigurationError, match="has no merge"):
                sessions.aggregate(function)
        sessions.aggregate(Merged())

    def test_global_windows_need_a_trigger(self, keyed):
        with pytest.raises(ConfigurationError, match="only your own trigger can fire them"):
            keyed.window(GlobalWindows.create()).reduce(max)
        keyed.window(GlobalWindows.create()).trigger(CountTrigger.of(2)).reduce(max)

    def test_functions_of_another_kind_are_rejected(self, windows):
        with pytest.raises(TypeError, match=re.escape("apply() takes a WindowFunction, not a Collect. A Process")):
            windows.apply(Collect())
        with pytest.raises(TypeError, match=r"takes a ProcessWindowFunction, not a Apply"):
            windows.process(Apply())
        with pytest.raises(TypeError, match=r"aggregate\(\) takes a AggregateFunction"):
            windows.aggregate(max)
        with pytest.raises(TypeError, match="the window function"):
            windows.reduce(max, window_function=max)

    def test_arguments_other_than_windows_are_rejected(self, keyed):
        with pytest.raises(TypeError, match=r"window\(\) takes a WindowAssigner, e.g. TumblingEventTimeWindows.of"):
            keyed.window(Time.minutes(1))
