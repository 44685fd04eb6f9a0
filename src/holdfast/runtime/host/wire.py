"""Messages between a Spark task and its task slot: length-prefixed, over a Unix socket."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from multiprocessing.connection import wait

__all__ = [
    "DONE",
    "END",
    "ERROR",
    "FRAME",
    "NEED_SETUP",
    "PARK",
    "RESTORE",
    "RETIRE",
    "RUN",
    "SETUP",
    "STAND_BY",
    "WORKING",
    "Wire",
    "WireClosed",
    "connect",
    "listen",
]

RUN, SETUP, FRAME, END, NEED_SETUP, DONE, ERROR, RETIRE, RESTORE, STAND_BY, WORKING, PARK = range(12)

_HEAD = struct.Struct("<BII")
_BUFFER = 1 << 20


_WAITING = 1024
"""Limit of connections that wait to be accepted."""
_LONGEST_ADDRESS = 107
"""The kernel's limit for the address of a Unix socket, in bytes."""


class WireClosed(ConnectionError):
    """The other side has closed the connection."""


def connect(path: str) -> socket.socket | None:
    """Connect to the Unix socket at a path; None if nobody listens there."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _socket_address(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        return None
    return connection


def listen(path: str) -> socket.socket:
    """Listen on a Unix socket at a path, replacing an earlier listener."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    new = f"{path}.new"  # listen before renaming: clients that find the path can connect
    with contextlib.suppress(FileNotFoundError):
        os.unlink(new)
    with _socket_address(new) as address:
        listener.bind(address)
    listener.listen(_WAITING)
    os.rename(new, path)
    return listener


@contextlib.contextmanager
def _socket_address(path: str) -> Iterator[str]:
    """The address of a Unix socket at this path, which may be longer than the kernel allows.

    Raises:
        OSError: the path is too long and its directory cannot be opened.
    """
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS:
        yield path
        return
    directory = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{os.path.basename(path)}"
    finally:
        os.close(directory)


class Wire:
    """A connection. A message has a kind, a number (of a partition, if needed) and bytes."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._in = connection.makefile("rb", _BUFFER)
        self._out = connection.makefile("wb", _BUFFER)

    def send(self, kind: int, payload: bytes = b"", number: int = 0) -> None:
        """Queue a message; `flush` sends it."""
        try:
            self._out.write(_HEAD.pack(kind, number, len(payload)))
            self._out.write(payload)
        except OSError as error:
            raise WireClosed(str(error)) from error

    def flush(self) -> None:
        """Send the queued messages."""
        try:
            self._out.flush()
        except OSError as error:
            raise WireClosed(str(error)) from error

    def receive(self) -> tuple[int, int, bytes]:
        """The next message: kind, number, payload.

        Raises:
            WireClosed: the other side closed the connection or died.
        """
        try:
            head = self._in.read(_HEAD.size)
            if len(head) < _HEAD.size:
                raise WireClosed("the connection was closed")
            kind, number, size = _HEAD.unpack(head)
            payload = self._in.read(size)
        except OSError as error:
            raise WireClosed(str(error)) from error
        if len(payload) < size:
            raise WireClosed("the connection was closed within a message")
        return kind, number, payload

    def answers(self, seconds: float) -> bool:
        """Wait for a message or the end of the connection; False after a timeout in seconds. Called before `receive`."""
        return bool(wait([self._connection], seconds))

    def peer(self) -> int:
        """The id of the process on the other side."""
        if sys.platform == "darwin":
            return self._connection.getsockopt(0, 2)  # SOL_LOCAL, LOCAL_PEERPID
        credentials = self._connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        return int(struct.unpack("3i", credentials)[0])

    def close(self) -> None:
        """Close the connection."""
        for stream in (self._out, self._in):
            try:
                stream.close()
            except OSError:
                continue  # the other side has closed it and will read nothing more
        self._connection.close()
