"""Bases and merged deltas: how often bytes are written again, how much a restore reads, and what happens if one fails."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.checkpoint.handles import LARGEST_INLINE, Handle, IndexedFile, InlineFile, inline_limit, kept_inline_limit
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.common.typeinfo import Types
from holdfast.datastream.state import MapStateDescriptor
from holdfast.datastream.state import ValueStateDescriptor as Value
from holdfast.state.backends import compaction, delta_merge, keyed_backend, upkeep
from holdfast.state.backends.backend import INLINE_THRESHOLD, size_of
from holdfast.state.backends.compaction import Base, Merge, due
from holdfast.state.cells import entries
from holdfast.state.rows import keyed_state
from holdfast.state.store import store
from holdfast.state.store.store import RocksDBStore
from holdfast.state.stored import delta_files
from holdfast.state.stored.delta import StoredDelta
from holdfast.state.stored.delta_files import DeltaFiles

from .backend import Backend

MB = 1 << 20
TEXT = Value("text", Types.STRING())
SCORES = MapStateDescriptor("scores", Types.INT(), Types.STRING())


class Epochs:
    """The sizes of a state's files, epoch after epoch, if every base and merge is stored at once."""

    def __init__(self, base: int, kept: float, linked: bool = False) -> None:
        """``base``: the size of every base; ``kept``: the part of the bytes of deltas that a merge keeps."""
        self._base = base
        self._linked = linked
        self._kept = kept
        self.handle = KeyedHandle(0, 127, base=[_file(base)])
        self.changed = self.written = 0
        self.bases = self.epochs = 0

    def end(self, size: int) -> None:
        """End an epoch with a delta of this size."""
        self.changed += size
        self.written += size
        self.handle = KeyedHandle(0, 127, base=self.handle.base, deltas=[*self.handle.deltas, _file(size)])
        self.epochs += 1
        while (what := due([self.handle], self._linked, self.epochs)) is not None:
            deltas = self.handle.deltas
            if isinstance(what, Base):
                self.bases += 1
                self.epochs = 0
                self.written += 0 if self._linked else self._base
                self.handle = KeyedHandle(0, 127, base=self.handle.base)
            else:
                assert 0 <= what.first < what.end < len(deltas), "the newest delta is not merged"
                size = max(1, int(self._kept * sum(map(size_of, deltas[what.first : what.end]))))
                self.written += size
                merged = [*deltas[: what.first], _file(size), *deltas[what.end :]]
                self.handle = KeyedHandle(0, 127, base=self.handle.base, deltas=merged)


def _file(size: int) -> Handle:
    return IndexedFile("", size, b"")


@pytest.mark.parametrize("share", [0.01, 0.03, 0.3])
@pytest.mark.parametrize("base", [25 * MB, 2500 * MB, 100_000 * MB])
def the_changes_of_a_part_of_the_state_are_written_one_and_a_half_times_at_most(base: int, share: float) -> None:
    epochs = Epochs(base, 1.0)
    while epochs.bases < 3:
        epochs.end(int(base * share))
        read = sum(map(size_of, epochs.handle.handles()))
        assert read <= max((2.5 + share + 1) * base, base + 64 * MB + base * share)
    assert epochs.written <= 1.5 * epochs.changed
    assert len(epochs.handle.deltas) < 260


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1])
@pytest.mark.parametrize("base", [25 * MB, 400 * MB, 2500 * MB, 100_000 * MB])
def the_deltas_of_a_large_state_stay_below_a_sixteenth_of_it_with_linked_bases(base: int, share: float) -> None:
    epochs = Epochs(base, 1.0, linked=True)
    least = min(2.5 * base, max(256 * MB, base / 16))
    most = max(64 * MB, least)
    while epochs.bases < 3:
        epochs.end(int(base * share))
        assert sum(map(size_of, epochs.handle.deltas)) <= most
    assert epochs.changed > 3 * least, "no base comes earlier"
    assert epochs.written <= 2 * epochs.changed, "of the base, nothing is written again; tiny deltas may be merged"


