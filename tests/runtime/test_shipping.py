"""What travels to the executors, and what is said if something is not there."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError

from holdfast import compiled
from holdfast.errors import ConfigurationError, SparkGone
from holdfast.runtime.host.shipping import (
    COMPILED_WHEEL,
    _extensions,
    _package,
    configuration_error,
    install_files,
    pack_files,
    portable,
    spark_failure,
)
from holdfast.runtime.protocol.restart import GiveUp, RestartState, decide, restart_strategy

PACKAGE = os.path.dirname(os.path.abspath(compiled.__file__))
DIGEST = os.path.basename(compiled.directory(PACKAGE))
ELSEWHERE = f"holdfast/_compiled/{DIGEST}/holdfast.metrics.user.cpython-314-riscv64-linux-gnu.so"
FORM = """
import sys
sys.path.insert(0, sys.argv[1])
import holdfast
assert holdfast.__file__.startswith(sys.argv[1]), holdfast.__file__
from holdfast.state.cells import handles
print(handles.__loader__.__class__.__name__, holdfast.compiled.use.reason)
"""
IMPORTING = """
import pickle, sys
from holdfast.runtime.host.shipping import install_files
archives, directory, names = pickle.load(sys.stdin.buffer)
install_files(archives, directory)
for name in names.split():
    module = __import__(name)
    print(module.__name__, module.VALUE)
