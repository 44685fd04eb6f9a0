"""Materialisations that take longer than epochs do."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.paths import JobPaths
from holdfast.errors import StorageError
from holdfast.runtime.protocol import machine
from holdfast.state.backends import compaction, keyed_backend, rocksdb
from holdfast.state.backends.keyed_backend import KeyedStateBackend
from holdfast.state.backends.rocksdb import RocksDBFiles

from .inprocess import LEDGERS, Lab
from .programs import records, sessions, sessions_model


@pytest.fixture
def lab(tmp_path: Path):
    LEDGERS["out"].committed.clear()
    made = Lab(sessions(records(5, 400, keys=30), cut=8), tmp_path, budget=30)
    yield made
    made.close()


def an_upload_that_outlasts_the_sweep_of_orphans_gives_a_restorable_base(lab, monkeypatch):
    monkeypatch.setattr(compaction, "MOST_DELTAS", 2)
    monkeypatch.setattr(machine, "_SWEEP_EVERY", 5)
    upload, snapshot = RocksDBFiles._upload, KeyedStateBackend.snapshot
    go_on = threading.Event()

    def uploading(self: Any, *args: Any) -> Any:
        result = upload(self, *args)
        go_on.wait(600)
        return result

    def snapping(self: Any, new_path: Any) -> Any:
        path = new_path("delta")
        if JobPaths(path.split("/")[0]).parse_state_file(path).epoch == 17:  # three sweeps later
            go_on.set()
            wait([self._pending])
        return snapshot(self, new_path)

    monkeypatch.setattr(RocksDBFiles, "_upload", uploading)
    monkeypatch.setattr(KeyedStateBackend, "snapshot", snapping)
    lab.run([("after complete", 19)])
    assert Counter(map(repr, LEDGERS["out"].values)) == sessions_model(records(5, 400, keys=30))


def a_subtask_that_ends_waits_for_one_file_of_an_upload_at_most(lab, monkeypatch):
    monkeypatch.setattr(compaction, "MOST_DELTAS", 2)
    monkeypatch.setattr(keyed_backend, "_UPLOAD_PATIENCE", 0.0)
    begun, closed = threading.Event(), threading.Event()
    late: list[str] = []
    write, close = rocksdb.store_raw, KeyedStateBackend.close

    def writing(storage: Any, path: str, source: str) -> Any:
        if closed.is_set():
            late.append(path)
        begun.set()
        closed.wait(600)
        return write(storage, path, source)

    def ending(self: Any) -> None:
        close(self)
        closed.set()

    monkeypatch.setattr(rocksdb, "store_raw", writing)
    monkeypatch.setattr(KeyedStateBackend, "close", ending)
    coordinator = lab.coordinator()
    canceller = threading.Thread(target=lambda: begun.wait(600) and coordinator.cancel())
    canceller.start()
    coordinator.run()
    canceller.join()
    assert begun.is_set()
    lab.close()  # ends when the thread that uploads does
    assert not late


def an_upload_that_fails_leaves_no_copy_of_the_store_on_the_disk(lab, monkeypatch, caplog):
    monkeypatch.setattr(compaction, "MOST_DELTAS", 2)

    def failing(storage: Any, path: str, source: str) -> Any:
        raise StorageError("no storage")

    monkeypatch.setattr(rocksdb, "store_raw", failing)
    lab.run()
    assert "(uid 'sessions') failed, will retry: no storage" in caplog.text
    assert not list(lab.disk.rglob("materialisation-*"))
