"""Fixtures for all tests."""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from long_files import LONG

pytest_plugins = ["examples_in_docstrings", "scheduling", "kafka_fixtures", "s3_fixtures", "azure_fixtures"]

HERE = Path(__file__).parent
LONGEST = ("fault", "kafka", "spark")
"""Marks of the tests that take longest, these first."""
MEMORY = "/dev/shm"
LEAST_MEMORY = 4 << 30
OWN = "hft-"
"""How the directories of runs begin: sockets have their names below them, which must be short."""


def keep_files_in_memory() -> None:
    """Use a file system in memory for temporary files, where one has room: no test waits for a disk then."""
    try:
        flags = os.statvfs(MEMORY).f_flag
        suitable = os.access(MEMORY, os.W_OK) and not flags & os.ST_NOEXEC
        if suitable and shutil.disk_usage(MEMORY).free >= LEAST_MEMORY:
            os.environ.setdefault("TMPDIR", MEMORY)
            tempfile.tempdir = None  # chosen anew at the next call
    except OSError:
        return  # a machine without it


keep_files_in_memory()


def own_directory() -> Path | None:
    """Keep the temporary files of this run in a directory of its own; the process that collects the results makes it.

    Tests and the processes that they kill leave many. Those of runs that failed go when the next run begins.
    """
    if "PYTEST_XDIST_WORKER" in os.environ:
        return None
    everything = Path(tempfile.gettempdir())
    for old in everything.glob(f"{OWN}*"):
        if not Path("/proc", old.name.removeprefix(OWN)).exists():
            shutil.rmtree(old, ignore_errors=True)
    own = everything / f"{OWN}{os.getpid()}"
    own.mkdir(mode=0o700)
    os.environ["TMPDIR"] = str(own)
    tempfile.tempdir = None
    atexit.register(remove_directory)  # so early that all else which ends with the process ends before
    return own


def remove_directory() -> None:
    if DIRECTORY is not None and DIRECTORY.name == f"{OWN}{os.getpid()}":  # not in a process that was forked
        shutil.rmtree(DIRECTORY, ignore_errors=True)


DIRECTORY = own_directory()

# A busy machine is no failure of what is tested.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")

# A shell's background jobs ignore Ctrl-C, and so would the programs that tests start and stop with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Programs that tests start, and their task slots and workers, find Holdfast compiled, as users' programs do.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.fixture(scope="session", autouse=True)
def home_of_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Jobs of the tests are not recorded among the user's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("jobs")))
        yield


@pytest.fixture
def on_disk() -> Iterator[Path]:
    """A directory that is not in memory, as those of other tests may be."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        yield Path(directory)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the files that take longest, so that at the end no process runs a long one alone.

    Tests without processes of Spark and Kafka have no excuse: they are never repeated (``--reruns``).
    """
    long = {HERE / name for name in LONG}
    order = (*LONGEST, "long")
    ranks: dict[Path, int] = {}
    for item in items:
        if item.path in long:
            item.add_marker(pytest.mark.long)
        if not any(map(item.get_closest_marker, LONGEST)):
            item.add_marker(pytest.mark.flaky(reruns=0))
        rank = next((n for n, mark in enumerate(order) if item.get_closest_marker(mark)), len(order))
        ranks[item.path] = min(rank, ranks.get(item.path, rank))
    items.sort(key=lambda item: ranks[item.path])


@pytest.fixture(autouse=True)
def cycle_collector() -> Iterator[None]:
    """A task slot turns Python's cycle collector off, also one that a test runs in its own process; later tests have it."""
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def no_garbage(request: pytest.FixtureRequest) -> Iterator[None]:
    """A socket that a test has left open fails this test, and not another one in which the garbage is collected."""
    yield
    if any(request.node.get_closest_marker(mark) for mark in LONGEST):
        gc.collect()


def pytest_sessionfinish(exitstatus: int) -> None:
    """Keep the temporary files if a test has failed."""
    if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        atexit.unregister(remove_directory)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show why a test that passed in the end failed before."""
    for report in terminalreporter.stats.get("rerun", []):
        terminalreporter.section(f"failed at first: {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