"""


def imported(archives: list[bytes], directory: Path, names: str) -> str:
    """What a fresh process finds in modules that were sent."""
    given = pickle.dumps((archives, str(directory), names))
    done = subprocess.run([sys.executable, "-c", IMPORTING], input=given, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A module, a directory with a package, an archive."""
    (tmp_path / "alone.py").write_text("VALUE = 1")
    (tmp_path / "tree" / "package").mkdir(parents=True)
    (tmp_path / "tree" / "package" / "__init__.py").write_text("from package.inner import VALUE")
    (tmp_path / "tree" / "package" / "inner.py").write_text("VALUE = 2")
    with zipfile.ZipFile(tmp_path / "packed.zip", "w") as archive:
        archive.writestr("zipped.py", "VALUE = 3")
    return tmp_path


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive in which Holdfast comes to the executors, with a wheel for another platform."""
    directory = tmp_path_factory.mktemp("driver")
    with zipfile.ZipFile(directory / "holdfast.whl", "w") as wheel:
        wheel.writestr(ELSEWHERE, b"content")
    path = directory / "holdfast.zip"
    path.write_bytes(_package(f"file://{directory}/holdfast.whl"))
    return path


def form(archive: Path, **environment: str) -> str:
    """By what a process with the archive first on its path loads a compiled module, and why not otherwise."""
    command = [sys.executable, "-S", "-c", FORM, str(archive)]
    done = subprocess.run(command, capture_output=True, text=True, env={**LIBRARIES, **environment})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


LIBRARIES = {"PYTHONPATH": ":".join(path for path in sys.path if path.endswith("site-packages"))}


@pytest.mark.skipif(not compiled.IN_USE, reason="there are no compiled modules")
def the_driver_s_compiled_modules_are_used_where_the_archive_arrives(archive: Path, tmp_path: Path) -> None:
    arrived = shutil.copy(archive, tmp_path)
    assert form(arrived) == "_Loader"
    assert form(arrived) == "_Loader", "the second process of a host"
    assert form(arrived, HOLDFAST_PURE="1") == "zipimporter HOLDFAST_PURE is set"


@pytest.mark.skipif(not compiled.IN_USE, reason="there are no compiled modules")
def an_installed_holdfast_with_the_same_sources_lends_its_compiled_modules(archive: Path, tmp_path: Path) -> None:
    installed = tmp_path / "site" / "holdfast"
    shutil.copytree(os.path.join(PACKAGE, "_compiled"), installed / "_compiled")
    arrived = without_extensions(archive, tmp_path / "arrived.zip")
    assert form(arrived, PYTHONPATH=f"{LIBRARIES['PYTHONPATH']}:{tmp_path / 'site'}") == "_Loader"
    (installed / "_compiled" / DIGEST).rename(installed / "_compiled" / "other")
    assert "the driver has none for this Python and platform" in form(
        arrived, PYTHONPATH=f"{LIBRARIES['PYTHONPATH']}:{tmp_path / 'site'}"
    )


def without_extensions(archive: Path, target: Path, damage: bytes | None = None) -> Path:
    """A copy of the archive from a driver without compiled modules, or with such as cannot be loaded."""
    with zipfile.ZipFile(archive) as given, zipfile.ZipFile(target, "w") as made:
        for name in given.namelist():
            if not name.endswith(".so"):
                made.writestr(name, given.read(name))
            elif damage is not None:
                made.writestr(name, damage)
    return target


@pytest.mark.skipif(not compiled.IN_USE, reason="there are no compiled modules")
def a_host_where_the_extensions_cannot_be_loaded_runs_plain_python_and_says_why(archive: Path, tmp_path: Path) -> None:
    arrived = without_extensions(archive, tmp_path / "arrived.zip", b"of another platform")
    assert form(arrived).startswith("zipimporter they cannot be unpacked, or loaded on this platform: ")
    assert not list(tmp_path.glob("arrived.zip.compiled/*")), "no half of it stays"


def a_wheel_for_the_executors_platform_travels_too(archive: Path) -> None:
    with zipfile.ZipFile(archive) as content:
        assert content.read(ELSEWHERE) == b"content"


def a_wheel_without_compiled_modules_of_this_holdfast_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "holdfast.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("holdfast/_compiled/0123/holdfast.metrics.user.cpython-311-x86_64-linux-gnu.so", b"content")
    with pytest.raises(ConfigurationError, match=f"{COMPILED_WHEEL} names .* no compiled modules of this Holdfast"):
        _extensions(str(wheel), DIGEST)
    with pytest.raises(ConfigurationError, match=f"{COMPILED_WHEEL} names .* cannot be read"):
        _extensions(str(tmp_path / "none.whl"), DIGEST)


def a_module_a_directory_and_an_archive_can_be_imported_where_they_arrive(modules, tmp_path):
    entries = f"{modules}/alone.py, file://{modules}/tree,{modules}/packed.zip"
    archives = pack_files({"python.files": entries})
    expected = "alone 1\npackage 2\nzipped 3\n"
    assert imported(archives, tmp_path / "host", "alone package zipped") == expected
    assert imported(archives, tmp_path / "host", "alone package zipped") == expected, "the second slot of a host"


def test_two_jobs_may_have_versions_of_their_own(modules, tmp_path):
    old = pack_files({"python.files": f"{modules}/alone.py"})
    (modules / "alone.py").write_text("VALUE = 'new'")
    new = pack_files({"python.files": f"{modules}/alone.py"})
    assert imported(old, tmp_path / "host", "alone") == "alone 1\n"
    assert imported(new, tmp_path / "host", "alone") == "alone new\n"


@pytest.mark.parametrize(("name", "reason"), [("missing.py", "does not exist"), ("notes.txt", "is neither a directory")])
def a_file_of_no_use_is_refused(tmp_path, name, reason):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ConfigurationError, match=f"python.files names .*{name}, which {reason}"):
        pack_files({"python.files": str(tmp_path / name)})


def test_without_files_there_is_nothing_to_send():
    assert pack_files({}) == pack_files({"python.files": " , "}) == []


def a_task_says_itself_what_it_lacks(tmp_path, monkeypatch):
    (tmp_path / "gone_later.py").write_text("def task(partition, items): return iter(items)")
    monkeypatch.syspath_prepend(str(tmp_path))
    import gone_later

    task = portable(gone_later.task)
    assert list(task(0, [1, 2])) == [1, 2]
    monkeypatch.delitem(sys.modules, "gone_later")
    (tmp_path / "gone_later.py").unlink()
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.7")
    with pytest.raises(ImportError) as failure:
        task(0, [])
    clear = configuration_error(RuntimeError(f"Traceback\nImportError: {failure.value}\n\tat java"))
    assert clear is not None
    assert f"the job cannot be loaded on host 10.0.0.7 by {sys.executable}: No module named 'gone_later'" in str(clear)
    assert "pip install" in str(clear)


def a_failure_of_another_kind_is_not_taken_for_a_configuration_error():
    assert configuration_error(RuntimeError("executor 3 lost")) is None


def test_installing_nothing_changes_nothing(tmp_path):
    before = list(sys.path)
    install_files([], str(tmp_path))
    assert sys.path == before


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(111, "Connection refused"),
        Py4JNetworkError("Answer from Java side is empty"),
        RuntimeError("java.lang.IllegalStateException: Cannot call methods on a stopped SparkContext."),
    ],
)
def test_a_dead_spark_is_reported_as_such_without_a_restart(error: Exception) -> None:
    failure = spark_failure(error, local=True)
    assert isinstance(failure, SparkGone)
    assert "Start the program again" in str(failure)
    assert isinstance(decide(restart_strategy({}), RestartState(), 0, failure)[0], GiveUp)