@settings(max_examples=examples(12), deadline=None)
@given(
    base=st.integers(0, 34).map(lambda power: 1 << power),
    kept=st.sampled_from([0.01, 0.5, 1.0]),
    usual=st.integers(0, 28).map(lambda power: 1 << power),
    spread=st.sampled_from([1, 4, 1000]),
    seed=st.integers(0, 1000),
)
def the_deltas_of_an_epoch_of_any_size_stay_few_and_are_rarely_written_again(
    base: int, kept: float, usual: int, spread: int, seed: int
) -> None:
    chance = random.Random(seed)
    epochs = Epochs(base, kept)
    small = max(256 << 10, base // 1024)
    for _ in range(600):
        epochs.end(int(usual * spread ** chance.uniform(-1, 1)) + 1)
        few = sum(size_of(delta) < small for delta in epochs.handle.deltas)
        assert few <= 320 + 16 * (len(epochs.handle.deltas) - few)
    # Once as a delta, once in each of up to five bands of sizes, and in bases. Below 64 KB, bytes may be written more often.
    assert epochs.written <= 7 * epochs.changed + base + 600 * 1024


@settings(max_examples=examples(12), deadline=None)
@given(
    wanted=st.sampled_from([1, 300, 20 << 10, LARGEST_INLINE]),
    writers=st.sampled_from([1, 2, 64, 1000]),
    kept=st.sampled_from([0.05, 0.5, 1.0]),
    usual=st.integers(5, 18).map(lambda power: 1 << power),
    seed=st.integers(0, 1000),
)
def the_deltas_in_the_metadata_stay_few_bytes_and_are_rarely_written_again(
    wanted: int, writers: int, kept: float, usual: int, seed: int
) -> None:
    chance = random.Random(seed)
    threshold, most = inline_limit(wanted, writers), kept_inline_limit(writers)
    deltas: list[Handle] = []
    changed = written = 0

    def store(size: int) -> Handle:
        return InlineFile("", bytes(size), b"") if size <= threshold else IndexedFile("", size, b"")

    for _ in range(400):
        size = int(usual * chance.uniform(0.5, 1.5))
        changed += size
        deltas.append(store(size))
        while isinstance(what := due([KeyedHandle(0, 127, deltas=deltas)], kept=most), Merge):
            size = max(1, int(kept * sum(map(size_of, deltas[what.first : what.end]))))
            written += size
            deltas[what.first : what.end] = [store(size)]
        assert sum(size_of(each) for each in deltas if isinstance(each, InlineFile)) <= most + 2 * threshold
    assert written <= 5 * changed + 400 * 1024


def the_tiny_changes_of_a_large_state_are_merged_again_and_again_without_a_base() -> None:
    epochs = Epochs(5000 * MB, 1.0)
    for _ in range(6000):
        epochs.end(1000)
    assert not epochs.bases
    assert len(epochs.handle.deltas) < 3 * 64
    assert epochs.written <= 3.5 * epochs.changed


def a_small_state_has_a_base_after_a_few_megabytes_of_changes_but_not_in_each_few_epochs() -> None:
    epochs = Epochs(500_000, 1.0)
    for _ in range(640):
        epochs.end(20_000)
        assert sum(map(size_of, epochs.handle.deltas)) <= 4 * MB + 20_000
    assert epochs.bases == 640 * 20_000 // (4 * MB)
    epochs = Epochs(500_000, 1.0)
    for _ in range(640):
        epochs.end(400_000)
    assert epochs.bases == 640 // 64


@pytest.mark.parametrize("size", [3_000_000, 4_100_000, 5_000_000])
def a_merge_never_reads_more_than_its_share_of_the_base(size: int) -> None:
    handle = KeyedHandle(0, 127, base=[_file(8000 * MB)], deltas=[_file(size) for _ in range(80)])
    merge = due([handle])
    assert isinstance(merge, Merge)
    assert 100 * MB < (merge.end - merge.first) * size <= 8000 * MB // 64


def a_restore_from_several_predecessors_gives_one_base() -> None:
    assert due([KeyedHandle(0, 63), KeyedHandle(64, 127)]) == Base()


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four deltas are merged."""
    monkeypatch.setattr(compaction, "ALIKE", 4)
    monkeypatch.setattr(entries, "MOST_IN_ROW", 2)


def write(backend: Backend, epochs: range, keys: int = 20) -> None:
    for epoch in epochs:
        for key in (*range(keys), f"epoch {epoch}"):
            backend.use(key)
            backend.handles["text"].update(f"{key} at {epoch}" * 10)
        backend.use("map")
        backend.handles["scores"].put_all({n: f"{n} at {epoch}" * 10 for n in range(10)})
        backend.checkpoint()


def check(backend: Backend, epoch: int, keys: int = 20) -> None:
    for key, at in (*((key, epoch) for key in range(keys)), *((f"epoch {each}", each) for each in range(epoch + 1))):
        backend.use(key)
        assert backend.handles["text"].value() == f"{key} at {at}" * 10
    backend.use("map")
    assert dict(backend.handles["scores"].items()) == {n: f"{n} at {epoch}" * 10 for n in range(10)}
    backend.space.row = []


@pytest.mark.parametrize("kind", ["rocksdb", "hashmap"])
@pytest.mark.usefixtures("soon")
def the_rows_and_entries_that_change_in_every_epoch_are_once_in_a_merged_delta(tmp_path: Path, kind: str) -> None:
    backend = Backend(kind, [TEXT, SCORES], tmp_path)
    write(backend, range(1))
    one = size_of(backend.checkpoints[-1][0][-1].deltas[0])
    write(backend, range(1, 40))
    ((own,), _) = backend.checkpoints[-1]
    assert len(own.deltas) <= 6
    assert not own.base
    assert sum(map(size_of, own.deltas)) <= 7 * one
    backend.restart(elsewhere=True)
    check(backend, 39)
    backend.close()


@pytest.mark.parametrize(
    "merges", [False, True], ids=["without merges", "with the last settled delta merged again and again"]
)
def a_restart_on_the_same_host_reads_only_deltas_that_the_store_may_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, merges: bool
) -> None:
    monkeypatch.setattr(entries, "MOST_IN_ROW", 2)
    monkeypatch.setattr(compaction, "ALIKE", 4 if merges else 64)
    backend = Backend("rocksdb", [TEXT, SCORES], tmp_path)
    write(backend, range(1))
    one = size_of(backend.checkpoints[-1][0][-1].deltas[0])
    monkeypatch.setattr(upkeep, "_LACKING", 4 * one)
    read = _replayed(monkeypatch)
    for epoch in range(1, 31, 3):
        write(backend, range(epoch, epoch + 3))
        deltas = backend.checkpoints[-1][0][-1].deltas
        backend.flushed()
        read.clear()
        backend.kill()
        assert backend.backend.reused or epoch == 1
        assert read == deltas[len(deltas) - len(read) :]
        assert sum(map(size_of, read)) <= 4 * one
        check(backend, epoch + 2)
    assert (len(deltas) < 8) == merges
    read.clear()
    backend.restart(elsewhere=True)
    assert read == deltas
    check(backend, 30)
    backend.close()


def a_restart_after_a_merge_of_the_last_settled_delta_reads_the_merged_one_and_none_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Backend("rocksdb", [TEXT, SCORES], tmp_path)
    write(backend, range(9))
    with monkeypatch.context() as settling:
        settling.setattr(upkeep, "_CHANGED", -1)
        write(backend, range(9, 10))
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: Merge(4, 12) if len(handles[-1].deltas) == 14 else None)
    write(backend, range(10, 15))
    deltas = backend.checkpoints[-1][0][-1].deltas
    assert len(deltas) == 4 + 1 + 3
    read = _replayed(monkeypatch)
    backend.kill()
    assert backend.backend.reused
    assert read == deltas[4:]
    check(backend, 14)
    backend.close()


def count_writes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Count the rows of each write to a store from now on, in the returned list."""
    written: list[int] = []
    write_rows = RocksDBStore.write

    def counted(self: RocksDBStore, puts: Iterable[tuple[bytes, bytes]], *rest: Any) -> None:
        rows = list(puts)
        written.append(len(rows))
        write_rows(self, rows, *rest)

    monkeypatch.setattr(RocksDBStore, "write", counted)
    return written


def the_committed_rows_go_to_the_store_in_portions_before_a_base_while_other_rows_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Backend("rocksdb", [TEXT], tmp_path)
    texts = dict.fromkeys(range(6000), "old" * 40)
    changed = list(texts)
    written = count_writes(monkeypatch)
    monkeypatch.setattr(keyed_state, "_PORTION", 100 << 10)
    epochs: list[int] = []
    while backend.backend.uploading is None:
        for key in changed:
            backend.use(key)
            backend.handles["text"].update(texts[key])
        written.clear()
        backend.checkpoint()
        epochs.append(sum(written))
        monkeypatch.setattr(upkeep, "due", lambda handles, *_: Base())
        changed = random.Random(len(epochs)).sample(range(6000), 300)
        texts.update((key, f"at {len(epochs)}" * 30) for key in changed)
    assert 12 <= len(epochs) <= 40
    assert max(epochs) <= 2000, "at a time"
    assert sum(epochs) >= 6000
    backend.kill()
    for key, text in texts.items():
        backend.use(key)
        if key not in changed:  # in an epoch that did not end
            assert backend.handles["text"].value() == text
    backend.close()


def epochs_until_a_base(directory: Path, monkeypatch: pytest.MonkeyPatch, *, evicted_counts: bool) -> tuple[int, int]:
    """The epochs in which all rows go to the store, while new keys push older ones out; and the rows written in these."""
    with monkeypatch.context() as patched:
        written = count_writes(patched)
        patched.setattr(keyed_state, "_PORTION", 10 << 10)
        patched.setattr("holdfast.state.rows.table._PART", 16)
        if not evicted_counts:
            patched.setattr(keyed_state, "_EVICTED", 0)
        backend = Backend("rocksdb", [TEXT], directory, **{"state.backend.cache.size": "8mb"})
        keys = epochs = 0
        while backend.backend.uploading is None:
            for key in range(keys, keys + 1000):
                backend.use(key)
                backend.handles["text"].update("x" * 1000)
            keys += 1000
            if len(backend.state.spaces["keyed"].table().rows) < keys:
                if not epochs:
                    patched.setattr(upkeep, "due", lambda handles, *_: Base())
                    written.clear()
                epochs += 1
            backend.checkpoint()
        backend.close()
    return epochs, sum(written)


def the_committed_rows_go_to_the_store_in_fewer_epochs_while_others_are_evicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, rows_slow = epochs_until_a_base(tmp_path / "slow", monkeypatch, evicted_counts=False)
    quick, rows_quick = epochs_until_a_base(tmp_path / "quick", monkeypatch, evicted_counts=True)
    assert 3 <= quick <= 0.7 * slow, (quick, slow)
    assert rows_quick < 1.2 * rows_slow, (rows_quick, rows_slow)


@pytest.mark.parametrize("again", [False, True], ids=["for good", "and filled again"])
@pytest.mark.parametrize("dropped", [0, 60_000])
def a_window_that_is_dropped_while_rows_go_to_the_store_leaves_none_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropped: int, again: bool
) -> None:
    monkeypatch.setattr(keyed_state, "_PORTION", 1)
    backend = Backend("rocksdb", [TEXT], tmp_path)
    for window in (0, 60_000):
        for key in range(2000):
            backend.use(key, window)
            backend.handles["text"].update("x" * 40)
    backend.checkpoint()
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: Base())
    backend.checkpoint()
    windows = backend.spaces[True]
    assert windows.table(0).in_store, "rows of the first window are there"
    assert not windows.table(60_000).in_store, "none of the second one"
    windows.drop(dropped)
    if again:
        backend.use(7, dropped)
        backend.handles["text"].update("again")
    backend.begin_base()
    backend.checkpoint()
    for elsewhere in (False, True):
        backend.restart(elsewhere=elsewhere)
        for window in (0, 60_000):
            table = backend.spaces[True].table(window)
            assert sorted(dict(table.stored_rows()) | table.rows) == (
                [7] * again if window == dropped else list(range(2000))
            )
    backend.close()


