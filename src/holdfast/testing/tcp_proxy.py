"""TcpProxy: a port between clients and a server, whose network can be cut."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

from holdfast.testing.ports import ReservedPort

__all__ = ["TcpProxy"]

_WAIT_S = 30.0
_PIECE = 1 << 16


class TcpProxy:
    """Passes bytes between clients and a server on this machine. `holdfast.testing.proxy` knows Kafka's requests.

    Args:
        upstream: The server's port.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._reserved = ReservedPort()
        self.port = self._reserved.number
        """The port for clients."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"tcp-proxy-{self.port}", daemon=True)
        self._passable = asyncio.Event()
        self._passable.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> TcpProxy:
        """Start to listen."""
        self._thread.start()
        listening = asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self._server = asyncio.run_coroutine_threadsafe(listening, self._loop).result(_WAIT_S)
        return self

    def cut(self) -> None:
        """Let nothing pass; connections stay open, and new ones get no answer."""
        self._loop.call_soon_threadsafe(self._passable.clear)

    def restore(self) -> None:
        """Undo `cut`: what was sent meanwhile arrives."""
        self._loop.call_soon_threadsafe(self._passable.set)

    def disconnect(self) -> None:
        """Close all connections."""
        self._loop.call_soon_threadsafe(self._abort)

    def close(self) -> None:
        """Stop listening, and close all connections."""
        self._reserved.close()
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result(_WAIT_S)
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> TcpProxy:
        return self.start()

    def __exit__(self, *failure: object) -> None:
        self.close()

    def _abort(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._passable.wait()
            to_server: Any = None
            with suppress(OSError):
                from_server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
                self._writers.add(to_server)
                await asyncio.gather(self._pass(reader, to_server), self._pass(from_server, writer))
            if to_server is not None:
                self._writers.discard(to_server)
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while piece := await reader.read(_PIECE):
                await self._passable.wait()
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass  # of either side; the other one is closed below
        finally:
            writer.close()

    async def _shut_down(self) -> None:
        self._server.close()
        self._abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
