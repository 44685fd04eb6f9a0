"""PySpark's names for its stateful operators (`group_by`), and functions of `applyInPandasWithState`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pandas
import pytest
from pyspark.sql import GroupedData
from pyspark.sql.streaming.state import GroupState

from holdfast.common import Duration, Row, WatermarkStrategy
from holdfast.datastream.operations.batches import col
from holdfast.datastream.operations.grouped_rows import GroupedRows, group_by
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.spark.group_state import StateOfGroup
from holdfast.testing import OneInputTestHarness

from . import test_initial_state_of_processors as with_initial_state
from .inprocess import CRASH_POINTS, LEDGERS, Lab, LedgerSink, SplitSource
from .test_processors_by_epoch import EPOCH, OUTPUT, Sessions, by_user, rows_out_of_order

STATE = "n long, highest double"


def sessions(key: Any, frames: Any, state: Any) -> Any:
    """Counts a user's rows until there are none for 50 ms of event time."""
    n, highest = state.getOption or (0, 0.0)
    if state.hasTimedOut:
        assert all(len(frame) == 0 for frame in frames)
        state.remove()
        yield pandas.DataFrame(
            {"user": [key[0]], "what": [f"over by {min(state.getCurrentWatermarkMs(), 100_000)}"], "number": n}
        )
        return
    for frame in frames:
        n, highest = n + len(frame), max(highest, float(frame["at"].max()))  # Spark makes a whole number None
    state.update((n, highest))
    state.setTimeoutTimestamp(int(max(highest, state.getCurrentWatermarkMs())) + 50)
    yield pandas.DataFrame({"user": [key[0]], "what": [f"rows by {state.getCurrentWatermarkMs()}"], "number": [n]})


def expected_sessions(rows: list[Row]) -> dict[str, list[Any]]:
    """What Spark's meaning of batches gives: rows, then timeouts that the watermark has passed."""
    found: dict[str, list[Any]] = {}
    held: dict[str, list[int]] = {}
    watermark = 0
    for first in range(0, len(rows), EPOCH):
        batch: dict[str, list[int]] = {}
        for row in rows[first : first + EPOCH]:
            if row.at > watermark:
                batch.setdefault(row.user, []).append(row.at)
        for user, times in batch.items():
            n, highest, _ = held.get(user, [0, 0, 0])
            highest = max(highest, *times)
            held[user] = [n + len(times), highest, max(highest, watermark) + 50]
            found.setdefault(user, []).append((f"rows by {watermark}", held[user][0]))
        ends = first + EPOCH >= len(rows)
        watermark = 100_000 if ends else max(watermark, *(row.at for row in rows[first : first + EPOCH]))
        for user in [user for user, state in held.items() if state[2] < watermark]:
            found[user].append((f"over by {watermark}", held.pop(user)[0]))
    return found


def lab(directory: Path, rows: list[Row], apply: Any) -> Lab:
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)

    def build(env: Any) -> None:
        stream = env.from_source(SplitSource({"only": rows}), in_order, "rows").uid("rows")
        apply(stream).uid("keyed").sink_to(LedgerSink("out")).uid("out")

    LEDGERS.clear()
    return Lab(build, directory, budget=EPOCH)


def apply_sessions(stream: Any) -> Any:
    return group_by(stream, "user").applyInPandasWithState(sessions, OUTPUT, STATE, "Append", "EventTimeTimeout")


@pytest.mark.parametrize("point", ["", *CRASH_POINTS])
def a_function_with_group_state_times_out_by_the_watermark_through_dead_drivers(point, tmp_path):
    rows = rows_out_of_order(200)
    lab(tmp_path, rows, apply_sessions).run([(point, 2), (point, 3)] if point else [])
    assert by_user(LEDGERS["out"].values) == expected_sessions(rows)


def reminders(key: Any, frames: Any, state: Any) -> Any:
    """A row restarts the key's timeout, if it says so; without one it is gone."""
    told = "over" if state.hasTimedOut else "row"
    for frame in frames:
        for wait in frame["wait"] if len(frame) else ():
            if wait:
                state.setTimeoutDuration(int(wait))
    yield pandas.DataFrame({"user": [key[0]], "what": [told], "number": [state.getCurrentProcessingTimeMs()]})


