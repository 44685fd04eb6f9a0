"""An operator whose parameters have changed since the checkpoint gives right results, or is refused before it begins."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.cep import CEP, AfterMatchSkipStrategy, Pattern
from holdfast.common import Time, Types
from holdfast.datastream import (
    KeyedProcessFunction,
    ProcessJoinFunction,
)
from holdfast.datastream.operations.batches import Count, Sum, col
from holdfast.datastream.window import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TumblingProcessingTimeWindows,
    WindowAssigner,
)
from holdfast.errors import IncompatibleState
from holdfast.table import KStream
from holdfast.testing import OneInputTestHarness, TwoInputTestHarness

from .inprocess import LEDGERS, LedgerSink
from .small_programs import timed
from .test_changed_windows import (
    COMMON,
    CONTENTS,
    END,
    Gather,
    GatherAndMerge,
    Spell,
    Told,
    by_key,
    joined,
    ms,
    sliding,
    tumbling,
)


class OwnWindows(WindowAssigner):
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        return tumbling(20).assigner.assign_windows(element, timestamp, context)

    def get_default_trigger(self, env: Any) -> Any:
        return EventTimeTrigger()

    def is_event_time(self) -> bool:
        return True


class Pass(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


def chosen(names: str, *, strict: bool = False, skip: Any = None, within: int = 1000, condition: Any = None) -> Any:
    accepts = condition or (lambda name: lambda element: element[2] == name)
    pattern = Pattern.begin(names[0], skip or AfterMatchSkipStrategy.no_skip()).where(accepts(names[0]))
    for name in names[1:]:
        pattern = (pattern.next(name) if strict else pattern.followed_by(name)).where(accepts(name))
    pattern = pattern.within(ms(within))
    return by_key(
        lambda keyed: CEP.pattern(keyed, pattern).select(lambda match: "".join(each[0][2] for each in match.values()))
    )


def window(assigner: Any, how: Callable[[Any], Any] = lambda windows: windows.process(Spell())) -> Any:
    return by_key(lambda keyed: how(keyed.window(assigner)))


AGGREGATED = Types.ROW_NAMED(["key", "number"], [Types.STRING(), Types.LONG()])


def aggregated(**aggregates: Any) -> Any:
    def build(stream: Any) -> Any:
        rows = stream.map(lambda each: each[:2], AGGREGATED)
        return rows.key_by(col("key")).window(tumbling(20).assigner).agg(**aggregates).uid("op")

    return build


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "event time to processing time": (
        window(tumbling(20).assigner), window(TumblingProcessingTimeWindows.of(ms(20))), "of event time"),
    "processing time to event time": (
        window(SlidingProcessingTimeWindows.of(ms(20), ms(10))), window(sliding(20, 10).assigner), "of processing time"),
    "sessions of another time": (
        window(EventTimeSessionWindows.with_gap(ms(5))), window(ProcessingTimeSessionWindows.with_gap(ms(5))), "event time"),
    "windows to sessions": (window(tumbling(20).assigner), window(COMMON["session"]), "sessions"),
    "sessions to windows": (window(COMMON["session"]), window(sliding(20, 10).assigner), "sessions"),
    "windows to global ones": (
        window(tumbling(20).assigner),
        window(GlobalWindows.create(), lambda w: w.trigger(CountTrigger.of(3)).reduce(joined)), "global windows"),
    "windows to own ones": (window(tumbling(20).assigner), window(OwnWindows()), "own windows"),
    "own windows to others": (window(OwnWindows()), window(tumbling(20).assigner), "own windows"),
    "reduce to aggregate": (
        window(tumbling(20).assigner, CONTENTS["reduce"]), window(tumbling(20).assigner, CONTENTS["aggregate"]),
        "hold reduced elements, and those of the program accumulators"),
    "elements to aggregate": (
        window(tumbling(20).assigner), window(tumbling(20).assigner, CONTENTS["aggregate"]), "hold elements"),
    "aggregate to elements": (
        window(sliding(20, 10).assigner, CONTENTS["aggregate"]), window(sliding(20, 10).assigner), "hold accumulators"),
    "an evictor": (
        window(tumbling(20).assigner),
        window(tumbling(20).assigner, lambda w: w.evictor(TimeEvictor.of(ms(5))).process(Spell())),
        "an evictor needs them with their timestamps"),
    "an evictor of sessions": (
        window(COMMON["session"]),
        window(COMMON["session"], lambda w: w.evictor(CountEvictor.of(2)).process(Spell())), "an evictor"),
    "merge removed from sliding windows": (
        window(sliding(20, 10).assigner, lambda w: w.aggregate(GatherAndMerge(), Told())),
        window(sliding(20, 10).assigner, lambda w: w.aggregate(Gather(), Told())), r"has no merge\(\)"),
    "other aggregates": (
        aggregated(total=Sum("number")), aggregated(count=Count()), r"hold Sum\(number\), .* Count\(\)"),
    "aggregates in another order": (
        aggregated(total=Sum("number"), count=Count()), aggregated(count=Count(), total=Sum("number")),
        r"hold Sum\(number\)"),
    "count windows of another size": (
        by_key(lambda keyed: keyed.count_window(5).reduce(joined)),
        by_key(lambda keyed: keyed.count_window(10).reduce(joined)), "numbered for"),
    "count windows of another slide": (
        by_key(lambda keyed: keyed.count_window(6, 2).reduce(joined)),
        by_key(lambda keyed: keyed.count_window(6, 3).reduce(joined)), "numbered for"),
    "windows to another operator": (
        window(tumbling(20).assigner), by_key(lambda keyed: keyed.process(Pass())), "the state of windows"),
    "a pattern of other names": (chosen("abc"), chosen("xbc"), "a -> b -> c, and the program's is x -> b -> c"),
    "a longer pattern": (chosen("ab"), chosen("abc"), "a -> b, and"),
    "a stricter pattern": (chosen("abc"), chosen("abc", strict=True), "another structure"),
    "a pattern that skips": (
        chosen("abc"), chosen("abc", skip=AfterMatchSkipStrategy.skip_past_last_event()), "another skip strategy"),
    "a pattern to windows": (chosen("abc"), window(tumbling(20).assigner), "the state of a pattern, .* windows"),
    "the best of another number": (
        by_key(lambda keyed: keyed.top_n(2, lambda each: each[1])),
        by_key(lambda keyed: keyed.top_n(3, lambda each: each[1])), r"n 2, .* has n 3"),
    "another offset": (
        by_key(lambda keyed: keyed.top_n(2, lambda each: each[1])),
        by_key(lambda keyed: keyed.top_n(2, lambda each: each[1], offset=1)), r"offset 0, .* has offset 1"),
    "the smallest instead of the largest": (
        by_key(lambda keyed: keyed.top_n(2, lambda each: each[1])),
        by_key(lambda keyed: keyed.top_n(2, lambda each: each[1], descending=False)), "descending True"),
    "ranks added": (
        by_key(lambda keyed: keyed.top_n(2, lambda each: each[1])),
        by_key(lambda keyed: keyed.top_n(2, lambda each: each[1], rank_field="rank")), "rank False"),
    "the last instead of the first": (
        by_key(lambda keyed: keyed.dedup(Time.hours(1))),
        by_key(lambda keyed: keyed.dedup(Time.hours(1), keep="last")), "keeps the first"),
}  # fmt: skip


@pytest.mark.parametrize("change", REFUSED)
def test_what_cannot_go_on_with_its_state_is_refused_by_name(change: str) -> None:
    before, after, says = REFUSED[change]
    with OneInputTestHarness(before) as harness:
        harness.process_element(("k", 5, "a"), 5).process_element(("k", 7, "b"), 7).process_watermark(7)
        snapshot = harness.snapshot()
    with pytest.raises(IncompatibleState, match=says) as refused:
        OneInputTestHarness(after, snapshot=snapshot)
    assert "(uid 'op')" in str(refused.value)
    assert "another uid" in str(refused.value)


@pytest.mark.parametrize("names", ["windows to sessions", "a longer pattern"])
def test_a_refused_program_reads_no_input_and_its_check_says_so(job: Any, names: str) -> None:
    before, after, says = REFUSED[names]

    def build(program: Any) -> Any:
        elements = [("k", at, "abc"[at % 3]) for at in range(12)]
        return lambda env: program(timed(env, elements)).sink_to(LedgerSink("out")).uid("out")

    lab = job(build(before))
    assert not lab._run_until("after commit", 3)
    read = list(LEDGERS["out"].values)
    lab.build = build(after)
    (problem,) = lab.check().problems
    with pytest.raises(IncompatibleState, match=says) as refused:
        lab.run()
    assert str(refused.value) == problem
    assert LEDGERS["out"].values == read
    lab.build = build(before)
    assert lab.check().restorable
    lab.run()


def a_pattern_goes_on_with_other_conditions_and_another_time() -> None:
    either = lambda name: lambda element: element[2] in (name, name.upper())
    elements = [("k", at, name) for at, name in enumerate("aBbc")]
    for changed in (chosen("abc", condition=either), chosen("abc", within=50, condition=either)):
        with OneInputTestHarness(chosen("abc")) as harness:
            harness.process_element(elements[0], 0).process_watermark(0)
            snapshot = harness.snapshot()
        with OneInputTestHarness(changed, snapshot=snapshot) as harness:
            for element in elements[1:]:
                harness.process_element(element, element[1])
            assert harness.process_watermark(END).extract_output_values() == ["aBc"]


# ---- joins, tables, time-to-live ---------------------------------------------------------------------------------------


class Pairs(ProcessJoinFunction):
    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        yield left and left[1], right and right[1]


def interval(low: int, high: int, kind: str = "inner") -> Any:
    def build(left: Any, right: Any) -> Any:
        join = left.key_by(lambda each: each[0]).interval_join(right.key_by(lambda each: each[0])).between(ms(low), ms(high))
        return (join if kind == "inner" else getattr(join, kind)()).process(Pairs()).uid("op")

    return build


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (interval(-5, 5), interval(-5, 9), "between -5 and 5 ms, and the program has the bounds -5 and 9 ms"),
        (interval(0, 5), interval(-1, 5), "bounds -1"),
        (interval(-5, 5), interval(-5, 5, "left_outer"), "which elements of the left side had a partner"),
        (interval(-5, 5, "left_outer"), interval(-5, 5, "full_outer"), "of the right side"),
    ],
)
def an_interval_join_whose_elements_would_leave_at_a_wrong_time_is_refused(before: Any, after: Any, says: str) -> None:
    with TwoInputTestHarness(before) as harness:
        harness.process_element1(("k", 1), 1)
        snapshot = harness.snapshot()
    with pytest.raises(IncompatibleState, match=says):
        TwoInputTestHarness(after, snapshot=snapshot)


def an_outer_interval_join_may_become_an_inner_one() -> None:
    with TwoInputTestHarness(interval(-5, 5, "left_outer")) as harness:
        harness.process_element1(("k", 1), 1).process_element1(("k", 3), 3)
        snapshot = harness.snapshot()
    with TwoInputTestHarness(interval(-5, 5), snapshot=snapshot) as harness:
        harness.process_element2(("k", 7), 7).process_both_watermarks(END)
        assert harness.extract_output_values() == [(3, 7)]


def ranked(n: int, descending: bool = True, offset: int = 0) -> Any:
    def build(stream: Any) -> Any:
        table = KStream.of(stream, lambda each: each[0], lambda each: each[1]).to_table()
        best = table.group_by(lambda key, value: ("all", value)).top_n(
            n, lambda value: value, descending=descending, offset=offset
        )
        return best.to_stream().to_data_stream()

    return build


@pytest.mark.parametrize(
    "numbers",
    [
        *((2, 3), (3, 2), (2, 3, 5), (5, 1, 4), (1, 2, 1)),
        *((2, (2, 1)), ((2, 1), 2), ((2, 3), (3, 1)), ((1, 1), (4, 0), (1, 2)), (5, (1, 4), (2, 0), (3, 3))),
    ],
)
@pytest.mark.parametrize("seed", range(4))
def test_the_best_of_a_table_are_as_many_as_the_program_says_once_a_row_changes(seed: int, numbers: tuple[Any, ...]) -> None:
    """Numbers, or numbers with an offset."""
    chance = random.Random(seed)
    rows: dict[str, int] = {}
    snapshot = None
    before: Any = None
    for number in numbers:
        n, offset = number if isinstance(number, tuple) else (number, 0)
        with OneInputTestHarness(changes_of_best(n, offset), snapshot=snapshot) as harness:
            for _ in range(chance.choice([1, 6])):
                key, value = chance.choice("abcdefgh"), chance.choice([None, *range(50)])
                same = rows.get(key) == value
                rows.update({key: value} if value is not None else {})
                if value is None:
                    rows.pop(key, None)
                harness.clear_output().process_element((key, value), 0)
                best = sorted(rows.values(), reverse=True)[offset : offset + n] or None
                told = harness.extract_output_values()
                if not same:
                    assert told == [("all", best, before)] or (told == [] and best == before)
                    before = best
                else:
                    before = told[-1][1] if told else before
            snapshot = harness.snapshot()


def changes_of_best(n: int, offset: int) -> Any:
    def build(stream: Any) -> Any:
        table = KStream.of(stream, lambda each: each[0], lambda each: each[1]).to_table()
        return table.group_by(lambda key, value: ("all", value)).top_n(n, lambda value: value, offset=offset).to_changes()

    return build


def the_best_of_a_table_in_another_order_are_refused() -> None:
    with OneInputTestHarness(ranked(2)) as harness:
        harness.process_element(("a", 1), 0)
        snapshot = harness.snapshot()
    with pytest.raises(IncompatibleState, match="the largest values of each group"):
        OneInputTestHarness(ranked(2, descending=False), snapshot=snapshot)
