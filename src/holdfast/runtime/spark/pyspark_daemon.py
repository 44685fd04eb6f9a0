"""The daemon from which Spark forks its Python workers: PySpark's, after the imports that every worker needs.

The workers share the memory of these modules, and start without importing them. PySpark's daemon leaves imports to the
workers, because some packages start threads, which a fork would lose; those imported here start none.

Each worker adds its files to the Python path, after which Python reads the directories of all archives on the path again:
0.1 s and 15 MB for those of PySpark and of Spark's jar. The daemon forgets these archives; an import finds them again.

PySpark's daemon forks a worker for anyone who connects, and only the worker asks for the secret, so another user of the
machine could fill its memory with processes. This daemon accepts connections only from its own user and root.
"""

from __future__ import annotations

import errno
import gc
import os
import socket
import sys
import zipimport
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pyspark.daemon
import pyspark.worker

import holdfast.runtime.spark.level_task  # noqa: F401

__all__ = ["OwnSocket", "forget_archives"]


class OwnSocket(socket.socket):
    """A socket that accepts no connection from another user of this machine, except root."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection.

        Raises:
            InterruptedError: it came from another user, and has been closed. PySpark's daemon then continues.
        """
        connection, address = super().accept()
        if self.family == socket.AF_UNIX or _user_of(connection) in (None, 0, os.getuid()):
            return connection, address
        connection.close()
        raise InterruptedError(errno.EINTR, "a connection of another user")


def _user_of(connection: socket.socket) -> int | None:
    """The user whose process holds the other end of a connection from this machine; None if unknown."""
    ports = connection.getpeername()[1], connection.getsockname()[1]
    for table in ("tcp", "tcp6"):  # the JVM's sockets use IPv6
        with suppress(OSError), open(f"/proc/net/{table}") as lines:
            for line in list(lines)[1:]:
                _, local, remote, _, _, _, _, user, _, node, *_ = line.split()
                if (_port(local), _port(remote)) == ports and node != "0":  # 0: the process has closed its end
                    return int(user)
    return None


def _port(address: str) -> int:
    return int(address.rpartition(":")[2], 16)


def forget_archives() -> None:
    """Keep Python from reading the archives' directories again before it imports from them."""
    for path, finder in list(sys.path_importer_cache.items()):
        if isinstance(finder, zipimport.zipimporter):
            del sys.path_importer_cache[path]


if __name__ == "__main__":
    forget_archives()
    gc.collect()
    gc.freeze()  # a collection in a worker would write to the shared pages
    vars(pyspark.daemon)["socket"] = SimpleNamespace(**{**vars(socket), "socket": OwnSocket})
    pyspark.daemon.manager()
