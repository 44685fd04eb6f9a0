"""suppress: Kafka Streams' cases, and that what it emits does not depend on the cut, nor on where it runs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from engine.inprocess import LedgerSink, SplitSource
from holdfast.common import Time, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.errors import ConfigurationError, IncompatibleState, UserCodeError
from holdfast.table import (
    BufferConfig,
    EagerBufferConfig,
    KStream,
    KTable,
    StrictBufferConfig,
    Suppressed,
    Windowed,
)
from holdfast.table.suppress import SuppressFactory
from holdfast.testing import OneInputTestHarness

from .kafka_grouped_cases import COUNTS
from .kafka_suppress_cases import FULL, PROCESSOR, SCENARIOS
from .test_grouped_streams import rows, told_with_window, windows_of
from .test_tables import outcome


def number(text: str) -> int | None:
    return None if text == "-" else int(text)


def changes(text: str) -> list[tuple[Any, int]]:
    """The changes of a text with their timestamps."""
    found = []
    for each in text.split():
        key, old, new, time = re.fullmatch(r"(.*):(.*)>(.*)@(.*)", each).groups()  # type: ignore[union-attr]
        if "/" in key:
            name, start, end = key.split("/")
            found.append(((Windowed(name, int(start), int(end)), number(new), number(old)), int(time)))
        else:
            found.append(((key, number(new), number(old)), int(time)))
    return found


def told(change: Any) -> str:
    key, new, old = change
    name = "/".join(map(str, key)) if isinstance(key, tuple) else key
    return f"{name}:{'-' if old is None else old}>{'-' if new is None else new}"


def suppressed_by(text: str) -> Suppressed:
    kind, limit, *bounds = text.split()
    config: Any = BufferConfig.unbounded()
    if bounds:
        config = (BufferConfig.max_records if bounds[0] == "records" else BufferConfig.max_bytes)(int(bounds[1]))
    if "fail" in bounds:
        config = config.shut_down_when_full()
    if kind == "close":
        return Suppressed.until_window_closes(config)
    return Suppressed.until_time_limit(Time.milliseconds(int(limit)), config)


def harness_of(how: str, windowed: bool, **options: Any) -> OneInputTestHarness:
    grace = int(how.split()[1]) - 1 if how.startswith("close") else 0

    def build(stream: Any) -> Any:
        return KTable(stream, grace if windowed else None).suppress(suppressed_by(how)).to_changes()

    return OneInputTestHarness(build, configuration={"pipeline.max-parallelism": "1"}, **options)


def step_by_step(harness: Any, given: list[Any]) -> list[str]:
    """What each element lets go, and the watermark behind it: Kafka's stream time."""
    found, time = [], -1
    for element, stamp in given:
        time = max(time, stamp)
        harness.process_element(element, stamp).process_watermark(time - 1)
        found.append(" ".join(map(told, harness.extract_output_values())))
        harness.clear_output()
    return found


@pytest.mark.parametrize("name", sorted(PROCESSOR))
def the_changes_that_are_let_go_are_those_of_kafka_streams(name: str):
    how, given, wanted = PROCESSOR[name]
    with harness_of(how, "/" in given) as harness:
        assert step_by_step(harness, changes(given)) == [step.strip() for step in wanted.split("|")]


@pytest.mark.parametrize("name", sorted(FULL))
def a_full_buffer_that_may_not_emit_fails_the_job(name: str):
    how, given = FULL[name]
    with harness_of(how, windowed=False) as harness, pytest.raises(UserCodeError, match=r"suppress\(\) holds 2 rows"):
        step_by_step(harness, changes(given))


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def the_counts_that_are_let_go_are_those_of_kafka_streams(name: str):
    how, given, wanted = SCENARIOS[name]

    def build(stream: Any) -> Any:
        table = KStream.of(stream, lambda row: row[0], lambda row: row[1]).to_table()
        counts = table.group_by(lambda key, value: (value, key)).count()
        return counts.suppress(suppressed_by(how)).to_stream().to_data_stream()

    found, at = [], -1
    with OneInputTestHarness(build, configuration={"pipeline.max-parallelism": "1"}) as harness:
        for each in given.split():
            row, time = each.split("@")
            at = max(at, int(time))
            harness.process_element(tuple(row.split("=")), at).process_watermark(at - 1)
            found.append(" ".join(f"{key}={count}" for key, count in harness.extract_output_values()))
            harness.clear_output()
    assert found == [step.strip() for step in wanted.split("|")]


@pytest.mark.parametrize("case", sorted(COUNTS))
def the_final_counts_of_windows_are_those_of_kafka_streams(case: str):
    text, every, final = COUNTS[case]
    held = [each for each in every.split() if each.split("=")[0] not in final]  # until the end of the input

    def build(one: Any, *_: Any) -> Any:
        return one.windowed_by(windows_of(case)).count().suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))

    found = rows(text, build, told_with_window)
    assert found[: len(final.split())] == final.split()
    assert {each.split("=")[0] for each in found[len(final.split()) :]} <= {each.split("=")[0] for each in held}


