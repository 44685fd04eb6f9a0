"""Recovery follows what is alive: changes of rows are merged, so that a restore does not repeat each of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.handles import IndexedFile
from holdfast.common.typeinfo import Types
from holdfast.datastream.state import ValueStateDescriptor
from holdfast.state.backends.backend import size_of
from holdfast.state.cells.row_pieces import encoded_rows
from holdfast.state.stored.delta import read_delta

from .backend import Backend

COUNT = ValueStateDescriptor("count", Types.LONG())
KEYS, EPOCHS = 10, 1_000


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
    deltas = [each for handle in handles for each in (*handle.base, *handle.deltas) if isinstance(each, IndexedFile)]
    assert 2 * sum(map(size_of, deltas)) < written
    changes = [change for delta in deltas for change in read_delta(backend.storage, delta)]
    rows = sum(len(encoded_rows(piece, None).keys) for change in changes for piece in change.pieces)
    assert 2 * rows < KEYS * EPOCHS
    backend.restart(elsewhere=True)
    for key in range(KEYS):
        backend.use(key)
        assert backend.handles["count"].value() == EPOCHS
    backend.close()
