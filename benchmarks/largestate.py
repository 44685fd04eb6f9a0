"""What an event costs in the local store alone while the state grows: reads, writes and RocksDB's compaction, without Spark.

A frame is 2048 events, as in a job whose rows do not stay in memory: half of the keys are new, the others were written
before, chosen uniformly. Each frame is one sorted bulk read of its keys, and one write of an incompressible kilobyte for
each. The figures are processor time with RocksDB's threads, so that other programs on the machine matter little.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks import jobs, leaks
from holdfast.state.store.store import RocksDBStore, rocksdb_settings

FRAME = 2048
VALUE_BYTES = 1024
POINTS = 10
_PREFIX = b"\x01\x00\x05"
_PADDING = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("--gb", type=float, default=2.0, help="the state at the end")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of state.backend.rocksdb.*")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Let a store grow; returns the figures point by point."""
    settings = rocksdb_settings(dict(setting.split("=", 1) for setting in options.set))
    work = jobs.scratch()
    if (free := shutil.disk_usage(work).free) < 3e9 * options.gb:
        raise SystemExit(f"not enough space in {work}: {free >> 30} GiB free, {3 * options.gb:.0f} GB needed")
    try:
        return {
            "label": "RocksDBStore",
            "workload": "largestate",
            "data": f"{options.gb} GB",
            **_grow(work, settings, options.gb),
        }
    finally:
        jobs.tidy(work)


def _grow(work: Path, settings: Mapping[str, str], gb: float) -> dict[str, Any]:
    chance = random.Random(1)
    padding = os.urandom(_PADDING)
    path = str(work / "db")
    store = RocksDBStore(path, settings)
    keys = round(gb * 1e9 / VALUE_BYTES)
    points: list[dict[str, Any]] = []
    known = events = events_before = found = reread = 0
    reading = writing = 0.0
    began = cpu = time.process_time()

    def value() -> bytes:
        at = chance.randrange(_PADDING - VALUE_BYTES)
        return padding[at : at + VALUE_BYTES]

    while known < keys:
        numbers = {*range(known, known + FRAME // 2), *(chance.randrange(known + FRAME // 2) for _ in range(FRAME // 2))}
        reread += sum(number < known for number in numbers)
        known += FRAME // 2
        frame = sorted(map(_key, numbers))
        rows = [(key, value()) for key in frame]
        at = time.thread_time()
        found += sum(row is not None for row in store.get_many(frame))
        read = time.thread_time()
        store.write(rows)
        writing += time.thread_time() - read
        reading += read - at
        events += len(frame)
        if known >= keys * (len(points) + 1) / POINTS:
            count, events_before, before, cpu = events - events_before, events, cpu, time.process_time()
            points.append(
                {
                    "state_gb": round(known * VALUE_BYTES / 1e9, 2),
                    "cpu_us": round(1e6 * (cpu - before) / count, 2),
                    "read_us": round(1e6 * reading / count, 2),
                    "write_us": round(1e6 * writing / count, 2),
                    "disk_gb": round(leaks.files(work / "db")[1] * 2**20 / 1e9, 2),
                    "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10,
                }
            )
            reading = writing = 0.0
    compaction = _compaction(store)
    store.close()
    return {
        "events": events,
        "cpu_us": round(1e6 * (cpu - began) / events, 2),
        "points": points,
        **compaction,
        "ok": found == reread,
    }


def _compaction(store: RocksDBStore) -> dict[str, float]:
    """RocksDB's own account of flushes and compactions."""
    told = str(store._db.property_value("rocksdb.cfstats-no-file-histogram"))
    header = next(line for line in told.splitlines() if line.startswith("Level")).split()
    sums = next(line for line in told.splitlines() if line.split()[:1] == ["Sum"]).split()
    del sums[3]  # the unit of the size, which the header does not name
    figures = dict(zip(header, sums))
    return {
        "compaction_read_gb": float(figures["Read(GB)"]),
        "compaction_write_gb": float(figures["Write(GB)"]),
        "write_amplification": float(figures["W-Amp"]),
        "compaction_cpu_s": float(figures["CompMergeCPU(sec)"]),
    }


def _key(number: int) -> bytes:
    """The stored key of the n-th key, spread over the key space as hashes are."""
    return _PREFIX + (number * 0x9E3779B97F4A7C15 % 2**64).to_bytes(8, "big")
