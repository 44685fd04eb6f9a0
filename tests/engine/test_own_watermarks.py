"""Users' own watermark generators: one set of late records whatever the cut, state across restarts, and their mistakes."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Duration, Time, WatermarkGenerator, WatermarkOutput, WatermarkStrategy
from holdfast.common.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from holdfast.connectors.base import EpochInput, JobInfo, SplitRange
from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, TumblingEventTimeWindows
from holdfast.errors import UserCodeError
from holdfast.runtime.records.user_code import OperatorName
from holdfast.runtime.task.generated_watermarks import GeneratedWatermarks

from .inprocess import LEDGERS, Lab, LedgerSink, SplitEnumerator, SplitSource
from .test_same_results import few, lab
from .test_time import LATE, SIZE, START, crash_lists, sums

MARK = 9
"""The value of records that say: nothing older follows."""


class AtMarks(WatermarkGenerator[tuple[str, int, int]]):
    """Punctuated: a mark ends everything up to the highest timestamp of the last ``memory`` records."""

    def __init__(self, memory: int = 3) -> None:
        self.memory = memory
        self.latest: list[int] = []

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        self.latest = [*self.latest, timestamp][-self.memory :]
        if event[2] == MARK:
            output.emit_watermark(max(self.latest))


def own(generator: Any = AtMarks) -> WatermarkStrategy:
    return WatermarkStrategy.for_generator(generator).with_timestamp_assigner(lambda record, _: record[1])


# ---- one set of late records ---------------------------------------------------------------------------------------------

records = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(-150, 60), st.integers(5, MARK)), min_size=1, max_size=40
).map(lambda steps: [(key, START + 10 * n + jitter, value) for n, (key, jitter, value) in enumerate(steps)])


def judged(splits: dict[str, list[Any]], memory: int) -> tuple[Counter[Any], dict[Any, int]]:
    """The late records and the windows' sums, by the watermark of each record's own split just before it."""
    late: Counter[Any] = Counter()
    totals: dict[Any, int] = {}
    for split in splits.values():
        watermark = MIN_TIMESTAMP
        for position, (key, time, value) in enumerate(split):
            start = time - time % SIZE
            if start + SIZE - 1 <= watermark:
                late[key, time, value] += 1
            else:
                totals[key, start] = totals.get((key, start), 0) + value
            if value == MARK:
                watermark = max(watermark, *(t for _, t, _ in split[max(0, position + 1 - memory) : position + 1]))
    return late, totals


def late_and_sums(splits: dict[str, list[Any]], way: str, cut: int, memory: int) -> Any:
    def build(env: StreamExecutionEnvironment) -> None:
        strategy = own(lambda: AtMarks(memory))
        in_source = way == "source"
        stream = env.from_source(SplitSource(splits, cut), strategy if in_source else WatermarkStrategy.no_watermarks(), "s")
        if not in_source:
            stream = stream.map(lambda record: record).assign_timestamps_and_watermarks(strategy)
        totals = sums(stream.key_by(lambda record: record[0]))
        late = totals.get_side_output(LATE).map(lambda record: ("late", record))
        totals.map(lambda record: ("sum", record)).union(late).sink_to(LedgerSink("out"))

    return build


@settings(few, max_examples=60)
@given(
    splits=st.dictionaries(st.sampled_from(["s", "t", "u"]), records, min_size=1),
    way=st.sampled_from(["source", "generator"]),
    memory=st.integers(1, 5),
    parallelism=st.integers(1, 3),
    budget=st.sampled_from([3, 15, 5000]),
    cut=st.booleans(),
    batch=st.sampled_from(["1", "7", "4096"]),
    crashes=crash_lists,
)
def test_an_own_generators_late_records_are_the_same_however_the_input_is_cut(
    splits, way, memory, parallelism, budget, cut, batch, crashes
):
    if way == "generator":
        splits = dict([next(iter(splits.items()))])
    late, totals = judged(splits, memory)
    sizes = {"holdfast.batch.records": batch, "state.backend.type": "hashmap"}
    with lab(
        late_and_sums(splits, way, budget if cut else 0, memory), parallelism=parallelism, budget=budget, config=sizes
    ) as job:
        job.run(crashes)
        assert Counter(record for kind, record in LEDGERS["out"].values if kind == "late") == late
        results = [((key, time - time % SIZE), total) for kind, (key, time, total) in LEDGERS["out"].values if kind == "sum"]
        assert dict(results) == totals
        assert len(results) == len(totals), "a window gave two results"


class Watermarks(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value[1], ctx.timer_service().current_watermark()


def watermarks_seen(strategy: WatermarkStrategy, splits: dict[str, list[Any]], directory: Path, way: str = "source") -> Any:
    """Run one record an epoch; the watermark of each, by timestamp."""

    def build(env: StreamExecutionEnvironment) -> None:
        if way == "source":
            stream = env.from_source(SplitSource(splits), strategy, "s")
        else:
            source = env.from_source(SplitSource(splits), WatermarkStrategy.no_watermarks(), "s")
            stream = source.assign_timestamps_and_watermarks(strategy)
        seen = stream.key_by(lambda record: record[0]).process(Watermarks()).start_new_chain()
        seen.sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    Lab(build, directory, parallelism=1, budget=len(splits)).run()
    return dict(LEDGERS["out"].values)


class Behind(WatermarkGenerator[Any]):
    """Periodic, as in Flink's documentation."""

    def __init__(self) -> None:
        self.highest = 10

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        self.highest = max(self.highest, timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        output.emit_watermark(self.highest - 10)


@pytest.mark.parametrize("way", ["source", "generator"])
def a_periodic_generator_is_called_behind_each_epoch(tmp_path, way):
    seen = watermarks_seen(own(Behind), {"s": [("a", 100 * n, 0) for n in range(4)]}, tmp_path, way)
    assert seen == {0: MIN_TIMESTAMP, 100: 0, 200: 90, 300: 190}


def the_watermark_of_a_source_is_the_lowest_of_its_splits_generators(tmp_path):
    splits = {"s": [("a", 100 + n, MARK) for n in range(4)], "t": [("b", 10 * n, MARK) for n in range(4)]}
    seen = watermarks_seen(own(), splits, tmp_path)
    assert [seen[100 + n] for n in range(1, 4)] == [0, 10, 20]


class GivesUp(AtMarks):
    """Declares its split idle at a record of value 0, and active again at one of value 1."""

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        super().on_event(event, timestamp, output)
        if event[2] == 0:
            output.mark_idle()
        if event[2] == 1:
            output.mark_active()


def a_split_that_its_generator_marks_as_idle_holds_no_other_back(tmp_path):
    splits = {
        "s": [("a", 100 * n, MARK) for n in range(6)],
        "t": [("b", 1, MARK), ("b", 2, 0), ("b", 3, 0), ("b", 4, 1), ("b", 5, 2), ("b", 6, 3)],
    }
    seen = watermarks_seen(own(GivesUp), splits, tmp_path)
    assert seen[200] == 100, "t held s back though it was idle"
    assert seen[500] == 200, "t did not hold s back though it was active again"


# ---- without input -------------------------------------------------------------------------------------------------------


class Patient(WatermarkGenerator[Any]):
    """Takes the event time for over after three calls without a record."""

    def __init__(self) -> None:
        self.highest = MIN_TIMESTAMP
        self.quiet = 0

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        self.highest, self.quiet = max(self.highest, timestamp), 0

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        self.quiet += 1
        if self.quiet >= 4:
            output.emit_watermark(self.highest)


class WaitingSource(SplitSource):
    """Has no more input until its first result is visible."""

    def create_enumerator(self, job: JobInfo, uid: str) -> SplitEnumerator:
        return WaitingEnumerator(self, job.generation)


class WaitingEnumerator(SplitEnumerator):
    asked = 0

    def plan(self, max_records: int) -> EpochInput:
        if not self._next["s"]:
            self._next["s"] = 1
            return EpochInput((SplitRange("s", 0, 1),), 0)
        self.asked += 1
        ends = bool(LEDGERS["out"].values) or self.asked > 2000
        return EpochInput(finished=ends)

    def wait(self, timeout: float) -> None:
        threading.Event().wait(min(timeout, 0.01))


@pytest.mark.parametrize("way", ["source", "generator"])
def a_periodic_generator_advances_event_time_without_input(tmp_path, monkeypatch, way):
    monkeypatch.setattr("holdfast.runtime.task.generated_watermarks._LEAST_INTERVAL_MS", 20)

    class Fires(KeyedProcessFunction):
        def process_element(self, value: Any, ctx: Any) -> Any:
            ctx.timer_service().register_event_time_timer(value[1])
            return ()

        def on_timer(self, timestamp: int, ctx: Any) -> Any:
            yield timestamp, ctx.timer_service().current_watermark()

    def build(env: StreamExecutionEnvironment) -> None:
        source = WaitingSource({"s": [("a", 70, 0)]})
        if way == "source":
            stream = env.from_source(source, own(Patient), "s")
        else:
            stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "s")
            stream = stream.assign_timestamps_and_watermarks(own(Patient))
        stream.key_by(lambda record: record[0]).process(Fires()).sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    config = {"pipeline.auto-watermark-interval": "20 ms"}
    Lab(build, tmp_path, parallelism=1, config=config).run()
    assert LEDGERS["out"].values == [(70, 70)], "only the end of the input fired the timer"


