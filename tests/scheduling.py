"""Pytest plugin: with ``--dist loadfile`` a process runs a file at a time, but the parts of some files go to any process."""

from __future__ import annotations

from typing import Any

import pytest
from xdist.scheduler import LoadFileScheduling

PARTED = ("tests/programs/test_programs.py",)
"""Files with tests that share no fixtures and take minutes together."""


class FilesAndParts(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return nodeid if scope in PARTED else scope


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesAndParts | None:
    return FilesAndParts(config, log) if config.getoption("dist") == "loadfile" else None
