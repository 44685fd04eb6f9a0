"""Java: the one thing Spark needs that pip cannot bring. Found and checked before anything is started.

A wrong Java otherwise shows itself as a page of Spark's own stack traces, or as a gateway that never answers.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.errors import ConfigurationError

__all__ = ["REQUIRED_MODULE", "SUPPORTED", "Java", "find_java", "install_command"]

SUPPORTED = (17, 21)
"""The major versions that Spark 4 runs on."""
REQUIRED_MODULE = "jdk.incubator.vector"
"""Spark 4 starts its JVM with ``--add-modules`` of this one; stripped-down runtimes lack it."""

_VERSION = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Java:
    """A Java runtime that Spark can use."""

    executable: Path
    version: str
    """As the runtime itself says, e.g. ``17.0.15``."""
    major: int

    @property
    def home(self) -> Path | None:
        """What ``JAVA_HOME`` must be for Spark to start this very runtime; None if it can only be found by PATH."""
        home = self.executable.resolve().parent.parent
        return home if (home / "lib" / "modules").exists() else None


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """The Java that Spark will use: the first usable one of ``JAVA_HOME`` and ``PATH``.

    Args:
        environ: The environment variables to go by, by default the process's own.

    Raises:
        ConfigurationError: there is none, or none that Spark 4 can run on; one line that ends with the command that
            installs one on this platform.
    """
    environ = os.environ if environ is None else environ
    problems: list[str] = []
    for origin, executable in _candidates(environ):
        found = _examine(executable)
        if isinstance(found, Java):
            return found
        problems.append(f"{origin} gives {executable}, {found}")
    wanted = " or ".join(map(str, SUPPORTED))
    what = "; ".join(problems) or "there is no java in PATH, and JAVA_HOME is not set"
    remedy = install_command(environ=environ)
    raise ConfigurationError(f"Spark needs Java {wanted}, but {what}. Install it with: {remedy}")


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    if found := shutil.which("java", path=environ.get("PATH", os.defpath)):
        yield "PATH", Path(found)


def _examine(executable: Path) -> Java | str:
    """The runtime, or what is wrong with it (to follow its path in a sentence)."""
    if not executable.exists():
        return "which does not exist"
    status, text = _run(executable, "-version")
    match = _VERSION.search(text)
    if status != 0 or match is None:
        first = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
        return f"whose `java -version` failed ({first})"
    version, major = match.group(1), int(match.group(2))
    if major not in SUPPORTED:
        return f"which is Java {version}"
    status, text = _run(executable, "--list-modules")
    if status != 0 or REQUIRED_MODULE not in text:
        return f"a Java {version} without the module {REQUIRED_MODULE}"
    return Java(executable, version, major)


def _run(executable: Path, argument: str) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [executable, argument],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, f"no answer within {_TIMEOUT_S:g} s"
    except OSError as error:
        return -1, error.strerror or str(error)
    return done.returncode, done.stdout.decode(errors="replace")


def install_command(
    *,
    environ: Mapping[str, str] | None = None,
    system: str | None = None,
    os_release: Mapping[str, str] | None = None,
    root: bool | None = None,
) -> str:
    """The command that installs a fitting Java on this platform; the arguments stand in for the platform's own facts.

    >>> install_command(environ={}, system="Linux", os_release={"ID": "debian", "VERSION_ID": "12"}, root=True)
    'apt-get install -y openjdk-17-jre-headless'
    >>> install_command(environ={}, system="Darwin")
    'brew install openjdk@17 && export JAVA_HOME="$(brew --prefix openjdk@17)"'
    """
    environ = os.environ if environ is None else environ
    system = platform.system() if system is None else system
    if environ.get("CONDA_PREFIX"):
        return "conda install -y -c conda-forge openjdk=17"
    if system == "Darwin":
        return 'brew install openjdk@17 && export JAVA_HOME="$(brew --prefix openjdk@17)"'
    if system == "Linux":
        command = _linux_command(_read_os_release() if os_release is None else os_release)
        if command:
            root = os.geteuid() == 0 if root is None else root
            return command if root else f"sudo {command}"
    return "the installer of a Java 17 runtime from https://adoptium.net"


def _linux_command(os_release: Mapping[str, str]) -> str | None:
    own = os_release.get("ID", "")
    for name in (own, *os_release.get("ID_LIKE", "").split()):
        if name == "debian" and own == "debian" and _number(os_release.get("VERSION_ID", "")) >= 13:
            return "apt-get install -y openjdk-21-jre-headless"  # Debian dropped 17 with release 13
        if name in ("debian", "ubuntu"):
            return "apt-get install -y openjdk-17-jre-headless"
        if name == "amzn":
            return "dnf install -y java-17-amazon-corretto-headless"
        if name in ("fedora", "rhel", "centos"):
            return "dnf install -y java-21-openjdk-headless"
        if name == "alpine":
            return "apk add openjdk17-jre-headless"
        if name == "arch":
            return "pacman -S --noconfirm jre17-openjdk-headless"
        if name == "suse":
            return "zypper install -y java-17-openjdk-headless"
    return None


def _number(text: str) -> float:
    """A release's number; a release without one is the distribution's newest."""
    try:
        return float(text)
    except ValueError:
        return float("inf")


def _read_os_release() -> Mapping[str, str]:
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}
