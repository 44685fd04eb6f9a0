"""A Redis server of its own for tests, which keeps its data when it is killed."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing.ports import ReservedPort


class RedisServer:
    """A server that writes its log (AOF) before it answers."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._arguments = [
            "--port",
            str(self.port),
            "--dir",
            str(directory),
            "--save",
            "",
            "--appendonly",
            "yes",
            *arguments,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("Redis is not installed (apt-get install redis-server)")
        with (self.directory / "log").open("ab") as log:
            self._process = subprocess.Popen([program, *self._arguments], stdout=log, stderr=log)
        import redis
        from redis.backoff import ConstantBackoff
        from redis.retry import Retry

        patient = Retry(ConstantBackoff(0.05), 1200)
        given = dict(zip(self._arguments[::2], self._arguments[1::2]))
        login = {"password": given.get("--requirepass")}
        try:
            with redis.Redis(port=self.port, retry=patient, retry_on_error=[redis.BusyLoadingError], **login) as client:
                client.ping()
        except redis.RedisError as error:
            raise AssertionError((self.directory / "log").read_text()) from error

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self, **more: Any) -> Any:
        import redis

        return redis.Redis(port=self.port, decode_responses=True, **more)

    def release(self) -> None:
        """Let others have the port."""
        self._reserved.close()


@contextmanager
def redis_server(directory: Path, *arguments: str) -> Iterator[RedisServer]:
    """A running server."""
    pytest.importorskip("redis", reason="pip install 'holdfast[redis]'")
    server = RedisServer(directory, *arguments)
    try:
        server.start()
        yield server
    finally:
        server.kill()
        server.release()
