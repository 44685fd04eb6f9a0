"""The AOT cache as a file among others: who may use it, who makes it, what becomes of a damaged one."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from holdfast.runtime.jvm.aot_cache import AotCache
from holdfast.runtime.jvm.java import Java

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def cache(base: Path, version: str = "25.0.2", jar: bytes = b"jar") -> AotCache:
    jars = base / "jars"
    jars.mkdir(exist_ok=True)
    (jars / "spark.jar").write_bytes(jar)
    os.utime(jars / "spark.jar", (1, 1))
    return AotCache.of(Java(base / "bin" / "java", "JAVA_HOME", version, int(version.split(".")[0])), [f"{jars}/spark.jar"])


def made(base: Path, content: bytes = b"classes") -> AotCache:
    found = cache(base)
    (base / "made").write_bytes(content)
    (base / "made").chmod(0o600)
    found.store(base / "made")
    return found


def a_cache_that_was_made_is_used_by_later_programs(base: Path) -> None:
    assert cache(base).to_use() == []
    path = made(base).path
    assert cache(base).to_use()[0] == f"-XX:AOTCache={path}"


def a_java_before_25_takes_the_cache_as_an_archive_of_classes(base: Path) -> None:
    before = cache(base, "17.0.15")
    assert before.to_make(base / "x") == [f"-XX:ArchiveClassesAtExit={base / 'x'}"]
    (base / "made").write_bytes(b"classes")
    (base / "made").chmod(0o600)
    before.store(base / "made")
    assert before.to_use()[0] == f"-XX:SharedArchiveFile={before.path}"


def an_other_java_and_an_other_spark_have_caches_of_their_own(base: Path) -> None:
    names = {made(base).path, cache(base, "25.0.3").path, cache(base, jar=b"another jar").path}
    assert len(names) == 3


@pytest.mark.parametrize("damage", [b"classez", b"class", b""], ids=["a bit", "cut off", "empty"])
def a_damaged_cache_is_not_used(base: Path, damage: bytes) -> None:
    path = made(base).path
    assert path is not None
    path.write_bytes(damage)
    assert cache(base).to_use() == []


def a_damaged_cache_makes_room_for_a_new_one(base: Path) -> None:
    path = made(base).path
    assert path is not None
    path.write_bytes(b"something else")
    cache(base).to_use()
    assert not path.exists()
    assert made(base).to_use()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def a_cache_in_a_directory_that_others_can_write_is_not_used(base: Path, mode: int) -> None:
    path = made(base).path
    assert path is not None
    path.parent.chmod(mode)
    used = cache(base).to_use()
    if mode & 0o1000:  # as in /tmp: others can add files, but not replace this one
        assert used
    else:
        assert used == []


def a_cache_below_a_directory_that_others_can_write_is_not_used(base: Path) -> None:
    made(base)
    (base / "cache").chmod(0o777)
    assert cache(base).to_use() == []


def a_cache_that_others_can_write_is_not_used(base: Path) -> None:
    path = made(base).path
    assert path is not None
    path.chmod(0o666)
    assert cache(base).to_use() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def a_cache_that_belongs_to_somebody_else_is_not_used(base: Path) -> None:
    path = made(base).path
    assert path is not None
    os.chown(path, 12345, 12345)
    assert cache(base).to_use() == []


def a_link_to_a_cache_is_not_used(base: Path) -> None:
    path = made(base).path
    assert path is not None
    path.rename(base / "elsewhere")
    path.symlink_to(base / "elsewhere")
    assert cache(base).to_use() == []


def a_user_without_a_directory_has_no_cache_and_nothing_is_made(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "cache").write_text("a file in the way")
    found = cache(base)
    assert found.path is None
    assert found.to_use() == []
    found.make_later()
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/dev/null")
    assert cache(base).path is None


def a_full_disk_means_that_nothing_is_made(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1, 1, 0))
    found = cache(base)
    found.make_later()
    assert not found.log.exists()


def a_cache_that_could_not_be_made_today_is_not_tried_again(base: Path) -> None:
    found = cache(base)
    found.log.write_text("No space left on device")
    found.make_later()
    assert found.log.read_text() == "No space left on device"


def the_first_of_two_programs_has_the_cache_made(base: Path) -> None:
    held = cache(base).lock()
    assert held is not None
    assert cache(base).lock() is None
    other = cache(base)
    other.make_later()
    assert not other.log.exists()
    os.close(held)
    again = cache(base).lock()
    assert again is not None
    os.close(again)


def the_caches_that_nobody_uses_are_deleted_when_a_new_one_is_made(base: Path) -> None:
    old = made(base).path
    assert old is not None
    os.utime(old, (1, 1))
    other = cache(base, "26.0.1")
    (base / "made").write_bytes(b"classes")
    other.store(base / "made")
    assert not old.exists()
    assert not old.with_suffix(".xxh3").exists()
    assert other.path is not None
    assert other.path.exists()
