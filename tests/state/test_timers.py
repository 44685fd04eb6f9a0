"""Timers against a model: a set of pairs, on both ordered stores, through epochs, evictions and restores."""

from __future__ import annotations

import heapq
import itertools
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from effort import examples, seeds
from holdfast.state.keys.key_groups import KeyGroupRange, key_group
from holdfast.state.store.ordered import OrderedStore, SortedMemory
from holdfast.state.store.store import RocksDBStore, rocksdb_settings
from holdfast.state.stored.delta import Change
from holdfast.state.timers import timer_chunks, timer_family, timers, timing_wheel
from holdfast.state.timers.timer_family import TimerFamily

GROUPS = 8
STATE = 16
times = st.integers(-5, 5) | st.integers(0, 10).map(lambda n: n << 16) | st.integers(-(2**40), 2**40)
keys = st.sampled_from([0, 1, "a", ("b", 2), None, 2**70])


def groups_of(keys: Sequence[Any]) -> list[int]:
    return [key_group(key, GROUPS) for key in keys]


class Timers(RuleBasedStateMachine):
    """A family of timers, its model, and what a restore at the last barrier would give."""

    owners = keys
    namespaced = False

    @initialize(bound=st.sampled_from([0, 1, 4, 1 << 62]), few=st.booleans())
    def begin(self, bound: int, few: bool) -> None:
        self.limits = pytest.MonkeyPatch()
        if few:  # what takes thousands of timers happens with some
            self.limits.setattr(timer_chunks, "_MOST_REMOVED", 2)
            self.limits.setattr(timers, "_AT_ONCE", 1)
            self.limits.setattr(timers, "_MANY", 1)
            self.limits.setattr(timing_wheel, "_AT_ONCE", 1)
            self.limits.setattr(timer_family, "_DENSE", 2)
            self.limits.setattr(timer_family, "_ENOUGH", 1)
        self.bound = bound
        self.store = self.made()
        self.queue = self.family()
        self.model: set[tuple[int, Any]] = set()
        self.committed: set[tuple[int, Any]] = set()
        self.base: list[tuple[bytes, bytes]] = []
        """The store's content at the last materialisation."""
        self.deltas: list[Sequence[Change]] = []
        """Since then."""
        self.steps: Iterator[None] | None = None
        """The rest of a flush, between whose steps epochs run."""
        self.since: list[Sequence[Change]] = []
        """Since it began."""

    def made(self) -> OrderedStore:
        return SortedMemory()

    def family(self) -> TimerFamily:
        return TimerFamily(STATE, self.store, groups_of, namespaced=self.namespaced, bound=self.bound)

    @rule(time=times, data=st.data())
    def register(self, time: int, data: st.DataObject) -> None:
        owner = data.draw(self.owners)
        self.queue.register(time, owner)
        self.model.add((time, owner))

    @rule(time=times, data=st.data())
    def delete(self, time: int, data: st.DataObject) -> None:
        self._delete(time, data.draw(self.owners))

    def _delete(self, time: int, owner: Any) -> None:
        self.queue.delete(time, owner)
        self.model.discard((time, owner))

    @rule(data=st.data())
    def delete_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            self._delete(*data.draw(st.sampled_from(sorted(self.model, key=repr))))

    @rule(data=st.data())
    def set_one_that_is_there_again(self, data: st.DataObject) -> None:
        if self.model:
            self.queue.register(*data.draw(st.sampled_from(sorted(self.model, key=repr))))

    @rule(time=times)
    def fire(self, time: int) -> None:
        prefetched: list[Any] = []
        fired = list(self.queue.due(time, prefetched.extend))
        expected = {timer for timer in self.model if timer[0] <= time}
        assert [when for when, _ in fired] == sorted(when for when, _ in expected)
        assert set(fired) == expected
        assert len(fired) == len(expected)
        assert {owner for _, owner in fired} <= set(prefetched)
        self.model -= expected

    @rule(time=times, data=st.data())
    def fire_while_timers_are_set_and_deleted(self, time: int, data: st.DataObject) -> None:
        last = None
        for when, owner in self.queue.due(time):
            assert last is None or when >= last
            assert when == min(t for t, _ in self.model)
            assert (when, owner) in self.model
            self.model.discard((when, owner))
            last = when
            if data.draw(st.booleans()):
                self.delete_one_that_is_there(data)
            if data.draw(st.booleans()):
                again = data.draw(st.integers(when, max(when, time) + 3) | st.just(when))
                self.queue.register(again, owner)
                self.model.add((again, owner))
            if len(self.model) > 30:
                break

    @rule()
    def end_the_epoch(self) -> None:
        changes = self.queue.collect()
        assert changes or self.model == self.committed
        assert not any(change.dropped for change in changes), "a merge of deltas would lose the timers of earlier ones"
        self.deltas.append(changes)
        self.since.append(changes)
        self.committed = set(self.model)
        self.queue.completed()

    @rule()
    def materialise(self) -> None:
        self.end_the_epoch()
        self.queue.flush()
        if self.steps is None:  # beside another flush it makes no base: the rest of that one writes what it began with
            self.base = list(self.store.scan(b"", b"\xff"))
            self.deltas = []

    @rule()
    def materialise_by_and_by(self) -> None:
        self.end_the_epoch()
        if self.steps is None:
            self.steps, self.since = self.queue.flushing(), []
        if next(self.steps, self) is self:
            self.steps = None
            self.base = list(self.store.scan(b"", b"\xff"))
            self.deltas = list(self.since)

    @rule(reuse=st.booleans())
    def restore(self, reuse: bool) -> None:
        """On this host's store, which may be ahead of the base, or on one that is made of the base."""
        if not reuse:
            self.store.delete_range(b"", b"\xff")
            self.store.write(self.base)
        self.steps = None
        self.queue = self.family()
        self.queue.opened()
        for changes in self.deltas:
            for change in changes:
                self.queue.apply(change, None)
        self.queue.applied()
        self.model = set(self.committed)

    @rule()
    def restore_elsewhere_from_a_dump(self) -> None:
        self.end_the_epoch()
        dump = list(self.queue.dump())
        self.base, self.deltas = [], [dump]
        self.restore(reuse=False)

    def teardown(self) -> None:
        if hasattr(self, "limits"):
            self.limits.undo()

    @invariant()
    def next_time_is_that_of_the_earliest_or_the_beginning_of_its_bucket(self) -> None:
        earliest = min((when for when, _ in self.model), default=None)
        told = self.queue.next_time()
        if told is None:
            assert earliest is None
        elif earliest is not None:
            assert told <= earliest

    @invariant()
    def the_last_time_is_late_enough_and_there_are_timers_if_there_are(self) -> None:
        assert self.queue or not self.model
        assert self.queue.last_time() >= max((when for when, _ in self.model), default=-(2**63))
        assert sorted(self.queue.all(), key=repr) == sorted(self.model, key=repr)


