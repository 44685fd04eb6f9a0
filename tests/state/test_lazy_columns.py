"""Large values that are written but rarely read: rows are loaded without them, and they are read on demand."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import UserCodeError
from holdfast.state.backends import upkeep
from holdfast.state.backends.compaction import Base
from holdfast.state.backends.contents import contents_of, declare_stored
from holdfast.state.cells import large_values
from holdfast.state.cells.large_values import LargeValue
from holdfast.state.store import blob_files
from holdfast.state.store.blob_file import BlobFile

from .backend import Backend

COUNT = ValueStateDescriptor("count", Types.LONG())
PROFILE = ValueStateDescriptor("profile", Types.PRIMITIVE_ARRAY(Types.BYTE()))
ANYTHING = ValueStateDescriptor("anything")
KEYS = 200
SIZE = 1000


def profile(key: int, version: int = 0) -> bytes:
    return random.Random(key * 1_000 + version).randbytes(SIZE)


@pytest.fixture(autouse=True)
def judged_every_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_values, "_ENOUGH", KEYS)


@pytest.fixture(params=[PROFILE, ANYTHING], ids=["declared", "pickled"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    made = Backend("rocksdb", [COUNT, request.param], tmp_path)
    yield made
    made.close()


@pytest.fixture
def values_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of the values that were read from blob files."""
    found: list[int] = []
    value = BlobFile.value
    monkeypatch.setattr(BlobFile, "value", lambda self, offset, *rest: found.append(offset) or value(self, offset, *rest))
    return found


def large(backend: Backend) -> Any:
    return backend.handles[backend.states[1].name]


def replace(backend: Backend, version: int) -> None:
    """Count, and replace each value without reading it."""
    for key in range(KEYS):
        backend.use(key)
        backend.handles["count"].update((backend.handles["count"].value() or 0) + 1)
        large(backend).update(profile(key, version))
    backend.checkpoint()
    forget(backend)


def replace_both(backend: Backend, version: int, *, of_odd_keys: bool = False) -> None:
    """Replace the values of two columns without reading them; ``of_odd_keys``: other keys have none in the second one."""
    for key in range(KEYS):
        backend.use(key)
        backend.handles["profile"].update(profile(key, version))
        backend.handles["anything"].update(profile(KEYS + key, version) if key % 2 or not of_odd_keys else None)
    backend.checkpoint()
    forget(backend)


def forget(backend: Backend) -> None:
    """Move all rows from memory to the store."""
    backend.space.leave_key()
    backend.state.evict(1 << 40)
    assert backend.space.table().rows == {}


def read(backend: Backend, version: int, count: int) -> None:
    for key in range(KEYS):
        backend.use(key)
        assert large(backend).value() == profile(key, version)
        assert backend.handles["count"].value() == count


def is_missing(backend: Backend, key: int = 0) -> bool:
    """Whether the row of a key is loaded without its value."""
    backend.use(key)
    return type(backend.space.row[2]) is LargeValue


def let_unread(backend: Backend) -> None:
    """Replace the values until they are not read any more; their version is then 2, and the count 3."""
    for version in range(3):
        replace(backend, version)
    assert is_missing(backend)
    backend.checkpoint()
    forget(backend)


def a_value_that_is_replaced_and_never_read_stays_on_the_disk(backend: Backend, values_read: list[int]):
    let_unread(backend)
    values_read.clear()
    replace(backend, 3)
    assert values_read == []
    read(backend, 3, 4)
    assert len(values_read) == KEYS


def a_value_is_read_on_demand_and_once(backend: Backend, values_read: list[int]):
    let_unread(backend)
    values_read.clear()
    backend.use(7)
    assert large(backend).value() == profile(7, 2)
    assert large(backend).value() == profile(7, 2)
    assert len(values_read) == 1


@pytest.mark.parametrize("elsewhere", [False, True])
def a_change_of_another_state_stores_the_unread_value_again(backend: Backend, elsewhere: bool):
    let_unread(backend)
    for key in range(KEYS):
        backend.use(key)
        backend.handles["count"].update(9)
    backend.checkpoint()
    backend.restart(elsewhere=elsewhere)
    read(backend, 2, 9)


def test_rows_are_loaded_whole_again_if_most_accesses_read_the_value(backend: Backend, values_read: list[int]):
    let_unread(backend)
    read(backend, 2, 3)
    backend.checkpoint()
    forget(backend)
    values_read.clear()
    assert not is_missing(backend)
    assert len(values_read) == 1
    replace(backend, 3)
    read(backend, 3, 4)


def an_unread_value_is_cleared_or_replaced_as_any_other(backend: Backend):
    let_unread(backend)
    for key in range(KEYS):
        backend.use(key)
        if key % 2:
            large(backend).clear()
            assert large(backend).value() is None
        else:
            large(backend).update(b"short")
        if key % 4 == 1:
            backend.handles["count"].clear()
    backend.checkpoint()
    forget(backend)
    for _ in range(2):
        for key in range(KEYS):
            backend.use(key)
            assert large(backend).value() == (None if key % 2 else b"short")
            assert backend.handles["count"].value() == (None if key % 4 == 1 else 3)
        backend.restart(elsewhere=True)
    table = backend.space.table()
    table.flush()
    assert len(list(table.stored_rows())) == KEYS * 3 // 4


