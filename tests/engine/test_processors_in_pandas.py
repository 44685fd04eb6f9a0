"""PySpark's stateful processors in the form for pandas; judged by PySpark's `TwsTester` over equal batches."""

from __future__ import annotations

import random
from typing import Any

import pandas
import pytest
from pyspark.sql.streaming import StatefulProcessor

from holdfast.common import Row, WatermarkStrategy
from holdfast.errors import UserCodeError

from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

OUTPUT = "user string, what string, number long, mean double"
EPOCH = 20
LAST = 100_000


class Means(StatefulProcessor):
    """The mean of a key's amounts so far, and of those of a call; a timer ends the key."""

    def init(self, handle):
        self.handle = handle
        self.total = handle.getValueState("total", "n long, amount double")

    def handleInitialState(self, key, initialState, timerValues):
        self.total.update((1, float(initialState.at[0, "amount"])))

    def handleInputRows(self, key, rows, timerValues):
        for frame in rows:
            n, total = self.total.get() if self.total.exists() else (0, 0.0)
            n, total = n + len(frame), total + float(frame["amount"].sum())
            self.total.update((n, total))
            if timerValues.getCurrentWatermarkInMs() >= 0:
                self.handle.registerTimer(int(frame["at"].max()) + 40)
            seen = frame[["user", "amount", "at"]].to_csv(index=False)
            yield pandas.DataFrame({"mean": [total / n], "number": [n], "user": [key[0]], "what": [seen]})
            yield pandas.DataFrame()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        ended = self.total.get()[0] if self.total.exists() else None
        self.total.clear()
        times = [f"at {expiredTimerInfo.getExpiryTimeInMs()}", "ended"]
        frame = pandas.DataFrame({"user": key[0], "what": times, "number": [ended, None], "mean": [float("nan"), 1.5]})
        return iter([frame])

    def close(self):
        pass


def payments() -> list[Row]:
    chance = random.Random(6)
    amounts = [1, 2.5, None]
    return [Row(user=f"u{chance.randrange(5)}", amount=chance.choice(amounts), at=n * 10) for n in range(1, 300)]


BEFORE = [Row(user=f"u{n}", amount=n) for n in range(3)]


def run(processor: StatefulProcessor, directory: Any, call_mode: str = "epoch") -> list[Any]:
    in_order = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda row, _: row.at)

    def build(env: Any) -> None:
        first = env.from_source(SplitSource({"s": BEFORE}), WatermarkStrategy.no_watermarks(), "before").uid("before")
        stream = env.from_source(SplitSource({"only": payments()}), in_order, "rows").uid("rows")
        keyed, state = stream.key_by(lambda row: row.user), first.key_by(lambda row: row.user)
        made = keyed.transform_with_state_in_pandas(
            processor, OUTPUT, "EventTime", initial_state=state, call_mode=call_mode
        ).uid("keyed")
        made.sink_to(LedgerSink("out")).uid("out")

    LEDGERS.clear()
    Lab(build, directory, budget=EPOCH).run()
    return list(LEDGERS["out"].values)


def by_user(rows: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for row in rows:
        number, mean = (None if pandas.isna(row[name]) else float(row[name]) for name in ("number", "mean"))
        found.setdefault(row["user"], []).append((row["what"], number, mean))
    return found


def frames(rows: list[Row]) -> dict[str, Any]:
    batch: dict[str, list[Any]] = {}
    for row in rows:
        batch.setdefault(row.user, []).append(tuple(row))
    return {user: pandas.DataFrame(given, columns=["user", "amount", "at"]) for user, given in batch.items()}


@pytest.mark.filterwarnings("ignore:The behavior of DataFrame concatenation:FutureWarning")  # of the tester
def test_frames_by_epoch_give_what_pysparks_tester_gives_for_equal_batches(tmp_path):
    TwsTester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 has it").TwsTester
    initial = [(row.user, pandas.DataFrame([row.as_dict()])) for row in BEFORE]
    tester = TwsTester(Means(), initialStatePandas=initial, timeMode="EventTime", eventTimeExtractor=lambda row: row["at"])
    rows, expected = payments(), []
    for first in range(0, len(rows), EPOCH):
        for user, frame in frames(rows[first : first + EPOCH]).items():
            expected.append(tester.testInPandas(user, frame))
        ends = first + EPOCH >= len(rows)
        expected.append(tester.setWatermark(LAST if ends else rows[first + EPOCH - 1].at))
    told = [row for frame in expected for _, row in frame.iterrows()]
    results = run(Means(), tmp_path)
    assert by_user(results) == by_user(told)
    assert {type(row.number) for row in results} == {int, type(None)}
    assert {type(row.mean) for row in results} == {float, type(None)}


class Gives(Means):
    def __init__(self, results: Any) -> None:
        self.results = results

    def handleInputRows(self, key, rows, timerValues):
        return self.results


MISTAKES = {
    "must return an iterator of pandas.DataFrames": pandas.DataFrame({"user": ["a"]}),
    "results are pandas.DataFrames": [Row(user="a")],
    "gave a DataFrame of user, number; the output_schema has user, what, number, mean": [
        pandas.DataFrame({"user": ["a"], "number": [1]})
    ],
    "does not fit the declared type": [pandas.DataFrame({"user": ["a"], "what": [1], "number": [1], "mean": [1.0]})],
}


@pytest.mark.parametrize("call_mode", ["record", "epoch"])
@pytest.mark.parametrize("sentence", MISTAKES)
def a_mistake_of_a_processor_for_pandas_is_told(sentence, call_mode, tmp_path):
    with pytest.raises(UserCodeError) as failed:
        run(Gives(MISTAKES[sentence]), tmp_path, call_mode)
    assert sentence in str(failed.value)
