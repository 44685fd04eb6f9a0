"""CPU time per event by activity: the slots' stacks sampled with py-spy, and the CPU time of every kind of process."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

from benchmarks import measure

RATE = 200
RULES = [
    ("shuffle: slot's socket", r"runtime/host/wire\.py"),
    ("frame", r"\b(encode_data|pack_frame|encode_barrier)\b"),
    ("unframe", r"\b(decode_data|unpack_header|decode_barrier)\b"),
    (
        "key",
        r"\b(_keys|_assign|_spread|group_assigner|assign|get_key)\b.*(channels|key_groups)\.py|state/keys/key_groups\.py",
    ),
    ("state read", r"\b(load|get_many)\b.*state/"),
    ("state write", r"\b(collect|encode_each|_snapshot|snapshot|committed|_flush|evict|write_file|_materialise|_upload)\b"),
    ("timers", r"state/timers/timers\.py|\b_fire\b"),
    ("state handles", r"state/cells/handles\.py|state/rows/space\.py"),
    ("decode", r"\b(Parse|MerchantAndOne|map)\b.*benchmarks/|\bextract_timestamp\b|operators/stateless\.py"),
    ("function", r"benchmarks/|common/windows\.py|operators/(keyed|windows/window)\.py|runtime/plan/context\.py|metrics/"),
    ("output", r"connectors/.*(sink|writer|serializer|producers|outgoing|transactions)|prepare_commit"),
    ("read", r"connectors/|runtime/task/split_merge\.py"),
    ("freeing records", r"\b(_receive|_read)\b.*runtime/task/task\.py"),
    ("receive and order", r"runtime/channels/channels\.py|runtime/records/spill\.py"),
    ("start: imports, loading the job", r"importlib|zipimport|\binstall_files\b|\b_call\b.*slot\.py"),
    ("around it", r"."),
]
"""Activity by pattern. A stack's frames are tested from the innermost outwards; the last pattern matches everything."""


def part_of(stack: str) -> str:
    """The activity of a sampled stack (frames outermost first, separated by semicolons).

    >>> part_of("main (slot_main.py:1);run (holdfast/runtime/task/task.py:9);load (holdfast/state/rows/table.py:80)")
    'state read'
    """
    frames = [frame for frame in stack.split(";")][::-1]
    for frame in frames:
        for part, pattern in RULES[:-1]:
            if re.search(pattern, frame):
                return part
    return RULES[-1][0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("what", nargs="*", help="the sub-command to profile (default: stateful fraud u10k-2m)")
    parser.add_argument("--top", type=int, default=25, help="number of hottest functions to report")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run a sub-command under the sampler; returns microseconds per event by activity and by process."""
    what = options.what or ["stateful", "fraud", "u10k-2m"]
    usage = measure.Usage()
    environment = measure.environment()
    child = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", *what],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment, cwd=measure.ROOT,
    )  # fmt: skip
    root = psutil.Process(child.pid)
    samplers: dict[int, tuple[subprocess.Popen[bytes], Path]] = {}
    with tempfile.TemporaryDirectory() as directory:
        while child.poll() is None:
            usage.sample(root)
            for pid, role in usage.names.items():
                if role == "slots" and pid not in samplers:
                    samplers[pid] = _attach(pid, Path(directory) / str(pid))
            time.sleep(0.1)
        stacks: Counter[str] = Counter()
        for sampler, path in samplers.values():
            sampler.wait(30)
            if path.exists():
                stacks.update(_stacks(path.read_text()))
    assert child.stdout is not None
    lines = [line for line in child.stdout.read().splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{' '.join(what)} failed; run it by itself to see why")
    figures = json.loads(lines[-1])
    return {**_figures(figures, stacks, usage, options.top), "what": what}


def _attach(pid: int, path: Path) -> tuple[subprocess.Popen[bytes], Path]:
    spy = Path(sys.executable).with_name("py-spy")
    command = [
        str(spy),
        "record",
        "--pid",
        str(pid),
        "--rate",
        str(RATE),
        "--format",
        "raw",
        "--nonblocking",
        "--output",
        str(path),
    ]
    return subprocess.Popen([*command, "--duration", "3600"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL), path


def _stacks(raw: str) -> Counter[str]:
    found: Counter[str] = Counter()
    for line in raw.splitlines():
        stack, _, count = line.rpartition(" ")
        if stack:
            found[stack] += int(count)
    return found


def _figures(figures: dict[str, Any], stacks: Counter[str], usage: measure.Usage, top: int) -> dict[str, Any]:
    events = figures["events"]
    processes = {role: round(seconds / events * 1e6, 3) for role, seconds in usage.by_role().items()}
    slots = processes.get("slots", 0.0)
    total = sum(stacks.values()) or 1
    parts: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for stack, count in stacks.items():
        parts[part_of(stack)] += count
        functions[stack.rpartition(";")[2]] += count
    # Samples give the shares, the kernel's CPU time gives the total.
    return {
        **{name: figures[name] for name in ("label", "workload", "data", "events", "events_per_s", "ok", "phases_s")},
        "samples": total,
        "slot_parts_us": {part: round(count / total * slots, 3) for part, count in parts.most_common()},
        "cpu_us_by_process": processes,
        "hottest": {name: round(count / total * slots, 3) for name, count in functions.most_common(top)},
    }
