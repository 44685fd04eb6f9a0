"""Ships Holdfast and the user's files to the executors, and explains failures due to missing ones.

Holdfast travels with every job, so executors run the driver's version, whatever is installed there. It brings the driver's
compiled modules, and those of a wheel that the settings name (`holdfast.compiled`), but not its dependencies, some of which
are binary. The user's files (``python.files``) travel in the job's setup, to its task slots only, so two jobs of one session
can have different versions of a module.
"""

from __future__ import annotations

import atexit
import functools
import io
import os
import py_compile
import re
import shutil
import sys
import tempfile
import weakref
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import xxhash
from py4j.protocol import Py4JNetworkError

import holdfast
from holdfast import compiled
from holdfast.common.values.pickling import dumps_program
from holdfast.errors import ConfigurationError, HoldfastError, JobFailed, SparkGone
from holdfast.runtime.host.dependencies import made_once, unzip

if TYPE_CHECKING:  # task slots use this module without Spark
    from pyspark import SparkContext

__all__ = [
    "COMPILED_WHEEL",
    "PYTHON_FILES",
    "REMEDY",
    "SparkJobFailed",
    "in_short",
    "configuration_error",
    "install_files",
    "is_local",
    "load_and_run",
    "pack_files",
    "portable",
    "ship_package",
    "spark_failure",
]

REMEDY = (
    "Executors need the packages that Holdfast and the program import: install them there (pip install holdfast), or ship "
    "an environment by spark.archives with PYSPARK_PYTHON pointing into it. Modules of your own travel by "
    "env.add_python_file() or spark-submit --py-files"
)

_OF_A_FUTURE = ": java.util.concurrent.ExecutionException"
"""Java wraps the failure of an asynchronous Spark job in this exception."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: |$)")
"""Matches the line of a Python traceback that names the exception."""
PYTHON_FILES = "python.files"
"""Modules of the program, separated by commas."""
COMPILED_WHEEL = "python.compiled-wheel"
"""A wheel of this Holdfast, built for the executors' Python and platform if these differ from the driver's."""
_ARCHIVES = (".zip", ".whl", ".egg")
_shipped: weakref.WeakSet[SparkContext] = weakref.WeakSet()


def is_local(master: str) -> bool:
    """Whether tasks run on the driver's machine, with its Python and its files."""
    return master.startswith("local")


# Holdfast


def ship_package(context: SparkContext, wheel: str = "") -> None:
    """Make Holdfast importable on all present and future executors, once per SparkContext.

    Args:
        context: The cluster.
        wheel: A wheel with further compiled modules (`COMPILED_WHEEL`); empty: only the driver's.

    Raises:
        ConfigurationError: the wheel has no compiled modules of this Holdfast.
    """
    if is_local(context.master) or context in _shipped:
        return
    package = _package(wheel)
    directory = tempfile.mkdtemp(prefix="holdfast-package-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)  # not earlier: executors that join later fetch it, too
    path = os.path.join(directory, f"holdfast-{xxhash.xxh3_64_hexdigest(package)}.zip")
    Path(path).write_bytes(package)
    context.addPyFile(path)
    _shipped.add(context)


def _package(wheel: str) -> bytes:
    """Pack Holdfast into a zip archive for import: sources, byte code, and compiled modules that are unpacked on arrival."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive, tempfile.TemporaryDirectory() as scratch:
        byte_code = os.path.join(scratch, "byte-code")
        for root in holdfast.__path__:
            for path in sorted(Path(root).rglob("*.py")):
                name = f"holdfast/{path.relative_to(root).as_posix()}"
                archive.write(path, name)
                # Unchecked byte code: times in an archive are too coarse to compare, and the sources are the same.
                py_compile.compile(
                    str(path), byte_code, name, True, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH
                )
                archive.write(byte_code, f"{name}c")
        directory = Path(compiled.directory(holdfast.__path__[0]))
        archive.writestr(f"holdfast/{compiled.DIRECTORY}/{compiled.DIGEST}", directory.name)
        extensions = {path.name: path.read_bytes() for path in sorted(directory.glob("*.so"))}
        if wheel:
            extensions |= _extensions(wheel, directory.name)
        for name, extension in extensions.items():
            archive.writestr(f"holdfast/{compiled.DIRECTORY}/{directory.name}/{name}", extension)
    return content.getvalue()


def _extensions(wheel: str, digest: str) -> dict[str, bytes]:
    """The extension modules in a wheel that match this Holdfast's sources, by file name."""
    try:
        with zipfile.ZipFile(wheel.removeprefix("file://")) as archive:
            beginning = f"holdfast/{compiled.DIRECTORY}/{digest}/"
            found = {
                name.removeprefix(beginning): archive.read(name) for name in archive.namelist() if name.startswith(beginning)
            }
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"{COMPILED_WHEEL} names {wheel}, which cannot be read: {error}") from None
    if not found:
        raise ConfigurationError(
            f"{COMPILED_WHEEL} names {wheel}, which has no compiled modules of this Holdfast ({holdfast.__version__}): "
            "build a wheel of this version on the executors' platform, with a C compiler"
        )
    return found


