"""Timers against a model: a set of pairs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.state.timers import TimerQueue

times = st.integers(-5, 5) | st.integers(0, 10).map(lambda n: n << 16) | st.integers(-(2**40), 2**40)
keys = st.sampled_from([0, 1, "a", ("b", 2), None])


class Timers(RuleBasedStateMachine):
    """A queue, its model, and what a restore at the last barrier would give."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = TimerQueue()
        self.model: set[tuple[int, Any]] = set()
        self.committed: set[tuple[int, Any]] = set()
        self.deltas: list[bytes] = []

    @rule(time=times, key=keys)
    def register(self, time: int, key: Any) -> None:
        self.queue.register(time, key)
        self.model.add((time, key))

    @rule(time=times, key=keys)
    def delete(self, time: int, key: Any) -> None:
        self.queue.delete(time, key)
        self.model.discard((time, key))

    @rule(data=st.data())
    def delete_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            self.delete(*data.draw(st.sampled_from(sorted(self.model, key=repr))))

    @rule(time=times)
    def fire(self, time: int) -> None:
        prefetched: list[Any] = []
        fired = list(self.queue.due(time, prefetched.extend))
        expected = {timer for timer in self.model if timer[0] <= time}
        assert [when for when, _ in fired] == sorted(when for when, _ in expected)
        assert set(fired) == expected
        assert len(fired) == len(expected)
        assert {key for _, key in fired} <= set(prefetched)
        self.model -= expected

    @rule(time=times, data=st.data())
    def fire_while_timers_are_set_and_deleted(self, time: int, data: st.DataObject) -> None:
        last = None
        for when, key in self.queue.due(time):
            assert last is None or when >= last
            assert when == min(self.model)[0] if len(self.model) == 1 else when == min(t for t, _ in self.model)
            assert (when, key) in self.model
            self.model.discard((when, key))
            last = when
            if data.draw(st.booleans()):
                self.delete_one_that_is_there(data)
            if data.draw(st.booleans()):
                self.register(data.draw(st.integers(when, max(when, time) + 3) | st.just(when)), key)
            if len(self.model) > 30:
                break

    @rule()
    def barrier(self) -> None:
        delta = self.queue.collect()
        assert (delta is None) == (self.model == self.committed)
        if delta is not None:
            self.deltas.append(delta)
        self.committed = set(self.model)

    @rule()
    def restore_from_deltas(self) -> None:
        self.queue = TimerQueue()
        for delta in self.deltas:
            self.queue.apply(delta)
        self.model = set(self.committed)

    @rule()
    def restore_from_a_dump(self) -> None:
        self.barrier()
        dump = self.queue.dump()
        self.deltas = [dump]
        self.restore_from_deltas()

    @invariant()
    def next_time_is_that_of_the_earliest(self) -> None:
        assert self.queue.next_time() == min((when for when, _ in self.model), default=None)

    @invariant()
    def the_size_and_the_last_time_are_right(self) -> None:
        assert len(self.queue) == len(self.model)
        assert self.queue.last_time() == max((when for when, _ in self.model), default=-(2**63))


Timers.TestCase.settings = settings(deadline=None, max_examples=100, stateful_step_count=30)
test_timers_behave_like_a_set_of_pairs = Timers.TestCase


@settings(deadline=None)
@given(st.sets(st.tuples(times, keys), max_size=30), st.lists(times, max_size=5))
def test_timers_fire_once_however_time_advances(timers: set[tuple[int, Any]], steps: list[int]):
    queue = TimerQueue()
    for when, key in timers:
        queue.register(when, key)
        queue.register(when, key)
    fired = [timer for step in (*sorted(steps), 2**63 - 1) for timer in queue.due(step)]
    assert len(fired) == len(timers)
    assert set(fired) == timers


def a_timer_that_is_due_and_deleted_by_an_earlier_one_does_not_fire():
    queue = TimerQueue()
    queue.register(1, "a")
    queue.register(2, "a")
    fired = []
    for when, key in queue.due(5):
        fired.append(when)
        queue.delete(2, key)
    assert fired == [1]


def a_timer_set_again_while_it_fires_fires_again_in_the_same_advance():
    queue = TimerQueue()
    queue.register(10, "a")
    fired = []
    for when, key in queue.due(40):
        fired.append(when)
        queue.register(when + 10, key)
    assert fired == [10, 20, 30, 40]
    assert queue.next_time() == 50


def a_timer_set_and_deleted_within_an_epoch_leaves_no_trace_in_its_delta():
    queue = TimerQueue()
    queue.register(10, "a")
    queue.delete(10, "a")
    assert queue.collect() is None
    queue.register(10, "a")
    queue.collect()
    list(queue.due(10))
    queue.register(10, "a")
    assert queue.collect() is None


def test_timers_at_the_ends_of_time_are_kept():
    queue = TimerQueue()
    queue.register(2**63 - 1, "end")
    queue.register(-(2**63), "start")
    copy = TimerQueue()
    copy.apply(queue.collect() or b"")
    assert list(copy.due(2**63 - 1)) == [(-(2**63), "start"), (2**63 - 1, "end")]


@pytest.mark.parametrize("time", [1.5, "10", None, 2**63, -(2**63) - 1, -(2**80)])
def a_timer_at_no_time_is_refused_where_it_is_set(time: Any):
    with pytest.raises((TypeError, ValueError), match="a timer's time"):
        TimerQueue().register(time, "a")


def the_stored_form_of_timers_never_changes():
    queue = TimerQueue()
    queue.register(5, "a")
    stored = queue.collect()
    assert stored == msgspec.msgpack.encode([([], b"\x90"), ([5], b"\x91\xa1a")])