def a_timeout_of_processing_time_is_reset_by_each_call():
    build = lambda rows: group_by(rows, "user").applyInPandasWithState(
        reminders, OUTPUT, STATE, "update", "ProcessingTimeTimeout"
    )
    with OneInputTestHarness(build) as harness:

        def epoch(now: int, *rows: Row) -> list[Any]:
            harness.clear_output().set_processing_time(now)
            for row in rows:
                harness.process_element(row)
            harness.snapshot()
            return [tuple(row) for row in harness.extract_output_values()]

        assert epoch(1000, Row(user="a", wait=50), Row(user="b", wait=50)) == [("a", "row", 1000), ("b", "row", 1000)]
        assert epoch(1030, Row(user="a", wait=100), Row(user="b", wait=0)) == [("a", "row", 1030), ("b", "row", 1030)]
        assert epoch(1130) == []
        assert epoch(1131) == [("a", "over", 1131)]
        assert epoch(9000) == []


def test_the_names_are_those_of_pyspark():
    for name in ("transformWithState", "transformWithStateInPandas", "applyInPandasWithState"):
        theirs = inspect.signature(getattr(GroupedData, name)).parameters
        assert list(inspect.signature(getattr(GroupedRows, name)).parameters) == list(theirs)
    names = {name for name in vars(GroupState) if not name.startswith("_")} - {"json"}
    assert {name for name in names if not hasattr(StateOfGroup, name)} == set()
    for name in names:
        assert isinstance(vars(StateOfGroup)[name], property) == isinstance(vars(GroupState)[name], property)


def test_grouped_rows_give_what_keyed_streams_give(tmp_path):
    rows = rows_out_of_order(100)
    keyed = lambda stream: stream.key_by(col("user")).transform_with_state(
        Sessions(), OUTPUT, "EventTime", call_mode="epoch"
    )
    lab(tmp_path / "keyed", rows, keyed).run()
    expected = by_user(LEDGERS["out"].values)
    grouped = lambda stream: group_by(stream, "user").transformWithState(Sessions(), OUTPUT, "append", "EventTime")
    lab(tmp_path / "grouped", rows, grouped).run()
    assert by_user(LEDGERS["out"].values) == expected


def test_grouped_rows_take_an_initial_state(tmp_path):
    payments = with_initial_state.payments()

    def apply(stream: Any) -> Any:
        env = stream.get_execution_environment()
        before = env.from_source(
            SplitSource({"s": with_initial_state.initial_rows()}), WatermarkStrategy.no_watermarks(), "s"
        )
        state = group_by(before.uid("before"), "user")
        return group_by(stream, "user").transformWithState(with_initial_state.Balances(), OUTPUT, "append", "None", state)

    lab(tmp_path, payments, apply).run()
    first = {user: results[0] for user, results in by_user(LEDGERS["out"].values).items()}
    had = {user: sorted(row.amount for row in with_initial_state.initial_rows() if row.user == user) for user in first}
    assert {user: what for user, (what, _) in first.items()} == {user: str(amounts) for user, amounts in had.items()}


def failing(call: Any) -> Any:
    def function(key: Any, frames: Any, state: Any) -> Any:
        call(state)
        return []

    return function


MISTAKES = {
    "get of a GroupState that does not exist": lambda state: state.get,
    "update() of a GroupState takes a tuple, not None": lambda state: state.update(None),
    "setTimeoutDuration() needs timeoutConf ProcessingTimeTimeout": lambda state: state.setTimeoutDuration(5),
    "setTimeoutTimestamp(0) is not positive": lambda state: state.setTimeoutTimestamp(0),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def a_mistake_with_group_state_is_told(sentence, tmp_path):
    function = failing(MISTAKES[sentence])
    apply = lambda stream: group_by(stream, "user").applyInPandasWithState(
        function, OUTPUT, STATE, "append", "EventTimeTimeout"
    )
    with pytest.raises((UserCodeError, ConfigurationError)) as failed:
        lab(tmp_path, rows_out_of_order(5), apply).run()
    assert sentence in str(failed.value)


def test_what_cannot_be_is_refused_when_the_program_is_built():
    with pytest.raises(TypeError, match=r"takes a pyspark.sql.DataFrame, not a builtins.list"):
        group_by([1], "user")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="needs the names of columns"):
        group_by([1])  # type: ignore[arg-type]


def the_duplicates_are_dropped_until_the_watermark_is_so_far_behind_the_first():
    build = lambda rows: rows.key_by(col("user")).drop_duplicates_within_watermark(Duration.of_millis(50))
    with OneInputTestHarness(build) as harness:
        highest = 0
        for at in (10, 20, 15, 60, 61, 111, 112, 30, 400, 401):
            harness.process_element(Row(user="a", at=at), at)
            highest = max(highest, at)
            harness.process_watermark(highest - 1)  # Spark's is the highest time
        assert [row.at for row in harness.extract_output_values()] == [10, 61, 112, 401]