def a_change_behind_the_limit_begins_anew_also_if_the_watermark_has_not_come_so_far():
    with harness_of("time 10", windowed=False) as harness:
        harness.process_element(("k", 1, None), 0).process_element(("k", 2, 1), 9).process_element(("k", 3, 2), 10)
        assert harness.get_output() == [(("k", 2, None), 9)]
        harness.process_watermark(19)
        assert harness.get_output()[1:] == [(("k", 3, 2), 19)]


def a_row_that_comes_and_goes_while_it_is_held_gives_no_change():
    with harness_of("time 10", windowed=False) as harness:
        harness.process_element(("k", 1, None), 0).process_element(("k", None, 1), 5).process_watermark(100)
        assert harness.get_output() == []
        harness.process_element(("k", 2, None), 101).process_watermark(200)
        assert harness.get_output() == [(("k", 2, None), 110)]


@pytest.mark.parametrize("backend", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("how", ["time 100", "time 100 records 2", "time 100 bytes 55"])
def the_held_rows_and_their_bound_survive_a_restart(backend: str, how: str):
    settings = {"state.backend.type": backend, "pipeline.max-parallelism": "1"}

    def build(stream: Any) -> Any:
        return KTable(stream).suppress(suppressed_by(how)).to_changes().uid("out")

    with OneInputTestHarness(build, configuration=settings) as harness:
        harness.process_element(("b", 1, None), 1).process_element(("a", 1, None), 0)
        before, snapshot = [*harness.extract_output_values()], harness.snapshot()
    with OneInputTestHarness(build, configuration=settings, snapshot=snapshot) as harness:
        harness.process_element(("c", 1, None), 2)
        found = [*before, *harness.extract_output_values()]
        assert found == ([] if how == "time 100" else [("a", 1, None)])
        harness.process_watermark(1_000)
        assert sorted([*before, *harness.extract_output_values()]) == [(key, 1, None) for key in "abc"]


def the_rows_of_windows_have_windowed_keys_after_a_restart():
    def build(stream: Any) -> Any:
        return KTable(stream, 0).suppress(suppressed_by("close 1")).to_changes().uid("out")

    with OneInputTestHarness(build) as harness:
        snapshot = harness.process_element((Windowed("k", 0, 10), 1, None), 1).snapshot()
    with OneInputTestHarness(build, snapshot=snapshot) as harness:
        ((key, _, _),) = harness.process_watermark(100).extract_output_values()
    assert (key.key, key.start, key.end) == ("k", 0, 10)


def test_what_cannot_be_suppressed_is_refused_before_the_job_starts():
    env = StreamExecutionEnvironment.get_execution_environment()
    table = KStream.of(env.from_collection([("k", 1)]), lambda row: row[0]).to_table()
    with pytest.raises(ConfigurationError, match="needs a windowed table"):
        table.suppress(Suppressed.until_window_closes(BufferConfig.unbounded()))
    with pytest.raises(TypeError, match="takes a Suppressed"):
        table.suppress(BufferConfig.unbounded())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="shut_down_when_full"):
        Suppressed.until_window_closes(BufferConfig.max_records(1))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes a BufferConfig"):
        Suppressed.until_time_limit(Time.milliseconds(1), 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="may not be negative"):
        Suppressed.until_time_limit(Time.milliseconds(-1), BufferConfig.unbounded())
    with pytest.raises(ConfigurationError, match="number of bytes"):
        BufferConfig.max_bytes(-1)


def the_bounds_are_built_as_in_kafka_streams():
    eager = BufferConfig.max_records(2).with_max_bytes(4)
    assert isinstance(eager, EagerBufferConfig)
    assert eager == BufferConfig.max_bytes(4).with_max_records(2).emit_early_when_full()
    strict = eager.shut_down_when_full()
    assert isinstance(strict, StrictBufferConfig)
    assert strict == BufferConfig.unbounded().with_max_records(2).with_max_bytes(4).shut_down_when_full()
    assert strict.emit_early_when_full() == eager
    assert strict.with_no_bound() == eager.with_no_bound() == BufferConfig.unbounded()


def test_another_kind_of_suppress_is_refused():
    time, close = (SuppressFactory.of(suppressed_by(how), 0) for how in ("time 5", "close 0"))
    with pytest.raises(IncompatibleState, match="holds rows until 'time limit'"):
        close.continuing(time.definition() or {})


def a_change_without_a_timestamp_is_an_error():
    def build(env: Any) -> None:
        source = env.from_source(SplitSource({"all": [("k", 1)]}, 1), WatermarkStrategy.no_watermarks(), "source")
        table = KStream.of(source, lambda row: row[0]).to_table().suppress(suppressed_by("time 5"))
        table.to_changes().sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError, match=r"no timestamp, which suppress\(\) needs"):
        outcome(build, parallelism=1, budget=1)
