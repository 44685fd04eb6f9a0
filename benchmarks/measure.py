"""Runs programs in separate processes and measures their resources; results go to ``.bench/results.jsonl``."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parent.parent
BENCH = ROOT / ".bench"
"""The directory of all files made by benchmarks."""
RESULTS = BENCH / "results.jsonl"
_SAMPLE_S = 0.2
_PLAIN_LOOP = compile("x = 0\nfor _ in range(10_000_000):\n    x += 1", "plain loop", "exec")


@dataclass
class Usage:
    """The resources used by a process and its descendants."""

    cpu_s: dict[int, float] = field(default_factory=dict)
    peak_rss: int = 0
    names: dict[int, str] = field(default_factory=dict)
    processes: dict[int, psutil.Process] = field(default_factory=dict)
    """All processes seen, including those that have ended."""
    peak_pss: int = 0
    """The peak memory of all processes; shared pages count once."""
    at_peak: dict[int, int] = field(default_factory=dict)

    def sample(self, root: psutil.Process) -> None:
        """Sample every process. A process whose parent has ended still counts if it was seen before."""
        try:
            for process in [root, *root.children(recursive=True)]:
                self.processes.setdefault(process.pid, process)
        except psutil.Error:
            pass
        rss = 0
        for pid, process in self.processes.items():
            try:
                if not process.is_running():  # another process may have its id by now
                    continue
                with process.oneshot():
                    if pid not in self.names or time.time() - process.create_time() < 2:
                        self.names[pid] = _role(process.name(), process.cmdline())
                    times = process.cpu_times()
                    self.cpu_s[pid] = times.user + times.system
                    rss += process.memory_info().rss
            except psutil.Error:
                continue
        self.peak_rss = max(self.peak_rss, rss)

    def sample_pss(self) -> None:
        """Sum the proportional set sizes of all processes seen by `sample`."""
        pss = {}
        for pid in self.processes:
            try:
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue
            pss[pid] = 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        if sum(pss.values()) > self.peak_pss:
            self.peak_pss, self.at_peak = sum(pss.values()), pss

    def pss_by_role(self) -> dict[str, int]:
        """MiB by kind of process, at the peak."""
        sums: dict[str, int] = {}
        for pid, size in self.at_peak.items():
            role = self.names.get(pid, "other")
            sums[role] = sums.get(role, 0) + size
        return {role: size >> 20 for role, size in sorted(sums.items())}

    def by_role(self) -> dict[str, float]:
        """CPU seconds by kind of process."""
        sums: dict[str, float] = {}
        for pid, seconds in self.cpu_s.items():
            role = self.names.get(pid, "other")
            sums[role] = sums.get(role, 0.0) + seconds
        return {role: round(seconds, 2) for role, seconds in sorted(sums.items())}

    def end(self) -> None:
        """Kill the processes that are still running."""
        for process in self.processes.values():
            try:
                process.kill()
            except psutil.Error:
                continue


def _role(name: str, command: Sequence[str]) -> str:
    line = " ".join(command)
    if "kafka.Kafka" in line:
        return "broker"
    if "holdfast.runtime.slots." in line:
        return "slots"
    if "pyspark.daemon" in line or "pyspark_daemon" in line:
        return "Spark's Python workers"
    if "CoarseGrainedExecutorBackend" in line:
        return "executors' JVMs"
    if "org.apache.spark.deploy.master" in line or "org.apache.spark.deploy.worker" in line:
        return "Spark's master and workers"
    if "java" in name:
        return "JVM"
    if "benchmarks.plain_copy" in line:
        return "plain loop"
    if "benchmarks.latency generate" in line:
        return "generator"
    if "benchmarks.latency read" in line:
        return "reader"
    if "python" in name:
        return "driver"
    return "other"


def this_process() -> psutil.Process:
    """This process, as the root of a `Usage`."""
    return psutil.Process()


class Repeated:
    """Calls a function in the background, again and again, until closed."""

    def __init__(self, call: Callable[[], None], pause_s: float = _SAMPLE_S) -> None:
        self._call = call
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._pause_s):
            self._call()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()


class Course:
    """The CPU seconds of this process and its descendants by kind, sampled while the context lasts."""

    def __init__(self) -> None:
        self._usage = Usage()
        self._samples: list[tuple[float, dict[str, float]]] = []

    def __enter__(self) -> Course:
        self._sample()
        self._sampler = Repeated(self._sample)
        return self

    def __exit__(self, *_: object) -> None:
        self._sampler.close()
        self._sample()

    def between(self, began: float, ended: float) -> dict[str, float]:
        """CPU seconds by kind of process between two times, in seconds since 1970."""
        first, last = (min(self._samples, key=lambda sample: abs(sample[0] - at))[1] for at in (began, ended))
        return {role: round(seconds - first.get(role, 0.0), 2) for role, seconds in last.items()}

    def _sample(self) -> None:
        self._usage.sample(this_process())
        self._samples.append((time.time(), self._usage.by_role()))


@dataclass
class Run:
    """A finished run."""

    output: str
    exit_code: int
    wall_s: float
    usage: Usage
    load: float
    """The load average before the run."""
    capped: bool
    """Whether the run was killed after its time limit."""
    began: float

    @property
    def told(self) -> dict[str, Any] | None:
        """The last line of JSON that it printed, if there is one."""
        lines = [line for line in self.output.splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else None


def run(command: Sequence[str], cap_s: float, env: Mapping[str, str] | None = None, cwd: Path = ROOT) -> Run:
    """Run a program to its end, or for at most ``cap_s`` seconds."""
    load = os.getloadavg()[0]
    usage = Usage()
    began = time.time()
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            command, stdout=said, stderr=subprocess.STDOUT, env=None if env is None else dict(env), cwd=cwd
        )
        root = psutil.Process(child.pid)
        capped = False
        while child.poll() is None:
            usage.sample(root)
            if time.time() - began > cap_s:
                capped = True
                usage.end()
            try:
                child.wait(_SAMPLE_S)
            except subprocess.TimeoutExpired:
                continue
        wall = time.time() - began
        usage.end()
        said.seek(0)
        output = said.read()
    return Run(output, child.returncode, wall, usage, load, capped, began)


class Killed:
    """A module of this suite in a separate process; killed with all its descendants at the end of the block."""

    def __init__(self, module: str, arguments: Sequence[str], verbose: bool = False) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._verbose = verbose
        self.usage = Usage()
        self.started = 0.0

    def __enter__(self) -> Killed:
        self.started = time.time()
        surroundings = environment()
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True, env=surroundings, cwd=ROOT)
        self._root = psutil.Process(self._process.pid)
        self._sampler = Repeated(self._sample)
        return self

    def _sample(self) -> None:
        self.usage.sample(self._root)
        self.usage.sample_pss()

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines of JSON that the process prints."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                if self._verbose:
                    print(line, end="", file=sys.stderr, flush=True)
                yield json.loads(line)
        raise RuntimeError(f"{' '.join(self._command)} ended early, with exit code {self._process.wait()}")

    def __exit__(self, *exception: object) -> None:
        self._sampler.close()
        if self._process.poll() is None:
            self.usage.sample(psutil.Process(self._process.pid))
        self.usage.end()
        self._process.wait()


def holdfast(
    arguments: Sequence[str], cap_s: float = 600, root: Path = ROOT, python: str = sys.executable
) -> dict[str, Any]:
    """Run a sub-command of a tree's suite in a new process; returns its figures with its resource usage.

    Before it, a plain loop shows the machine's speed: here, because what the sub-command runs counts as its own work.
    """
    loop_s = round(plain_loop_s(), 2)
    surroundings = environment(root)
    done = run([python, "-m", "benchmarks", *arguments], cap_s, surroundings, root)
    figures = done.told if done.exit_code == 0 else None
    if figures is None:
        figures = {"command": arguments[0], "ok": False, "error": done.output[-2000:]}
    return {**figures, **usage_of(done), "plain_loop_s": loop_s, "arguments": list(arguments)}


def child(module: str, arguments: Sequence[str], cap_s: float = 300) -> Any:
    """Run a module of this suite in a new process; returns the last line of JSON that it prints."""
    surroundings = environment()
    done = run([sys.executable, "-m", module, *arguments], cap_s, surroundings)
    if done.exit_code != 0 or done.told is None:
        raise RuntimeError(f"{module} {' '.join(arguments)} failed: {done.output[-2000:]}")
    return {**done.told, "cpu_s": round(sum(done.usage.cpu_s.values()), 1)}


def environment(root: Path = ROOT) -> dict[str, str]:
    """The environment variables for a process that runs a tree's suite and Holdfast."""
    path = os.pathsep.join([str(root), str(root / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPATH": path}  # modules are found compiled, as those that pip installs


def percentiles(latencies: Sequence[float]) -> dict[str, int]:
    """The number of latencies, and some of them, in ms.

    Args:
        latencies: In ascending order.
    """

    def at(share: float) -> int:
        return round(latencies[min(int(len(latencies) * share), len(latencies) - 1)])

    return {
        "samples": len(latencies),
        "p50_ms": at(0.5),
        "p90_ms": at(0.9),
        "p99_ms": at(0.99),
        "max_ms": round(latencies[-1]),
    }


def second_half(spent: Sequence[tuple[int, Mapping[str, float]]]) -> tuple[int, dict[str, float]]:
    """What follows the last epoch that ended in the first half of the input: events, and CPU seconds by kind of process.

    So these are at least half of the events, if the first epoch is short, and not only the end of the job.

    Args:
        spent: After each epoch, the events and the CPU seconds up to then.

    >>> second_half([(10, {"slots": 2.0}), (240, {"slots": 3.0}), (490, {"slots": 4.0}), (500, {"slots": 4.5, "JVM": 1.0})])
    (260, {'slots': 1.5, 'JVM': 1.0})
    """
    events, cpu = spent[-1]
    before = max((point for point in spent if point[0] <= events / 2), default=spent[0], key=lambda point: point[0])
    return events - before[0], {role: seconds - before[1].get(role, 0.0) for role, seconds in cpu.items()}


def usage_of(done: Run) -> dict[str, Any]:
    """A run's resource usage, in the form for results."""
    roles = done.usage.by_role()
    return {
        "wall_s": round(done.wall_s, 1),
        "cpu_s": round(sum(roles.values()), 1),
        "cpu_by_process_s": roles,
        "peak_rss_mb": done.usage.peak_rss >> 20,
        "load_before": round(done.load, 2),
        "capped": done.capped,
    }


def record(figures: Mapping[str, Any], session: str) -> None:
    """Append a result to the session's (a session is one run of the whole suite)."""
    BENCH.mkdir(exist_ok=True)
    with open(RESULTS, "a") as file:
        file.write(json.dumps({"session": session, "at": round(time.time()), **figures}) + "\n")


def results() -> Iterator[dict[str, Any]]:
    """All recorded results, oldest first."""
    if RESULTS.exists():
        for line in RESULTS.read_text().splitlines():
            yield json.loads(line)


def plain_loop_s() -> float:
    """The seconds of a plain loop of ten million additions in a module: how fast the machine is at the moment.

    Machines that share their cores with others are at times half as fast.
    """
    began = time.perf_counter()
    exec(_PLAIN_LOOP, {})
    return time.perf_counter() - began


def circumstances(results: Sequence[Mapping[str, Any]]) -> str:
    """Tell in a sentence on what machine these results came about, how fast it was, and how busy."""
    first, last = (f"{choose(each['plain_loop_s'] for each in results):.2f}" for choose in (min, max))
    loop = first if first == last else f"{first} to {last}"
    loads = [each["load_before"] for each in results]
    return (
        f"{machine()}; before the runs, a plain loop of ten million additions took {loop} s, and the load average was "
        f"{min(loads)} to {max(loads)}, partly that of the run before"
    )


def machine() -> str:
    """Describe the machine in a sentence."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = psutil.virtual_memory().total / 2**30
    system = f"{platform.system()} {platform.release()}, Python {platform.python_version()}"
    return f"{cores} cores of {model}, {memory:.0f} GiB of memory, {system}"
