"""Recovery follows what is alive: changes of rows are merged, and a small state has a new base after few changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.handles import IndexedFile
from holdfast.checkpoint.metadata import KeyedHandle
from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.state.backends import compaction
from holdfast.state.backends.backend import size_of
from holdfast.state.cells.row_pieces import encoded_rows
from holdfast.state.stored.delta import Change, read_delta
from holdfast.state.timers.timer_chunks import unpack_change

from .backend import Backend

COUNT = ValueStateDescriptor("count", Types.LONG())
KEYS, EPOCHS = 10, 1_000


def _deltas(backend: Backend, handles: list[KeyedHandle]) -> list[Change]:
    """The changes that a restore from these handles applies, dumps included."""
    files = [each for handle in handles for each in handle.handles() if isinstance(each, IndexedFile)]
    return [change for file in files for change in read_delta(backend.storage, file)]


def _size(handles: list[KeyedHandle]) -> int:
    return sum(size_of(each) for handle in handles for each in handle.handles())


def _changed_timers(change: Change) -> int:
    return sum(len(timers.times) for piece in change.pieces for timers in unpack_change(piece.data))


@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
def a_restore_reads_and_replays_what_is_alive_after_a_thousand_times_as_many_changes(kind: str, tmp_path: Path) -> None:
    backend = Backend(kind, [COUNT], tmp_path)
    written = 0
    for epoch in range(1, EPOCHS + 1):
        for key in range(KEYS):
            backend.use(key)
            backend.handles["count"].update(epoch)
        handles = backend.checkpoint()
        written += backend.backend.written
    assert 2 * _size(handles) < written
    changes = _deltas(backend, handles)
    rows = sum(len(encoded_rows(piece, None).keys) for change in changes for piece in change.pieces)
    assert 2 * rows < KEYS * EPOCHS
    backend.restart(elsewhere=True)
    for key in range(KEYS):
        backend.use(key)
        assert backend.handles["count"].value() == EPOCHS
    backend.close()


@pytest.mark.parametrize("kind", ["hashmap", "rocksdb"])
def a_restore_replays_no_more_timers_after_twice_as_many_changes(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compaction, "LEAST", 128 << 10)
    keys, replayed = range(500), []
    for epochs in (300, 600):
        backend = Backend(kind, [COUNT], tmp_path / f"{epochs}")
        for epoch in range(epochs):
            timers = backend.state.timer_queue("event")
            for key in keys:
                timers.delete(1_000_000 + epoch - 1, key)
                timers.register(1_000_000 + epoch, key)
            backend.checkpoint()
        largest = max((handles for handles, _ in backend.checkpoints), key=_size)
        replayed.append(sum(map(_changed_timers, _deltas(backend, largest))))
        backend.restart(elsewhere=True)
        assert sorted(backend.state.timer_queue("event").all()) == [(1_000_000 + epochs - 1, key) for key in keys]
        backend.close()
    assert replayed[1] < 1.5 * replayed[0], replayed