def test_with_the_interval_zero_no_generator_is_called_periodically(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        env.get_config().set_auto_watermark_interval(0)
        stream = env.from_source(SplitSource({"s": [("a", 100 * n, 0) for n in range(3)]}), own(Behind), "s")
        seen = stream.key_by(lambda record: record[0]).process(Watermarks()).start_new_chain()
        seen.sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    Lab(build, tmp_path, parallelism=1, budget=1).run()
    assert {watermark for _, watermark in LEDGERS["out"].values} == {MIN_TIMESTAMP}


def test_batch_mode_leaves_generators_out(tmp_path):
    def build(env: StreamExecutionEnvironment) -> None:
        stream = env.from_source(SplitSource({"s": [("a", 500, MARK), ("a", 3, 1)]}), own(), "s")
        windows = stream.key_by(lambda record: record[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(SIZE)))
        windows.reduce(lambda a, b: a).sink_to(LedgerSink("out"))

    LEDGERS["out"].committed.clear()
    Lab(build, tmp_path, parallelism=1, config={"execution.runtime-mode": "BATCH"}).run()
    assert sorted(time for _, time, _ in LEDGERS["out"].values) == [3, 500]


# ---- their state ---------------------------------------------------------------------------------------------------------

OWNER = OperatorName("payments", "src")


def restored(watermarks: GeneratedWatermarks, supplier: Any) -> GeneratedWatermarks:
    return GeneratedWatermarks(supplier, watermarks.state(), OWNER)


def a_restored_generator_goes_on_from_its_attributes_and_never_goes_back():
    first = GeneratedWatermarks(lambda: AtMarks(4), None, OWNER)
    first.observe(["aaa", (0, 0, MARK), (0, 0, 1)], [700, 100, 400])
    second = restored(first, lambda: AtMarks(2))
    assert second.watermark == 700
    second.observe([(0, 0, MARK)], [300])
    assert second.watermark == 700
    assert second._opened().memory == 2, "a changed argument must take effect"
    assert second._opened().latest == [400, 300]


def a_generator_that_was_not_called_keeps_its_stored_state():
    first = GeneratedWatermarks(AtMarks, None, OWNER)
    assert first.state() is None
    first.observe([(0, 0, MARK)], [5])
    assert restored(first, AtMarks).state() == first.state()


class Slotted(WatermarkGenerator[Any]):
    __slots__ = ("highest",)

    def __init__(self) -> None:
        self.highest = 0

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        self.highest = max(self.highest, timestamp)


class WithOwnState(Slotted):
    def __getstate__(self) -> Any:
        return [self.highest]

    def __setstate__(self, state: Any) -> None:
        (self.highest,) = state


class WithLock(Slotted):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("supplier", [Slotted, WithOwnState, WithLock])
def the_state_of_a_generator_is_what_pickle_sees_without_what_its_constructor_made(supplier):
    first = GeneratedWatermarks(supplier, None, OWNER)
    first.observe(["x"], [70])
    assert restored(first, supplier)._opened().highest == 70


# ---- mistakes ------------------------------------------------------------------------------------------------------------


class Wrong(WatermarkGenerator[Any]):
    def __init__(self, mistake: str) -> None:
        self.mistake = mistake

    def on_event(self, event: Any, timestamp: int, output: WatermarkOutput) -> None:
        if self.mistake == "attribute":
            self.lock = threading.Lock()
        if event[2] != MARK:
            return None
        if self.mistake == "raise":
            raise ValueError("no such mark")
        if self.mistake == "return":
            return timestamp  # type: ignore[return-value]
        if self.mistake == "text":
            output.emit_watermark("soon")  # type: ignore[arg-type]
        if self.mistake == "huge":
            output.emit_watermark(MAX_TIMESTAMP + 1)
        return None

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        if self.mistake == "periodic":
            raise ValueError("the clock is broken")


def failing(strategy: WatermarkStrategy, directory: Path, way: str) -> str:
    def build(env: StreamExecutionEnvironment) -> None:
        splits = {"s": [("a", 1, 0), ("b", 2, MARK)]}
        if way == "source":
            stream = env.from_source(SplitSource(splits), strategy, "payments").uid("src")
        else:
            stream = env.from_source(SplitSource(splits), WatermarkStrategy.no_watermarks(), "s")
            stream = stream.assign_timestamps_and_watermarks(strategy).name("payments").uid("src")
        stream.sink_to(LedgerSink("out"))

    with pytest.raises(UserCodeError) as caught:
        Lab(build, directory, parallelism=1, budget=1).run()
    return str(caught.value)


@pytest.mark.parametrize("way", ["source", "generator"])
@pytest.mark.parametrize(
    ("mistake", "told"),
    [
        ("raise", "ValueError: no such mark"),
        ("return", "on_event() of the watermark generator returned 2; it must return nothing"),
        ("text", "emit_watermark() got 'soon'; a watermark is a whole number"),
        ("huge", "emit_watermark() got 9223372036854775808"),
    ],
)
def a_mistake_of_a_generator_names_the_operator_and_the_record(tmp_path, way, mistake, told):
    message = failing(own(lambda: Wrong(mistake)), tmp_path, way)
    assert told in message
    assert "in operator 'payments' (uid 'src')" in message
    assert "element: ('b', 2, 9)" in message
    if way == "source":
        assert "record: split s, record 1" in message


@pytest.mark.parametrize("way", ["source", "generator"])
@pytest.mark.parametrize(
    ("supplier", "told"),
    [
        (lambda: Wrong("periodic"), "ValueError: the clock is broken"),
        (lambda: Wrong("attribute"), "the state of the watermark generator Wrong cannot be stored"),
        (lambda: 5, "the function given to for_generator() returned 5; it must return a WatermarkGenerator"),
    ],
)
def a_generator_that_fails_without_a_record_names_the_operator(tmp_path, way, supplier, told):
    message = failing(own(supplier), tmp_path, way)
    assert told in message
    assert "in operator 'payments' (uid 'src')" in message


def test_idleness_applies_to_own_generators_too():
    strategy = own().with_idleness(Duration.of_seconds(3))
    assert strategy.generator_supplier is AtMarks
    assert strategy.idle_timeout_ms == 3000