def a_base_and_its_adoption_wait_until_a_flush_takes_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_LITTLE", 0)
    monkeypatch.setattr(compaction, "MOST_DELTAS", 3)
    told: list[bool] = []
    ask = RocksDBStore.flushed_ahead

    def asked(self: RocksDBStore) -> bool:
        told.append(ask(self))
        return told[-1]

    monkeypatch.setattr(RocksDBStore, "flushed_ahead", asked)
    backend = Backend("rocksdb", [TEXT, SCORES], tmp_path)
    epoch = 0
    while not any(handle.base for handle in backend.checkpoints[-1][0]):
        write(backend, range(epoch, epoch + 1))
        epoch += 1
    assert epoch < 1000
    assert told.count(False) >= 2, "before the base began, and before it was adopted"
    assert told.count(True) >= 2
    backend.kill()
    assert backend.backend.reused
    check(backend, epoch - 1)
    backend.close()


@pytest.mark.parametrize(("memory", "merged"), [(1_000_000, 1), (1000, 3)])
def a_merge_of_deltas_that_take_much_memory_leaves_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, memory: int, merged: int
) -> None:
    monkeypatch.setattr(delta_merge, "_AT_ONCE", memory)
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: Merge(0, 24) if len(handles[-1].deltas) == 25 else None)
    backend = Backend("rocksdb", [TEXT, SCORES], tmp_path)
    write(backend, range(25))
    backend.checkpoint()
    assert len(backend.checkpoints[-1][0][-1].deltas) == merged + 1
    backend.restart(elsewhere=True)
    check(backend, 24)
    backend.close()


