"""What a Spark worker needs so that short tasks are quick, wherever its Spark came from."""

from __future__ import annotations

import functools
import gc
import os
import socket

__all__ = ["quicken"]


def quicken() -> None:
    """Make this worker fit for short tasks. Each task calls it first; it takes microseconds.

    Over TCP the JVM's Nagle algorithm holds a small write back until the one before is acknowledged, and the kernel delays
    that by 40 ms unless told otherwise. It forgets what it was told, so every task says it again.
    """
    _freeze()
    for connection in _connections():
        _acknowledge_at_once(connection)


@functools.cache
def _freeze() -> None:
    """Hide all that the worker has loaded from the garbage collector, which PySpark runs after every task."""
    gc.collect()
    gc.freeze()


@functools.cache
def _connections() -> tuple[socket.socket, ...]:
    """The worker's TCP connections to its JVM, set to send at once; none if it talks over a Unix socket."""
    found = []
    for name in os.listdir("/dev/fd"):
        try:
            connection = socket.socket(fileno=os.dup(int(name)))
        except OSError:
            continue  # no socket
        if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            found.append(connection)
        else:
            connection.close()
    return tuple(found)


def _acknowledge_at_once(connection: socket.socket) -> None:
    if hasattr(socket, "TCP_QUICKACK"):  # Linux
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
