"""PySpark's stateful processors on keyed streams: with each row at once, and judged by PySpark's own `TwsTester`."""

from __future__ import annotations

import inspect
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Row as SparkRow
from pyspark.sql.streaming import StatefulProcessor, stateful_processor
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, TimerValues
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.common import Configuration, Row, Types
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.datastream.operations.batches import col
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.spark import processor_handle
from holdfast.spark.state_schemas import parse_schema

from .inprocess import CRASH_POINTS, LEDGERS, Lab, LedgerSink
from .small_programs import timed

OUTPUT = "user string, what string, number long"


class Visits(StatefulProcessor):
    """Uses a value, a list and a map, with what PySpark's states can do."""

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n long")
        fields = [StructField("page", StringType()), StructField("at", LongType())]
        self.last = handle.getListState("last", StructType(fields))
        self.pages = handle.getMapState("pages", "page string", "n long")

    def handleInputRows(self, key, rows, timerValues):
        user = key[0]
        for row in rows:
            n = (self.count.get()[0] if self.count.exists() else 0) + 1
            self.count.update((n,))
            page = (row.page,)
            seen = self.pages.getValue(page)[0] if self.pages.containsKey(page) else 0
            self.pages.updateValue(page, (seen + 1,))
            self.last.appendValue((row.page, row.at))
            if n % 3 == 0:
                self.last.put(list(self.last.get())[-2:])
            if n % 5 == 0:
                self.pages.removeKey(page)
            if row.page == "bye":
                yield SparkRow(user=user, what=",".join(sorted(p for (p,) in list(self.pages.keys()))), number=-n)
                for state in (self.count, self.last, self.pages):
                    state.clear()
                assert not any(state.exists() for state in (self.count, self.last, self.pages))
                assert (self.count.get(), self.pages.getValue(page)) == (None, None)
                continue
            total = sum(value for (value,) in self.pages.values()) + sum(k[0] == "a" for k, _ in self.pages.iterator())
            yield SparkRow(number=n * 100 + total, user=user, what="".join(p for p, _ in self.last.get()))
        if self.count.exists():
            self.last.appendList([("+", 0)])

    def close(self):
        pass


