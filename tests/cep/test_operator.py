"""Patterns in a stream: order of events, late events, timeouts, checkpoints and restarts, and what the state costs."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from engine.inprocess import LedgerSink
from engine.programs import records, stream
from engine.test_same_results import config, few, lab, runs, visible
from holdfast.cep import CEP, AfterMatchSkipStrategy, Pattern, PatternProcessFunction, TimedOutPartialMatchHandler
from holdfast.common import Row, Time, Types
from holdfast.datastream import OutputTag, StreamExecutionEnvironment
from holdfast.errors import ConfigurationError, UserCodeError
from holdfast.testing import InProcessEnvironment, OneInputTestHarness
from state.window_harness import Operated, key_of, operated

from .patterns import Run, build, parse
from .test_matches_by_definition import LIMITS, check_gaps, sequences

LATE = OutputTag("late")
TIMED_OUT = OutputTag("timed-out")
END = 1 << 40


class Told(PatternProcessFunction, TimedOutPartialMatchHandler):
    """Emits matches with their time, and partial ones to a side output."""

    def process_match(self, match: Any, ctx: Any) -> Any:
        yield texts(match), ctx.timestamp()

    def process_timed_out_match(self, match: Any, ctx: Any) -> Any:
        yield TIMED_OUT, (texts(match), ctx.timestamp())


def texts(match: Any) -> Any:
    return [(name, [event[1] for event in events]) for name, events in match.items()]


def looking_for(pattern: Pattern, *comparator: Any) -> Any:
    return lambda keyed: CEP.pattern(keyed, pattern, *comparator).side_output_late_data(LATE).process(Told())


def by_letters(pieces: Any, within: int | None, skip: Any = None) -> Pattern:
    """The pattern of a sequence, on triples (key, letters, timestamp)."""
    pattern = build(pieces, skip, within)
    for each in pattern.sequence():
        for inner in getattr(each, "content", [each]):
            inner.condition = shifted(inner.condition)
            inner.stop_condition = shifted(inner.stop_condition)
    return pattern


def shifted(condition: Any) -> Any:
    if condition is None:
        return None
    test = condition.function
    return type(condition)(lambda event: test(event[1]), False)


def told(pieces: Any, within: int, events: list[Any], skip: Any) -> tuple[list[Any], list[Any]]:
    """What a matcher of its own finds for each key, with the times."""
    matches, timed_out = [], []
    for key in sorted({event[0] for event in events}):
        run = Run(by_letters(pieces, within, skip))
        for event in sorted((event for event in events if event[0] == key), key=lambda event: event[2]):
            while (deadline := run.matcher.deadline(run.state)) is not None and deadline <= event[2]:
                run.advance(deadline)
                matches += [(texts(match), deadline) for match in run.matches]
                run.matches = []
            run.feed(event, event[2])
            matches += [(texts(match), event[2]) for match in run.matches]
            run.matches = []
        while (deadline := run.matcher.deadline(run.state)) is not None:
            run.advance(deadline)
            matches += [(texts(match), deadline) for match in run.matches]
            run.matches = []
        timed_out += [(texts(each.match), each.timestamp) for each in run.timed_out]
    return matches, timed_out


@settings(LIMITS, max_examples=examples(40))
@given(
    pieces=sequences(),
    within=st.sampled_from([3, 6, 50]),
    drawn=st.lists(
        st.tuples(st.sampled_from(["k", "l"]), st.sampled_from(["a", "b", "c", "ab", "cu"]), st.integers(0, 30)),
        min_size=1,
        max_size=10,
        unique_by=lambda event: (event[0], event[2]),
    ),
    steps=st.lists(st.tuples(st.integers(1, 4), st.sampled_from(["", "", "checkpoint", "restart", "fail"])), max_size=6),
    kind=st.sampled_from(["hashmap", "rocksdb"]),
    skip=st.sampled_from([None, AfterMatchSkipStrategy.skip_past_last_event()]),
)
def the_matches_do_not_depend_on_frames_watermarks_and_restarts(pieces, within, drawn, steps, kind, skip):
    if not check_gaps(pieces, within):
        return
    matches, timed_out = told(pieces, within, drawn, skip)
    found: list[Any] = []
    side: list[Any] = []
    with operated(looking_for(by_letters(pieces, within, skip)), kind) as operator:

        def go(events: list[Any], watermark: int) -> list[Any]:
            out = operator.frame(events) if events else []
            return out + operator.watermark(watermark)

        given = list(drawn)
        for size, then in steps:
            part, given = given[:size], given[size:]
            # The watermark may be what is behind all that is still to come.
            passed = min([event[2] for event in given], default=31) - 1
            before = operator.clock.watermark
            operator.context_side(side)
            out = go(part, passed) if passed > before else operator.frame(part) if part else []
            found += out
            if then:
                operator.checkpoint()
            if then == "restart":
                operator.restart(elsewhere=True)
            elif then == "fail":
                operator.context_side([])
                if given and min(event[2] for event in given) > operator.clock.watermark:
                    operator.frame(given[:2])
                operator.restart()
        operator.context_side(side)
        found += go(given, END)
        assert sorted(found) == sorted(((match, when), when) for match, when in matches)
        assert Counter(map(repr, side)) == Counter(repr((each, each[1])) for each in timed_out)
        assert operator.rows() == operator.timers() == 0


@pytest.fixture(autouse=True)
def sides(monkeypatch: pytest.MonkeyPatch) -> None:
    def context_side(self: Operated, side: list[Any]) -> None:
        self.operator.context.side_outputs["timed-out"] = lambda batch: side.extend(zip(batch.values, batch.stamps()))

    monkeypatch.setattr(Operated, "context_side", context_side, raising=False)


def an_element_that_the_watermark_has_reached_is_late():
    with operated(looking_for(by_letters(parse("a ~b"), 100))) as operator:
        operator.watermark(10)
        operator.frame([("k", "a", 11), ("k", "a", 10), ("k", "a", 9)])
        assert [event for event, _ in operator.late] == [("k", "a", 10), ("k", "a", 9)]
        operator.frame([("k", "b", 12)])
        assert operator.watermark(12) == [(([("a1", ["a"]), ("b2", ["b"])], 12), 12)]


def test_elements_of_one_time_come_in_the_order_of_their_arrival():
    with operated(looking_for(by_letters(parse("x+s"), 100))) as operator:
        operator.frame([("k", "x1", 5), ("k", "x2", 5), ("k", "x3", 4)])
        found = [match for (match, _), _ in operator.watermark(5)]
        assert found[-3:] == [[("x1", ["x3", "x1", "x2"])], [("x1", ["x1", "x2"])], [("x1", ["x2"])]]


def a_comparator_orders_elements_of_one_time():
    compare = lambda first, second: (first[1] < second[1]) - (first[1] > second[1])
    with operated(looking_for(by_letters(parse("x ~y"), 100), compare)) as operator:
        operator.frame([("k", "x", 5), ("k", "y", 5)])
        assert operator.watermark(5) == []
        operator.frame([("k", "y", 6)])
        assert operator.watermark(6) == [(([("x1", ["x"]), ("y2", ["y"])], 6), 6)]


def test_in_processing_time_elements_come_as_they_arrive():
    pattern = by_letters(parse("a ~b"), 100)
    build = lambda keyed: CEP.pattern(keyed, pattern).in_processing_time().process(Told())
    with operated(build) as operator:
        side: list[Any] = []
        operator.context_side(side)
        operator.processing_time(1000)
        operator.frame([("k", "a", 0)])
        operator.processing_time(1050)
        assert [match for match, _ in operator.frame([("k", "b", 0)])] == [([("a1", ["a"]), ("b2", ["b"])], 1050)]
        operator.frame([("k", "a", 0)])
        operator.checkpoint()
        operator.restart()
        operator.context_side(side)
        operator.processing_time(1149)
        assert side == []
        operator.processing_time(1160)
        assert [each for each, _ in side] == [([("a1", ["a"])], 1150)]
        assert operator.rows() == operator.timers() == 0


def test_elements_without_a_timestamp_are_refused():
    from holdfast.runtime.records.records import RecordBatch

    with operated(looking_for(by_letters(parse("a"), 100))) as operator, pytest.raises(UserCodeError) as told:
        operator.operator.process(RecordBatch([("k", "a")], None, ["k"]))
    assert "assign timestamps before it, or call in_processing_time()" in str(told.value)


def a_condition_that_fails_names_the_element_and_the_key():
    pattern = Pattern.begin("first").where(lambda event: event[1].nothing).next("second")
    with operated(looking_for(pattern)) as operator:
        operator.frame([("k", "a", 5)])
        with pytest.raises(UserCodeError) as told:
            operator.watermark(5)
    assert "has no attribute 'nothing'" in str(told.value)
    assert "element: ('k', 'a', 5)" in str(told.value)
    assert "key: 'k'" in str(told.value)


def a_partial_match_has_no_main_output():
    class Wrong(Told):
        def process_timed_out_match(self, match: Any, ctx: Any) -> Any:
            yield match

    pattern = by_letters(parse("a ~b"), 10)
    with operated(lambda keyed: CEP.pattern(keyed, pattern).process(Wrong())) as operator:
        operator.frame([("k", "a", 5)])
        with pytest.raises(UserCodeError, match="partial matches have no main output"):
            operator.watermark(20)


@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
def an_epoch_stores_what_it_adds(kind: str):
    payload = random.Random(7).randbytes(300).hex()
    pattern = Pattern.begin("a").where(lambda event: event[1][0] == "a").one_or_more().consecutive()
    pattern = pattern.next("b").where(lambda event: event[1][0] == "b").within(Time.hours(1))
    with operated(lambda keyed: CEP.pattern(keyed, pattern).select(texts), kind) as operator:
        operator.frame([("k", f"a{n}{payload[n:]}{payload[:n]}", n + 1) for n in range(300)])
        operator.watermark(300)
        whole = stored(operator)
        operator.frame([("k", f"a{payload}", 301)])
        operator.watermark(301)
        assert whole > 20_000
        assert stored(operator) < whole / 10


def stored(operator: Operated) -> int:
    """The bytes of a checkpoint."""
    before = sum(map(len, operator.objects.objects.values()))
    operator.checkpoint()
    return sum(map(len, operator.objects.objects.values())) - before


def test_declared_elements_are_stored_by_their_type():
    row = Types.ROW_NAMED(["key", "kind", "at"], [Types.STRING(), Types.STRING(), Types.LONG()])
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(1)
    keyed = env.from_collection([Row("k", "a", 1)], row).key_by(key_of)
    pattern = by_letters(parse("a"), 100)
    made = CEP.pattern(keyed, pattern).select(texts)
    assert made._transformation.factory.func._type == row  # type: ignore[attr-defined]


def a_stream_without_keys_has_one_subtask():
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(4)
    made = CEP.pattern(env.from_collection([("k", "a", 1)]), by_letters(parse("a"), 100)).select(texts)
    assert (made._transformation.kind, made._transformation.parallelism) == ("GlobalCep", 1)  # type: ignore[attr-defined]


@few
@given(**runs)
def a_job_finds_each_match_once_whatever_its_epochs_and_crashes(seed, backend, parallelism, budget, frame, crashes):
    data = {}
    for split, drawn in records(seed, 150).items():
        seen: set[Any] = set()
        data[split] = [r for r in drawn if (r[0], r[1]) not in seen and not seen.add((r[0], r[1]))]
    pattern = Pattern.begin("small").where(lambda r: r[2] < 40).followed_by_any("large").where(lambda r: r[2] > 80)
    pattern = pattern.within(Time.seconds(40))

    class Pairs(PatternProcessFunction, TimedOutPartialMatchHandler):
        def process_match(self, match: Any, ctx: Any) -> Any:
            yield "pair", *match["small"][0], *match["large"][0], ctx.timestamp()

        def process_timed_out_match(self, match: Any, ctx: Any) -> Any:
            yield TIMED_OUT, ("alone", *match["small"][0], ctx.timestamp())

    def program(env: Any) -> None:
        found = CEP.pattern(stream(env, data, budget).key_by(lambda r: r[0]), pattern).process(Pairs())
        found.union(found.get_side_output(TIMED_OUT)).sink_to(LedgerSink("out"))

    expected: list[Any] = []
    for split in data.values():
        for small in (r for r in split if r[2] < 40):
            expected.append(("alone", *small, small[1] + 40_000))
            for large in (r for r in split if r[2] > 80 and r[0] == small[0]):
                if 0 < large[1] - small[1] < 40_000:
                    expected.append(("pair", *small, *large, large[1]))
    with lab(program, parallelism=parallelism, budget=budget, config=config(backend, frame)) as job:
        job.run(crashes)
        assert visible() == Counter(map(repr, expected))


def a_not_pattern_has_no_events_for_a_condition() -> None:
    pattern = Pattern.begin("a").where(lambda e: e[1] == "a").not_followed_by("no b").where(lambda e: e[1] == "b")
    pattern = pattern.followed_by("c").where(lambda e, ctx: e[1] == "c" and not ctx.get_events_for_pattern("no b"))
    pattern = pattern.within(Time.seconds(1))
    with OneInputTestHarness(lambda stream: looking_for(pattern)(stream.key_by(lambda e: 0))) as harness:
        harness.process_element((0, "a"), 1)
        harness.process_element((0, "c"), 2)
        harness.process_watermark(3)
        assert harness.extract_output_values() == [([("a", ["a"]), ("c", ["c"])], 2)]


def a_comparator_is_refused_in_processing_time() -> None:
    stream = InProcessEnvironment().from_collection([1]).key_by(lambda e: 0)
    matches = CEP.pattern(stream, Pattern.begin("a"), lambda first, second: first - second)
    with pytest.raises(ConfigurationError, match="the comparator of "):
        matches.in_processing_time()


class Doubling(PatternProcessFunction):
    """Changes the events that it is given."""

    def process_match(self, match: Any, ctx: Any) -> Any:
        for events in match.values():
            for event in events:
                event[1] *= 2
        yield [event[1] for events in match.values() for event in events]


@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
def a_function_may_change_the_events_of_its_match_which_other_matches_have_too(kind: str) -> None:
    pattern = Pattern.begin("first").followed_by_any("second").within(Time.milliseconds(10))
    with operated(lambda keyed: CEP.pattern(keyed, pattern).process(Doubling()), kind) as operator:
        operator.frame([["k", amount, 5 + time] for time, amount in enumerate((1, 3, 5))])
        assert sorted(value for value, _ in operator.watermark(20)) == [[2, 6], [2, 10], [6, 10]]