@pytest.mark.parametrize("changed", ["the same rows", "other rows"])
def a_merge_that_would_keep_nearly_all_joins_the_files_of_the_other_deltas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    joined: list[int] = []
    join = DeltaFiles.join

    def counted(self: DeltaFiles, deltas: Sequence[StoredDelta], path: str) -> Handle:
        joined.append(len(deltas))
        return join(self, deltas, path)

    monkeypatch.setattr(DeltaFiles, "join", counted)
    monkeypatch.setattr(delta_merge, "_AT_ONCE", 0)
    monkeypatch.setattr(upkeep, "due", lambda handles, *_: Merge(0, 24) if len(handles[-1].deltas) == 25 else None)
    backend = Backend("rocksdb", [TEXT], tmp_path)
    for epoch in range(26):
        for key in range(100):
            backend.use(key if changed == "the same rows" else 100 * epoch + key)
            backend.handles["text"].update(f"{key} at {epoch}")
        backend.use("often")
        backend.handles["text"].update(f"at {epoch}" if epoch % 3 else None)
        backend.checkpoint()
    assert joined == ([] if changed == "the same rows" else [8, 8])
    assert len(backend.checkpoints[-1][0][-1].deltas) == 3 + 2
    backend.restart(elsewhere=True)
    for key in range(100):
        for epoch in (3, 25):
            backend.use(key if changed == "the same rows" else 100 * epoch + key)
            assert backend.handles["text"].value() == f"{key} at {25 if changed == 'the same rows' else epoch}"
    backend.use("often")
    assert backend.handles["text"].value() == "at 25"
    backend.close()