class Buckets(StatefulProcessor):
    """Counts the rows of each 50 ms, and tells the count when they are over."""

    def init(self, handle):
        self.handle = handle
        self.counts = handle.getMapState("counts", "until long", "n long")
        handle.deleteIfExists("of an earlier form")

    def handleInputRows(self, key, rows, timerValues):
        for row in rows:
            end = (row.at // 50 + 1) * 50
            assert timerValues.getCurrentWatermarkInMs() < row.at
            n = self.counts.getValue((end,))
            if n is None:
                self.handle.registerTimer(end)
                self.handle.registerTimer(end + 7)
                self.handle.deleteTimer(end + 7)
            self.counts.updateValue((end,), (1 if n is None else n[0] + 1,))
        return iter([])

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        end = expiredTimerInfo.getExpiryTimeInMs()
        assert end in list(self.handle.listTimers())  # Spark lists them in any order
        assert timerValues.getCurrentWatermarkInMs() >= end
        yield SparkRow(user=key[0], what=f"until {end}", number=self.counts.getValue((end,))[0])
        self.counts.removeKey((end,))

    def close(self):
        pass


def visits(count: int = 300, users: int = 5) -> list[Any]:
    chance = random.Random(7)
    return [
        Row(user=f"u{chance.randrange(users)}", page=chance.choice(["a", "b", "c", "bye"]), at=n * 10 + 10)
        for n in range(count)
    ]


def lab(processor: Any, values: list[Any], directory: Any, time_mode: str = "None", strategy: Any = None) -> Lab:
    def build(env: Any) -> None:
        rows = timed(env, [(row, row.at) for row in values], 7)
        rows = rows.map(lambda pair: pair[0])
        keyed = rows.key_by(lambda row: row.user)
        keyed.transform_with_state(processor, OUTPUT, time_mode).uid("keyed").sink_to(LedgerSink("out")).uid("out")

    LEDGERS.clear()
    return Lab(build, directory, budget=20)


def plain(row: Any) -> tuple[Any, ...]:
    return row["user"], row["what"], row["number"]


def told(processor: Any, values: list[Any], **options: Any) -> tuple[Any, list[Any]]:
    """PySpark's tester, and what it says row by row."""
    TwsTester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 has it").TwsTester
    tester = TwsTester(processor, **options)
    return tester, [out for row in values for out in tester.test(row["user"], [SparkRow(**row.as_dict())])]


def test_a_processor_gives_row_by_row_what_pysparks_tester_gives(tmp_path):
    values = visits()
    lab(Visits(), values, tmp_path).run()
    by_user: dict[str, list[Any]] = {}
    for row in LEDGERS["out"].values:
        assert type(row) is Row
        by_user.setdefault(row.user, []).append(plain(row))
    _, expected = told(Visits(), values)
    for user, rows in by_user.items():
        assert rows == [plain(row) for row in expected if row.user == user]
    assert sum(map(len, by_user.values())) == len(expected) == 300


@pytest.mark.parametrize("point", CRASH_POINTS)
def the_states_and_timers_of_a_processor_survive_dead_drivers(point, tmp_path):
    values = visits()
    lab(Buckets(), values, tmp_path / "whole", "EventTime").run()
    expected = Counter(map(plain, LEDGERS["out"].values))
    lab(Buckets(), values, tmp_path / "killed", "EventTime").run([(point, 2), (point, 3)])
    assert Counter(map(plain, LEDGERS["out"].values)) == expected
    assert sum(n for _, _, n in expected.elements()) == len(values)


def test_timers_of_event_time_are_those_of_pysparks_tester(tmp_path):
    values = visits(60, users=1)
    lab(Buckets(), values, tmp_path, "EventTime").run()
    tester, expected = told(Buckets(), [], timeMode="EventTime", eventTimeExtractor=lambda row: row.at)
    for row in values:
        tester.test(row.user, [SparkRow(**row.as_dict())])
        expected += tester.setWatermark(row.at)  # Spark's after this row, without a delay
    expected += tester.setWatermark(10_000)
    assert list(map(plain, LEDGERS["out"].values)) == list(map(plain, expected))


class Clocks(StatefulProcessor):
    def init(self, handle):
        pass

    def handleInputRows(self, key, rows, timerValues):
        now, watermark = timerValues.getCurrentProcessingTimeInMs(), timerValues.getCurrentWatermarkInMs()
        yield SparkRow(user=str(next(rows).at), what=str(now > 0), number=watermark)

    def close(self):
        pass


@pytest.mark.parametrize(("mode", "expected"), [("none", ("False", -1)), ("processingTime", ("True", -1))])
def the_times_that_a_processor_sees_are_those_of_its_time_mode(mode, expected, tmp_path):
    lab(Clocks(), visits(3), tmp_path, mode).run()
    assert {plain(row)[1:] for row in LEDGERS["out"].values} == {expected}


def a_late_row_is_dropped_in_event_time_only(tmp_path):
    values = [Row(user="u", page="a", at=at) for at in [*range(10, 1000, 10), 15, 1000]]
    for mode, dropped in (("EventTime", ["15"]), ("None", [])):
        lab(Clocks(), values, tmp_path / mode, mode).run()
        assert sorted({str(row.at) for row in values} - {row.user for row in LEDGERS["out"].values}) == dropped


def a_row_without_timestamp_is_refused_in_event_time(tmp_path):
    def build(env: Any) -> None:
        rows = env.from_collection([{"user": "a", "page": "b", "at": 1}]).key_by(col("user"))
        rows.transform_with_state(Buckets(), OUTPUT, "EventTime").print()

    with pytest.raises((ConfigurationError, UserCodeError), match="timestamp"):
        Lab(build, tmp_path).run()


def test_every_method_of_pysparks_states_and_handle_is_there():
    ours = {
        "ValueState": processor_handle.ValueStateOfKey,
        "ListState": processor_handle.ListStateOfKey,
        "MapState": processor_handle.MapStateOfKey,
        "StatefulProcessorHandle": processor_handle.ProcessorHandle,
    }
    for name, own in ours.items():
        for method, theirs in inspect.getmembers(getattr(stateful_processor, name), inspect.isfunction):
            if not method.startswith("_"):
                assert method in vars(own) | vars(own.__mro__[1]), f"{name}.{method}"
                parameters = inspect.signature(theirs).parameters
                assert list(inspect.signature(getattr(own, method)).parameters) == list(parameters), f"{name}.{method}"
    calls = {"init", "handleInputRows", "handleExpiredTimer", "handleInitialState", "close"}
    names = {name for name, _ in inspect.getmembers(StatefulProcessor, inspect.isfunction) if not name.startswith("_")}
    assert names == calls
    given = set(ours) | {"StatefulProcessor", "TimerValues", "ExpiredTimerInfo"}
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()
    for each in (*map(vars(stateful_processor).get, ours), StatefulProcessor, TimerValues, ExpiredTimerInfo):
        methods = [name for name, _ in inspect.getmembers(each, inspect.isfunction) if not name.startswith("_")]
        assert [name for name in methods if f"`{name}" not in page] == [], "what docs/spark.md does not tell of"
    classes = {name for name, each in vars(stateful_processor).items() if inspect.isclass(each)}
    assert {name for name in classes if vars(stateful_processor)[name].__module__ == stateful_processor.__name__} == given


def keyed() -> Any:
    env = StreamExecutionEnvironment.get_execution_environment(Configuration(), spark=object())  # type: ignore[arg-type]
    return env.from_collection([{"user": "a", "page": "b", "at": 1}]).key_by(col("user"))


class Declares(StatefulProcessor):
    def __init__(self, declare: Any) -> None:
        self.declare = declare

    def init(self, handle):
        self.declare(handle)

    def handleInputRows(self, key, rows, timerValues):
        return iter([])

    def close(self):
        pass


REFUSED = {
    "getValueState('a'): ttlDurationMs needs the time mode ProcessingTime": lambda h: h.getValueState("a", "n int", 10),
    "init() has declared a state of this name before": lambda h: [h.getListState("a", "n int") for _ in range(2)],
    "'number' is not a type that a field may have": lambda h: h.getMapState("a", "n int", "n number"),
    "'n' is not a schema; give names and types": lambda h: h.getValueState("a", "n"),
    "takes a StructType or a text such as 'count int', not 7": lambda h: h.getValueState("a", 7),
    "registerTimer() needs the time mode ProcessingTime or EventTime": lambda h: h.registerTimer(1),
    "deleteIfExists('a'): init() declares this state": lambda h: (h.getValueState("a", "n int"), h.deleteIfExists("a")),
    "failed: ZeroDivisionError: division by zero": lambda h: 1 / 0,
}


@pytest.mark.parametrize("sentence", REFUSED)
def a_state_that_cannot_be_is_refused_when_the_program_is_built(sentence):
    with pytest.raises(ConfigurationError) as refused:
        keyed().transform_with_state(Declares(REFUSED[sentence]), OUTPUT)
    assert sentence in str(refused.value)
    assert "Declares" in str(refused.value)


def a_mode_that_is_not_there_is_refused_by_name():
    processor = Visits()
    with pytest.raises(TypeError, match=r"takes a StatefulProcessor, not Visits. Call it: Visits\(\)"):
        keyed().transform_with_state(Visits, OUTPUT)
    with pytest.raises(ConfigurationError, match="time_mode is one of None, ProcessingTime, EventTime, not 'batch'"):
        keyed().transform_with_state(processor, OUTPUT, "batch")
    with pytest.raises(ConfigurationError, match=r"output_mode is append or update, .*, not 'complete'"):
        keyed().transform_with_state(processor, OUTPUT, "None", "complete")
    with pytest.raises(ConfigurationError, match="call_mode is record or epoch, not 'batch'"):
        keyed().transform_with_state(processor, OUTPUT, call_mode="batch")
    with pytest.raises(ConfigurationError, match="output_schema of transform_with_state"):
        keyed().transform_with_state(processor, "number")


class Gives(StatefulProcessor):
    def __init__(self, *results: Any, update: Any = None) -> None:
        self.results, self.update = results, update

    def init(self, handle):
        self.handle = handle
        self.state = handle.getListState("list", "n long, s string")

    def handleInputRows(self, key, rows, timerValues):
        if self.update is not None:
            self.update(self)
        return iter(self.results)

    def close(self):
        pass


MISTAKES = {
    "gave a Row of user, number; the output_schema has user, what, number": Gives(SparkRow(user="a", number=1)),
    "results are pyspark.sql.Rows with names": Gives(("a", "b", 1)),
    "does not fit the declared type": Gives(SparkRow(user="a", what="b", number="c")),
    "put() of the state 'list' takes a list of at least one tuple, not []": Gives(update=lambda p: p.state.put([])),
    "appendValue() of the state 'list' takes a tuple of 2 fields": Gives(update=lambda p: p.state.appendValue((1,))),
    "was called outside of init(); get all states there": Gives(update=lambda p: p.handle.getValueState("v", "n int")),
    "listTimers() needs the time mode": Gives(update=lambda p: list(p.handle.listTimers())),
}


@pytest.mark.parametrize("sentence", MISTAKES)
def a_mistake_of_a_processor_is_told_with_its_row(sentence, tmp_path):
    with pytest.raises((UserCodeError, ConfigurationError)) as failed:
        lab(MISTAKES[sentence], visits(1), tmp_path).run()
    assert sentence in str(failed.value)


def an_element_that_is_no_row_is_refused(tmp_path):
    def build(env: Any) -> None:
        env.from_collection([("a", 1)]).key_by(lambda pair: pair[0]).transform_with_state(Visits(), OUTPUT).print()

    with pytest.raises(UserCodeError, match=r"takes Rows with names, or dicts, .* not \('a', 1\)"):
        Lab(build, tmp_path).run()


def test_spark_s_texts_of_schemas_are_understood():
    schema = parse_schema(
        "id INT NOT NULL, `a``b`: string COMMENT 'x, y', m map<string, array<struct<a:int,b:int>>>, d decimal(10, 2)", ""
    )
    assert schema.names == ("id", "a`b", "m", "d")
    assert schema.types == (Types.INT(), Types.STRING(), None, None)
    assert schema.as_tuple is None
    assert parse_schema("a int, b long", "").as_tuple == Types.TUPLE([Types.INT(), Types.LONG()])
