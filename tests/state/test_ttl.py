"""State with a time-to-live: what may be read when, what is removed, what a checkpoint keeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.common import Time, Types
from holdfast.datastream.functions import AggregateFunction
from holdfast.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from holdfast.errors import IncompatibleState
from holdfast.state.cells import entries
from holdfast.state.rows import ttl

from .backend import Backend

TTL = 100
UpdateType = StateTtlConfig.UpdateType
Visibility = StateTtlConfig.StateVisibility


@pytest.fixture(autouse=True, params=["in rows", "outside of rows"])
def where_maps_and_lists_lie(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if request.param == "outside of rows":
        monkeypatch.setattr(entries, "MOST_IN_ROW", 0)
        monkeypatch.setattr(entries, "_CHUNK", 2)


class Mean(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0, 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: Any) -> Any:
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def states(update: Any = None, visibility: Any = None, typed: bool = True, ttl: int = TTL) -> list[Any]:
    builder = StateTtlConfig.new_builder(Time.milliseconds(ttl))
    if update is not None:
        builder = builder.set_update_type(update)
    if visibility is not None:
        builder = builder.set_state_visibility(visibility)
    number = Types.LONG() if typed else None
    both = Types.TUPLE([Types.LONG(), Types.LONG()]) if typed else None
    made = [
        ValueStateDescriptor("value", number),
        ListStateDescriptor("list", number),
        MapStateDescriptor("map", Types.STRING() if typed else None, number),
        ReducingStateDescriptor("sum", lambda a, b: a + b, number),
        AggregatingStateDescriptor("mean", Mean(), both),
    ]
    for each in made:
        each.enable_time_to_live(builder.build())
    return made


def make(kind: str = "rocksdb", **options: Any) -> Backend:
    backend = Backend(kind, states(**options))
    backend.use("k")
    return backend


def fill(backend: Backend) -> None:
    handles = backend.handles
    handles["value"].update(1)
    handles["list"].update([1, 2])
    handles["map"].put("a", 1)
    handles["sum"].add(5)
    handles["mean"].add(4)


def read(backend: Backend) -> tuple[Any, ...]:
    handles = backend.handles
    return (
        handles["value"].value(),
        list(handles["list"].get()),
        dict(handles["map"].items()),
        handles["sum"].get(),
        handles["mean"].get(),
    )


FULL = (1, [1, 2], {"a": 1}, 5, 4.0)
EMPTY = (None, [], {}, None, None)


@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("typed", [True, False])
def test_state_is_there_until_its_time_to_live_has_passed_also_over_a_restart(kind: str, typed: bool) -> None:
    backend = make(kind, typed=typed)
    fill(backend)
    backend.checkpoint()
    backend.restart(elsewhere=True)
    backend.use("k")
    backend.clock.processing_time = TTL - 1
    assert read(backend) == FULL
    backend.clock.processing_time = TTL
    assert read(backend) == EMPTY
    assert not backend.handles["map"].contains("a")
    assert backend.handles["map"].get("a") is None
    assert backend.handles["map"].is_empty()
    backend.close()


def test_writing_begins_a_new_term_and_reading_does_not() -> None:
    backend = make()
    fill(backend)
    backend.clock.processing_time = TTL - 1
    assert read(backend) == FULL
    fill(backend)
    backend.clock.processing_time = TTL
    assert read(backend) == (1, [1, 2], {"a": 1}, 10, 4.0)
    backend.clock.processing_time = 2 * TTL - 1
    assert read(backend) == EMPTY
    fill(backend)
    assert read(backend) == FULL, "what has expired does not come back into a sum"
    backend.close()


def test_reading_begins_a_new_term_where_that_is_configured() -> None:
    backend = make(update=UpdateType.OnReadAndWrite)
    fill(backend)
    for now in range(0, 5 * TTL, TTL - 1):
        backend.clock.processing_time = now
        assert read(backend) == FULL
    backend.clock.processing_time += TTL
    assert read(backend) == EMPTY
    backend.close()


def test_expired_content_can_be_read_once_if_configured() -> None:
    backend = make(visibility=Visibility.ReturnExpiredIfNotCleanedUp)
    fill(backend)
    backend.clock.processing_time = TTL
    assert read(backend) == FULL
    assert read(backend) == EMPTY
    backend.close()


def test_elements_and_entries_expire_one_by_one() -> None:
    backend = make()
    backend.handles["list"].add(1)
    backend.handles["map"].put("a", 1)
    backend.clock.processing_time = 60
    backend.handles["list"].add_all([2, 3])
    backend.handles["map"].put_all({"b": 2})
    backend.clock.processing_time = TTL
    assert list(backend.handles["list"].get()) == [2, 3]
    assert list(backend.handles["map"].keys()) == ["b"]
    assert list(backend.handles["map"].values()) == [2]
    backend.close()


def test_no_time_to_live_is_a_state_like_any_other() -> None:
    backend = make(update=UpdateType.Disabled)
    fill(backend)
    backend.clock.processing_time = 10**15
    assert read(backend) == FULL
    plain = Backend("hashmap", [ValueStateDescriptor("value", Types.LONG())])
    assert backend.state.schema.states["keyed"].columns[0] == plain.state.schema.states["keyed"].columns[0]
    backend.close()


@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
def test_keys_without_reads_leave_memory_store_and_checkpoint(kind: str) -> None:
    backend = make(kind)
    for key in range(50):
        backend.use(key)
        fill(backend)
    backend.checkpoint()
    backend.restart(elsewhere=True)
    backend.clock.processing_time = 2 * TTL
    backend.space.sweep()
    backend.checkpoint()
    assert not backend.state.timer_queue("ttl")
    backend.restart(elsewhere=True)
    assert all(row[1:] == [None] * 5 for row in backend.space.table().rows.values())
    assert not list(backend.space.table().stored_rows() if kind == "rocksdb" else ())
    backend.close()


def a_key_that_is_only_read_is_not_cleaned_up_once_more() -> None:
    backend = make()
    fill(backend)
    backend.checkpoint()
    timers = list(backend.state.timer_queue("ttl").all())
    assert len(timers) == 1
    backend.clock.processing_time = TTL - 1
    backend.use("k")
    assert read(backend) == FULL
    backend.checkpoint()
    assert list(backend.state.timer_queue("ttl").all()) == timers
    backend.close()


def test_a_clean_up_keeps_rewritten_content() -> None:
    backend = make()
    fill(backend)
    backend.checkpoint()
    backend.clock.processing_time = TTL - 1
    backend.use("k")
    backend.handles["value"].update(7)
    backend.checkpoint()
    backend.clock.processing_time = TTL + TTL // 2
    backend.space.sweep()
    backend.use("k")
    assert read(backend) == (7, *EMPTY[1:])
    backend.checkpoint()
    backend.clock.processing_time = 3 * TTL
    backend.space.sweep()
    backend.checkpoint()
    assert not backend.state.timer_queue("ttl")
    backend.close()


def test_a_time_to_live_cannot_be_given_to_stored_state_that_had_none() -> None:
    backend = Backend("hashmap", [ValueStateDescriptor("value", Types.LONG())])
    backend.use("k")
    backend.handles["value"].update(1)
    backend.checkpoint()
    backend.close()
    backend.states = states()[:1]
    with pytest.raises(IncompatibleState, match=r"value state with time-to-live of LONG|with time-to-live"):
        backend.open(1)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("wait"), st.integers(0, 80)),
        st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(0, 9)),
        st.tuples(st.just("add"), st.integers(0, 9)),
        st.tuples(st.just("remove"), st.sampled_from("abc")),
        st.just(("checkpoint",)),
        st.just(("sweep",)),
        st.just(("restart",)),
    ),
    max_size=30,
)


@settings(deadline=None, max_examples=60)
@given(STEPS)
def test_lists_and_maps_behave_like_a_model_in_any_order_of_steps(steps: list[Any]) -> None:
    backend = make("hashmap")
    entries: dict[str, tuple[int, int]] = {}
    elements: list[tuple[int, int]] = []
    kept: tuple[Any, Any] = {}, []
    for what, *arguments in steps:
        now = backend.clock.processing_time
        backend.use("k")
        if what == "wait":
            backend.clock.processing_time += arguments[0]
        elif what == "put":
            entries[arguments[0]] = now, arguments[1]
            backend.handles["map"].put(*arguments)
        elif what == "add":
            elements.append((now, arguments[0]))
            backend.handles["list"].add(*arguments)
        elif what == "remove":
            entries.pop(arguments[0], None)
            backend.handles["map"].remove(*arguments)
        elif what == "checkpoint":
            kept = dict(entries), list(elements)
            backend.checkpoint()
        elif what == "sweep":
            backend.space.sweep()
        else:
            backend.restart()
            entries, elements = dict(kept[0]), list(kept[1])
        now = backend.clock.processing_time
        backend.use("k")
        assert dict(backend.handles["map"].items()) == {k: v for k, (at, v) in entries.items() if at + TTL > now}
        assert list(backend.handles["list"].get()) == [v for at, v in elements if at + TTL > now]
    backend.close()


@pytest.mark.parametrize("ttl", [False, True])
def the_content_of_a_row_is_not_copied_for_each_element_and_entry_that_is_added(ttl: bool) -> None:
    chosen = states()[1:3] if ttl else [ListStateDescriptor("list", Types.LONG()), MapStateDescriptor("map", Types.STRING())]
    backend = Backend("rocksdb", chosen)
    backend.use("k")
    elements, mapped = backend.handles["list"], backend.handles["map"]
    elements.add_all([1])
    mapped.put_all({"a": 1})
    held = [id(cell) for cell in backend.space.row[1:]]
    elements.add(2)
    elements.add_all([3, 4])
    elements.add_all(elements.get())
    mapped.put("b", 2)
    mapped.put_all({"c": 3})
    assert list(elements.get()) == [1, 2, 3, 4, 1, 2, 3, 4]
    assert dict(mapped.items()) == {"a": 1, "b": 2, "c": 3}
    assert [id(cell) for cell in backend.space.row[1:]] == held
    backend.close()


@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("swept", [2, 20_000])
def the_content_is_freed_after_a_time_to_live_that_was_made_shorter(
    kind: str, swept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads the keys; the clean-up that was planned when they were written is a day away."""
    monkeypatch.setattr(ttl, "_SWEEP", swept)
    day, hour = 86_400_000, 3_600_000
    backend = make(kind, ttl=day)
    for key in range(20):
        backend.clock.processing_time = key * hour // 2
        backend.use(key)
        fill(backend)
        if key % 5 == 0:
            backend.checkpoint()
    backend.checkpoint()
    backend.states = states(ttl=hour)
    backend.restart(elsewhere=True)
    now = backend.clock.processing_time  # the last key was written now
    backend.use(17)
    assert read(backend) == EMPTY
    backend.use(18)
    assert read(backend) == FULL
    for _ in range(20):
        backend.go_to(None).sweep()
        backend.checkpoint()
    assert [key for key in range(20) if content(backend, key)] == [18, 19]
    backend.restart()
    backend.clock.processing_time = now + hour + hour // 2
    for _ in range(20):
        backend.go_to(None).sweep()
        backend.checkpoint()
    assert not [key for key in range(20) if content(backend, key)]
    assert not list(backend.state.timer_queue("ttl").all())
    backend.close()


