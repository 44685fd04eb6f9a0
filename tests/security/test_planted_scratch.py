"""Another user plants in the system's temporary directory what looks like the leftover of a killed process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.state.store import scratch
from holdfast.state.store.scratch import scratch_directory


def planted(directory: Path) -> Path:
    """A file of the victim's that the lock of a leftover leads to."""
    victim = directory / "victim"
    victim.mkdir()
    file = victim / "lock"
    file.write_text("content")
    os.utime(victim, (0, 0))
    return file


def a_link_that_looks_like_a_leftover_leads_to_no_file_of_the_user(tmp_path: Path) -> None:
    file = planted(tmp_path)
    (tmp_path / f"{scratch._PREFIX}x").symlink_to(file.parent)
    with scratch_directory(str(tmp_path)):
        assert file.read_text() == "content"
    assert file.read_text() == "content"


def a_directory_of_another_user_that_looks_like_a_leftover_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = planted(tmp_path)
    theirs = tmp_path / f"{scratch._PREFIX}x"
    theirs.mkdir()
    (theirs / "lock").symlink_to(file)
    os.utime(theirs, (0, 0))
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with scratch_directory(str(tmp_path)):
        assert file.read_text() == "content"
    assert theirs.exists()
