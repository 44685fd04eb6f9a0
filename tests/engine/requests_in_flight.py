"""A job that dies with requests in flight, and its checkpoints, also of an older release.

``python -m tests.engine.requests_in_flight FORM DIRECTORY`` stores one; what is in ``golden`` is never stored again.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from holdfast.common import WatermarkStrategy
from holdfast.datastream import StreamExecutionEnvironment

from .async_programs import Gated, waiting
from .inprocess import LEDGERS, Lab, LedgerSink, SplitSource

GOLDEN = Path(__file__).parent / "golden"
FORMS = ("split", "whole")
"""How the requests of a subtask are dealt out at another parallelism: in parts by older releases, now together."""
NUMBERS = {"s": list(range(20)), "t": list(range(100, 120))}


def build(env: StreamExecutionEnvironment) -> None:
    """Requests in the order of their split, of which those below 10 are answered once the gate is open."""
    source = env.from_source(SplitSource(NUMBERS, 0), WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
    waiting("ordered", source, Gated()).uid("asks").sink_to(LedgerSink("out")).uid("out")


class StoredJob(msgspec.Struct):
    """The checkpoint storage of the job, and what it has given by then."""

    files: dict[str, bytes]
    results: list[int]


def store(form: str, directory: Path) -> None:
    """Store the job of this release."""
    LEDGERS["out"].committed.clear()
    job = Lab(build, directory, parallelism=2, budget=14)
    assert not job._run_until("after commit", 2)
    files = {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    kept = {name: content for name, content in files.items() if name.startswith("checkpoints")}
    stored = msgspec.msgpack.encode(StoredJob(kept, LEDGERS["out"].values))
    (GOLDEN / f"requests_in_flight_{form}.zst").write_bytes(zstandard.compress(stored, 19))


def unpacked(form: str, directory: Path) -> Any:
    """Unpack a stored job into a directory; returns what it had given."""
    stored = msgspec.msgpack.decode(
        zstandard.decompress((GOLDEN / f"requests_in_flight_{form}.zst").read_bytes()), type=StoredJob
    )
    for name, content in stored.files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return stored.results


if __name__ == "__main__":
    store(sys.argv[1], Path(sys.argv[2]))
