"""The initial state of PySpark's stateful processors, read to its end before the input; judged by PySpark's `TwsTester`."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor

from holdfast.common import Configuration, Row, WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.connectors.number_seq import NumberSequenceSource
from holdfast.datastream.operations.batches import col
from holdfast.errors import ConfigurationError

from .inprocess import CRASH_POINTS, LEDGERS, Lab, LedgerSink, SplitSource

OUTPUT = "user string, what string, number long"
USERS = [f"u{n}" for n in range(7)]


class Balances(StatefulProcessor):
    """Begins with what an account had, and tells that again at a time."""

    def init(self, handle):
        self.handle = handle
        self.had = handle.getListState("had", "amount long")
        self.sum = handle.getValueState("sum", "amount long")

    def handleInitialState(self, key, initialState, timerValues):
        assert not self.sum.exists(), "a row of the input came before the initial state"
        assert timerValues.getCurrentWatermarkInMs() <= 0
        assert initialState.user == key[0]
        self.had.appendValue((initialState.amount,))
        if timerValues.getCurrentWatermarkInMs() == 0:
            self.handle.registerTimer(500)

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            had = sorted(amount for (amount,) in self.had.get())
            total = (self.sum.get()[0] if self.sum.exists() else sum(had)) + row.amount
            self.sum.update((total,))
            yield SparkRow(user=key[0], what=f"{had}", number=total)

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        had = sum(amount for (amount,) in self.had.get())
        yield SparkRow(user=key[0], what=f"at {expiredTimerInfo.getExpiryTimeInMs()}", number=had)

    def close(self):
        pass


def initial_rows() -> list[Row]:
    """Some users have none, one has several, and one has no input."""
    chance = random.Random(3)
    return [Row(user=user, amount=chance.randrange(1000)) for user in [*USERS[2:], *USERS[4:], "silent"] for _ in "ab"]


def payments() -> list[Row]:
    chance = random.Random(4)
    return [Row(user=chance.choice(USERS), amount=chance.randrange(100), at=at) for at in range(10, 1000, 10)]


def lab(directory: Path, time_mode: str, call_mode: str = "record") -> Lab:
    before, rows = initial_rows(), payments()
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)

    def build(env: Any) -> None:
        held = {f"part {n}": before[n::3] for n in range(3)}
        first = env.from_source(SplitSource(held, 2), WatermarkStrategy.no_watermarks(), "accounts").uid("accounts")
        stream = env.from_source(SplitSource({"only": rows}, 9), in_order, "payments").uid("payments")
        keyed, state = stream.key_by(lambda row: row.user), first.key_by(lambda row: row.user)
        results = keyed.transform_with_state(Balances(), OUTPUT, time_mode, initial_state=state, call_mode=call_mode)
        results.uid("keyed").sink_to(LedgerSink("out")).uid("out")

    LEDGERS.clear()
    return Lab(build, directory, budget=20)


def told(time_mode: str) -> dict[str, list[Any]]:
    """What PySpark's tester says of each user."""
    TwsTester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 has it").TwsTester
    before = [(row.user, SparkRow(**row.as_dict())) for row in initial_rows()]
    tester = TwsTester(Balances(), before, timeMode=time_mode, eventTimeExtractor=lambda row: row.at)
    expected: list[Any] = []
    for row in payments():
        expected += tester.test(row.user, [SparkRow(**row.as_dict())])
        if time_mode == "EventTime":
            expected += tester.setWatermark(row.at)
    return by_user(expected)


def by_user(rows: Any) -> dict[str, list[Any]]:
    """The results of each user's rows in order, and those of timers, whose place among them depends on the cut."""
    found: dict[str, list[Any]] = {}
    for row in sorted(rows, key=lambda row: row["what"].startswith("at ")):
        found.setdefault(row["user"], []).append((row["what"], row["number"]))
    return found


@pytest.mark.parametrize("time_mode", ["None", "EventTime"])
@pytest.mark.parametrize("call_mode", ["record", "epoch"])
def the_initial_state_comes_whole_before_the_input_as_in_pysparks_tester(time_mode, call_mode, tmp_path):
    expected = told(time_mode)
    lab(tmp_path, time_mode, call_mode).run()
    assert by_user(LEDGERS["out"].values) == expected
    assert ("silent" in expected) == (time_mode == "EventTime")


@pytest.mark.parametrize("point", CRASH_POINTS)
def the_initial_state_counts_once_whenever_drivers_die(point, tmp_path):
    lab(tmp_path, "EventTime").run([(point, 1), (point, 2), (point, 6)])
    assert by_user(LEDGERS["out"].values) == told("EventTime")


def environment(**settings: str) -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(Configuration(), spark=object())  # type: ignore[arg-type]
    for key, value in settings.items():
        env._configuration.set_string(key, value)
    return env.set_parallelism(2)


def numbers(env: Any, source: Any) -> Any:
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").map(lambda n: {"user": str(n), "amount": n})
    return rows.key_by(col("user"))


def plan(env: Any, stream: Any, state: Any) -> None:
    stream.transform_with_state(Balances(), OUTPUT, initial_state=state).print()
    env._plan("job")


class Endless(SplitSource):
    bounded = False


def an_initial_state_that_is_no_keyed_stream_of_the_program_is_refused():
    env = environment()
    stream = numbers(env, NumberSequenceSource(1, 9))
    for other in (object(), stream._stream, numbers(environment(), NumberSequenceSource(1, 9))):
        with pytest.raises(TypeError, match=r"is a keyed stream of the same environment, .*env.from_spark\(df\).key_by"):
            stream.transform_with_state(Balances(), OUTPUT, initial_state=other)


def an_initial_state_that_cannot_be_read_first_is_refused_before_the_job_starts():
    env = environment()
    stream = numbers(env, NumberSequenceSource(1, 9))
    with pytest.raises(ConfigurationError, match="initial state of TransformWithState comes from numbers, which would wait"):
        plan(env, stream, stream)
    env = environment()
    with pytest.raises(ConfigurationError, match="comes from numbers, which never ends"):
        plan(env, numbers(env, NumberSequenceSource(1, 9)), numbers(env, Endless({"only": []})))
    env = environment(**{"execution.runtime-mode": "BATCH"})
    with pytest.raises(ConfigurationError, match="in BATCH mode, all input is read at once"):
        plan(env, numbers(env, NumberSequenceSource(1, 9)), numbers(env, NumberSequenceSource(1, 9)))
    env = environment(**{"execution.checkpointing.unaligned.enabled": "true"})
    with pytest.raises(ConfigurationError, match="needs aligned checkpoints"):
        plan(env, numbers(env, NumberSequenceSource(1, 9)), numbers(env, NumberSequenceSource(1, 9)))
    env = environment()
    one, other = numbers(env, NumberSequenceSource(1, 9)), numbers(env, NumberSequenceSource(1, 9))
    one.transform_with_state(Balances(), OUTPUT, initial_state=other).print()
    with pytest.raises(ConfigurationError, match="which would wait for its own end"):
        plan(env, other, one)
