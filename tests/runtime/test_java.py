"""Real executables named java, on a PATH of their own; and the machine's own Java."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError
from holdfast.runtime import java
from holdfast.runtime.java import find_java, install_command

MODULES = "java.base@17.0.1\njdk.incubator.vector@17.0.1"


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


@pytest.mark.parametrize(
    ("says", "version", "major"),
    [
        ('openjdk version "17.0.15" 2025-04-15', "17.0.15", 17),
        ('java version "21" 2023-09-19 LTS', "21", 21),
        ('openjdk version "21-ea" 2023-09-19', "21-ea", 21),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\\nopenjdk version "17" 2021-09-14', "17", 17),
    ],
)
def the_java_in_path_is_found_and_its_version_read(tmp_path: Path, says: str, version: str, major: int) -> None:
    executable = install(tmp_path, says)
    found = find_java({"PATH": path_of(tmp_path)})
    assert (found.executable, found.version, found.major) == (executable, version, major)


def the_java_of_java_home_comes_before_the_one_in_path(tmp_path: Path) -> None:
    home = install(tmp_path / "a", 'openjdk version "21.0.1"').parent.parent
    install(tmp_path / "b", 'openjdk version "17.0.1"')
    assert find_java({"JAVA_HOME": str(home), "PATH": path_of(tmp_path / "b")}).version == "21.0.1"


def a_java_home_that_does_not_fit_gives_way_to_a_java_in_path_that_does(tmp_path: Path) -> None:
    install(tmp_path / "a", 'openjdk version "11.0.1"')
    install(tmp_path / "b", 'openjdk version "17.0.1"')
    assert find_java({"JAVA_HOME": str(tmp_path / "a"), "PATH": path_of(tmp_path / "b")}).version == "17.0.1"


def the_error_of_a_missing_java_is_one_line_that_ends_with_the_command(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_java({"PATH": str(tmp_path)})
    message = str(caught.value)
    assert message == (
        "Spark needs Java 17 or 21, but there is no java in PATH, and JAVA_HOME is not set. "
        f"Install it with: {install_command(environ={})}"
    )
    assert "\n" not in message


@pytest.mark.parametrize("says", ['java version "1.8.0_392"', 'openjdk version "11.0.2"', 'openjdk version "25"'])
def the_error_of_a_wrong_version_names_it_and_its_place(tmp_path: Path, says: str) -> None:
    executable = install(tmp_path, says)
    with pytest.raises(ConfigurationError, match="Spark needs Java 17 or 21") as caught:
        find_java({"PATH": path_of(tmp_path)})
    assert f"PATH gives {executable}, which is Java {says.split(chr(34))[1]}." in str(caught.value)
    assert "\n" not in str(caught.value)


def a_java_without_the_vector_module_is_refused_by_name(tmp_path: Path) -> None:
    install(tmp_path, 'openjdk version "17.0.1"', modules="java.base@17.0.1")
    with pytest.raises(ConfigurationError, match=r"a Java 17\.0\.1 without the module jdk\.incubator\.vector"):
        find_java({"PATH": path_of(tmp_path)})


def a_java_home_without_a_java_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME gives .*which does not exist"):
        find_java({"JAVA_HOME": str(tmp_path), "PATH": str(tmp_path)})


def a_java_that_fails_is_quoted(tmp_path: Path) -> None:
    script(tmp_path, "echo 'Unable to locate a Java Runtime.' >&2; exit 1")
    with pytest.raises(ConfigurationError, match=r"`java -version` failed \(Unable to locate a Java Runtime\.\)"):
        find_java({"PATH": path_of(tmp_path)})


def a_java_that_cannot_be_executed_is_named(tmp_path: Path) -> None:
    script(tmp_path, "").write_bytes(b"\x7fELF not really")
    with pytest.raises(ConfigurationError, match="Exec format error"):
        find_java({"PATH": path_of(tmp_path)})


def a_java_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script(tmp_path, "exec sleep 600")
    monkeypatch.setattr(java, "_TIMEOUT_S", 0.2)
    with pytest.raises(ConfigurationError, match=r"no answer within 0\.2 s"):
        find_java({"PATH": path_of(tmp_path)})


def the_java_of_this_machine_is_usable_and_its_home_has_it() -> None:
    found = find_java()
    assert found.major in java.SUPPORTED
    assert found.home is None or (found.home / "bin" / "java").exists()


@pytest.mark.parametrize(
    ("os_release", "command"),
    [
        ({"ID": "debian", "VERSION_ID": "12"}, "apt-get install -y openjdk-17-jre-headless"),
        ({"ID": "debian", "VERSION_ID": "13"}, "apt-get install -y openjdk-21-jre-headless"),
        ({"ID": "debian"}, "apt-get install -y openjdk-21-jre-headless"),
        ({"ID": "ubuntu", "ID_LIKE": "debian", "VERSION_ID": "24.04"}, "apt-get install -y openjdk-17-jre-headless"),
        ({"ID": "linuxmint", "ID_LIKE": "ubuntu debian"}, "apt-get install -y openjdk-17-jre-headless"),
        ({"ID": "fedora", "VERSION_ID": "42"}, "dnf install -y java-21-openjdk-headless"),
        ({"ID": "rocky", "ID_LIKE": "rhel centos fedora"}, "dnf install -y java-21-openjdk-headless"),
        ({"ID": "amzn", "ID_LIKE": "fedora"}, "dnf install -y java-17-amazon-corretto-headless"),
        ({"ID": "alpine"}, "apk add openjdk17-jre-headless"),
        ({"ID": "opensuse-leap", "ID_LIKE": "suse opensuse"}, "zypper install -y java-17-openjdk-headless"),
        ({"ID": "manjaro", "ID_LIKE": "arch"}, "pacman -S --noconfirm jre17-openjdk-headless"),
    ],
)
def the_command_fits_the_distribution(os_release: dict[str, str], command: str) -> None:
    assert install_command(environ={}, system="Linux", os_release=os_release, root=True) == command
    assert install_command(environ={}, system="Linux", os_release=os_release, root=False) == f"sudo {command}"


def the_command_in_a_conda_environment_is_conda_s() -> None:
    assert install_command(environ={"CONDA_PREFIX": "/opt/conda"}, system="Darwin").startswith("conda install")


def an_unknown_platform_is_sent_to_a_download() -> None:
    assert "adoptium.net" in install_command(environ={}, system="Linux", os_release={"ID": "plan9"}, root=True)
