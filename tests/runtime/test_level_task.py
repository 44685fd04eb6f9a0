"""A process that holds a TCP connection, as a Spark worker does."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

WORKER = """
import gc, socket, sys
begin = gc.get_freeze_count()  # Python 3.12 has some
from holdfast.runtime.level_task import quicken
def delays(connection):
    connection.send(b"x")
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 0
server = socket.create_server(("127.0.0.1", 0))
ours = socket.create_connection(server.getsockname())
print(delays(ours), gc.get_freeze_count() > begin)
quicken()
once = gc.get_freeze_count()
quicken()
print(delays(ours), once - begin > 1000, gc.get_freeze_count() - once < 100)
ours.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
quicken()
print(ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))
"""


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux acknowledges late")
def a_worker_sends_and_acknowledges_at_once_and_its_modules_are_out_of_the_collectors_reach() -> None:
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False", "False", "True", "True", "1"], done.stderr
