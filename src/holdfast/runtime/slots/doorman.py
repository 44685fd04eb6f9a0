"""Doorman: answers a task slot's callers while the slot works."""

from __future__ import annotations

import contextlib
import socket
import threading
from multiprocessing.connection import wait
from types import TracebackType

from holdfast.runtime.host.wire import RUN, WORKING, Wire, WireClosed

__all__ = ["Doorman", "Message"]

Message = tuple[int, int, bytes]


class Doorman:
    """Accepts the next call of a task slot, in a thread, while the slot's main thread works.

    The main thread may be in a user's function for long. A Spark task that calls meanwhile is told that the slot works, so
    that it waits and does not replace the slot.

    Args:
        listener: The slot's socket.
    """

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._leave, self._left = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="doorman", daemon=True)
        self.call: tuple[Wire, Message] | None = None
        """The waiting call, with its first message."""

    def __enter__(self) -> Doorman:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._left.close()
        self._thread.join()
        self._leave.close()

    def _watch(self) -> None:
        while self.call is None:
            if self._leave in wait([self._listener, self._leave]):
                return
            try:
                connection, _ = self._listener.accept()
            except OSError:
                continue  # the caller has left
            connection.settimeout(None)
            wire = Wire(connection)
            try:
                message = wire.receive()
            except WireClosed:
                wire.close()
                continue
            self.call = wire, message
            if message[0] == RUN:
                with contextlib.suppress(WireClosed):  # the main thread will meet it, too
                    wire.send(WORKING)
                    wire.flush()
