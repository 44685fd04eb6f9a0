"""What travels to the executors, and what is said if something is not there."""

from __future__ import annotations

import pickle
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from py4j.protocol import Py4JNetworkError

from holdfast.errors import ConfigurationError, SparkGone
from holdfast.runtime.host.shipping import configuration_error, install_files, pack_files, portable, spark_failure
from holdfast.runtime.protocol.restart import GiveUp, RestartState, decide, restart_strategy

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
