"""Launch: how `holdfast run` starts a program, and how the program learns of it.

The program runs as plain Python would run it; an environment variable names a file with the launch.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import TracebackType

import msgspec

from holdfast.common.secrets import masked
from holdfast.common.system.core_dumps import forbid_core_dumps
from holdfast.errors import HoldfastError
from holdfast.runtime.records.places import is_holdfasts

__all__ = ["Launch", "launched"]

_VARIABLE = "HOLDFAST_LAUNCH"
_FORMAT = "%(asctime)s %(levelname)s %(message)s"


class Launch(msgspec.Struct, frozen=True):
    """A program's start by `holdfast run`."""

    id: str
    settings: dict[str, str]
    """Settings from the command line; the program's settings override them."""
    log: str
    """The file of the program's log."""
    detached: bool
    """Whether the program's output also goes to that file."""
    restarted: bool = False
    """Whether the program is restarted when it dies; its jobs then stand by while another driver owns them."""
    restarts_failed: bool = False
    """Whether a failed job is started again, too."""
    first_seen: str = ""
    """The file in which the launch's first driver notes the jobs that had ended before it; empty if the program is started
    once.
    """
    restore_check: str = ""
    """The file for the result of `check_restore`, after which the program ends; empty: the program runs."""

    def store(self, directory: Path) -> Path:
        """Write the launch to a file that only its owner can read: settings may be secrets."""
        path = directory / f"{self.id}.launch"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(msgspec.json.encode(self))
        return path

    def ended_before(self, job: str, owner: str | None) -> str | None:
        """The owner with which a job had ended before this launch, as the launch's first driver saw it.

        If a job has ended since then, its user has ended it, and a later driver of the launch must not start it again.

        Args:
            job: The job's directory.
            owner: The owner with which the job has ended, as this driver sees it; empty: it never had one; None: it has not
                ended.
        """
        if not self.first_seen:
            return owner
        path = Path(self.first_seen)
        seen = msgspec.json.decode(path.read_bytes(), type=dict[str, str | None]) if path.exists() else {}
        if job not in seen:
            part = path.with_suffix(".part")
            part.write_bytes(msgspec.json.encode({**seen, job: owner}))
            part.replace(path)
            return owner
        return seen[job]

    @staticmethod
    def environment(stored: Path) -> Mapping[str, str]:
        """The environment of a program to be started with a stored launch."""
        return {**os.environ, _VARIABLE: str(stored)}


@lru_cache
def launched() -> Launch | None:
    """The launch of this process; None if `holdfast run` did not start it. The first call sets up log and signals."""
    path = os.environ.pop(_VARIABLE, None)  # removed: processes that the program starts must not see it
    if path is None:
        return None
    launch = msgspec.json.decode(Path(path).read_bytes(), type=Launch)
    forbid_core_dumps()
    _begin_log(launch)
    sys.excepthook = partial(_show_error, launch.settings)
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # end in order, as on Ctrl-C
    return launch


class _Console(logging.StreamHandler):  # type: ignore[type-arg]
    """Shows messages unless the program configures logging itself, which would show them twice."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            super().emit(record)


def _begin_log(launch: Launch) -> None:
    logger = logging.getLogger("holdfast")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    console = _Console()
    console.setFormatter(logging.Formatter(_FORMAT))
    console.setLevel(logging.INFO if launch.detached else logging.WARNING)
    logger.addHandler(console)
    if not launch.detached:
        file = logging.FileHandler(launch.log, encoding="utf-8", delay=True)
        file.setFormatter(logging.Formatter(_FORMAT))
        logger.addHandler(file)


def _show_error(
    settings: Mapping[str, str], kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Show the error that ends the program: the user's frames, Holdfast's only in case of a bug, and no secrets."""
    if isinstance(error, KeyboardInterrupt):
        return  # `holdfast run` reports how the job has ended
    if isinstance(error, HoldfastError):
        trace = _users_frames(trace)
    shown = "".join(traceback.format_exception(kind, error.with_traceback(trace), trace))
    print(masked(shown, settings), end="", file=sys.stderr)


def _users_frames(trace: TracebackType | None) -> TracebackType | None:
    if trace is None:
        return None
    rest = _users_frames(trace.tb_next)
    if is_holdfasts(trace.tb_frame.f_code.co_filename):
        return rest
    return TracebackType(rest, trace.tb_frame, trace.tb_lasti, trace.tb_lineno)
