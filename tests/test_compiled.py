"""Compiled modules and their sources never get mixed up."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast import compiled

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "holdfast"
BUILD = str(ROOT / "hatch_build.py")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A copy of the sources that are compiled, with something in the place of their extensions."""
    for name in (*compiled.MODULES, *compiled.SHARED):
        path = Path(compiled.source(str(PACKAGE), name))
        copy = tmp_path / path.relative_to(PACKAGE)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        shutil.copyfile(path.with_suffix(".pxd"), copy.with_suffix(".pxd"))
    directory = Path(compiled.directory(str(tmp_path)))
    directory.mkdir(parents=True)
    for name in compiled.MODULES:
        (directory / compiled.extension(name)).touch()
    return tmp_path


@pytest.fixture(autouse=True)
def wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compiled.PURE, raising=False)


def the_extensions_of_unchanged_sources_are_used(package: Path) -> None:
    use = compiled.Use(str(package))
    assert use.reason == ""
    for name in compiled.MODULES:
        spec = use.find_spec(name, None)
        assert spec is not None
        assert Path(spec.origin or "").parent == Path(compiled.directory(str(package)))
    assert use.find_spec("holdfast.state.rows.space", None) is None


@pytest.mark.parametrize("suffix", [".py", ".pxd"])
def a_changed_source_is_plain_python_until_the_next_build(package: Path, suffix: str) -> None:
    path = Path(compiled.source(str(package), compiled.MODULES[0])).with_suffix(suffix)
    path.write_text(path.read_text() + "\n")
    use = compiled.Use(str(package))
    assert "have changed" in use.reason
    assert use.find_spec(compiled.MODULES[0], None) is None


def test_extensions_for_another_python_are_not_used(package: Path) -> None:
    extension = Path(compiled.directory(str(package))) / compiled.extension(compiled.MODULES[0])
    extension.rename(extension.with_name("holdfast.state.cells.handles.cpython-27m.so"))
    assert "another version of Python" in compiled.Use(str(package)).reason


def a_package_without_extensions_is_plain_python(package: Path) -> None:
    shutil.rmtree(package / "_compiled")
    assert "not built" in compiled.Use(str(package)).reason


def test_plain_python_can_be_asked_for(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(compiled.PURE, "1")
    assert compiled.PURE in compiled.Use(str(package)).reason


def a_build_without_a_compiler_says_so(package: Path, tmp_path: Path) -> None:
    shutil.copyfile(PACKAGE / "compiled.py", package / "compiled.py")
    shutil.rmtree(package / "_compiled")
    (tmp_path / "tree" / "src").mkdir(parents=True)
    (tmp_path / "tree" / "src" / "holdfast").symlink_to(package)
    script = shutil.copy(BUILD, tmp_path / "tree")
    done = subprocess.run(
        [sys.executable, script], env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stdout) == (0, "")
    assert "plain Python, without compiled modules: there is no C compiler" in done.stderr
    assert not (package / "_compiled").exists()
