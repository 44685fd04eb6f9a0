"""Commands of the command line, each in a fork of one process that has imported them: imports are most of what one costs.

Commands that run a program start as users start them, and some tests start others so, too.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO

__all__ = ["run_command"]

SOURCES = Path(__file__).resolve().parents[2] / "src"
_LONGEST_REQUEST = 1 << 20
_LONGEST_ANSWER = 32
_PATIENCE_S = 600


def run_command(arguments: tuple[str, ...], directory: Path, environment: Mapping[str, str]) -> tuple[int, str, str]:
    """Run a command to its end; returns its exit code and what it wrote to its standard output and error."""
    commands = _forks()
    request = json.dumps([arguments, os.fspath(directory), dict(environment)]).encode()
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        socket.send_fds(commands, [request], [out.fileno(), err.fileno()])
        process = int(commands.recv(_LONGEST_ANSWER))
        ended = bool(select.select([commands], [], [], _PATIENCE_S)[0])
        if not ended:
            os.kill(process, signal.SIGABRT)  # it shows its threads
        code = int(commands.recv(_LONGEST_ANSWER))
        said, complained = (_content(file) for file in (out, err))
    assert ended, f"{' '.join(arguments)} does not end\n{said}\n{complained}"
    return code, said, complained


def _content(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


@cache
def _forks() -> socket.socket:
    """The channel to the process that forks; it ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(SOURCES), "PYTHONFAULTHANDLER": "1"},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LONGEST_REQUEST)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _fork_for_each(requests: socket.socket) -> list[str]:
    """Fork for each request; returns in the fork, with the command's arguments."""
    while True:
        content, descriptors, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST, 2)
        if not content:
            os._exit(0)
        process = os.fork()
        if not process:
            break
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(process).encode())
        _, status = os.waitpid(process, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())
    os.setsid()
    for descriptor, stream in zip(descriptors, (1, 2), strict=True):
        os.dup2(descriptor, stream)
        os.close(descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    arguments, directory, environment = json.loads(content)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    tempfile.tempdir = None
    return list(arguments)


if __name__ == "__main__":
    sys.path.remove(os.path.dirname(__file__))
    from typer.testing import CliRunner

    from holdfast.cli.__main__ import main
    from holdfast.cli.commands import app

    CliRunner().invoke(app, ["list", "--help"])  # imports what typer needs at its first command
    with socket.socket(fileno=os.dup(0)) as channel:
        sys.argv = ["holdfast", *_fork_for_each(channel)]
    main()
