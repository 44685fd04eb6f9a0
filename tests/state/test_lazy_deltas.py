"""A restore from an object store: the job begins while rows of deltas are being fetched; changes, damage and faults."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint.handles import IndexedFile
from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.errors import CorruptFile
from holdfast.state.backends import rocksdb, upkeep
from holdfast.state.backends.compaction import Base, Merge
from holdfast.state.keys.key_groups import KeyGroupRange
from holdfast.state.rows import keyed_state, lazy_deltas, restored_rows

from .backend import cell_content
from .test_lazy_files import (
    BLOB,
    KEYS,
    MAP,
    Remote,
    blob,
    check_damage_at_the_start,
    check_damage_in_the_background,
    check_silent_storage,
    restored,
)

EPOCHS = 6


class Deltas(Remote):
    """Checkpoints in a bucket: no base; a delta with all keys, then some with a third of them."""

    turns: dict[int, int]

    def deltas(self) -> list[IndexedFile]:
        handles, _ = self.checkpoints[-1]
        return [each for handle in handles for each in handle.deltas if isinstance(each, IndexedFile)]

    def change(self, keys: list[int], turn: int) -> None:
        for key in keys:
            self.use(key)
            self.handles["blob"].update(blob(key, turn))
            self.turns[key] = turn

    def delete(self, keys: list[int]) -> None:
        for key in keys:
            self.use(key)
            self.handles["blob"].clear()
            self.turns.pop(key, None)

    def read(self, keys: list[int]) -> None:
        for key, row in zip(keys, self.spaces[False].table().load(keys)):
            expected = blob(key, self.turns[key]) if key in self.turns else None
            found = cell_content(row[1], key)
            assert (None if found is None else bytes(found)) == expected, key

    def own(self) -> list[int]:
        return [key for key, group in enumerate(self.spaces[False].groups_of(list(range(KEYS)))) if group in self.groups]

    def check(self) -> None:
        self.read(self.own())

    def fetched(self) -> int:
        """Bytes of the ranges that were read for lookups, and at the start."""
        return sum(length for _, _, length in self.bucket.ranges)


@pytest.fixture
def remote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deltas]:
    monkeypatch.setattr("holdfast.state.snapshots.lazy_restore._LARGE", 0)
    monkeypatch.setattr(lazy_deltas, "_LEAST", 16 << 10)
    monkeypatch.setattr(rocksdb, "_SMALL", 0)
    monkeypatch.setattr(lazy_deltas, "_GAP", 0)
    monkeypatch.setattr(keyed_state, "_PORTION", 64 << 20)
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: None)
    backend = Deltas(tmp_path)
    backend.bucket.held = (".sst", ".delta")
    backend.turns = {}
    backend.change(list(range(KEYS)), 0)
    backend.checkpoint()
    for turn in range(1, EPOCHS):
        backend.change(random.Random(turn).sample(range(KEYS), KEYS // 20), turn)
        backend.delete(random.Random(-turn).sample(range(KEYS), 10))
        backend.checkpoint()
    yield backend
    backend.bucket.let_through.set()
    backend.close()


def a_read_fetches_the_pieces_that_it_needs(remote: Deltas):
    size = sum(delta.size for delta in remote.deltas())
    restored(remote)
    opened = remote.fetched()
    assert opened < size / 12, "the ends of the files"
    remote.read([1, 2, 3, 4])
    assert 0 < remote.fetched() - opened < 4 * (18 << 10)
    before = remote.fetched()
    remote.read([1, 2, 3, 4, KEYS, KEYS + 1])
    assert remote.fetched() == before
    assert remote.state.restored_memory() < KEYS * EPOCHS * restored_rows._ENTRY
    for _ in range(2):
        remote.change([1, 2], EPOCHS)
        remote.checkpoint()
    assert remote.lazy.incomplete
    remote.arrive()
    remote.checkpoint()
    assert not remote.lazy.incomplete
    remote.check()
    assert remote.state.restored_memory() == 0


@pytest.mark.parametrize("seed", range(6))
def test_everything_is_there_before_and_after_all_has_arrived(remote: Deltas, seed: int, monkeypatch: pytest.MonkeyPatch):
    pick = random.Random(seed)
    if seed % 2:
        monkeypatch.setattr(restored_rows, "_MOST_OPENED", 64 << 10)
        remote.config["state.backend.cache.size"] = "100kb"
    if seed % 3 == 0:
        monkeypatch.setattr(upkeep, "due", lambda handles, *_: Base())
        remote.checkpoint()
        remote.checkpoint()
        monkeypatch.setattr(upkeep, "due", lambda handles, *_: None)
        for turn in (EPOCHS, EPOCHS + 1):
            remote.change(pick.sample(range(KEYS), KEYS // 10), turn)
            remote.checkpoint()
    for restart in range(3):
        if restart == 2:
            remote.groups = pick.choice([KeyGroupRange(0, 63), KeyGroupRange(16, 127), KeyGroupRange(32, 47)])
        restored(remote)
        for step in range(20):
            keys = pick.sample(remote.own(), 30)
            remote.read(keys)
            remote.change(keys[:5], 100 * restart + step)
            remote.delete(keys[5:7])
            if pick.random() < 0.3:
                remote.checkpoint()
            if pick.random() < 0.1:
                remote.state.store_restored(pick.choice([1, 100_000]))
            if step == 15:
                remote.bucket.let_through.set()
        remote.arrive()
        remote.checkpoint()
        remote.check()
    remote.state.flush()
    remote.check()


def the_rows_that_later_deltas_replace_are_not_fetched(remote: Deltas):
    remote.change(list(range(KEYS)), EPOCHS)
    remote.checkpoint()
    *_, last = remote.deltas()
    remote.config["state.backend.cache.size"] = "10mb"
    read: set[str] = set()

    def note(path: str, start: int) -> None:
        if threading.current_thread().name == "holdfast-lazy-restore":
            read.add(path)

    remote.bucket.before = note
    restored(remote)
    remote.arrive()
    assert read == {last.path}
    remote.check()


def a_base_and_a_merge_wait_until_all_rows_are_there(remote: Deltas, monkeypatch: pytest.MonkeyPatch):
    restored(remote)
    before = remote.deltas()
    for wanted in (Merge(0, 3), Base()):
        monkeypatch.setattr(upkeep, "due", lambda handles, *_, wanted=wanted: wanted)
        remote.change([1, 2, 3], EPOCHS)
        remote.checkpoint()
        remote.checkpoint()
        assert remote.deltas()[: len(before)] == before
    remote.arrive()
    for _ in range(3):
        remote.checkpoint()
    assert before[0] not in remote.deltas()
    remote.restart(elsewhere=True)
    remote.check()


def a_store_that_memory_has_no_room_for_gets_the_rows(remote: Deltas):
    remote.config["state.backend.cache.size"] = "20kb"
    remote.bucket.ranges.clear()
    remote.restart(elsewhere=True)
    assert remote.state.memory() < 60 << 10
    longest = max(length for _, _, length in remote.bucket.ranges)
    assert longest > 100 << 10, "pieces that lie side by side are one request"
    remote.check()


def a_state_that_is_declared_later_reads_the_rows_that_come_late(remote: Deltas):
    remote.states = [BLOB, MAP, ValueStateDescriptor("more", Types.INT())]
    restored(remote)
    remote.use(5)
    remote.handles["more"].update(7)
    remote.checkpoint()
    remote.arrive()
    remote.checkpoint()
    remote.check()
    remote.bucket.let_through.clear()
    remote.restart(elsewhere=True)
    remote.use(5)
    assert remote.handles["more"].value() == 7
    remote.check()


@pytest.mark.parametrize("at", [0.1, 0.5, 0.8])
def test_damage_is_never_read_and_its_file_is_named(remote: Deltas, at: float):
    damaged = remote.deltas()[0]
    remote.damage(damaged, at)
    restored(remote)
    with pytest.raises(CorruptFile, match=r"piece .* it holds state of 'op' \(uid 'op'\): 'keyed'") as found:
        remote.check()
    assert found.value.path.endswith(damaged.path)
    with pytest.raises(CorruptFile, match="it holds state of 'op'"):  # also if a function has caught the error
        remote.checkpoint()


def test_damage_that_nobody_reads_is_found_in_the_background(remote: Deltas):
    check_damage_in_the_background(remote, remote.deltas()[0], 1 / 3)


@pytest.mark.parametrize("truncated", [False, True])
def a_file_that_vanishes_or_shrinks_is_missed(remote: Deltas, truncated: bool):
    restored(remote)
    for file in remote.deltas():
        if truncated:
            remote.bucket.objects[file.path] = remote.bucket.objects[file.path][:100]
        else:
            del remote.bucket.objects[file.path]
    with pytest.raises(CorruptFile, match=r"(truncated.*|missing); it holds state of 'op'"):
        remote.check()


def a_damaged_end_is_refused_before_the_first_epoch(remote: Deltas):
    damaged = remote.deltas()[1]
    check_damage_at_the_start(remote, damaged, 1 - 40 / damaged.size)


def test_storage_that_does_not_answer_is_tried_again_and_then_fails_the_epoch(remote: Deltas):
    check_silent_storage(remote, lambda: remote.read([1]))
