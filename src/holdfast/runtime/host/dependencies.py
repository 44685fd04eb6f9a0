"""What a program's functions need besides its modules: packages from a requirements file, and unpacked archives.

The driver packs them into the job's setup; a task slot installs them before it loads the program's functions.
"""

from __future__ import annotations

import fcntl
import io
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import xxhash

from holdfast.errors import ConfigurationError

__all__ = ["ARCHIVES", "REQUIREMENTS", "Dependencies", "made_once", "unzip"]

REQUIREMENTS = "python.requirements"
"""``file`` or ``file#directory``: a requirements file, and a directory of packages to install from."""
ARCHIVES = "python.archives"
"""``file`` or ``file#name``, separated by commas: archives, and the directories into which they are unpacked."""


@dataclass(frozen=True)
class Dependencies:
    """The contents of requirements files and archives."""

    requirements: bytes = b""
    packages: tuple[tuple[str, bytes], ...] | None = None
    """Name and content of each file of the directory of packages; None: packages come from pip's index."""
    archives: tuple[tuple[str, bytes], ...] = ()
    """For each archive, the name of its directory and its content."""

    @classmethod
    def pack(cls, config: Mapping[str, str]) -> Dependencies:
        """Read the files that the configuration names.

        Raises:
            ConfigurationError: a file or directory is missing, or is not an archive.
        """
        file, _, cache = config.get(REQUIREMENTS, "").strip().partition("#")
        packages = None
        if cache:
            if not os.path.isdir(cache):
                raise ConfigurationError(f"{REQUIREMENTS} names the directory of packages {cache}, which does not exist")
            packages = tuple((path.name, path.read_bytes()) for path in sorted(Path(cache).iterdir()) if path.is_file())
        archives = []
        for entry in filter(None, map(str.strip, config.get(ARCHIVES, "").split(","))):
            path, _, target = entry.partition("#")
            content = _content(ARCHIVES, path)
            _opener(path, content)
            archives.append((target or os.path.basename(path), content))
        return cls(_content(REQUIREMENTS, file) if file else b"", packages, tuple(archives))

    def install(self, directory: str) -> None:
        """Install the packages and unpack the archives below a directory of this host, for this process.

        The packages come first on the Python path. The archives' directories are in the working directory.

        Raises:
            ConfigurationError: pip cannot install a package.
        """
        if self.requirements:
            name = f"packages-{_digest(self.requirements, *(content for _, content in self.packages or ()))}"
            target = made_once(os.path.join(directory, name), self._install_packages)
            if target not in sys.path:
                sys.path.insert(0, target)
        if self.archives:
            named = (part for name, content in self.archives for part in (name.encode(), content))
            os.chdir(made_once(os.path.join(directory, f"archives-{_digest(*named)}"), self._unpack))

    def _install_packages(self, target: str) -> None:
        with tempfile.TemporaryDirectory() as scratch:
            file = os.path.join(scratch, "requirements.txt")
            Path(file).write_bytes(self.requirements)
            source: list[str] = []
            if self.packages is not None:
                for name, content in self.packages:
                    Path(scratch, name).write_bytes(content)
                source = ["--no-index", "--find-links", scratch]
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
            done = subprocess.run(
                [*pip, "--target", target, "-r", file, *source], capture_output=True, text=True, check=False
            )
        if done.returncode:
            said = " ".join(done.stderr.strip().splitlines()[-3:]) or f"exit code {done.returncode}"
            raise ConfigurationError(
                f"The packages of {REQUIREMENTS} cannot be installed on host {socket.gethostname()} with {sys.executable}: "
                f"{said}. Install them there, or give set_python_requirements() a directory that has them."
            )

    def _unpack(self, target: str) -> None:
        for name, content in self.archives:
            _opener(name, content)(os.path.join(target, name))


def _content(key: str, path: str) -> bytes:
    try:
        return Path(path.removeprefix("file://")).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{key} names {path}, which cannot be read: {error.strerror}") from None


def _opener(name: str, content: bytes) -> Callable[[str], None]:
    """The function that unpacks an archive into a directory."""

    def untar(target: str) -> None:
        with tarfile.open(fileobj=io.BytesIO(content)) as archive:
            archive.extractall(target, filter="data")

    if zipfile.is_zipfile(io.BytesIO(content)):
        return partial(unzip, content)
    if tarfile.is_tarfile(io.BytesIO(content)):
        return untar
    raise ConfigurationError(f"{ARCHIVES} names {name}, which is neither a zip nor a tar archive")


def _digest(*parts: bytes) -> str:
    digest = xxhash.xxh3_64()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return str(digest.hexdigest())


def unzip(content: bytes, target: str) -> None:
    """Unpack a zip archive into a directory."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        archive.extractall(target)


def made_once(target: str, make: Callable[[str], None]) -> str:
    """The directory that ``make`` fills; only one of the host's slots makes it."""
    if os.path.exists(target):
        return target
    os.makedirs(os.path.dirname(target), exist_ok=True)
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.path.exists(target):
            fresh = f"{target}.fresh"
            shutil.rmtree(fresh, ignore_errors=True)  # left by a slot that died
            os.makedirs(fresh)
            make(fresh)
            os.rename(fresh, target)
    return target