# the user's files


def pack_files(config: Mapping[str, str]) -> list[bytes]:
    """Pack each entry of ``python.files`` into a zip archive whose root goes on the Python path.

    Raises:
        ConfigurationError: an entry does not exist, or Python cannot import from it.
    """
    entries = [entry.strip() for entry in config.get(PYTHON_FILES, "").split(",")]
    return [_pack(Path(entry.removeprefix("file://"))) for entry in entries if entry]


def _pack(path: Path) -> bytes:
    if path.suffix in _ARCHIVES and zipfile.is_zipfile(path):
        return path.read_bytes()
    if path.is_dir():
        files: Iterable[Path] = (p for p in sorted(path.rglob("*")) if p.is_file() and "__pycache__" not in p.parts)
        root = path
    elif path.suffix == ".py" and path.is_file():
        files, root = [path], path.parent
    else:
        what = "does not exist" if not path.exists() else "is neither a directory, a .py file nor a .zip or .whl archive"
        raise ConfigurationError(f"{PYTHON_FILES} names {path}, which {what}")
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
        for file in files:
            archive.write(file, file.relative_to(root))
    return content.getvalue()


def install_files(archives: Iterable[bytes], directory: str) -> None:
    """Unpack the archives of `pack_files` below a directory, and put them first on this process's Python path."""
    found = [
        made_once(os.path.join(directory, f"python-{xxhash.xxh3_64_hexdigest(archive)}"), functools.partial(unzip, archive))
        for archive in archives
    ]
    new = [path for path in found if path not in sys.path]
    sys.path[:0] = new
    for path in new:  # importlib.invalidate_caches() would read the directories of all archives on the path again
        sys.path_importer_cache.pop(path, None)


# tasks, and the errors of those that cannot run


def load_and_run() -> Callable[..., Iterator[Any]]:
    """Make a function that unpickles and runs a task, and that any Python can unpickle without Holdfast.

    So it can report missing packages on a host. Its arguments are the pickled task, the broadcasts that the task needs
    (Spark would not find them inside the pickle), the partition and its items.
    """

    def run(pickled: bytes, *arguments: Any) -> Iterator[Any]:  # pickled by value, so it must not refer to names outside
        import os
        import pickle
        import socket
        import sys

        *broadcasts, partition, items = arguments
        try:
            loaded = pickle.loads(pickled)
        except (ImportError, AttributeError) as error:  # a package is missing or has another version
            host = os.environ.get("SPARK_LOCAL_IP") or socket.gethostname()
            raise ImportError(f"cannot be loaded on host {host} by {sys.executable}: {error}") from error
        result: Iterator[Any] = loaded(partition, items, *broadcasts)
        return result

    return run


def portable(task: Callable[..., Iterator[Any]]) -> Callable[[int, Iterable[Any]], Iterator[Any]]:
    """Wrap a task into a function that any Python can unpickle without Holdfast."""
    return functools.partial(load_and_run(), dumps_program(task))


class SparkJobFailed(RuntimeError):
    """Spark gave up an epoch's job after its own retries."""