def _replayed(monkeypatch: pytest.MonkeyPatch) -> list[Handle]:
    """The deltas that are read from now on, in order."""
    read: list[Handle] = []
    replay: Callable[..., object] = DeltaFiles.replay

    def replaying(self: DeltaFiles, handle: Handle, *args: object) -> object:
        read.append(handle)
        return replay(self, handle, *args)

    monkeypatch.setattr(DeltaFiles, "replay", replaying)
    monkeypatch.setattr(keyed_backend, "in_parallel", lambda function, items, at_once=4: map(function, items))  # in order
    return read


@pytest.mark.usefixtures("soon")
def a_base_follows_when_a_merge_fails(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_files, "_LARGEST_KEPT", 0)  # merges read the storage
    backend = Backend("rocksdb", [TEXT, SCORES], tmp_path, **{INLINE_THRESHOLD: "0"})
    write(backend, range(4))
    lost = backend.checkpoints[-1][0][-1].deltas[1]
    assert isinstance(lost, IndexedFile)
    backend.storage.delete([lost.path])
    write(backend, range(4, 10))
    assert "storing merged deltas of the state of 'op' (uid 'op') failed, will retry" in caplog.text
    ((own,), _) = backend.checkpoints[-1]
    assert own.base
    assert lost not in own.deltas
    backend.restart(elsewhere=True)
    check(backend, 9)
    backend.close()
