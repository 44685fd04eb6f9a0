"""Declared output types: what a function makes is checked against them, and made to fit where nothing is lost."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from holdfast.common import Row, Time, Types, WatermarkStrategy
from holdfast.datastream import KeyedProcessFunction, OutputTag, ProcessFunction, ProcessWindowFunction
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import ConfigurationError, UserCodeError

from .inprocess import LEDGERS, Lab, LedgerSink

PAIR = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
BY_VALUE = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[0])


def results(build: Any, parallelism: int = 1) -> list[Any]:
    """What the stream that ``build(env)`` returns holds."""
    LEDGERS["out"].committed.clear()
    with tempfile.TemporaryDirectory() as directory:
        job = Lab(lambda env: build(env).sink_to(LedgerSink("out")), Path(directory), parallelism=parallelism)
        try:
            job.run([])
        finally:
            job.close()
    return list(LEDGERS["out"].values)


class Emit(ProcessFunction):
    def __init__(self, *emitted: Any) -> None:
        self.emitted = emitted

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self.emitted


class EmitKeyed(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        ctx.timer_service().register_event_time_timer(5)
        yield Row(*value)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield timestamp, "timer"


class EmitWindow(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return [Row(context.window().start, "window")]


@pytest.mark.parametrize(
    "make",
    [
        lambda ds: ds.map(lambda v: Row(v[0], v[1]), PAIR),
        lambda ds: ds.flat_map(lambda v: [Row(v[0], v[1])], PAIR),
        lambda ds: ds.process(Emit(Row(1, "a")), PAIR),
        lambda ds: ds.key_by(lambda v: 0).map(lambda v: Row(v[0], v[1]), PAIR),
        lambda ds: ds.key_by(lambda v: 0).flat_map(lambda v: [Row(v[0], v[1])], PAIR),
        lambda ds: ds.map(lambda v: v, PAIR).key_by(lambda r: r.id).reduce(lambda a, b: Row(a[0], b[1])),
    ],
    ids=["map", "flat_map", "process", "keyed map", "keyed flat_map", "reduce"],
)
def test_rows_of_a_declared_type_reach_the_next_function_with_its_names(make):
    assert results(lambda env: make(env.from_collection([(1, "a")])).map(lambda row: (row.id, row["name"]))) == [(1, "a")]


def test_a_timers_and_a_windows_results_are_of_the_declared_type_too():
    def timers(env: Any) -> Any:
        keyed = env.from_collection([(1, "a")]).key_by(lambda v: v[0])
        return keyed.process(EmitKeyed(), PAIR).map(lambda row: (row.id, row.name))

    def windows(env: Any) -> Any:
        stamped = env.from_collection([(7, "a")]).assign_timestamps_and_watermarks(BY_VALUE)
        windowed = stamped.key_by(lambda v: v[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(5)))
        return windowed.process(EmitWindow(), PAIR).map(lambda row: (row.id, row.name))

    assert results(timers) == [(1, "a"), (5, "timer")]
    assert results(windows) == [(5, "window")]


def test_a_list_of_types_stands_for_a_row_and_a_float_is_rounded_to_32_bits():
    types = [Types.FLOAT(), Types.DOUBLE()]
    assert results(lambda env: env.from_collection([0]).process(Emit((0.1, 1)), types)) == [
        Row(f0=0.10000000149011612, f1=1.0)
    ]


def test_a_side_output_has_the_type_of_its_tag():
    tag = OutputTag("side", PAIR)

    def build(env: Any) -> Any:
        main = env.from_collection([0]).process(Emit((OutputTag("side"), Row(1, "a"))))
        return main.get_side_output(tag).map(lambda row: (row.id, row.name))

    assert results(build) == [(1, "a")]


def test_a_side_output_that_is_asked_for_with_two_types_is_refused():
    def build(env: Any) -> Any:
        main = env.from_collection([0]).process(Emit())
        longs = main.get_side_output(OutputTag("side", Types.LONG()))
        return longs.union(main.get_side_output(OutputTag("side", Types.STRING())))

    with pytest.raises(ConfigurationError, match=r"side output 'side' of 'Process' .* two types"):
        results(build)


@pytest.mark.parametrize("parallelism", [1, 2])
def test_a_result_that_does_not_fit_its_declared_type_is_named_with_its_operator_and_record(parallelism):
    def build(env: Any) -> Any:
        ids = env.from_collection([1, 2, 3]).map(lambda v: v if v < 3 else str(v), Types.INT()).name("ids").uid("ids-uid")
        return ids.map(lambda v: v)

    with pytest.raises(UserCodeError) as failure:
        results(build, parallelism)
    message = str(failure.value)
    assert "does not fit the declared type Types.INT(): INT does not take '3' of type str" in message
    assert "in operator 'ids' (uid 'ids-uid')" in message
    assert "element: '3'" in message
    assert "record: collection, value 2" in message or parallelism == 2


def test_what_passes_unchanged_and_what_is_pickled_is_left_as_it_is():
    thing = Row(1, "a")
    assert results(lambda env: env.from_collection([thing]).map(lambda v: v, Types.PICKLED_BYTE_ARRAY())) == [thing]
    assert results(lambda env: env.from_collection([2**31]).map(lambda v: v)) == [2**31]
