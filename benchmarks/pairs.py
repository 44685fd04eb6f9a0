"""This tree against another one in interleaved pairs, so that a change of the machine's speed hits both alike.

A part of ``micro`` runs in one long-lived process per tree, on one core, a turn each; the garbage collector is off, as in
a slot. A job (``fraud:u10k-2m:rocksdb``) runs as ``stateful`` in a fresh process per turn; its CPU seconds count.
``latency`` runs that benchmark for 20 s a turn, at 20,000 records a second. With ``--python``, the other tree, which may be
this one, runs in another Python.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import micro
from benchmarks.measure import ROOT, environment, holdfast

_WORKER = """
import gc, sys, time
from benchmarks import micro
made, parts = {}, {part.__name__: part for part in micro.PARTS}
gc.disable()
for line in sys.stdin:
    name = line.strip()
    if name not in made:
        made[name] = parts[name]()
        made[name]()
    gc.collect()
    rounds, began = 0, time.thread_time()
    while (passed := time.thread_time() - began) < 0.06:
        made[name]()
        rounds += 1
    print(passed / rounds / micro.N * 1e9, flush=True)
"""


class _Tree:
    """A source tree whose parts and jobs are timed."""

    def __init__(self, root: Path, core: int, python: str = sys.executable) -> None:
        self._root = root
        self._python = python
        self._worker = subprocess.Popen(
            [python, "-c", _WORKER],
            cwd=root,
            env={**environment(root), "PYTHONHASHSEED": "0"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(self._worker.pid, {core})

    def time(self, part: str) -> float:
        """Nanoseconds for one operation of a part, or CPU seconds of a job."""
        if ":" in part:
            workload, data, backend = part.split(":")
            figures = holdfast(["stateful", workload, data, "--backend", backend], root=self._root, python=self._python)
            if not figures.get("ok"):
                raise RuntimeError(f"{part} failed in {self._root}: {figures}")
            return float(figures["cpu_s"])
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._worker.stdin.write(part + "\n")
        self._worker.stdin.flush()
        answer = self._worker.stdout.readline()
        if not answer:
            raise RuntimeError(f"{part} failed in {self._root}")
        return float(answer)

    def close(self) -> None:
        """End its process."""
        with self._worker as worker:
            assert worker.stdin is not None
            worker.stdin.close()


_LATENCIES = ("p50_ms", "p90_ms", "p99_ms", "epoch_ms", "lone_epoch_ms")


def _latencies(other: Path, pairs: int, python: str) -> dict[str, Any]:
    """Medians of each side's latencies, and the median ratios of the pairs."""
    taken: list[list[dict[str, Any]]] = [[], []]
    for turn in range(pairs):
        for side in (0, 1) if turn % 2 else (1, 0):
            root, used = ((other, python), (ROOT, sys.executable))[side]
            figures = holdfast(["latency", "--seconds", "20", "--warm-up", "8"], root=root, python=used)
            if not figures.get("ok"):
                raise RuntimeError(f"latency failed in {root}: {figures}")
            taken[side].append(figures)
    found = {}
    for name in _LATENCIES:
        old, new = ([figures[name] for figures in side] for side in taken)
        found[name] = {
            "other": statistics.median(old),
            "this": statistics.median(new),
            "ratio": round(statistics.median(a / b for a, b in zip(old, new, strict=True)), 3),
        }
        print(
            f"{name:<28}{found[name]['other']:>12.1f}{found[name]['this']:>12.1f}{found[name]['ratio']:>8.3f}",
            file=sys.stderr,
        )
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-command's arguments."""
    parser.add_argument("other", type=Path, help="another source tree, e.g. a git worktree of an earlier commit")
    parser.add_argument("parts", nargs="*", metavar="PART", help="parts of micro, jobs as workload:data:backend, latency")
    parser.add_argument("--pairs", type=int, default=9)
    parser.add_argument("--python", default=sys.executable, help="the Python of the other tree, e.g. a venv's bin/python")
    parser.add_argument("--core", type=int, default=0, help="the core of the micro parts")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts in pairs; medians, and the median ratio of the pairs: above 1.0 this tree is faster."""
    parts = options.parts or [part.__name__ for part in micro.PARTS]
    figures: dict[str, dict[str, Any]] = {}
    trees = [_Tree(options.other.resolve(), options.core, options.python), _Tree(ROOT, options.core)]
    try:
        for part in parts:
            if part == "latency":
                figures[part] = _latencies(options.other.resolve(), options.pairs, options.python)
                continue
            taken: list[list[float]] = [[], []]
            for turn in range(options.pairs):
                for side in (0, 1) if turn % 2 else (1, 0):
                    taken[side].append(trees[side].time(part))
            ratios = sorted(other / mine for other, mine in zip(*taken, strict=True))
            quarter = len(ratios) // 4
            other, mine = map(statistics.median, taken)
            figures[part] = {
                "other": round(other, 1),
                "this": round(mine, 1),
                "ratio": round(statistics.median(ratios), 3),
                "middle_half": [round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)],
            }
            print(f"{part:<28}{other:>12.1f}{mine:>12.1f}{figures[part]['ratio']:>8.3f}", file=sys.stderr)
    finally:
        for tree in trees:
            tree.close()
    return {"pairs": options.pairs, "load": round(os.getloadavg()[0], 1), "parts": figures}
