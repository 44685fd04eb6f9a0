"""A process that holds a TCP connection, as a Spark worker does."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys

import pytest

from holdfast.errors import ConfigurationError
from holdfast.runtime.records.frame_header import HEADER_SIZE
from holdfast.runtime.spark import level_task
from holdfast.runtime.spark.level_task import LevelTask

WORKER = """
import gc, socket, sys
begin = gc.get_freeze_count()  # Python 3.12 has some
from holdfast.runtime.spark.level_task import quicken
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
import xml.dom.minidom  # a task may import more than the one before
quicken()
print(gc.get_freeze_count() - once > 200)
"""


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux acknowledges late")
def a_worker_sends_and_acknowledges_at_once_and_its_modules_are_out_of_the_collectors_reach() -> None:
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "False", "False", "True", "True", "1", "True"], done.stderr


def a_worker_with_another_version_of_holdfast_says_so_before_it_calls_a_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(level_task, "quicken", lambda: None)  # of this process
    task = LevelTask(0, True, "", "job", "start", version="0.0.9", calls=[pickle.dumps((None, 3, 0))])
    (frame,) = task(0, iter(()), None)
    report = pickle.loads(frame[HEADER_SIZE:])
    assert report.task == (3, 0)
    assert isinstance(report.error, ConfigurationError)
    assert "spark.python.daemon.module" in str(report.error)
    assert "the driver has 0.0.9: install that" in str(report.error)