def test_values_that_are_hardly_used_leave_rows_that_were_loaded_without_them(backend: Backend):
    let_unread(backend)
    for _ in range(2):
        for key in range(KEYS):
            backend.use(key)
            backend.handles["count"].update(backend.handles["count"].value() + 1)
        backend.checkpoint()
    assert backend.backend.written < KEYS * SIZE / 20  # they are outside of their rows
    forget(backend)
    read(backend, 2, 5)
    backend.restart(elsewhere=True)
    read(backend, 2, 5)


def the_stubs_are_there_after_a_restart(backend: Backend, values_read: list[int], monkeypatch: pytest.MonkeyPatch):
    let_unread(backend)
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: Base())
    backend.begin_base()
    backend.checkpoint()
    for elsewhere in (False, True):
        backend.restart(elsewhere=elsewhere)
        read(backend, 2, 3)
        for version in (3, 4, 2):
            for key in range(KEYS):
                backend.use(key)
                large(backend).update(profile(key, version))
            backend.checkpoint()
            forget(backend)
        values_read.clear()
        assert is_missing(backend)
        assert values_read == []


def the_collection_of_garbage_keeps_the_stubs(backend: Backend, values_read: list[int], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(blob_files, "_FILE_SIZE", KEYS * SIZE // 4)
    let_unread(backend)
    table = backend.space.table()
    for version in range(3, 13):  # a part of the values is replaced, so that the others are moved
        for key in range(version % 3, KEYS, 3):
            backend.use(key)
            large(backend).update(profile(key, version))
        backend.checkpoint()
        forget(backend)
    size = sum(path.stat().st_size for path in backend.directory.rglob("*.blobs"))
    assert size < 3 * KEYS * SIZE
    values_read.clear()
    table.load(list(range(KEYS)))
    assert values_read == []
    for key in range(KEYS):
        backend.use(key)
        assert large(backend).value() == profile(key, 10 + (key % 3 - 1) % 3)
    assert len(values_read) == KEYS


def test_readers_of_stored_state_get_lazy_columns(backend: Backend):
    let_unread(backend)
    backend.restart(elsewhere=True)
    columns = declare_stored(backend.state, "keyed", {})
    found = {content.key: content.values for content in contents_of(backend.spaces[False], columns)}
    assert found == {key: (3, profile(key, 2)) for key in range(KEYS)}


def test_rows_of_another_column_without_which_they_are_loaded_are_read_whole(tmp_path: Path):
    """Stubs that were written without other values are no stubs of these."""
    backend = Backend("rocksdb", [COUNT, PROFILE, ANYTHING], tmp_path)
    for version in range(3):
        replace_both(backend, version)
    backend.use(0)
    assert [type(cell) for cell in backend.space.row[2:]] == [LargeValue, LargeValue]
    for _ in range(2):
        for key in range(KEYS):
            backend.use(key)
            assert backend.handles["anything"].value() == profile(KEYS + key, 2)
            backend.handles["profile"].update(profile(key, 3))
        backend.checkpoint()
        forget(backend)
    for key in range(KEYS):
        backend.use(key)
        assert type(backend.space.row[2]) is LargeValue
        assert backend.space.row[3] == profile(KEYS + key, 2)
        assert backend.handles["profile"].value() == profile(key, 3)
    backend.close()


def a_row_that_lacks_the_value_itself_is_loaded_whole(tmp_path: Path):
    backend = Backend("rocksdb", [COUNT, PROFILE, ANYTHING], tmp_path)
    for version in range(4):
        replace_both(backend, version, of_odd_keys=True)
    for key in range(KEYS):
        backend.use(key)
        assert backend.handles["anything"].value() == (profile(KEYS + key, 3) if key % 2 else None)
        assert backend.handles["profile"].value() == profile(key, 3)
    backend.close()


def a_value_that_does_not_fit_is_found_beside_an_unread_one(tmp_path: Path):
    backend = Backend("rocksdb", [COUNT, PROFILE], tmp_path)
    let_unread(backend)
    backend.use(5)
    backend.handles["count"].update(2**70)
    with pytest.raises(UserCodeError, match=r"\d+ of state 'count' cannot be stored as a value state of LONG.*key 5"):
        backend.space.check(5)
    backend.use(6)
    backend.handles["count"].update(1)
    backend.space.check(6)
    backend.close()


def a_row_that_is_lost_with_its_value_is_an_error(backend: Backend):
    let_unread(backend)
    backend.use(3)
    store = backend.backend._local.store
    store.delete_range(b"", b"\xff" * 8)
    with pytest.raises(OSError, match="has lost the row of key 3"):
        large(backend).value()
