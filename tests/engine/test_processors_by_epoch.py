"""PySpark's stateful processors, called once for a key's rows of an epoch; judged by `TwsTester` over equal batches."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor

from holdfast.common import Row, Time, WatermarkStrategy
from holdfast.datastream.window import TumblingEventTimeWindows
from holdfast.errors import UserCodeError
from holdfast.testing import OneInputTestHarness

from .inprocess import CRASH_POINTS, LEDGERS, Lab, LedgerSink, SplitSource

OUTPUT = "user string, what string, number long"
EPOCH = 20
LAST = 100_000


class Sessions(StatefulProcessor):
    """Tells of each call what it sees, and of each timer; a row moves the key's timer."""

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, rows, timerValues):
        seen = [row.at for row in rows]
        n = (self.count.get()[0] if self.count.exists() else 0) + len(seen)
        self.count.update((n,))
        watermark = timerValues.getCurrentWatermarkInMs()
        if watermark >= 0:
            for timer in list(self.handle.listTimers()):
                self.handle.deleteTimer(timer)
            self.handle.registerTimer(max(seen) + 50)
        yield SparkRow(user=key[0], what=f"rows {seen} by {watermark}", number=n)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        n = self.count.get()[0]
        self.count.clear()
        watermark = min(timerValues.getCurrentWatermarkInMs(), LAST)
        yield SparkRow(user=key[0], what=f"timer {expiredTimerInfo.getExpiryTimeInMs()} by {watermark}", number=n)

    def close(self):
        pass


def rows_out_of_order(count: int = 400) -> list[Row]:
    """Some rows are late for their epoch, and some are at the watermark."""
    chance = random.Random(2)
    times = [max(1, n * 10 - chance.choice([0, 0, 0, 10, 100, 250])) for n in range(1, count)]
    return [Row(user=f"u{chance.randrange(6)}", at=at) for at in times]


def lab(rows: list[Row], directory: Path, time_mode: str, processor: StatefulProcessor | None = None) -> Lab:
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)

    def build(env: Any) -> None:
        stream = env.from_source(SplitSource({"only": rows}), in_order, "rows").uid("rows").key_by(lambda row: row.user)
        made = stream.transform_with_state(processor or Sessions(), OUTPUT, time_mode, call_mode="epoch").uid("keyed")
        made.sink_to(LedgerSink("out")).uid("out")
        windows = made.key_by(lambda row: row.user).window(TumblingEventTimeWindows.of(Time.milliseconds(100)))
        counted = windows.reduce(lambda a, b: Row(user=a.user, what="", number=a.number + b.number)).uid("windows")
        counted.sink_to(LedgerSink("windows")).uid("counted")

    LEDGERS.clear()
    return Lab(build, directory, budget=EPOCH, ledgers=("out", "windows"))


def told(rows: list[Row], time_mode: str) -> dict[str, list[Any]]:
    """What PySpark's tester says of each user, batch by batch."""
    TwsTester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 has it").TwsTester
    tester = TwsTester(Sessions(), timeMode=time_mode, eventTimeExtractor=lambda row: row.at)
    expected: list[Any] = []
    watermark = 0
    for first in range(0, len(rows), EPOCH):
        batch: dict[str, list[Any]] = {}
        for row in rows[first : first + EPOCH]:
            if time_mode == "None" or row.at > watermark:  # Spark does not call for a key without rows
                batch.setdefault(row.user, []).append(SparkRow(**row.as_dict()))
        for user, given in batch.items():
            expected += tester.test(user, given)
        ends = first + EPOCH >= len(rows)
        highest = LAST if ends else max(row.at for row in rows[: first + EPOCH])
        if time_mode == "EventTime" and highest > watermark:
            watermark = highest
            expected += tester.setWatermark(watermark)
    return by_user(expected)


def by_user(rows: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["user"], []).append((row["what"], row["number"]))
    return found


@pytest.mark.parametrize("time_mode", ["None", "EventTime"])
def test_calls_by_epoch_give_what_pysparks_tester_gives_for_equal_batches(time_mode, tmp_path):
    rows = rows_out_of_order()
    expected = told(rows, time_mode)
    lab(rows, tmp_path, time_mode).run()
    assert by_user(LEDGERS["out"].values) == expected
    counted = sum(row.number for row in LEDGERS["windows"].values)
    told_of = sum(number for results in expected.values() for _, number in results)
    assert time_mode == "None" or counted == told_of, "a result was late"


@pytest.mark.parametrize("point", CRASH_POINTS)
def the_rows_of_an_epoch_are_in_one_call_whenever_drivers_die_and_at_any_parallelism(point, tmp_path):
    rows = rows_out_of_order(200)
    job = lab(rows, tmp_path, "EventTime")
    for parallelism, count in ((3, 2), (1, 3), (2, 0)):
        assert job._run_until(point if count else "", count) == (count == 0)
        job.parallelism = parallelism
    assert by_user(LEDGERS["out"].values) == told(rows, "EventTime")


class Alarms(StatefulProcessor):
    """Sets a timer for each row, and tells the time of its calls."""

    def init(self, handle):
        self.handle = handle

    def handleInputRows(self, key, rows, timerValues):
        now = timerValues.getCurrentProcessingTimeInMs()
        waits = [row.wait for row in rows]
        for wait in waits:
            self.handle.registerTimer(now + wait)
        yield SparkRow(user=key[0], what=f"{waits} at {now}: {list(self.handle.listTimers())}", number=now)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        now = timerValues.getCurrentProcessingTimeInMs()
        left = list(self.handle.listTimers())
        yield SparkRow(user=key[0], what=f"timer {expiredTimerInfo.getExpiryTimeInMs()}: {left}", number=now)

    def close(self):
        pass


def test_timers_of_processing_time_fire_at_the_ends_of_epochs_as_in_pysparks_tester():
    TwsTester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 has it").TwsTester
    tester, expected, chance, now = TwsTester(Alarms(), timeMode="ProcessingTime"), [], random.Random(8), 0
    build = lambda rows: rows.key_by(lambda row: row.user).transform_with_state(
        Alarms(), OUTPUT, "ProcessingTime", call_mode="epoch"
    )
    with OneInputTestHarness(build) as harness:
        for _ in range(40):
            now += chance.randrange(1, 40)
            harness.set_processing_time(now).snapshot()  # an epoch without rows
            expected += tester.setProcessingTime(now)
            batch: dict[str, list[Any]] = {}
            for _ in range(chance.randrange(8)):
                user, wait = f"u{chance.randrange(3)}", chance.randrange(1, 70)
                harness.process_element(Row(user=user, wait=wait))
                batch.setdefault(user, []).append(SparkRow(user=user, wait=wait))
            assert len(harness.extract_output_values()) == len(expected), "a call before the end of the epoch"
            harness.snapshot()
            for user, rows in batch.items():
                expected += tester.test(user, rows)
        assert by_user(harness.extract_output_values()) == by_user(expected)


class Fails(Sessions):
    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            if row.at == 1230:
                raise ValueError("no such row")
        return iter([])


def a_failing_call_names_its_key(tmp_path):
    rows = [Row(user=f"u{n % 5}", at=n * 10) for n in range(1, 200)]
    with pytest.raises(UserCodeError, match=r"no such row(.|\n)*u3"):
        lab(rows, tmp_path, "None", Fails()).run()
