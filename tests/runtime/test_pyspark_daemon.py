"""The daemon that forks Spark's workers: what it imports before a fork, and when Spark is told to run it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import holdfast
from holdfast.runtime.spark.spark_context import _settings

HOME = str(Path(holdfast.__file__).parents[1])
MODULE = "spark.python.daemon.module"
IMPORTS = """
import os, sys
import holdfast.runtime.spark.pyspark_daemon
print(len(os.listdir("/proc/self/task")), *(name in sys.modules for name in ("pyarrow", "pandas", "numpy")))
before = set(sys.modules)
import pyspark.worker, holdfast.runtime.spark.level_task
print(len(set(sys.modules) - before))
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts threads in /proc")
def the_daemon_has_what_a_worker_imports_and_one_thread() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "False", "False", "False", "0"], done.stderr


FROM_AN_ARCHIVE = """
import importlib, sys, zipimport
from holdfast.runtime.spark.pyspark_daemon import forget_archives
read = zipimport._read_directory
times = []
zipimport._read_directory = lambda archive: times.append(archive) or read(archive)
sys.path.insert(0, sys.argv[1])
import first
before = len(times)
forget_archives()
importlib.invalidate_caches()  # what a worker does
import second
print(before, len(times) - before)
"""


def a_worker_does_not_read_the_directories_of_archives_again(tmp_path: Path) -> None:
    archive = str(tmp_path / "modules.zip")
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("first", "second"):
            file.writestr(f"{name}.py", "")
    done = subprocess.run([sys.executable, "-c", FROM_AN_ARCHIVE, archive], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["1", "0"], done.stderr


def a_local_spark_runs_the_daemon_if_its_workers_find_holdfast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", HOME)
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert _settings("job", {})[MODULE] == "holdfast.runtime.spark.pyspark_daemon"
    assert _settings("job", {MODULE: "one.of.the.user"})[MODULE] == "one.of.the.user"
    assert MODULE not in _settings("job", {"spark.master": "spark://elsewhere:7077"})
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")
    assert MODULE not in _settings("job", {})
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setattr("site.getsitepackages", list)
    assert MODULE not in _settings("job", {})
