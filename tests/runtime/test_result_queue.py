"""The queues of async operators against a plain model."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runtime.async_io.result_queue import OrderedQueue, Request, UnorderedQueue

steps = st.lists(st.sampled_from(["add", "watermark", "answer", "take"]), max_size=60)


@pytest.mark.parametrize("kind", [OrderedQueue, UnorderedQueue])
@given(steps=steps, data=st.data())
def test_results_and_watermarks_leave_in_the_order_of_their_kind(kind: Any, steps: list[str], data: Any) -> None:
    queue = kind()
    came: list[Request | int] = []
    """Requests and watermarks in the order of the input."""
    answered: list[Request] = []
    left: list[Request | int] = []

    def take() -> None:
        taken = list(queue.take())
        for each in taken:
            before = came[: came.index(each)]
            if isinstance(each, int) or kind is OrderedQueue:
                assert [other for other in before if isinstance(other, Request) and other not in left] == []
            else:
                assert each in answered
                assert [other for other in before if isinstance(other, int) and max(marks(left), default=0) < other] == []
            left.append(each)
        inside = [each for each in came if isinstance(each, Request) and each not in left]
        assert list(queue.requests()) == inside
        assert len(queue) == len(inside)
        assert queue.held == sum(each in answered for each in inside)

    for step in [*steps, "finish"]:
        if step == "add":
            request = Request(len(came), 0, 0)
            came.append(request)
            queue.add(request)
        elif step == "watermark":
            came.append(len(came))
            queue.add_watermark(came[-1])
        elif step == "take":
            take()
        waiting = [each for each in came if isinstance(each, Request) and each not in answered]
        if step == "finish":
            chosen = data.draw(st.permutations(waiting))
        else:
            chosen = [data.draw(st.sampled_from(waiting))] if step == "answer" and waiting else []
        for request in chosen:
            request.results = []
            queue.answered(request)
            answered.append(request)
    take()
    assert [each for each in left if isinstance(each, Request)] == (
        [each for each in came if isinstance(each, Request)] if kind is OrderedQueue else sorted_by_segment(came, left)
    )
    assert max(marks(left), default=0) == max(marks(came), default=0)


def marks(those: list[Request | int]) -> list[int]:
    return [each for each in those if isinstance(each, int)]


def sorted_by_segment(came: list[Request | int], left: list[Request | int]) -> list[Request]:
    """The requests that left, by the segment that they came in."""
    segment = {id(each): len(marks(came[: came.index(each)])) for each in came if isinstance(each, Request)}
    return sorted((each for each in left if isinstance(each, Request)), key=lambda each: segment[id(each)])