class RocksDBTimers(Timers):
    """The same on RocksDB, whose timers have namespaces."""

    owners = st.tuples(keys, st.sampled_from([None, 0, (0, 10), "w"]))
    namespaced = True

    def made(self) -> OrderedStore:
        self.path = tempfile.mkdtemp()
        return RocksDBStore(self.path, rocksdb_settings({}))

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "path"):
            self.store.close()  # type: ignore[attr-defined]
            shutil.rmtree(self.path)


@pytest.mark.parametrize("seed", seeds(30))
def test_timers_that_go_to_the_store_by_and_by_while_time_advances_are_restored(seed: int) -> None:
    pick = random.Random(seed)
    machine = Timers()
    machine.begin(bound=pick.choice([0, 10, 1 << 62]), few=True)
    now = 0
    for _ in range(120):
        for _ in range(pick.randrange(4)):
            timer = now + pick.randrange(1 << pick.choice([15, 18])), pick.randrange(6)
            machine.queue.register(*timer)
            machine.model.add(timer)
        if machine.model and pick.random() < 0.3:
            machine._delete(*pick.choice(sorted(machine.model)))
        if pick.random() < 0.3:
            now += pick.randrange(1 << 16)
            machine.fire(now)
        if machine.steps is not None or pick.random() < 0.3:
            machine.materialise_by_and_by()
        else:
            machine.end_the_epoch()
        if pick.random() < 0.1:
            machine.restore(reuse=pick.random() < 0.5)
        assert sorted(machine.queue.all()) == sorted(machine.model)
    machine.teardown()


