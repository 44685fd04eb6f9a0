"""PySpark's stateful processors in the time mode ProcessingTime: timers and expiring states, by a clock of the test's."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor

from holdfast.common import Row
from holdfast.errors import ConfigurationError
from holdfast.spark.processor_handle import DeclaringHandle
from holdfast.testing import OneInputTestHarness, VirtualClock

OUTPUT = "user string, what string, number long"
TTL = 100


def harness(processor: StatefulProcessor, **options: Any) -> OneInputTestHarness[Any, Any]:
    return OneInputTestHarness(
        lambda rows: rows.key_by(lambda row: row.user).transform_with_state(processor, OUTPUT, "ProcessingTime"), **options
    )


class Reminders(StatefulProcessor):
    """Sets timers of all distances, moves one, and tells of each that fires which others are left."""

    def init(self, handle):
        self.handle = handle
        self.rows = handle.getValueState("rows", "n long")

    def handleInputRows(self, key, rows, timerValues):
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            n = self.rows.get()[0] + 1 if self.rows.exists() else 1
            self.rows.update((n,))
            self.handle.registerTimer(now + row.wait)
            if n % 4 == 0:
                self.handle.deleteTimer(next(self.handle.listTimers()))
            yield self._told(key, "row", now)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        at, now = expiredTimerInfo.getExpiryTimeInMs(), timerValues.getCurrentProcessingTimeInMs()
        assert timerValues.getCurrentWatermarkInMs() == -1
        if at % 3 == 0:
            self.handle.registerTimer(now + 1_000)
        yield self._told(key, f"timer {at}", now)

    def _told(self, key, what, now):
        return SparkRow(user=key[0], what=f"{what} at {now}: {list(self.handle.listTimers())}", number=self.rows.get()[0])

    def close(self):
        pass


def by_user(rows: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        found.setdefault(row["user"], []).append((row["what"], row["number"]))
    return found


@pytest.mark.parametrize("restarts", [False, True])
def test_timers_of_processing_time_are_those_of_pysparks_tester(restarts):
    TwsTester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 has it").TwsTester
    tester, expected, chance = TwsTester(Reminders(), timeMode="ProcessingTime"), [], random.Random(11)
    results: list[Any] = []
    clock = VirtualClock()
    ours = harness(Reminders(), clock=clock)
    for step in range(150):
        user, wait = f"u{chance.randrange(3)}", chance.randrange(1, 60)
        ours.process_element(Row(user=user, wait=wait))
        expected += tester.test(user, [SparkRow(user=user, wait=wait)])
        if restarts and step % 40 == 39:
            results += ours.extract_output_values()
            stored = ours.snapshot()
            ours.close()
            ours = harness(Reminders(), clock=VirtualClock(clock.now()), snapshot=stored)
            clock = ours.clock
        if step % 2:
            now = clock.advance(chance.randrange(1, 30))
            expected += tester.setProcessingTime(now)
    clock.set(5_000)
    expected += tester.setProcessingTime(5_000)
    results += ours.extract_output_values()
    assert by_user(results) == by_user(expected)
    assert any(row["what"].startswith("timer") for row in expected)
    ours.close()


class Forgets(StatefulProcessor):
    """Writes to the states that a row names, and tells what all of them hold."""

    def init(self, handle):
        self.value = handle.getValueState("value", "at long", TTL)
        self.list = handle.getListState("list", "at long", ttlDurationMs=TTL)
        self.map = handle.getMapState("map", "what string", "at long", TTL)
        self.kept = handle.getListState("kept", "at long")

    def handleInputRows(self, key, rows, timerValues):
        now = (timerValues.getCurrentProcessingTimeInMs(),)
        for row in rows:
            if row.what == "value":
                self.value.update(now)
            elif row.what == "append":
                self.list.appendValue(now)
                self.kept.appendValue(now)
            elif row.what == "put":
                self.list.put([now, now])
            elif row.what != "read":
                self.map.updateValue((row.what,), now)
            seen = (
                self.value.get(),
                list(self.list.get()),
                sorted(self.map.iterator()),
                (self.value.exists(), self.list.exists(), self.map.exists()),
                self.map.containsKey(("a",)),
                self.map.getValue(("a",)),
                (sorted(self.map.keys()), sorted(self.map.values())),
                len(list(self.kept.get())),
            )
            yield SparkRow(user=key[0], what=repr(seen), number=now[0])

    def close(self):
        pass


def seen_at(time: int, value: int | None, listed: list[int], mapped: dict[str, int], kept: int) -> str:
    """What Spark's states hold at this time: what was written less than the time-to-live ago."""
    alive = None if value is None or time >= value + TTL else (value,)
    items = [(at,) for at in listed if time < at + TTL]
    entries = {(name,): (at,) for name, at in mapped.items() if time < at + TTL}
    exist = (alive is not None, bool(items), bool(entries))
    one = entries.get(("a",))
    return repr(
        (
            alive,
            items,
            sorted(entries.items()),
            exist,
            one is not None,
            one,
            (sorted(entries), sorted(entries.values())),
            kept,
        )
    )


@pytest.mark.parametrize("restarts", [False, True])
def a_value_an_element_and_an_entry_live_for_the_time_since_they_were_written(restarts):
    chance = random.Random(5)
    clock = VirtualClock()
    value: int | None = None
    listed: list[int] = []
    mapped: dict[str, int] = {}
    kept = 0
    ours = harness(Forgets(), clock=clock)
    for step in range(300):
        now = clock.advance(chance.choice([0, 1, 17, 50, 99, 100, 101]))
        what = chance.choice(["value", "append", "put", "a", "b", "read", "read"])
        if what == "value":
            value = now
        elif what == "append":
            listed.append(now)
            kept += 1
        elif what == "put":
            listed = [now, now]
        elif what != "read":
            mapped[what] = now
        (result,) = ours.clear_output().process_element(Row(user="u", what=what)).extract_output_values()
        assert result.what == seen_at(now, value, listed, mapped, kept), (step, now, what)
        if restarts and step % 50 == 49:
            stored = ours.snapshot()
            ours.close()
            clock = VirtualClock(now)
            ours = harness(Forgets(), clock=clock, snapshot=stored)
    ours.close()


def a_time_to_live_is_refused_in_other_time_modes_and_if_it_is_not_positive():
    for mode in ("none", "eventtime"):
        with pytest.raises(
            ConfigurationError, match=r"getListState\('a'\): ttlDurationMs needs the time mode ProcessingTime"
        ):
            DeclaringHandle(mode).getListState("a", "n long", TTL)
    for span in (0, -1, 1.5, True):
        with pytest.raises(ConfigurationError, match=f"positive number of milliseconds, not {span}"):
            DeclaringHandle("processingtime").getMapState("a", "n long", "n long", span)
