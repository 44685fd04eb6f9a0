"""Compiled modules: extensions of C that stand in for a few modules of the hot path, made from the same source.

A build compiles `MODULES` with Cython where there is a C compiler (``hatch_build.py``); elsewhere, and with the environment
variable ``HOLDFAST_PURE``, they are plain Python. The extensions are in a directory that is named by a digest of their
sources, so a changed source is plain Python until the next build, and an extension never belongs to another source.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from types import ModuleType

__all__ = ["FRAMES", "IN_USE", "MODULES", "PURE", "SHARED", "Use", "directory", "extension", "source", "use"]

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
    return os.path.join(package, "_compiled", digest.hexdigest()[:16])


class _Loader(ExtensionFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        module.__file__ = source(_PACKAGE, module.__name__)  # for tools that show the source


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
            self._directory = directory(package)
            held = os.listdir(os.path.dirname(self._directory))
        except OSError:
            held = []
        if os.environ.get(PURE):
            self.reason = f"{PURE} is set"
        elif not held:
            self.reason = "they were not built: there was no C compiler"
        elif os.path.basename(self._directory) not in held:
            self.reason = "their sources have changed since they were built"
        elif not {extension(module) for module in MODULES} <= set(os.listdir(self._directory)):
            self.reason = "they were built for another version of Python"

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
