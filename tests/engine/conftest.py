"""What the tests of a whole job in one process share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .async_programs import ASKED, GATE
from .inprocess import LEDGERS, Lab


@pytest.fixture
def job(tmp_path: Path):
    """Makes a lab for a program."""
    labs: list[Lab] = []
    for ledger in LEDGERS.values():  # the tests of a file, and of other files, use the same names
        ledger.committed.clear()

    def make(build: Any, name: str = "", **options: Any) -> Lab:
        LEDGERS["out"].committed.clear()
        here = Lab(build, tmp_path / name, **{"budget": 1, **options})
        labs.append(here)
        return here

    yield make
    for lab in labs:
        lab.close()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What requests of `Gated` wait for."""
    GATE.clear()
    ASKED.clear()
    yield GATE
    GATE.set()
