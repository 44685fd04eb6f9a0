"""Messages between a Spark task and its task slot: length-prefixed, over a Unix socket."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator
from multiprocessing.connection import wait

__all__ = ["DONE", "END", "ERROR", "FRAME", "NEED_SETUP", "RETIRE", "RUN", "SETUP", "Wire", "WireClosed", "socket_address"]

RUN, SETUP, FRAME, END, NEED_SETUP, DONE, ERROR, RETIRE = range(8)

_HEAD = struct.Struct("<BII")
_BUFFER = 1 << 20


_LONGEST_ADDRESS = 107
"""Bytes that the kernel takes of a Unix socket's address."""


class WireClosed(ConnectionError):
    """The other side has gone."""


@contextlib.contextmanager
def socket_address(path: str) -> Iterator[str]:
    """What to bind or connect to for a Unix socket at this path, however long that is.

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
    """One connection. A message is a kind, a number (a partition, where it matters) and bytes."""

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
        """Send what is queued."""
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
        """Whether something comes (or the connection ends) within so many seconds; nothing may have come yet."""
        return bool(wait([self._connection], seconds))

    def peer(self) -> int:
        """The id of the process that listens on the other side."""
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
                continue  # the other side went first; nothing is lost that anyone waits for
        self._connection.close()
