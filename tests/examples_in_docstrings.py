"""Pytest plugin: of the modules, only those with examples are searched for them, and imported for that."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    collected = yield
    if any(isinstance(each, DoctestModule) for each in collected) and b">>>" not in file_path.read_bytes():
        return [each for each in collected if not isinstance(each, DoctestModule)]
    return collected