@pytest.mark.parametrize("bound", [0, 1 << 62])
@pytest.mark.parametrize("seed", seeds(20))
def test_timers_that_change_as_their_bucket_comes_near_are_restored_as_they_were(seed: int, bound: int) -> None:
    pick = random.Random(seed)
    machine = Timers()
    machine.begin(bound=bound, few=True)
    now = 0
    for _ in range(200):
        action = pick.choices(["set", "delete", "advance", "end", "flush", "fail"], [8, 6, 4, 3, 1, 2])[0]
        timer = ((now >> 14) + pick.randrange(1, 6)) << 14, pick.choice("ab")
        if action == "set":
            machine.queue.register(*timer)
            machine.model.add(timer)
        elif action == "delete":
            machine._delete(*timer)
        elif action == "advance":
            machine.fire(now := now + pick.randrange(1 << 15))
        elif action == "end":
            machine.end_the_epoch()
            committed = now
        elif action == "flush":
            machine.materialise_by_and_by()
            committed = now
        elif machine.deltas:
            machine.restore(reuse=pick.random() < 0.5)
            now = committed
        assert sorted(machine.queue.all()) == sorted(machine.model)
    machine.teardown()


Timers.TestCase.settings = settings(deadline=None, max_examples=examples(80), stateful_step_count=30)
RocksDBTimers.TestCase.settings = settings(deadline=None, max_examples=examples(8), stateful_step_count=30)
test_timers_behave_like_a_set_of_pairs = Timers.TestCase
test_timers_in_rocksdb_behave_like_a_set_of_pairs = RocksDBTimers.TestCase


@pytest.fixture
def queue() -> TimerFamily:
    return new_queue()


def new_queue() -> TimerFamily:
    return TimerFamily(STATE, SortedMemory(), groups_of)


@settings(deadline=None)
@given(st.sets(st.tuples(times, keys), max_size=30), st.lists(times, max_size=5))
def test_timers_fire_once_however_time_advances(timers: set[tuple[int, Any]], steps: list[int]):
    queue = new_queue()
    for when, key in timers:
        queue.register(when, key)
        queue.register(when, key)
    fired = [timer for step in (*sorted(steps), 2**63 - 1) for timer in queue.due(step)]
    assert len(fired) == len(timers)
    assert set(fired) == timers


def a_timer_that_is_due_and_deleted_by_an_earlier_one_does_not_fire(queue: TimerFamily):
    queue.register(1, "a")
    queue.register(2, "a")
    fired = []
    for when, key in queue.due(5):
        fired.append(when)
        queue.delete(2, key)
    assert fired == [1]


def a_timer_set_again_while_it_fires_fires_again_in_the_same_advance(queue: TimerFamily):
    queue.register(10, "a")
    fired = []
    for when, key in queue.due(40):
        fired.append(when)
        queue.register(when + 10, key)
    assert fired == [10, 20, 30, 40]
    assert queue.next_time() == 50


def a_timer_set_and_deleted_within_an_epoch_leaves_no_trace_in_its_delta(queue: TimerFamily):
    queue.register(10, "a")
    queue.delete(10, "a")
    assert not queue.collect()
    queue.register(10, "a")


class Time(int):
    """A time that counts how often it is looked at."""

    looked_at = 0

    def __le__(self, other: int) -> bool:
        Time.looked_at += 1
        return int(self) <= other


def the_timers_that_are_not_due_are_not_looked_at(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Time, "looked_at", 0)
    heap = [(Time(number), number, f"k{number}") for number in range(10_000)]
    assert sorted(timing_wheel.owners_until(heap, 4)) == ["k0", "k1", "k2", "k3", "k4"]
    assert Time.looked_at <= 2 * 5 + 1


@settings(max_examples=examples(200), deadline=None)
@given(times=st.lists(st.integers(0, 20)), until=st.integers(-1, 21))
def test_timers_that_are_due_are_found_in_any_heap(times: list[int], until: int):
    heap: list[tuple[int, int, Any]] = []
    for number, time in enumerate(times):
        heapq.heappush(heap, (time, number, number))
    assert sorted(timing_wheel.owners_until(heap, until)) == [number for number, time in enumerate(times) if time <= until]


