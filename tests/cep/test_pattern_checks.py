"""What is wrong with a pattern is told at the call that is wrong; what cannot serve is warned of at the program's line."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pytest

from holdfast.cep import (
    CEP,
    AfterMatchSkipStrategy,
    Pattern,
    PatternProcessFunction,
    PatternWarning,
    WithinType,
)
from holdfast.common import Time
from holdfast.datastream import OutputTag, StreamExecutionEnvironment
from holdfast.datastream.data_stream import DataStream, KeyedStream
from holdfast.errors import ConfigurationError

MINUTE = Time.minutes(1)


def small(event: Any) -> bool:
    return event < 5


def large(event: Any) -> bool:
    return event > 500


@pytest.fixture
def numbers() -> KeyedStream:
    env = StreamExecutionEnvironment.get_execution_environment(spark=object())  # type: ignore[arg-type]
    env.set_parallelism(1)
    numbers: DataStream = env.from_collection([1, 2, 3])
    return numbers.key_by(lambda number: number)


def begin() -> Pattern:
    return Pattern.begin("first").where(small)


WRONG = {
    "a pattern's name is not empty and has no ':'": lambda: Pattern.begin("a:b"),
    "takes the pattern's name": lambda: Pattern.begin(3),  # type: ignore[arg-type]
    "takes an AfterMatchSkipStrategy": lambda: Pattern.begin("a", "skip"),  # type: ignore[arg-type]
    "not_next() cannot follow the optional pattern 'first'": lambda: begin().optional().not_next("not"),
    "not_followed_by() cannot follow the optional pattern 'first'": lambda: begin().optional().not_followed_by("not"),
    "where() takes a function": lambda: begin().where(3),  # type: ignore[arg-type]
    "is called with (event, context)": lambda: begin().where(lambda: True),
    "is called with (event, context), but": lambda: begin().or_where(lambda a, b, c: True),
    "subtype() takes a class": lambda: begin().subtype(small),  # type: ignore[arg-type]
    "until() ends one_or_more() or times_or_more(), and pattern 'first' has neither": lambda: begin().until(large),
    "has an until() already": lambda: begin().one_or_more().until(large).until(large),
    "times() takes a number above 0": lambda: begin().times(0),
    "times() takes a number above 0, or two in order": lambda: begin().times(3, 2),
    "times_or_more() takes a number above 0": lambda: begin().times_or_more(0),
    "times() takes a time above 0 between two events": lambda: begin().times(2, Time.seconds(0)),
    "one_or_more() takes a time above 0 between two events": lambda: begin().one_or_more(Time.seconds(-1)),
    "times() takes one time": lambda: begin().times(2, MINUTE, MINUTE),  # type: ignore[call-overload]
    "has a quantifier already": lambda: begin().one_or_more().times(3),
    "does not apply to the NOT pattern 'not'": lambda: begin().not_next("not").one_or_more(),
    "optional() does not apply to the NOT pattern": lambda: begin().not_next("not").optional(),
    "greedy() applies to a pattern that repeats": lambda: begin().greedy(),
    "consecutive() applies to a pattern that repeats": lambda: begin().consecutive(),
    "has consecutive() or allow_combinations() already": lambda: begin().times(3).consecutive().allow_combinations(),
    "within() takes a time above 0": lambda: begin().within(Time.seconds(0)),
    "within() takes a WithinType": lambda: begin().within(MINUTE, "first"),  # type: ignore[arg-type]
    "where() and subtype() do not apply to the group (first)": lambda: Pattern.begin(begin()).where(small),
    "or_where() does not apply to the group": lambda: Pattern.begin(begin()).or_where(small),
    "greedy() does not apply to the group": lambda: Pattern.begin(begin()).one_or_more().greedy(),
    "a group cannot end with the NOT pattern 'not'": lambda: Pattern.begin(begin().not_next("not").where(large)),
    "within() belongs to the whole sequence": lambda: Pattern.begin(begin().within(MINUTE)),
    "PREVIOUS_AND_CURRENT does not apply to the group": lambda: Pattern.begin(begin()).within(
        MINUTE, WithinType.PREVIOUS_AND_CURRENT
    ),
    "a skip strategy belongs to the whole sequence": lambda: Pattern.begin(
        Pattern.begin("a", AfterMatchSkipStrategy.skip_to_next())
    ),
}


@pytest.mark.parametrize("text", sorted(WRONG))
def a_wrong_pattern_is_refused_at_the_call(text: str):
    with pytest.raises((ConfigurationError, TypeError), match=re.escape(text)):
        WRONG[text]()


REFUSED = {
    "cannot end with not_followed_by('not') without within(...)": begin().not_followed_by("not").where(large),
    "Two patterns of the sequence are named 'first'": begin().next("first").within(MINUTE),
    "Two patterns of the sequence are named 'a'": Pattern.begin("a").next(Pattern.begin("b").next("a")),
    "skip_to_last('third') names no pattern of the sequence, which has first, second": Pattern.begin(
        "first", AfterMatchSkipStrategy.skip_to_last("third")
    ).next("second"),
    "the time of 'second' since the previous event, 60000 ms, is longer than that of the whole match, 1000 ms": begin()
    .next("second")
    .within(MINUTE, WithinType.PREVIOUS_AND_CURRENT)
    .within(Time.seconds(1)),
    "The time between two events of 'first', 60000 ms, is longer than that of the whole match, 1000 ms": begin()
    .times(2, MINUTE)
    .within(Time.seconds(1)),
    "does not apply to the NOT pattern 'not'": begin()
    .not_next("not")
    .where(large)
    .within(MINUTE, WithinType.PREVIOUS_AND_CURRENT),
}


@pytest.mark.parametrize("text", sorted(REFUSED))
def a_sequence_that_cannot_be_is_refused_when_it_is_given_to_a_stream(text: str, numbers: KeyedStream):
    with pytest.raises(ConfigurationError, match=re.escape(text)):
        CEP.pattern(numbers, REFUSED[text])


def test_what_is_no_stream_no_pattern_and_no_function_is_refused(numbers: KeyedStream):
    pattern = begin().within(MINUTE)
    with pytest.raises(TypeError, match="takes a stream"):
        CEP.pattern([1, 2], pattern)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=re.escape("takes a Pattern, not 'first'; make one with Pattern.begin(name)")):
        CEP.pattern(numbers, "first")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=re.escape("is called with (first, second)")):
        CEP.pattern(numbers, pattern, lambda first: 0)  # type: ignore[arg-type, misc]
    stream = CEP.pattern(numbers, pattern)
    with pytest.raises(TypeError, match="takes a PatternProcessFunction"):
        stream.process(lambda match, ctx: [])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=re.escape("is called with (match)")):
        stream.select(lambda: 1)  # type: ignore[arg-type, misc]
    with pytest.raises(ConfigurationError, match="generator function"):
        stream.select(generates)
    with pytest.raises(TypeError, match="belong together"):
        stream.select(lambda match: 1, timeout_function=lambda match, at: 1)
    with pytest.raises(TypeError, match="timeout_output_tag is an OutputTag"):
        stream.select(lambda match: 1, timeout_function=lambda match, at: 1, timeout_output_tag="t")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="takes an OutputTag"):
        stream.side_output_late_data("late")  # type: ignore[arg-type]
    stream.flat_select(generates, timeout_function=lambda match, at: [1], timeout_output_tag=OutputTag("t"))


def generates(match: Any) -> Any:
    yield match


def test_a_class_in_place_of_an_object_is_refused(numbers: KeyedStream):
    class Function(PatternProcessFunction):
        def process_match(self, match, ctx):
            return None

    with pytest.raises(TypeError, match="got the class Function"):
        CEP.pattern(numbers, begin().within(MINUTE)).process(Function)  # type: ignore[arg-type]


def a_pattern_in_event_time_over_a_source_without_timestamps_is_refused_before_the_job_starts(numbers: KeyedStream):
    env = numbers.get_execution_environment()
    CEP.pattern(numbers, begin().within(MINUTE)).select(lambda match: 1).print()
    with pytest.raises(ConfigurationError, match=r"'Cep' \(Cep, test_pattern_checks.py:\d+\) works in event time, but the"):
        env._plan("job")


def a_pattern_in_processing_time_needs_no_timestamps(numbers: KeyedStream):
    env = numbers.get_execution_environment()
    CEP.pattern(numbers, begin().within(MINUTE)).in_processing_time().select(lambda match: 1).print()
    assert env._plan("job").vertices


NEVER = {
    "the NOT pattern 'not' has no condition, so every event": begin().not_followed_by("not").followed_by("b").where(large),
    "the NOT pattern 'not' excludes every event that 'b' accepts": begin()
    .not_followed_by("not")
    .where(large)
    .followed_by("b")
    .where(large)
    .where(small),
    "the NOT pattern 'no' excludes every event that 'b' accepts": begin().not_next("no").where(large).next("b").where(large),
    "'all' is greedy and accepts every event that 'b' accepts": begin()
    .next("all")
    .one_or_more()
    .greedy()
    .followed_by("b")
    .where(large),
    "also meets its until() condition": begin().next("b").where(large).one_or_more().until(large),
}


@pytest.mark.parametrize("text", sorted(NEVER))
def a_sequence_that_can_never_match_is_warned_of(text: str, numbers: KeyedStream):
    with pytest.warns(PatternWarning, match=re.escape(text)) as told:
        CEP.pattern(numbers, NEVER[text].within(MINUTE))
    assert [warning.filename for warning in told] == [__file__]


GROWS = {
    "a partial match that waits for 'b' is kept for ever": begin().followed_by("b").where(large),
    "a partial match that waits for 'b' or 'first' is kept": begin().one_or_more().followed_by_any("b"),
    "a partial match that repeats 'first' is kept": begin().one_or_more().consecutive(),
}


@pytest.mark.parametrize("text", sorted(GROWS))
def a_sequence_whose_state_grows_for_ever_is_warned_of(text: str, numbers: KeyedStream):
    with pytest.warns(PatternWarning, match=re.escape(text)) as told:
        CEP.pattern(numbers, GROWS[text])
    assert [warning.filename for warning in told] == [__file__]


SERVES = [
    begin().next("b").where(large),
    begin().followed_by("b").where(large).within(MINUTE),
    begin().followed_by("b").where(large).within(MINUTE, WithinType.PREVIOUS_AND_CURRENT),
    begin().one_or_more().consecutive().until(large),
    begin().not_next("no").where(large).followed_by("b").where(large).within(MINUTE),
    begin().not_followed_by("no").where(large).followed_by("b").where(small).within(MINUTE),
    begin().next("b").where(large).one_or_more().greedy().followed_by("c").where(small).within(MINUTE),
    Pattern.begin("a", AfterMatchSkipStrategy.skip_past_last_event()).followed_by("b").where(large),
]


@pytest.mark.parametrize("number", range(len(SERVES)))
def a_sequence_that_serves_is_not_warned_of(number: int, numbers: KeyedStream):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CEP.pattern(numbers, SERVES[number])
