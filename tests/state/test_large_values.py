"""Large values beside small states: they leave their rows while functions rarely use them, and come back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import UserCodeError
from holdfast.runtime.driver import restore_check
from holdfast.state.backends.contents import contents_of, declare_stored
from holdfast.state.cells import codec, large_values
from holdfast.state.cells.large_values import LargeValue
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.stored.schema import VALUES

from .backend import Backend

COUNT = ValueStateDescriptor("count", Types.LONG())
PROFILE = ValueStateDescriptor("profile", Types.STRING())
ANYTHING = ValueStateDescriptor("anything")
KEYS = 200
SIZE = 1000


def profile(key: int) -> str:
    return random.Random(key).randbytes(SIZE // 2).hex()


@pytest.fixture(autouse=True)
def judged_every_epoch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(large_values, "_ENOUGH", KEYS)


@pytest.fixture(params=[PROFILE, ANYTHING], ids=["declared", "pickled"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made = Backend("rocksdb", [COUNT, request.param], tmp_path, **{"state.backend.cache.size": "1mb"})
    yield made
    made.close()


def large(backend: Backend) -> Any:
    return backend.handles[backend.states[1].name]


def fill(backend: Backend) -> None:
    for key in range(KEYS):
        backend.use(key)
        backend.handles["count"].update(1)
        large(backend).update(profile(key))
    backend.checkpoint()


def count(backend: Backend) -> None:
    for key in range(KEYS):
        backend.use(key)
        backend.handles["count"].update((backend.handles["count"].value() or 0) + 1)
    backend.checkpoint()


def let_leave(backend: Backend) -> None:
    """Fill, and count without the values, which leave their rows."""
    fill(backend)
    count(backend)
    assert outside(backend)


def read(backend: Backend) -> None:
    for key in range(KEYS):
        backend.use(key)
        assert large(backend).value() == profile(key)


def outside(backend: Backend, key: int = 0) -> bool:
    """Whether the value of a key lies outside of its row."""
    backend.use(key)
    return type(backend.space.row[2]) is LargeValue


def the_change_of_a_small_state_does_not_store_the_large_one_again(backend: Backend):
    fill(backend)
    assert not outside(backend)
    count(backend)
    assert backend.backend.written > KEYS * SIZE / 2  # the values leave
    assert outside(backend)
    count(backend)
    assert backend.backend.written < KEYS * SIZE / 20
    read(backend)


@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
@pytest.mark.parametrize("elsewhere", [False, True])
def the_values_are_there_after_a_restart(backend: Backend, kind: str, elsewhere: bool):
    let_leave(backend)
    backend.restart(kind=kind, elsewhere=elsewhere)
    assert outside(backend)
    backend.use(0)
    assert backend.handles["count"].value() == 2
    read(backend)
    count(backend)
    backend.restart(kind="rocksdb", elsewhere=True)
    read(backend)


def test_values_that_most_accesses_use_come_back_as_they_are_written(backend: Backend):
    let_leave(backend)
    for _ in range(2):
        read(backend)
        backend.checkpoint()
    assert outside(backend)
    for key in range(KEYS):
        backend.use(key)
        large(backend).update(large(backend).value())
    backend.checkpoint()
    assert not outside(backend)
    backend.restart(elsewhere=True)
    read(backend)
    assert not outside(backend)


def test_new_values_lie_outside_at_once_and_do_not_bring_the_others_back(backend: Backend):
    let_leave(backend)
    for key in range(KEYS, 3 * KEYS):
        backend.use(key)
        backend.handles["count"].update(1)
        large(backend).update(profile(key))
        if key % KEYS == KEYS - 1:
            backend.checkpoint()
            assert outside(backend, key)
    count(backend)
    assert outside(backend)
    backend.restart(elsewhere=True)
    backend.use(2 * KEYS)
    assert large(backend).value() == profile(2 * KEYS)


@pytest.mark.parametrize("size", [SIZE, 100])
@pytest.mark.parametrize("use", ["read", "write", "neither"])
def test_only_values_that_are_large_and_rarely_used_leave(tmp_path: Path, size: int, use: str):
    backend = Backend("rocksdb", [COUNT, PROFILE], tmp_path)
    for _ in range(3):
        for key in range(KEYS):
            backend.use(key)
            backend.handles["count"].update(1)
            held = large(backend).value() if use == "read" or key % 10 == 0 else None
            if use == "write" or (key % 10 == 0 and held is None):
                large(backend).update("a" * size)
        backend.checkpoint()
    assert outside(backend) == (size == SIZE and use == "neither")
    backend.close()


def a_value_alone_in_its_row_stays(tmp_path: Path):
    alone = Backend("rocksdb", [PROFILE], tmp_path)
    for key in range(KEYS):
        alone.use(key)
        alone.handles["profile"].update(profile(key))
    for _ in range(3):
        alone.checkpoint()
        alone.space.table().load(list(range(KEYS)))
    alone.use(0)
    assert alone.space.row[1] == profile(0)
    alone.close()


def a_value_that_is_cleared_or_replaced_is_gone_from_its_own_row(backend: Backend):
    let_leave(backend)
    for key in range(KEYS):
        backend.use(key)
        if key % 2:
            large(backend).clear()
        else:
            large(backend).update("short")
    backend.checkpoint()
    backend.restart(elsewhere=True)
    for key in range(KEYS):
        backend.use(key)
        assert large(backend).value() == (None if key % 2 else "short")
        large(backend).clear()
        backend.handles["count"].clear()
    backend.checkpoint()
    for each in backend.state.spaces.values():
        for table in each.tables.values():
            table.flush()
            assert list(table.stored_rows()) == []
            assert table.rows == {}


def an_integer_is_never_taken_for_the_place_of_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    backend = Backend("rocksdb", [COUNT, PROFILE, ANYTHING], tmp_path)
    for key in range(KEYS):
        backend.use(key)
        backend.handles["profile"].update(profile(key))
        backend.handles["anything"].update(profile(key))
    backend.checkpoint()
    count(backend)
    backend.use(0)
    assert [type(cell) for cell in backend.space.row[2:]] == [LargeValue, LargeValue]
    monkeypatch.setattr(large_values.ValueUses, "judge", lambda self, rows, uses: False)
    backend.handles["anything"].update(0)
    backend.checkpoint()
    backend.restart(elsewhere=True)
    backend.use(0)
    assert backend.handles["anything"].value() == 0
    assert backend.handles["profile"].value() == profile(0)
    backend.handles["profile"].update("\ud800")
    with pytest.raises(UserCodeError, match="of state 'profile' cannot be stored as a value state of STRING"):
        backend.checkpoint()
    backend.close()


def test_readers_of_stored_state_get_the_values_and_keep_none_in_memory(backend: Backend):
    let_leave(backend)
    backend.restart(elsewhere=True)
    columns = declare_stored(backend.state, "keyed", {})
    found = {content.key: content.values for content in contents_of(backend.spaces[False], columns)}
    assert found == {key: (2, profile(key)) for key in range(KEYS)}
    values = backend.state.spaces[f"keyed/{backend.states[1].name}"]
    assert backend.state.schema.states[values.name].kind == VALUES
    assert values.rows() == 0


def test_large_values_leave_memory_first(backend: Backend):
    let_leave(backend)
    rows, values = backend.state.spaces["keyed"], backend.state.spaces[f"keyed/{backend.states[1].name}"]
    assert rows.rows() == values.rows() == KEYS
    backend.state.evict(KEYS * SIZE / 2)
    assert values.rows() < KEYS
    assert rows.rows() == KEYS
    read(backend)


def test_only_large_values_are_judged(backend: Backend):
    assert list(backend.space._uses) == [1]
    assert codec._LARGE_VALUE < SIZE


def the_check_of_a_restore_judges_such_a_state_once(backend: Backend):
    let_leave(backend)
    judging = KeyedState("here", backend.state.schema, registry=restore_check._Judging)
    for descriptor in (COUNT, backend.states[1]):
        judging.space("keyed").get_state(descriptor)
    assert {name: verdict for name, (verdict, *_) in judging.registry.found.items()} == {
        ("keyed", "count"): restore_check.AS_IS,
        ("keyed", backend.states[1].name): restore_check.AS_IS,
    }


def a_value_that_does_not_fit_is_named_when_its_size_is_looked_at(tmp_path: Path):
    backend = Backend("rocksdb", [COUNT, PROFILE], tmp_path)
    fill(backend)
    count_rows = backend.handles["count"]
    for key in range(KEYS):
        backend.use(key)
        count_rows.update(2)
    backend.use(0)
    large(backend).update("\ud800")
    with pytest.raises(UserCodeError, match=r"of state 'profile' cannot be stored as a value state of STRING.*key 0"):
        backend.checkpoint()
    backend.close()
