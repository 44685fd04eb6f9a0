"""LocalDirectory: a directory of a job on one host, which other users can neither read nor change."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import tempfile
from dataclasses import dataclass

from holdfast.checkpoint.paths import safe_name
from holdfast.common.system.directories import make_directories
from holdfast.errors import ConfigurationError

__all__ = ["LocalDirectory", "host_name", "slot_directory", "spark_directory", "state_directory", "temporary_directory"]


@dataclass(frozen=True)
class LocalDirectory:
    """A directory below ``io.tmp.dirs``, created when it is first needed."""

    trusted: str
    """A directory above it whose permissions are the user's responsibility."""
    path: str

    def make(self) -> str:
        """Create the directory with mode 0700 and return its path.

        Its name is predictable, so another user may have created it first, to read or plant state (which is unpickled). The
        first directory below the trusted one keeps others out of everything in it; the trusted one may do so itself.

        Raises:
            ConfigurationError: a directory on the way is a link, belongs to another user, or is open to others.
        """
        make_directories(self.trusted, 0o700)
        if _open_to_others(os.stat(self.trusted)):
            guard = os.path.join(self.trusted, os.path.relpath(self.path, self.trusted).split(os.sep)[0])
            with contextlib.suppress(FileExistsError):
                os.mkdir(guard, mode=0o700)
            fault = _open_to_others(os.lstat(guard))
            if fault:
                raise ConfigurationError(
                    f"{guard} on host {host_name()} {fault}: other users could read or change the state of the job. Remove "
                    "it, give it mode 0700 if it is yours, or set io.tmp.dirs to a directory of yours with mode 0700"
                )
        make_directories(self.path, 0o700)
        return self.path


def _open_to_others(status: os.stat_result) -> str:
    """Why other users can reach the content, given its status; empty if they cannot."""
    if not stat.S_ISDIR(status.st_mode):
        return "is a link or a file, not a directory"
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}, and the job runs as user {os.geteuid()}"
    if status.st_mode & 0o077:
        return f"has mode {stat.S_IMODE(status.st_mode):04o}"
    return ""


def host_name() -> str:
    """The host as Spark knows it: workers bound to several addresses of one machine count as several."""
    return os.environ.get("SPARK_LOCAL_IP") or os.environ.get("SPARK_LOCAL_HOSTNAME") or socket.gethostname()


def slot_directory(configured: str, job_id: str) -> LocalDirectory:
    """The directory of the sockets, locks and logs of a job's slots on this host.

    Args:
        configured: The setting ``io.tmp.dirs``.
        job_id: The job's id.
    """
    return _below(configured, job_id[:16], host_name())


def state_directory(configured: str, job_name: str) -> LocalDirectory:
    """The directory of a job's local stores on this host; a later start of the job finds them again."""
    return _below(configured, "state", safe_name(job_name), host_name())


def spark_directory(configured: str) -> LocalDirectory:
    """The directory of the shuffle files and broadcasts of a local Spark.

    Args:
        configured: The setting ``io.tmp.dirs``.
    """
    return _below(configured, "spark")


def _below(configured: str, *names: str) -> LocalDirectory:
    if configured:
        return LocalDirectory(configured, os.path.join(configured, *names))
    return temporary_directory(*names)


def temporary_directory(*names: str) -> LocalDirectory:
    """A directory of this user below the system's temporary one."""
    system = tempfile.gettempdir()
    return LocalDirectory(system, os.path.join(system, f"holdfast-{os.getuid()}", *names))
