"""Recovery from an object store: the time to the first result, while the files of the state are still being fetched.

    python -m benchmarks arriving --gb 1
    python -m benchmarks arriving --gb 1 --epochs 0

Runs the real state backend of one subtask; Spark does not run. The state is filled as in ``volume``, and stored as a base
and the deltas of some epochs of random changes. A small server gives the files out as S3 does, with a latency for each
request and a bandwidth for all of them. Each round restores the state in fresh processes: one that begins while files are
fetched, and one that fetches all files first.

``first_s``: from the begin of the restore to the end of the first epoch, which reads and changes some thousand keys chosen
at random; ``first_mb``: bytes read from the server until then; ``second_s``: until the end of the next epoch, as large;
``all_s``: until all files are there.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import re
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.volume import FILLED, PARALLELISM, ROW, Stored, Subtask, _all, _assigned
from holdfast.checkpoint.stores.storage import Storage
from holdfast.state.backends import upkeep
from holdfast.state.backends.backend import size_of
from holdfast.state.snapshots import lazy_restore


class Objects(asyncio.Protocol):
    """Gives out and takes the files of a directory, as S3 does.

    Args:
        root: The directory.
        latency: Seconds of each request.
        rate: Bytes per second, of all connections.
    """

    free = 0.0
    """When the answers so far have gone out."""

    def __init__(self, root: Path, latency: float, rate: float) -> None:
        self._root = root
        self._latency = latency
        self._rate = rate
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._out = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, separator, body = self._got.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if separator and len(body) >= (size := int(length[1]) if length else 0):
            self._got = body[size:]
            asyncio.get_running_loop().call_later(self._latency, self._answer, head, body[:size])

    def _answer(self, head: bytes, body: bytes) -> None:
        method, name = head.decode().split(" ")[:2]
        path = self._root / name.partition("?")[0].lstrip("/")
        if method == "PUT":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(body)
            self._send("200 OK", b"", "")
        elif not path.is_file():
            self._send("404 Not Found", b"", "")
        else:
            asked = re.search(rb"range: bytes=(\d+)-(\d+)", head, re.IGNORECASE)
            size = path.stat().st_size
            start, end = (int(asked[1]), min(int(asked[2]), size - 1)) if asked else (0, size - 1)
            with open(path, "rb") as file:
                content = os.pread(file.fileno(), end + 1 - start, start)
            loop, which = asyncio.get_running_loop(), f"Content-Range: bytes {start}-{end}/{size}\r\n"
            Objects.free = max(Objects.free, loop.time()) + len(content) / self._rate
            loop.call_at(Objects.free, self._send, "206 Partial Content", content, which)

    def _send(self, status: str, content: bytes, headers: str) -> None:
        headers += f'Content-Length: {len(content)}\r\nETag: "x"\r\nLast-Modified: Mon, 23 Nov 2026 12:00:00 GMT\r\n'
        self._out.write(f"HTTP/1.1 {status}\r\n{headers}\r\n".encode() + content)


class Counted(Storage):
    """Counts the bytes read."""

    read = 0

    def get(self, path: str) -> bytes:
        data = super().get(path)
        self.read += len(data)
        return data

    def get_range(self, path: str, start: int, length: int) -> bytes:
        data = super().get_range(path, start, length)
        self.read += len(data)
        return data


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--gb", type=float, default=0.3, help="size of the subtask's state")
    parser.add_argument("--epochs", type=int, default=0, help="epochs since the base, each with 1 %% of the rows")
    parser.add_argument("--keys", type=int, default=2048, help="keys of an epoch after the restore")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.02, help="seconds of each request")
    parser.add_argument("--bandwidth", type=float, default=100.0, help="MB/s")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Fill, and restore in each way."""
    rows = round(options.gb * 1e9 / ROW) * PARALLELISM
    figures: dict[str, Any] = {"label": "holdfast-rocksdb", "workload": "arriving", "data": f"{options.gb} GB"}
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        (root / "storage").symlink_to(root / "bucket")
        (root / "bucket").mkdir()
        context = multiprocessing.get_context("spawn")
        (made,) = _all(1, _filled, root, rows, options.epochs)
        mine, theirs = context.Pipe()
        server = context.Process(target=_serve, args=(theirs, root, options.latency, options.bandwidth * 1e6))
        server.start()
        uri = f"http://127.0.0.1:{mine.recv()}"
        stored = Stored(_assigned([made["stored"]], 1, 0), made["stored"].schema, made["stored"].epoch)
        figures["base_mb"] = round(sum(size_of(each) for handle in stored.handles for each in handle.base) / 1e6)
        figures["deltas_mb"] = round(sum(size_of(each) for handle in stored.handles for each in handle.deltas) / 1e6)
        taken: dict[str, list[float]] = {}
        for turn in range(options.rounds):
            for way in ("arriving", "fetched") if turn % 2 else ("fetched", "arriving"):
                host = f"{way}-{turn}"
                (found,) = _all(1, _restored, root, host, uri, rows, stored, options.keys, way == "arriving")
                for name, value in found.items():
                    taken.setdefault(f"{way}_{name}", []).append(value)
        server.kill()
        server.join()
    for name, values in taken.items():
        figures[name] = round(statistics.median(values), 2)
        figures[f"{name}_all"] = [round(value, 2) for value in values]
    return {**figures, "ok": True}


def _serve(port: Connection, root: Path, latency: float, rate: float) -> None:
    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Objects(root, latency, rate), "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


def _filled(number: int, root: Path, rows: int, epochs: int) -> dict[str, Any]:
    """A state whose base has just been stored, and the deltas of some epochs."""
    subtask = Subtask(root, "host", rows, PARALLELISM, number)
    subtask.open(None)
    order = subtask.pick.sample(subtask.keys, len(subtask.keys))
    for at in range(0, len(order), FILLED):
        subtask.run_epoch(order[at : at + FILLED])
    subtask.settle()
    subtask.store_base()
    with mock.patch.object(upkeep, "due", return_value=None):
        for _ in range(epochs):
            subtask.run_epoch(subtask.pick.sample(order, len(order) // 100))
    return {"stored": subtask.stored()}


def _restored(
    number: int, root: Path, host: str, uri: str, rows: int, stored: Stored, keys: int, arriving: bool
) -> dict[str, float]:
    if not arriving:
        lazy_restore._LARGE = 1 << 60
    settings = {"s3.endpoint": uri, "s3.access-key": "a", "s3.secret-key": "s", "s3.path.style.access": "true"}
    storage = Counted.open("s3://bucket", settings)
    subtask = Subtask(root, host, rows, PARALLELISM, number, storage)
    began, cpu = time.perf_counter(), time.process_time()
    subtask.open(stored)
    found = {"opened_s": time.perf_counter() - began}
    for name in ("first", "second"):
        subtask.run_epoch(subtask.pick.sample(subtask.keys, keys))
        found[f"{name}_s"] = time.perf_counter() - began
        found[f"{name}_mb"] = storage.read / 1e6
        found[f"{name}_cpu_s"] = time.process_time() - cpu
    subtask.backend._lazy_restore.wait()
    found["all_s"] = time.perf_counter() - began
    found["all_mb"] = storage.read / 1e6
    subtask.run_epoch(subtask.keys[:1])
    subtask.check()
    return found
