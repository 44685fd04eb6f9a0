"""Rows that a restore leaves encoded: until they are read, while memory has room for them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.state.backends import compaction, rocksdb

from .backend import Backend

TEXT = ValueStateDescriptor("text", Types.STRING())
KEYS = 2_000


def text(key: int, turn: int) -> str:
    return f"{key} {turn} ".ljust(100, "x")


def restarted(directory: Path, cache: str) -> Backend:
    """A restart elsewhere: all keys in a first delta, half of them changed and a tenth deleted in a second one."""
    backend = Backend("rocksdb", [TEXT], directory, **{"state.backend.cache.size": cache})
    for key in range(KEYS):
        backend.use(key)
        backend.handles["text"].update(text(key, 0))
    backend.checkpoint()
    for key in range(0, KEYS, 2):
        backend.use(key)
        if key % 10 == 0:
            backend.handles["text"].clear()
        else:
            backend.handles["text"].update(text(key, 1))
    backend.checkpoint()
    backend.restart(elsewhere=True)
    return backend


def check(backend: Backend) -> None:
    for key in range(KEYS):
        backend.use(key)
        expected = None if key % 10 == 0 else text(key, int(key % 2 == 0))
        assert backend.handles["text"].value() == expected


def a_restore_decodes_no_row_before_it_is_read(tmp_path: Path):
    backend = restarted(tmp_path, "8mb")
    table = backend.spaces[False].table()
    assert not table.rows
    backend.use(7)
    assert list(table.rows) == [7]
    assert backend.handles["text"].value() == text(7, 0)
    check(backend)
    assert backend.state.restored_memory() == 0
    backend.close()


def the_restored_rows_beyond_the_budget_go_to_the_store_by_and_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(rocksdb, "_PORTION", 20 << 10)
    backend = restarted(tmp_path, "300kb")
    held = [backend.state.memory()]
    assert 300 << 10 < held[0] < (600 << 10) + (40 << 10), "up to two budgets after the restore"
    while backend.state.memory() > 300 << 10:
        backend.backend.bound()
        held.append(backend.state.memory())
        assert held[-2] - (60 << 10) < held[-1] < held[-2], "a portion at a time"
    check(backend)
    backend.close()


def a_restored_row_that_was_changed_is_not_overwritten_by_its_older_form(tmp_path: Path):
    backend = restarted(tmp_path, "8mb")
    for key in range(1, KEYS, 2):
        backend.use(key)
        backend.handles["text"].update("new")
    backend.checkpoint()
    backend.state.evict(KEYS)
    backend.state.store_restored(float("inf"))
    for key in range(KEYS):
        backend.use(key)
        assert backend.handles["text"].value() == ("new" if key % 2 else None if key % 10 == 0 else text(key, 1))
    backend.close()


def a_reused_store_is_not_compacted_before_an_epoch_is_complete(tmp_path: Path):
    backend = Backend("rocksdb", [TEXT], tmp_path)
    backend.use(1)
    backend.handles["text"].update("one")
    backend.checkpoint()
    store = backend.backend._local.store
    store._db.set_options({"disable_auto_compactions": "true"})
    for _ in range(8):
        store.set_meta(store.meta)
        store.flush()
    before = level_0(backend)
    assert before >= 8
    backend.restart()
    assert backend.backend.reused
    assert level_0(backend) == before
    backend.checkpoint()
    while level_0(backend) >= 4:
        time.sleep(0.01)  # RocksDB compacts in its own threads
    backend.close()


@pytest.mark.parametrize("commits", [True, False], ids=["after the commit", "before the cell knows it"])
def the_store_of_a_killed_process_is_reused_when_a_checkpoint_has_a_new_base(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool
):
    monkeypatch.setattr(compaction, "MOST_DELTAS", 3)
    backend = Backend("rocksdb", [TEXT], tmp_path, **{"state.backend.cache.size": "1kb"})
    bases = set()
    for epoch in range(1, 20):
        for key in range(KEYS // 100):
            backend.use(key)
            backend.handles["text"].update(text(key, epoch))
        handles = backend.checkpoint(commit=False)
        adopted = handles[-1].base_epoch not in bases
        bases.add(handles[-1].base_epoch)
        if commits or not adopted:
            backend.backend.completed(handles, backend.epoch, backend._new_path)
        if adopted:
            backend.kill()
            assert backend.backend.reused or not handles[-1].base
            for key in range(KEYS // 100):
                backend.use(key)
                assert backend.handles["text"].value() == text(key, epoch)
    assert len(bases) >= 4
    backend.close()


def the_store_that_was_built_from_a_base_is_reused_when_the_process_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(compaction, "MOST_DELTAS", 1)
    backend = Backend("rocksdb", [TEXT], tmp_path)
    for turn in range(2):
        backend.use(7)
        backend.handles["text"].update(text(7, turn))
        backend.checkpoint()
    monkeypatch.setattr(compaction, "MOST_DELTAS", 64)
    backend.restart(elsewhere=True)
    backend.use(7)
    backend.handles["text"].update("new")
    backend.checkpoint()
    backend.flushed()
    backend.kill()
    assert backend.backend.reused
    backend.use(7)
    assert backend.handles["text"].value() == "new"
    backend.close()


def level_0(backend: Backend) -> int:
    """The number of files in level 0, of which four start a compaction."""
    return sum(file["level"] == 0 for file in backend.backend._local.store._db.live_files())
