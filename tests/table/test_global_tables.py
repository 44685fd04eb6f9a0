"""Joins of streams with global tables: Kafka Streams' cases, and what is read first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.inprocess import LEDGERS, LedgerSink, SplitSource
from engine.test_same_results import backends, config, crashes, few, frames, lab, parallelisms
from holdfast.common import WatermarkStrategy
from holdfast.datastream import ProcessFunction, StreamExecutionEnvironment
from holdfast.errors import ConfigurationError
from holdfast.table import GlobalKTable, KStream
from holdfast.testing import TwoInputTestHarness

from .kafka_global_cases import CASES

UNTIMED = WatermarkStrategy.no_watermarks()


def named(key: Any, value: str) -> str | None:
    """The second word of a value is the key of the table."""
    return value.split(",")[1] if "," in value else None


def joined(value: str, row: str | None) -> str:
    return f"{value}+{'null' if row is None else row}"


def pairs(stream: Any) -> KStream:
    return KStream.of(stream, lambda pair: pair[0], lambda pair: pair[1])


@pytest.mark.parametrize("how", ["join", "left_join"])
@pytest.mark.parametrize("name", sorted(CASES))
def the_joins_with_a_global_table_are_those_of_kafka_streams(name: str, how: str):
    def build(stream: Any, table: Any) -> Any:
        return getattr(pairs(stream), how)(pairs(table).to_global_table(), named, joined).to_data_stream()

    found, wanted = [], []
    with TwoInputTestHarness(build, parallelism=2) as harness:
        for step, inner, left in CASES[name]:
            side, elements = step
            for element in elements:
                (harness.process_element2 if side == "table" else harness.process_element1)(element)
            found.append([*harness.extract_output_values()])
            harness.clear_output()
            wanted.append(inner if how == "join" else left)
    assert found == wanted


class WithWatermark(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield (*value, ctx.timer_service().current_watermark())


def program(rows: list[Any], stream: list[Any], cut: int, how: str, function: Any = None) -> Any:
    def build(env: Any) -> None:
        times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda pair, _: pair[2])
        left = env.from_source(SplitSource({"all": stream}, cut), times, "stream")
        table = pairs(env.from_source(SplitSource({"all": rows}), UNTIMED, "table")).to_global_table()
        result = getattr(pairs(left), how)(table, lambda key, value: value, lambda value, row: (value, row))
        out = result.to_data_stream()
        (out if function is None else out.process(function)).sink_to(LedgerSink("out"))

    return build


ROWS = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, 1, 2])), max_size=12)
STREAM = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([None, *"abcd"]), st.just(0)), min_size=1, max_size=20)


@few
@given(
    rows=ROWS,
    stream=STREAM,
    cut=st.integers(1, 5),
    how=st.sampled_from(["join", "left_join"]),
    backend=backends,
    parallelism=parallelisms,
    frame=frames,
    crashes=crashes,
)
def a_pair_meets_all_rows_that_were_there_at_the_start(rows, stream, cut, how, backend, parallelism, frame, crashes):
    table = dict(rows)
    wanted = [(key, (value, table.get(value))) for key, value, _ in stream if value is not None]
    if how == "join":
        wanted = [each for each in wanted if each[1][1] is not None]
    with lab(program(rows, stream, cut, how), parallelism=parallelism, config=config(backend, frame)) as job:
        job.run(crashes)
        assert sorted(LEDGERS["out"].values, key=repr) == sorted(wanted, key=repr)


def the_event_time_of_a_join_with_a_global_table_is_that_of_the_stream():
    stream = [(n, "a", n * 10) for n in range(6)]
    with lab(program([("a", 1)], stream, 1, "join", WithWatermark()), parallelism=1, budget=1) as job:
        job.run()
        watermarks = [each[2] for each in LEDGERS["out"].values]
    assert watermarks[-1] >= 30, watermarks


def a_joiner_may_change_the_row_of_a_global_table():
    def change(value: str, row: list[int]) -> list[int]:
        row.append(len(row))
        return row

    def build(stream: Any, table: Any) -> Any:
        rows: GlobalKTable[Any, Any] = pairs(table).to_global_table()
        return pairs(stream).join(rows, key_selector=lambda key, value: value, joiner=change).to_data_stream()

    with TwoInputTestHarness(build) as harness:
        harness.process_element2(("a", [7])).process_element1((1, "a")).process_element1((2, "a"))
        assert harness.extract_output_values() == [(1, [7, 1]), (2, [7, 1])]


def the_calls_of_a_join_with_a_global_table_are_checked():
    env, other = (StreamExecutionEnvironment.get_execution_environment() for _ in range(2))
    stream, rows = pairs(env.from_collection([("k", "v")])), pairs(env.from_collection([("k", "v")])).to_global_table()
    with pytest.raises(TypeError, match="takes key_selector and joiner"):
        stream.join(rows, joined)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="takes joiner"):
        stream.join(stream.to_table(), named, joined)  # type: ignore[call-overload]
    with pytest.raises(ConfigurationError, match="one environment"):
        stream.join(pairs(other.from_collection([("k", "v")])).to_global_table(), named, joined)
    with pytest.raises(TypeError, match="a KTable or a GlobalKTable"):
        stream.join(stream, named, joined)  # type: ignore[call-overload]
