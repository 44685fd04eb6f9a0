"""Builds the compiled modules (`holdfast.compiled`): for wheels and editable installs, and as a program for the source tree.

Without a C compiler or Cython, and with HOLDFAST_PURE=1, Holdfast is plain Python: it does the same, slower. The compiler's
own options can be added to in CFLAGS, as elsewhere: with -O0 it takes a fraction of the time.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # as a program, it needs no hatchling
    BuildHookInterface = object

_PACKAGE = Path("src") / "holdfast"
_DIRECTIVES = ("annotation_typing=False", "binding=False", "embedsignature=True", "embedsignature.format=clinic")
"""Annotations are those of mypy, not of C; methods are as quick to call as those of built-in classes, and show their
signatures as these do."""


class NotCompiled(Exception):
    """Why there are no compiled modules."""


class CompiledModules(BuildHookInterface):
    """The build hook."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the modules, and add them to the wheel. An editable install finds them beside their sources."""
        package = Path(self.root) / _PACKAGE
        try:
            built = build(package)
        except NotCompiled as reason:
            self.app.display_warning(f"Holdfast is installed as plain Python, without compiled modules: {reason}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            included = {str(file): str(Path("holdfast") / file.relative_to(package)) for file in built}
            build_data["force_include"].update(included)


def build(package: Path) -> list[Path]:
    """Compile what is not compiled yet; returns the extensions.

    Raises:
        NotCompiled: it is not possible, or not wanted.
    """
    compiled = _compiled(package)
    if os.environ.get(compiled.PURE):
        raise NotCompiled(f"{compiled.PURE} is set")
    target = Path(compiled.directory(str(package)))
    built = [target / compiled.extension(module) for module in compiled.MODULES]
    if all(file.exists() for file in built):
        return built
    with tempfile.TemporaryDirectory() as work:
        made = _compile(Path(work), package, compiled)
        for old in target.parent.glob("*"):
            if old != target:
                shutil.rmtree(old, ignore_errors=True)
        target.mkdir(parents=True, exist_ok=True)
        for file in made:
            partial = target / f"{file.name}.{os.getpid()}"
            shutil.copyfile(file, partial)
            partial.replace(target / file.name)
    return built


def _compiled(package: Path) -> ModuleType:
    """The module `holdfast.compiled` of these sources, without the package."""
    spec = importlib.util.spec_from_file_location("_holdfast_compiled", package / "compiled.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.meta_path)
    spec.loader.exec_module(module)
    sys.meta_path[:] = before
    return module


def _compile(work: Path, package: Path, compiled: ModuleType) -> list[Path]:
    compiler = sysconfig.get_config_var("LDSHARED")
    if not compiler or shutil.which(shlex.split(compiler)[0]) is None:
        raise NotCompiled(f"there is no C compiler ({compiler or 'none is configured'})")
    if importlib.util.find_spec("Cython") is None:
        raise NotCompiled("Cython is not installed")
    sources = []
    for module in (*compiled.SHARED, *compiled.MODULES):
        path = Path(compiled.source(str(package), module))
        copy = work / "holdfast" / path.relative_to(package)
        copy.parent.mkdir(parents=True, exist_ok=True)
        for each in (copy.parent, *copy.parent.parents):
            if each == work:
                break
            (each / "__init__.py").touch()
        shutil.copyfile(path.with_suffix(".pxd"), copy.with_suffix(".pxd"))
        if module in compiled.MODULES:
            shutil.copyfile(path, copy)
            sources.append(copy)
    names = [str(file.relative_to(work)) for file in sources]
    directives = [word for directive in _DIRECTIVES for word in ("-X", directive)]
    _run([[sys.executable, "-m", "cython", "-3", *directives, *names]], work)
    include = f"-I{sysconfig.get_paths()['include']}"
    made = [work / compiled.extension(module) for module in compiled.MODULES]
    options = ["-fPIC", "-O3", "-DNDEBUG", "-fno-strict-aliasing", "-w", *shlex.split(os.environ.get("CFLAGS", ""))]
    command = [*shlex.split(compiler), *options, include]
    _run([[*command, str(file.with_suffix(".c")), "-o", str(out)] for file, out in zip(sources, made)], work)
    return made


def _run(commands: list[list[str]], directory: Path) -> None:
    """Run commands, as many beside each other as there are processors."""

    def run(command: list[str]) -> None:
        done = subprocess.run(
            command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
        if done.returncode:
            raise NotCompiled(f"the compiler failed:\n{done.stdout[-2000:]}")

    with ThreadPoolExecutor(os.cpu_count()) as processors:
        list(processors.map(run, commands))


if __name__ == "__main__":
    try:
        build(Path(__file__).resolve().parent / _PACKAGE)
    except NotCompiled as reason:
        print(f"Holdfast runs as plain Python, without compiled modules: {reason}", file=sys.stderr)