def test_timers_at_the_ends_of_time_are_kept(queue: TimerFamily):
    queue.register(2**63 - 1, "end")
    queue.register(-(2**63), "start")
    changes = queue.collect()
    queue.flush()
    for copy in (new_queue(), queue):
        if copy is not queue:
            for change in changes:
                copy.apply(change, None)
            copy.applied()
        assert list(copy.due(2**63 - 1)) == [(-(2**63), "start"), (2**63 - 1, "end")]


@pytest.mark.parametrize("time", [1.5, "10", None, 2**63, -(2**63) - 1, -(2**80)])
def a_timer_at_no_time_is_refused_where_it_is_set(time: Any, queue: TimerFamily):
    with pytest.raises((TypeError, ValueError), match="a timer's time"):
        queue.register(time, "a")


def test_far_timers_leave_memory_and_those_of_one_bucket_come_back_at_a_time():
    queue = TimerFamily(STATE, SortedMemory(), groups_of, bound=100)
    minute = 1 << 16
    for n in range(1000):
        queue.register(minute * (n // 10) + n % 10, n)
    queue.collect()
    queue.completed()
    assert queue.in_memory <= 50
    fired = 0
    for _ in queue.due(minute * 99):
        fired += 1
        assert queue.in_memory <= 60
    assert fired == 991


@pytest.mark.parametrize("stored", [False, True])
def the_timers_of_the_next_bucket_are_loaded_in_portions(stored: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timers, "_AT_ONCE", 10)
    monkeypatch.setattr(timers, "_MANY", 10)
    queue = new_queue()
    pending = {((1 << 16) + 600 * n, n) for n in range(100)}
    for timer in pending:
        queue.register(*timer)
    queue.collect()
    queue.completed()
    if stored:
        queue.flush()
    near, fired = [], []
    for now in range(0, 1 << 17, 1 << 11):
        fired += queue.due(now)
        queue.collect()
        queue.completed()
        near.append(len(queue._wheel))
        if left := pending.difference(fired):
            assert queue.next_time() <= min(left)[0], "a job without input would sleep beyond it"
    assert fired == sorted(pending)
    assert near[15] == 0  # time is in the first half of the bucket before
    assert near[31] > 90
    most = 10 if not stored else 10 + max(len([n for n in range(100) if key_group(n, GROUPS) == g]) for g in range(GROUPS))
    assert max(after - before for before, after in itertools.pairwise(near)) <= most


def test_buckets_whose_timers_have_fired_leave_the_store():
    store = SortedMemory()
    queue = TimerFamily(STATE, store, groups_of, bound=0)
    for n in range(100):
        queue.register(n << 14, n)
    queue.collect()
    queue.completed()
    assert len(store) == 100
    assert len(list(queue.due(50 << 14))) == 51
    queue.collect()
    queue.completed()
    assert len(store) == 100 - 48  # the bucket that time is in stays


@given(st.sets(st.tuples(times, keys), min_size=1, max_size=30), st.integers(0, GROUPS - 1), st.integers(0, GROUPS - 1))
def a_restore_of_some_key_groups_takes_their_timers_only(timers: set[tuple[int, Any]], first: int, last: int):
    first, last = min(first, last), max(first, last)
    queue, part = new_queue(), new_queue()
    for when, key in timers:
        queue.register(when, key)
    owned = KeyGroupRange(first, last)
    for change in queue.collect():
        part.apply(change, owned)
    part.applied()
    assert set(part.all()) == {timer for timer in timers if key_group(timer[1], GROUPS) in owned}


def begun() -> tuple[TimerFamily, SortedMemory]:
    """A queue whose bucket of the second minute is in the store; and a copy of the store."""
    store = SortedMemory()
    queue = TimerFamily(STATE, store, groups_of, bound=0)
    queue.register(80_000, "b")
    queue.collect()
    queue.completed()
    queue.flush()
    copied = SortedMemory()
    copied.write(store.scan(b"", b"\xff"))
    return queue, copied


def restored(store: SortedMemory, *deltas: Sequence[Change]) -> TimerFamily:
    queue = TimerFamily(STATE, store, groups_of, bound=0)
    queue.opened()
    for changes in deltas:
        for change in changes:
            queue.apply(change, None)
    queue.applied()
    return queue


def a_timer_deleted_when_it_was_not_there_and_set_once_its_bucket_is_near_is_restored():
    queue, store = begun()
    queue.delete(70_000, "a")
    assert not list(queue.due(66_000))  # time is in its bucket now
    queue.register(70_000, "a")
    assert list(restored(store, queue.collect()).due(90_000)) == [(70_000, "a"), (80_000, "b")]


def a_timer_that_is_reset_and_fires_in_one_epoch_does_not_fire_again_after_a_restore():
    queue, store = begun()
    queue.register(70_000, "a")
    deltas = [queue.collect()]
    queue.delete(70_000, "a")
    queue.register(70_000, "a")
    assert list(queue.due(75_000)) == [(70_000, "a")]
    deltas.append(queue.collect())
    assert list(restored(store, *deltas).due(90_000)) == [(80_000, "b")]


def a_timer_deleted_in_one_epoch_and_set_again_in_the_next_is_restored():
    store = SortedMemory()
    queue = TimerFamily(STATE, store, groups_of, bound=0)
    queue.register(70_000, "a")
    queue.collect()
    queue.completed()
    queue.flush()
    base = list(store.scan(b"", b"\xff"))
    queue.delete(70_000, "a")
    deltas = [queue.collect()]
    queue.register(70_000, "a")
    assert not list(queue.due(69_999))  # time is in its bucket now
    deltas.append(queue.collect())
    copied = SortedMemory()
    copied.write(base)
    copy = TimerFamily(STATE, copied, groups_of, bound=0)
    copy.opened()
    for changes in deltas:
        for change in changes:
            copy.apply(change, None)
    copy.applied()
    assert list(copy.due(80_000)) == [(70_000, "a")]


def test_deleted_timers_of_far_buckets_neither_fill_memory_nor_the_store():
    store = SortedMemory()
    queue = TimerFamily(STATE, store, groups_of, bound=1000)
    far, stored = 1 << 40, []
    for epoch in range(30):
        for key in range(2000):
            queue.register(far + epoch, key)
            queue.delete(far + epoch - 1, key)
        queue.collect()
        queue.completed()
        assert queue.in_memory <= 1000
        stored.append(sum(len(value) for _, value in store.scan(b"", b"\xff")))
    assert max(stored) < 5 * stored[0]
    assert set(queue.all()) == {(far + 29, key) for key in range(2000)}


def a_restore_brings_timers_into_the_store_and_not_into_memory():
    queue = TimerFamily(STATE, SortedMemory(), groups_of, bound=100)
    copy = TimerFamily(STATE, SortedMemory(), groups_of, bound=100)
    minute = 1 << 16
    for bucket, count in ((100, 20_000), (200, 300), (300, 1)):
        for n in range(count):
            queue.register(minute * bucket + n, n)
    for change in queue.collect():
        copy.apply(change, None)
    copy.applied()
    assert copy.in_memory == 0
    assert set(copy.all()) == set(queue.all())
    assert list(copy.due(minute * 400)) == list(queue.due(minute * 400))


def a_restore_writes_the_timers_that_are_left_and_none_of_those_that_came_and_went():
    queue = TimerFamily(STATE, SortedMemory(), groups_of, bound=1 << 20)
    copied = SortedMemory()
    copy = TimerFamily(STATE, copied, groups_of, bound=1 << 20)
    for now in range(100):
        for key in range(20):
            queue.register((now << 16) + key, key)
        assert len(list(queue.due((now << 16) - 1))) == (20 if now else 0)
        for change in queue.collect():
            copy.apply(change, None)
    copy.applied()
    assert set(copy.all()) == {((99 << 16) + key, key) for key in range(20)}
    assert len(copied) <= GROUPS


FIRST_FORM = (
    (False, "a", b"\x00\x10" + b"\x80" + bytes(7) + b"\x00\x02" + b"\xa1a" + b"\x00\x05"),
    (True, ("a", (1, 2)), b"\x00\x10" + b"\x80" + bytes(7) + b"\x00\x02" + b"\xa1a" + b"\x00\x05\x92\x01\x02\x00\x03"),
)


@pytest.mark.parametrize(("namespaced", "owner", "row"), FIRST_FORM)
def the_stored_form_of_timers_never_changes(namespaced: bool, owner: Any, row: bytes):
    store = SortedMemory()
    queue = TimerFamily(STATE, store, lambda keys: [2 for _ in keys], namespaced=namespaced)
    queue.register((1 << 16) + 5, owner)
    ((_, _, (piece,), _),) = queue.collect()
    namespaces = b"\x91\x92\x01\x02" if namespaced else None
    nothing = ([], b"\x90", b"\x90" if namespaced else None)
    assert piece.data == msgspec.msgpack.encode(([(1 << 16) + 5], b"\x91\xa1a", namespaces, *nothing))
    queue.flush()
    ((key, value),) = store.scan(b"", b"\xff")
    assert key == b"\x00\x10" + b"\x80" + bytes(6) + b"\x01" + b"\x00\x02" + b"\xc1" + bytes(8)
    assert value == bytes([0, 0, 0, 1, 0, 0, 0, 0]) + msgspec.msgpack.encode(([5], b"\x91\xa1a", namespaces, *nothing))


@pytest.mark.parametrize(("namespaced", "owner", "row"), FIRST_FORM)
def test_timers_in_rows_of_their_own_are_read_and_deleted(namespaced: bool, owner: Any, row: bytes):
    store = SortedMemory()
    store.write([(row, b"")])
    queue = TimerFamily(STATE, store, lambda keys: [2 for _ in keys], namespaced=namespaced, bound=0)
    queue.opened()
    assert list(queue.all()) == [(5, owner)]
    queue.delete(5, owner)
    queue.register(6, owner)
    queue.collect()
    queue.completed()
    again = TimerFamily(STATE, store, lambda keys: [2 for _ in keys], namespaced=namespaced, bound=0)
    again.opened()
    assert list(again.due(9)) == [(6, owner)]


@pytest.mark.parametrize(("namespaced", "owners"), [(False, ["a", 7]), (True, [("a", "n"), (7, 8)])])
def the_changes_of_timers_come_to_a_store_in_rows_of_their_own(namespaced: bool, owners: list[Any]):
    here = TimerFamily(STATE, SortedMemory(), groups_of, namespaced=namespaced)
    store = SortedMemory()
    for number in (0, 1):
        for at in range(40):
            if at % 2 and number:
                here.delete(at * 5000, owners[0])
            else:
                here.register(at * 5000 + number, owners[number])
        for change in here.collect():
            for dropped, puts, deletes in here.writes(change):
                assert not dropped
                store.write(puts, deletes)
    assert [key for key, _ in store.scan(b"", b"\xff")] == here.single_rows()
    there = TimerFamily(STATE, store, groups_of, namespaced=namespaced, bound=0)
    there.opened()
    expected = {(at * 5000, owners[0]) for at in range(0, 40, 2)} | {(at * 5000 + 1, owners[1]) for at in range(0, 40, 2)}
    assert set(there.all()) == expected


def test_all_timers_come_in_several_changes_which_drop_nothing(queue: TimerFamily, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(timer_family, "_DUMPED", 2)
    for at in range(5):
        queue.register(at, "a")
    changes = list(queue.dump())
    assert [change.dropped for change in changes] == [False] * 3
    again = new_queue()
    for change in changes:
        again.apply(change, None)
    again.applied()
    assert sorted(again.all()) == [(at, "a") for at in range(5)]


def the_earliest_timer_may_be_an_old_one_or_a_new_one(queue: TimerFamily):
    for when in (100, 200, 400):
        queue.register(when, "a")
    assert list(queue.due(100)) == [(100, "a")]
    queue.register(300, "a")  # while the timers of this second are sorted already
    assert queue.next_time() == 200
    assert list(queue.due(200)) == [(200, "a")]
    assert queue.next_time() == 300


def the_last_timer_of_a_far_bucket_is_deleted_in_the_checkpoint_also_if_the_next_time_is_asked_for(queue: TimerFamily):
    queue.register(10**6, "a")
    assert queue.collect()
    queue.delete(10**6, "a")
    assert queue.next_time() is None
    assert queue.collect()
