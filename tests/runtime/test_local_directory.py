"""Local directories have names that can be foretold: one that others have made, or can reach, is refused."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.system.directories import make_directories
from holdfast.errors import ConfigurationError
from holdfast.runtime.host import local_directory
from holdfast.runtime.host.local_directory import slot_directory, state_directory
from holdfast.runtime.host.slot import SlotClient


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's directory for temporary files, which all users share."""
    path = tmp_path / "tmp"
    path.mkdir()
    path.chmod(0o1777)
    monkeypatch.setattr(local_directory.tempfile, "tempdir", str(path))
    return path


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def of_this_user(shared: Path) -> Path:
    return shared / f"holdfast-{os.getuid()}"


def the_default_directory_is_made_for_this_user_alone(shared: Path) -> None:
    made = state_directory("", "my job").make()
    assert Path(made).is_relative_to(of_this_user(shared))
    assert mode(of_this_user(shared)) == 0o700
    assert state_directory("", "my job").make() == made


def a_missing_configured_directory_is_made_for_this_user_alone(shared: Path) -> None:
    state_directory(str(shared / "holdfast"), "my job").make()
    assert mode(shared / "holdfast") == 0o700


@pytest.mark.parametrize("wider", [0o755, 0o750, 0o701, 0o1777])
def a_directory_that_others_can_reach_is_refused(shared: Path, wider: int) -> None:
    of_this_user(shared).mkdir()
    of_this_user(shared).chmod(wider)
    with pytest.raises(ConfigurationError, match=rf"holdfast-{os.getuid()} on host \S+ has mode {wider:04o}.*mode 0700"):
        state_directory("", "my job").make()


def a_directory_of_another_user_is_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_this_user(shared).mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ConfigurationError, match=f"belongs to user {os.getuid()}, and the job runs as"):
        state_directory("", "my job").make()


@pytest.mark.parametrize("what", ["link", "file"])
def a_link_or_a_file_in_its_place_is_refused(shared: Path, tmp_path: Path, what: str) -> None:
    (tmp_path / "private").mkdir(mode=0o700)
    if what == "link":
        of_this_user(shared).symlink_to(tmp_path / "private")
    else:
        of_this_user(shared).touch(mode=0o700)
    with pytest.raises(ConfigurationError, match="is a link or a file, not a directory"):
        state_directory("", "my job").make()


def a_configured_directory_may_be_shared_but_what_is_made_in_it_is_not(shared: Path) -> None:
    made = Path(state_directory(str(shared), "my job").make())
    assert mode(shared) == 0o1777
    assert mode(shared / "state") == 0o700
    (shared / "state").chmod(0o755)
    with pytest.raises(ConfigurationError, match=r"state on host .* has mode 0755"):
        state_directory(str(shared), "my job").make()
    assert made.is_dir()


def a_private_configured_directory_guards_what_is_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "state").mkdir(mode=0o755)
    assert Path(state_directory(str(tmp_path), "my job").make()).is_dir()


def a_task_does_not_talk_to_a_slot_in_a_directory_that_others_can_reach(shared: Path) -> None:
    directory = slot_directory("", "0123456789abcdef")
    directory.make()
    of_this_user(shared).chmod(0o777)
    with pytest.raises(ConfigurationError, match="has mode 0777"):
        next(SlotClient(directory, 0).run("s", None, b"", iter(())))


@pytest.mark.parametrize(("fault", "said"), [("mode", "has mode 0777"), ("owner", "belongs to user"), ("link", "is a link")])
def a_planted_directory_of_checkpoints_is_refused_unless_they_are_signed(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, said: str
) -> None:
    storage, paths = Storage.open(str(shared)), JobPaths.of("job")
    storage.check(paths)  # none is there yet
    storage.check(paths)
    if fault == "link":
        shutil.rmtree(shared / "job")
        (tmp_path / "elsewhere").mkdir()
        (shared / "job").symlink_to(tmp_path / "elsewhere")
    elif fault == "mode":
        (shared / "job").chmod(0o777)
    else:
        os.chown(shared / "job", 12345, -1) if os.geteuid() == 0 else monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(ConfigurationError, match=said):
        storage.check(paths)
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text("ab" * 32)
    Storage.open(str(shared), {"security.checkpoints.key-file": str(keys)}).check(paths)


@pytest.mark.parametrize(
    "what", ["the directory of checkpoints", "a directory above it", "a link to it", "a target of a link"]
)
def a_directory_of_checkpoints_below_that_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    for each in ("a/b", "c/b"):
        (tmp_path / each).mkdir(parents=True, mode=0o755)
    (tmp_path / "link").symlink_to("c/../c/b")
    (tmp_path / "c" / "b").rmdir()
    (tmp_path / "c" / "b").symlink_to(tmp_path / "a" / "b")
    place = {
        "the directory of checkpoints": "a/b",
        "a directory above it": "a",
        "a link to it": "c/b",
        "a target of a link": "a",
    }
    others = tmp_path / place[what]
    lstat = os.lstat

    def status(path: str) -> os.stat_result:
        found = lstat(path)
        return os.stat_result((*found[:4], 12345, *found[5:])) if path == str(others) else found

    uri = tmp_path / ("link" if "link" in what else "a/b")
    Storage.open(str(uri)).check(JobPaths.of("job"))
    monkeypatch.setattr(os, "lstat", status)
    with pytest.raises(ConfigurationError, match=rf"{others} belongs to user 12345.*sign checkpoints"):
        Storage.open(str(uri)).check(JobPaths.of("job"))


def a_job_directory_that_its_user_linked_elsewhere_is_used(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(mode=0o755)
    (tmp_path / "job").symlink_to("disk")
    Storage.open(str(tmp_path)).check(JobPaths.of("job"))


def test_no_directory_that_is_made_lets_all_users_write_whatever_the_umask(tmp_path: Path) -> None:
    os.umask(0)
    made = state_directory(str(tmp_path / "local" / "deep"), "job").make()
    assert Path(made).is_dir()
    storage = Storage.open(str(tmp_path / "checkpoints" / "deep"))
    storage.put("job/log/1", b"entry")
    Storage.open(str(tmp_path / "checkpoints" / "deep")).check(JobPaths.of("job"))
    assert not [path for path in tmp_path.rglob("*") if mode(path) & 0o002]
    assert mode(tmp_path / "local") == mode(tmp_path / "local" / "deep") == 0o700
    with pytest.raises(FileExistsError):
        make_directories(str(tmp_path / "checkpoints" / "deep" / "job" / "log" / "1"), 0o700)
