"""Compiled modules: extensions of C that stand in for a few modules of the hot path, made from the same source.

A build compiles `MODULES` with Cython where there is a C compiler (``hatch_build.py``); elsewhere, and with the environment
variable ``HOLDFAST_PURE``, they are plain Python. The extensions are in a directory that is named by a digest of their
sources, so a changed source is plain Python until the next build, and an extension never belongs to another source.

On a cluster, Holdfast comes to the executors in an archive (`holdfast.runtime.host.shipping`). Python cannot import
extensions from an archive: those of an installed Holdfast with the same sources are used, else the archive's are unpacked
beside it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType
from zipimport import ZipImportError, zipimporter

__all__ = [
    "DIGEST",
    "DIRECTORY",
    "FRAMES",
    "IN_USE",
    "MODULES",
    "PURE",
    "SHARED",
    "Use",
    "directory",
    "extension",
    "source",
    "use",
]

MODULES = (
    "holdfast.state.cells.handles",
    "holdfast.state.cells.typed",
    "holdfast.state.rows.row_loading",
    "holdfast.runtime.operators.calls",
    "holdfast.runtime.operators.windows.window_calls",
    "holdfast.runtime.operators.windows.session_loop",
    "holdfast.runtime.records.frame_columns",
    "holdfast.runtime.records.shared_results",
    "holdfast.metrics.user",
    "holdfast.common.formats.positions",
    "holdfast.common.formats.scans",
    "holdfast.state.keys.key_owners",
    "holdfast.datastream.operations.ranked_rows",
)
"""Each has a ``.pxd`` beside it, which declares the types of C."""
SHARED = ("holdfast.state.cells.packed",)
"""Plain modules with functions that `MODULES` call; the ``.pxd`` beside each defines them in C, too."""
PURE = "HOLDFAST_PURE"
"""The environment variable that asks for plain Python, when it is set and not empty: in a build, and in a process."""
DIRECTORY = "_compiled"
"""The directory of all extensions, in the package."""
DIGEST = "digest"
"""A file in the `DIRECTORY` of an archive: the name of the directory of the extensions that belong to its sources."""
_PACKAGE = os.path.dirname(os.path.abspath(__file__))
FRAMES = (_PACKAGE + os.sep, "holdfast" + os.sep)
"""How the file names of Holdfast's frames in a traceback begin. Those of compiled modules are relative."""


def source(package: str, module: str) -> str:
    """The path of a module's source.

    Args:
        package: The directory of the package ``holdfast``.
        module: The name of the module.
    """
    return os.path.join(package, *module.split(".")[1:]) + ".py"


def extension(module: str) -> str:
    """The file name of a module's extension for this Python."""
    return module + EXTENSION_SUFFIXES[0]


def directory(package: str) -> str:
    """The directory of the extensions that belong to the sources in the package's directory.

    Raises:
        OSError: a source cannot be read, as in an archive.
    """
    digest = hashlib.sha256()
    for module in (*MODULES, *SHARED):
        path = source(package, module)
        for name in (path, path[: -len("py")] + "pxd"):
            with open(name, "rb") as file:
                digest.update(hashlib.sha256(file.read()).digest())
    return os.path.join(package, DIRECTORY, digest.hexdigest()[:16])


class _Loader(ExtensionFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.__file__ = source(_PACKAGE, module.__name__)  # for tools that show the source


class _Plain(Exception):
    """Why plain Python is used."""


def _beside(package: str) -> str:
    """The directory of the extensions that belong to the sources in the package's directory."""
    try:
        found = directory(package)
        held = os.listdir(os.path.dirname(found))
    except OSError:
        held = []
    if not held:
        raise _Plain("they were not built: there was no C compiler")
    if os.path.basename(found) not in held:
        raise _Plain("their sources have changed since they were built")
    if not _is_complete(found):
        raise _Plain("they were built for another version of Python")
    return found


def _is_complete(found: str) -> bool:
    return os.path.isdir(found) and {extension(module) for module in MODULES} <= set(os.listdir(found))


def _shipped(archive: str, package: str) -> str:
    """The directory of the extensions that belong to the sources in an archive: installed here, or unpacked beside it."""
    try:
        content = zipimporter(archive)
        digest = content.get_data(os.path.join(package, DIRECTORY, DIGEST)).decode()
    except (ZipImportError, OSError) as error:
        raise _Plain(f"the archive {archive} does not say which belong to it: {error}") from None
    target = os.path.join(f"{archive}.compiled", digest)
    for found in (*(os.path.join(path, "holdfast", DIRECTORY, digest) for path in sys.path if path), target):
        if _is_complete(found):
            return found
    try:
        extensions = {
            extension(module): content.get_data(os.path.join(package, DIRECTORY, digest, extension(module)))
            for module in MODULES
        }
    except OSError:
        raise _Plain(
            f"the driver has none for this Python and platform ({EXTENSION_SUFFIXES[0]}), and Holdfast is not installed "
            "here with the driver's sources"
        ) from None
    try:
        _unpack(extensions, target)
    except OSError as error:
        raise _Plain(f"they cannot be unpacked, or loaded on this platform: {error}") from None
    return target


def _unpack(extensions: Mapping[str, bytes], target: str) -> None:
    """Write extensions that can be loaded here into a directory; other processes may do so at the same time.

    Raises:
        OSError: one cannot be written, or loaded.
    """
    import ctypes  # only executors need these
    import shutil
    import tempfile

    os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
    fresh = tempfile.mkdtemp(dir=os.path.dirname(target))
    try:
        for name, content in extensions.items():
            path = os.path.join(fresh, name)
            with open(path, "wb") as file:
                file.write(content)
            ctypes.CDLL(path)
        os.rename(fresh, target)
    except OSError:
        shutil.rmtree(fresh, ignore_errors=True)
        if not _is_complete(target):
            raise


class Use:
    """Whether compiled modules are used, and why not.

    Args:
        package: The directory of the package ``holdfast``.
    """

    def __init__(self, package: str) -> None:
        self.reason = ""
        """Empty: they are used."""
        self._directory = ""
        try:
            if os.environ.get(PURE):
                raise _Plain(f"{PURE} is set")
            archive = os.path.dirname(package)
            self._directory = _shipped(archive, package) if os.path.isfile(archive) else _beside(package)
        except _Plain as reason:
            self.reason = str(reason)

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find a compiled module, as the import system asks."""
        if self.reason or name not in MODULES:
            return None
        file = os.path.join(self._directory, extension(name))
        return spec_from_file_location(name, file, loader=_Loader(name, file))


use = Use(_PACKAGE)
"""Those of this process."""
IN_USE = not use.reason
"""Whether compiled modules are used: what loops in C do better may take longer in plain Python."""
sys.meta_path.insert(0, use)