@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("begin", range(0, 1 << 16, 8000))
def the_content_is_freed_after_a_shorter_time_to_live_whose_clean_up_is_within_the_minute(kind: str, begin: int) -> None:
    backend = make(kind, ttl=40_000)
    backend.clock.processing_time = now = (100 << 16) + begin
    fill(backend)
    backend.checkpoint()
    backend.states = states(ttl=1000)
    backend.restart(elsewhere=True)
    for later in (500, 1750):
        backend.clock.processing_time = now + later
        backend.go_to(None).sweep()
        backend.checkpoint()
    assert not content(backend, "k")
    backend.close()


def content(backend: Backend, key: Any) -> list[Any]:
    """What a key still has, expired or not."""
    backend.use(key)
    return [slot for slot in backend.space.row[1:] if slot is not None]


@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
def the_content_of_a_key_without_reads_is_cleaned_up_after_a_time_to_live_that_was_made_longer(kind: str) -> None:
    backend = make(kind)
    fill(backend)
    backend.checkpoint()
    backend.states = states(ttl=10 * TTL)
    backend.restart()
    for now in (2 * TTL, 5 * TTL):
        backend.clock.processing_time = now
        backend.go_to(None).sweep()
        backend.checkpoint()
    backend.use("k")
    assert any(cell is not None for cell in backend.space.row[1:])  # it has not expired
    for now in (15 * TTL, 30 * TTL):
        backend.clock.processing_time = now
        backend.go_to(None).sweep()
        backend.checkpoint()
    backend.use("k")
    assert all(cell is None for cell in backend.space.row[1:])
    backend.close()