def spark_failure(error: BaseException, local: bool, *, stopped: bool = False) -> Exception:
    """The reason why a Spark job failed, without Java's stack traces.

    A ConfigurationError if the executors are set up wrongly, SparkGone if Spark has ended.

    Args:
        error: The error that Spark raised.
        local: Whether tasks run on the driver's machine.
        stopped: Whether the SparkContext has been stopped.
    """
    if stopped or isinstance(error, (Py4JNetworkError, ConnectionError)) or "stopped SparkContext" in str(error):
        return SparkGone(
            "Spark has gone: its JVM has died (out of memory? killed?), or its SparkContext was stopped. Start the program "
            "again: the job resumes from its latest checkpoint"
        )
    return configuration_error(error, local) or SparkJobFailed(_with_place(_last_words(str(error))))


def _with_place(words: str) -> str:
    """Add to the end of Spark's text, if it reports a full disk without a path, the settings that name the disk.

    >>> _with_place("OSError: [Errno 28] No space left on device")
    'OSError: [Errno 28] No space left on device: free space below io.tmp.dirs, or spark.local.dir'
    """
    nameless = words.endswith("No space left on device") and "/" not in words
    return f"{words}: free space below io.tmp.dirs, or spark.local.dir" if nameless else words


def _last_words(text: str) -> str:
    r"""The exception at the end of a Python traceback in Spark's text, else the first informative line.

    >>> _last_words("An error occurred while calling o1.f.\n: java.lang.Exception: gone\n\tat A.b(A.scala:1)")
    'java.lang.Exception: gone'
    >>> _last_words("An error occurred while calling o1.get.\n: java.util.concurrent.ExecutionException: x\nCaused by: B: c")
    'B: c'
    """
    wrapper, wrapped, cause = text.partition("\nCaused by: ")
    if wrapped and _OF_A_FUTURE in wrapper:
        text = cause
    lines = text.splitlines() or [""]
    if "Traceback (most recent call last):" in text:
        stack = next((i for i, line in enumerate(lines) if line.startswith("\tat ")), len(lines))
        ends = [line for line in lines[:stack] if _EXCEPTION.match(line)]
        if ends:
            return ends[-1].removeprefix("holdfast.runtime.host.wire.WireClosed: ")
    said = lines[1] if len(lines) > 1 and lines[0].startswith("An error occurred while calling") else lines[0]
    return said.removeprefix(": ")


def configuration_error(error: BaseException, local: bool = False) -> ConfigurationError | None:
    """The error for a Spark job that failed because its executors are set up wrongly; None for other failures."""
    text = str(error)
    if found := re.search(r"^ImportError: (cannot be loaded on host \S+ by (\S+): .*)", text, re.MULTILINE):
        said, python = found.groups()
        remedy = REMEDY
        if local and python != sys.executable:
            remedy = f"This program runs on {sys.executable}: set PYSPARK_PYTHON to that before the Spark session is made"
        return ConfigurationError(f"the job {said.rstrip('.')}. {remedy}")
    if found := re.search(r'\((\S+) executor \S+\): java\.io\.IOException: Cannot run program "([^"]+)"', text):
        host, python = found.groups()
        return ConfigurationError(
            f"There is no {python} on host {host}: set PYSPARK_PYTHON (or python.executable) to a Python that is at the "
            f"same path on all executors"
        )
    if found := re.search(r"\[PYTHON_VERSION_MISMATCH\] (.*)", text):
        return ConfigurationError(f"The executors' Python does not fit: {found.group(1)}")
    return None


E = TypeVar("E", bound=BaseException)


def in_short(error: E) -> E:
    """Drop the traceback and the causes of Holdfast's own errors, whose messages name the remedy.

    Other errors keep theirs, which may be needed to understand them.
    """
    if not isinstance(error, HoldfastError):
        return error
    if not isinstance(error, JobFailed):
        error.__cause__, error.__suppress_context__ = None, True
    elif isinstance(error.__cause__, SparkJobFailed):
        error.__cause__.__traceback__ = None
    return error.with_traceback(None)
