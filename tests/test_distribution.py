"""The wheel and the sdist that are released install in an empty environment and run a program there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from holdfast import compiled

ROOT = Path(__file__).resolve().parents[1]

PROGRAM = """
from holdfast.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
env.from_collection([("a", 1), ("a", 2)]).key_by(lambda pair: pair[0]).sum(1).print()
env.execute("sums")
"""


def call(*command: str | Path, cwd: Path, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= more
    words = [str(part) for part in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_built_wheel_runs_a_program_in_an_empty_environment(tmp_path: Path) -> None:
    call(sys.executable, "-m", "build", "--sdist", "--outdir", tmp_path, ROOT, cwd=tmp_path)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        parts = {name.split("/")[1] for name in archive.getnames()}
        archive.extractall(tmp_path / "sdist", filter="data")
    # As for a release, the wheel is built from the sdist; but with the extensions that are here, if its sources are theirs.
    (sources,) = (tmp_path / "sdist").iterdir()
    here, there = (Path(compiled.directory(str(root / "src" / "holdfast"))) for root in (ROOT, sources))
    if here.exists() and here.name == there.name:
        shutil.copytree(here, there)
    call(sys.executable, "-m", "build", "--wheel", "--outdir", tmp_path, sources, cwd=tmp_path, CFLAGS="-O0")
    (wheel,) = tmp_path.glob("*.whl")
    assert parts == {"LICENSE", "PKG-INFO", "README.md", ".gitignore", "hatch_build.py", "pyproject.toml", "src"}
    with zipfile.ZipFile(wheel) as archive:
        data = {
            "py.typed",
            "runtime/spark/log4j2.properties",
            "rest/dashboard/index.html",
            "cli/template/program.py.template",
        }
        assert {f"holdfast/{name}" for name in data} <= set(archive.namelist())
        assert {name.split("/")[0].split("-")[0] for name in archive.namelist()} == {"holdfast"}
        extensions = {name.rsplit("/", 1)[1] for name in archive.namelist() if name.startswith("holdfast/_compiled/")}
        assert extensions == {compiled.extension(module) for module in compiled.MODULES}

    venv.create(tmp_path / "empty", with_pip=True)
    python = tmp_path / "empty" / "bin" / "python"
    call(python, "-m", "pip", "install", "--quiet", "--no-compile", wheel, cwd=tmp_path)
    call(python, "-m", "pip", "check", cwd=tmp_path)
    (tmp_path / "sums.py").write_text(PROGRAM)
    no_cache = {"XDG_CACHE_HOME": os.devnull}  # else it makes an AOT cache for this environment, which ends with the test
    assert call(python, "sums.py", cwd=tmp_path, **no_cache) == "('a', 1)\n('a', 3)\n"
    holdfast = python.parent / "holdfast"
    told = {each["check"]: each["verdict"] for each in json.loads(call(holdfast, "doctor", "--json", cwd=tmp_path))}
    assert told["Compiled modules"] == "ok"
    call(holdfast, "new", "shop", cwd=tmp_path)
    assert (tmp_path / "shop" / "program.py").exists()
