"""Materialisations that take longer than epochs do."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from holdfast.runtime import coordinator, state_io

from .inprocess import LEDGERS, Lab
from .programs import records, sessions, sessions_model


@pytest.fixture
def lab(tmp_path: Path):
    LEDGERS["out"].committed.clear()
    made = Lab(sessions(records(5, 400, keys=30), cut=8), tmp_path, budget=30)
    yield made
    made.close()


def an_upload_that_outlasts_the_search_for_orphans_gives_a_base_that_can_be_restored(lab, monkeypatch):
    monkeypatch.setattr(state_io, "_MOST_DELTAS", 2)
    monkeypatch.setattr(coordinator, "_SWEEP_EVERY", 5)
    upload, snapshot = state_io.StateFiles._upload, state_io.StateFiles.snapshot
    go_on = threading.Event()

    def uploading(self: Any, *args: Any) -> Any:
        result = upload(self, *args)
        go_on.wait(60)
        return result

    def snapping(self: Any, state: Any, generation: int, epoch: int, token: str) -> Any:
        if epoch == 17:  # three sweeps later
            go_on.set()
            wait([self._pending])
        return snapshot(self, state, generation, epoch, token)

    monkeypatch.setattr(state_io.StateFiles, "_upload", uploading)
    monkeypatch.setattr(state_io.StateFiles, "snapshot", snapping)
    lab.run([("after complete", 19)])
    assert Counter(map(repr, LEDGERS["out"].values)) == sessions_model(records(5, 400, keys=30))
