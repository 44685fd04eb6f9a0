"""ReservedPort: a port for a process that is started later; nobody else gets it meanwhile."""

from __future__ import annotations

import socket
import sys

__all__ = ["ReservedPort"]


class ReservedPort:
    """A free TCP port of an address, kept until `close`, also while the process that uses it is down.

    A socket that is bound to the port, but does not listen, keeps the kernel from giving the port to any other socket; a
    process that names the port can listen on it, as servers set ``SO_REUSEADDR``. This is so on Linux; elsewhere the port is
    only found, not kept.

    Attributes:
        number: The port.
    """

    def __init__(self, host: str = "127.0.0.1") -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((host, 0))
        self.number: int = self._socket.getsockname()[1]
        if sys.platform != "linux":
            self.close()

    def close(self) -> None:
        """Let others have the port."""
        self._socket.close()
