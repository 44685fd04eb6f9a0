"""Event time in chains and over restarts: no result is late for the next operator, and what has fired stays so."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from holdfast.cep import CEP, Pattern
from holdfast.common import Time, Types, WatermarkStrategy
from holdfast.datastream import (
    CountEvictor,
    EventTimeSessionWindows,
    EventTimeTrigger,
    KeyedProcessFunction,
    ProcessWindowFunction,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from holdfast.datastream.operations.data_stream_utils import DataStreamUtils
from holdfast.testing import InProcessEnvironment, TestSource

from .fired_windows import FORMS, GOLDEN, StoredJob, build
from .inprocess import LEDGERS, Lab

# ---- two stages of event time ----------------------------------------------------------------------------------------


class Sum(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        yield key, context.window().max_timestamp(), sum(element[2] for element in elements)


class Later(KeyedProcessFunction):
    """Gives each element on when the watermark has passed it."""

    def process_element(self, value: Any, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value[1] + 10)

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, 1


def summed(assigner: Any, **options: Any) -> Any:
    def stage(keyed: Any) -> Any:
        windows = keyed.window(assigner)
        for name, option in options.items():
            windows = getattr(windows, name)(option)
        return windows.process(Sum())

    return stage


FIRST = {
    "tumbling": summed(TumblingEventTimeWindows.of(Time.seconds(1))),
    "session": summed(EventTimeSessionWindows.with_gap(Time.seconds(1))),
    "timer": lambda keyed: keyed.process(Later()),
}
"""What emits a result for each of the input's times; those of each key and second are one."""
SECOND = {
    "session": (summed(EventTimeSessionWindows.with_gap(Time.seconds(2))), 1),
    "tumbling": (summed(TumblingEventTimeWindows.of(Time.seconds(5))), 1),
    "sliding": (summed(SlidingEventTimeWindows.of(Time.seconds(5), Time.seconds(1))), 5),
    "evictor": (summed(TumblingEventTimeWindows.of(Time.seconds(5)), evictor=CountEvictor.of(100)), 1),
    "trigger": (
        summed(TumblingEventTimeWindows.of(Time.seconds(5)), trigger=PurgingTrigger.of(EventTimeTrigger.create())),
        1,
    ),
    "pattern": (lambda keyed: CEP.pattern(keyed, Pattern.begin("a")).select(lambda found: found["a"][0]), 1),
}
"""What passes each result of the first stage on, and how often."""
ELEMENTS = [("a", 1_000, 1), ("b", 1_700, 1), ("a", 20_000, 1), ("a", 40_000, 1), ("b", 60_000, 1)]


def two_stages(first: str, second: str, parallelism: int, key_by: Any) -> list[Any]:
    env = InProcessEnvironment().set_parallelism(parallelism)
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[1])
    keyed = env.from_source(TestSource(ELEMENTS, epoch=1), times, "source").key_by(lambda value: value[0], Types.STRING())
    with SECOND[second][0](key_by(FIRST[first](keyed))).execute_and_collect() as results:
        return sorted(results)


def by_key(stream: Any) -> Any:
    return stream.key_by(lambda value: value[0], Types.STRING())


def reinterpreted(stream: Any) -> Any:
    return DataStreamUtils.reinterpret_as_keyed_stream(stream, lambda value: value[0], Types.STRING())


@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("first", FIRST)
def the_results_of_a_stage_are_on_time_for_the_next_one_in_its_chain(first, second):
    results = two_stages(first, second, 1, by_key)
    assert Counter(key for key, *_ in results) == Counter({"a": 3 * SECOND[second][1], "b": 2 * SECOND[second][1]})
    assert {count for *_, count in results} == {1}


@pytest.mark.parametrize("second", ["session", "trigger", "pattern"])
def the_results_of_a_stage_are_on_time_for_the_next_one_of_a_reinterpreted_stream(second):
    assert two_stages("tumbling", second, 3, reinterpreted) == two_stages("tumbling", second, 3, by_key)


# ---- what has fired stays fired --------------------------------------------------------------------------------------


def visible() -> Counter[Any]:
    return Counter(LEDGERS["out"].values)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory) -> Counter[Any]:
    LEDGERS["out"].committed.clear()
    Lab(build("source"), tmp_path_factory.mktemp("whole"), parallelism=1, budget=10_000).run()
    return visible()


@pytest.mark.parametrize("unaligned", [False, True], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("where", ["source", "generator"])
@pytest.mark.parametrize("parallelisms", [(1, 1), (1, 2, 3), (3, 2, 4, 1)])
def a_window_that_has_fired_stays_so_after_restarts_at_any_parallelism(
    tmp_path, undisturbed, parallelisms, where, unaligned
):
    config = {"execution.checkpointing.unaligned.enabled": str(unaligned).lower(), "holdfast.frame.records": "4"}
    deadline = 6 if unaligned else 0
    job = Lab(build(where), tmp_path, budget=10, config=config, records_before_deadline=deadline)
    LEDGERS["out"].committed.clear()
    for job.parallelism in parallelisms[:-1]:
        assert not job._run_until("after complete", 4)
    job.parallelism = parallelisms[-1]
    job.run()
    assert visible() == undisturbed


@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize("name", FORMS)
def a_window_that_has_fired_in_a_job_of_an_older_release_stays_so(tmp_path, undisturbed, name, parallelism):
    stored = msgspec.msgpack.decode(zstandard.decompress((GOLDEN / f"{name}.zst").read_bytes()), type=StoredJob)
    for path, content in stored.files.items():
        Path(tmp_path, path).parent.mkdir(parents=True, exist_ok=True)
        Path(tmp_path, path).write_bytes(content)
    LEDGERS["out"].committed.clear()
    LEDGERS["out"].committed["before"] = stored.results
    Lab(build(FORMS[name][0]), tmp_path, parallelism=parallelism, budget=10, drivers=1).run()
    assert visible() == undisturbed
