"""Each operator's own time is counted once, whoever calls whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.task import stopwatch
from holdfast.runtime.task.stopwatch import Stopwatch


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    seconds = [0.0]
    monkeypatch.setattr(stopwatch, "perf_counter", lambda: seconds[0])
    return seconds


def the_time_of_a_caller_leaves_out_what_it_calls(now: list[float]) -> None:
    watch = Stopwatch(2)

    def inner(seconds: float) -> str:
        now[0] += seconds
        return "answer"

    timed_inner = watch.timed(1, inner)

    def outer() -> str:
        now[0] += 2
        answer = timed_inner(5)
        now[0] += 1
        return answer

    now[0] += 100
    assert watch.timed(0, outer)() == "answer"
    now[0] += 100
    assert watch.drain() == [3, 5]
    assert watch.drain() == [0, 0]


def a_call_that_raises_is_counted_and_those_after_it_are_too(now: list[float]) -> None:
    watch = Stopwatch(1)

    def fail() -> None:
        now[0] += 1
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            watch.timed(0, fail)()
    assert watch.drain() == [2]


calls = st.recursive(st.tuples(st.integers(0, 2), st.integers(0, 9)), lambda deeper: st.lists(deeper, max_size=4))


@given(calls)
def test_every_second_within_a_call_counts_for_exactly_one_position(tree: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        seconds = [0.0]
        patch.setattr(stopwatch, "perf_counter", lambda: seconds[0])
        watch = Stopwatch(3)
        spent = [0.0, 0.0, 0.0]

        def work(node: object, position: int) -> None:
            if isinstance(node, tuple):
                position, amount = node
                spent[position] += amount
                watch.timed(position, lambda: seconds.__setitem__(0, seconds[0] + amount))()
            elif isinstance(node, list):
                for child in node:
                    watch.timed(position, work)(child, (position + 1) % 3)

        watch.timed(0, work)(tree, 0)
        assert watch.drain() == spent
