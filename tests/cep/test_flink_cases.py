"""The cases of Flink's CEP documentation and tests."""

from __future__ import annotations

import pytest

from holdfast.cep import AfterMatchSkipStrategy, Pattern, WithinType
from holdfast.common import Time

from .flink_cases import CASES, Case
from .patterns import Run, build, has, parse

END = 1 << 40


def events_of(case: Case) -> list[tuple[str, int]]:
    events = []
    for number, word in enumerate(case.events.split()):
        event, _, time = word.partition("@")
        events.append((event, int(time) if time else number))
    return events


def strategy(text: str) -> AfterMatchSkipStrategy | None:
    kind, _, name = text.partition(" ")
    return getattr(AfterMatchSkipStrategy, kind)(*([name] if name else [])) if kind else None


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.source)
def the_matches_are_those_of_flink(case: Case):
    run = Run(build(parse(case.pattern), strategy(case.skip), case.within))
    for event, time in events_of(case):
        run.feed(event, time)
    if case.within is not None:
        run.advance(END)
    if case.skip and case.skip != "no_skip":
        assert run.texts() == list(case.matches)
    else:
        assert sorted(run.texts()) == sorted(case.matches)
    if case.within is not None:
        assert not run.state
        assert run.nodes == run.events == {}


def a_not_pattern_at_the_end_may_limit_the_time_since_the_event_before():
    # testNotFollowedByWithinPreviousAndCurrentAtEnd
    gap = Time.milliseconds(3)
    pattern = Pattern.begin("a").where(has("a")).not_followed_by("b").where(has("b"))
    run = Run(pattern.within(gap, WithinType.PREVIOUS_AND_CURRENT))
    for event, time in (("a1", 1), ("b1", 2), ("a2", 4), ("c", 5), ("b2", 10), ("a3", 11), ("b3", 13)):
        run.feed(event, time)
    assert run.texts() == ["a2"]


def a_skip_waits_for_what_began_before():
    # testSkipBeforeOtherAlreadyCompleted: b1 completes the later match first
    prices = {"a1": 0, "a2": 1, "b1": 1, "b2": 0}
    pattern = Pattern.begin("a", AfterMatchSkipStrategy.skip_to_first("c")).where(has("a"))
    pattern = pattern.followed_by("c").where(has("c")).followed_by("b").where(has("b"))
    pattern.where(lambda event, ctx: prices[ctx.get_events_for_pattern("a")[0]] == prices[event])
    run = Run(pattern)
    for time, event in enumerate(["a1", "c1", "a2", "c2", "b1"]):
        run.feed(event, time)
    assert run.texts() == []
    run.feed("b2", 9)
    assert run.texts() == ["a1 c1 b2", "a2 c2 b1"]


@pytest.mark.parametrize("how", ["skip_to_first", "skip_to_last"])
def a_skip_to_a_pattern_that_is_not_in_the_match_may_fail(how: str):
    skip = getattr(AfterMatchSkipStrategy, how)("b2").throw_exception_on_miss()
    run = Run(build(parse("a >b+?s >c"), skip))
    run.feed("a", 1)
    with pytest.raises(ValueError, match="no event of this pattern, only of 'a1', 'c3'"):
        run.feed("c", 2)


def a_skip_to_the_first_event_of_the_match_may_fail():
    skip = AfterMatchSkipStrategy.skip_to_first("a1").throw_exception_on_miss()
    with pytest.raises(ValueError, match="which would find it again"):
        Run(build(parse("a"), skip)).feed("a", 1)


def the_buffer_is_empty_after_the_last_match():
    # testSharedBufferIsProperlyCleared
    run = Run(build(parse("a{2}"), AfterMatchSkipStrategy.skip_past_last_event()))
    for time in range(4):
        run.feed(f"a{time}", time)
    assert run.texts() == ["a0 a1", "a2 a3"]
    assert not run.state
    assert run.nodes == run.events == {}


def a_condition_sees_the_events_accepted_before():
    # The documentation's iterative condition: the sum of the prices stays below 5
    def affordable(event: tuple[str, float], ctx: object) -> bool:
        spent = sum(price for _, price in ctx.get_events_for_pattern("middle"))
        return event[0].startswith("foo") and spent + event[1] < 5.0

    pattern = Pattern.begin("start").where(lambda e: e[0] == "start").followed_by("middle").one_or_more()
    pattern.where(affordable)
    run = Run(pattern)
    for time, event in enumerate([("start", 0.0), ("foo", 2.0), ("bar", 1.0), ("foo", 2.5), ("foo", 1.0), ("foo", 0.1)]):
        run.feed(event, time)
    assert [[price for _, price in match["middle"]] for match in run.matches] == [[2.0], [2.0, 2.5], [2.0, 2.5, 0.1]]
