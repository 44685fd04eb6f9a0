"""The chunks of a bucket of timers: when they are merged, with their rows counted."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.state.store.ordered import SortedMemory
from holdfast.state.timers import timer_chunks
from holdfast.state.timers.timer_chunks import TimerChunks, TimerList


@pytest.fixture(autouse=True)
def few_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer_chunks, "_MOST_REMOVED", 2)


def begun() -> tuple[SortedMemory, TimerChunks]:
    store = SortedMemory()
    return store, TimerChunks(16, store, lambda keys: [2 for _ in keys], namespaced=False)


def the_chunks_of_a_bucket_are_merged_when_most_of_their_timers_are_gone():
    store, chunks = begun()

    def rows() -> int:
        return len(list(store.scan(b"", b"\xff")))

    def some(first: int, end: int) -> set[tuple[int, Any]]:
        return {(at, "a") for at in range(first, end)}

    chunks.write(0, some(0, 10), ())
    chunks.write(0, (), some(0, 2))
    assert rows() == 2
    chunks.write(0, (), some(2, 6))
    assert rows() == 1
    chunks.write(0, some(20, 25), ())
    assert rows() == 2, "the merged ones count no longer"
    chunks.write(0, (), some(20, 23))
    assert rows() == 3, "those that were left count"
    assert chunks.load(0) == some(6, 10) | some(23, 25)


def the_timers_that_are_gone_count_in_a_store_that_is_opened_again():
    store, chunks = begun()
    chunks.write(0, {(at, "a") for at in range(10)}, ())
    chunks.write(0, (), {(at, "a") for at in range(5)})
    again = TimerChunks(16, store, lambda keys: [2 for _ in keys], namespaced=False)
    again.write(0, (), {(5, "a")})
    assert len(list(store.scan(b"", b"\xff"))) == 1
    assert again.load(0) == {(at, "a") for at in range(6, 10)}


def test_deleted_timers_that_were_never_stored_fill_no_chunks():
    store, chunks = begun()
    stored = {(at, "a") for at in range(4)}
    chunks.write(0, stored, ())
    chunks.write(0, (), {(at, "a") for at in range(100, 150)})
    assert len(list(store.scan(b"", b"\xff"))) == 1
    assert chunks.load(0) == stored


def test_timers_in_rows_of_their_own_count_when_chunks_are_merged():
    store, chunks = begun()
    first = {(at, "a") for at in range(10)}
    store.write([(row, b"") for row in chunks.single_rows(TimerList.of(first, False))])
    chunks.write(0, (), {(at, "a") for at in range(3)})
    assert len(list(store.scan(b"", b"\xff"))) == 11
    assert chunks.load(0) == {(at, "a") for at in range(3, 10)}
