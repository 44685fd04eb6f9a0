"""Runs a workload on another engine: creates its environment if necessary, and adds up the counters of its functions."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import measure
from benchmarks.data import BENCH, Events, data_set, expected
from benchmarks.operators import WORKLOADS as OPERATORS

HERE = Path(__file__).resolve().parent
FLINK_VERSION = "2.3.0"
PACKAGES = {"flink": f"apache-flink=={FLINK_VERSION}", "bytewax": "bytewax==0.21.1"}
_JVM = [f"--add-opens=java.base/java.{package}=ALL-UNNAMED" for package in ("util", "lang", "time")]
Command = tuple[Sequence[str], dict[str, str]]


def environment(name: str) -> Path:
    """A peer's virtual environment, created if missing, with a Python for which the peers have wheels."""
    venv = BENCH / "venvs" / name
    ready = venv / ".ready"
    if not ready.exists():
        python = _python()
        print(f"Installing {PACKAGES[name]} into {venv} ...", file=sys.stderr, flush=True)
        subprocess.run([python, "-m", "venv", "--clear", str(venv)], check=True)
        subprocess.run([str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", PACKAGES[name]], check=True)
        ready.touch()
    return venv


def _python() -> str:
    """Find a Python that supports both peers: 3.10 to 3.12."""
    for name in (sys.executable, "python3.12", "python3.11", "python3.10", "python3"):
        code = "import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))"
        found = shutil.which(name)
        if found and subprocess.run([found, "-c", code], capture_output=True).returncode == 0:
            return found
    raise SystemExit("The peers need a Python from 3.10 to 3.12 (neither PyFlink nor Bytewax has wheels for 3.13)")


def _site() -> Path:
    return next((environment("flink") / "lib").glob("python3*/site-packages"))


def class_path(job: str, jars: str) -> str:
    """The class path of a Java job that needs these jars; compiles it if a source is newer."""
    classes = BENCH / "classes"
    source = HERE / f"{job}.java"
    made = classes / f"{job}.class"
    changed = max(each.stat().st_mtime for each in HERE.glob("*.java"))
    if not made.exists() or made.stat().st_mtime < changed:
        javac = shutil.which("javac")
        if javac is None:
            raise SystemExit("Java jobs must be compiled: install a JDK (javac), 17 or later")
        subprocess.run(
            [javac, "-nowarn", "-cp", jars, "-sourcepath", str(HERE), "-d", str(classes), str(source)], check=True
        )
    return f"{classes}:{jars}"


def _flink_java(workload: str, backend: str, data: str, tallies: str, checkpoints: str) -> Command:
    where = [workload, backend, data, tallies, checkpoints]
    return flink_java("FlinkJob", where), {}


def flink_java(job: str, arguments: Sequence[str], *more_jars: str) -> Sequence[str]:
    """The command for a Java job on Flink."""
    jars = os.pathsep.join([f"{_site()}/pyflink/lib/*", *more_jars])
    return ["java", *_JVM, "-cp", class_path(job, jars), job, *arguments]


def flink_start() -> Sequence[str]:
    """The command for the smallest stateful job on Flink."""
    return flink_java("FlinkStart", [])


def _pyflink(mode: str) -> Callable[..., Command]:
    def command(workload: str, backend: str, data: str, tallies: str, checkpoints: str) -> Command:
        python = str(environment("flink") / "bin" / "python")
        where = [workload, backend, data, tallies, checkpoints, mode]
        # The JVM's embedded interpreter does not know the virtual environment.
        return [python, str(HERE / "pyflink_job.py"), *where], {"PYTHONPATH": f"{_site()}:{HERE}"}

    return command


def _bytewax(workload: str, backend: str, data: str, tallies: str, checkpoints: str) -> Command:
    python = str(environment("bytewax") / "bin" / "python")
    subprocess.run([python, "-m", "bytewax.recovery", checkpoints, "2"], check=True, capture_output=True)
    settings = {"BENCH_WORKLOAD": workload, "BENCH_DATA": data, "BENCH_TALLIES": tallies, "PYTHONPATH": str(HERE)}
    return [
        python,
        "-m",
        "bytewax.testing",
        "bytewax_job:flow",
        "-p",
        "2",
        "-r",
        checkpoints,
        "-s",
        "10",
        "-b",
        "0",
    ], settings


PEERS: dict[str, tuple[Callable[..., Command], str]] = {
    "flink-java-rocksdb": (_flink_java, "rocksdb"),
    "flink-java-hashmap": (_flink_java, "hashmap"),
    "pyflink-thread-rocksdb": (_pyflink("thread"), "rocksdb"),
    "pyflink-process-rocksdb": (_pyflink("process"), "rocksdb"),
    "bytewax": (_bytewax, "memory"),
}
"""Engines by their name in results, with their state backends."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the sub-command's arguments."""
    parser.add_argument("engine", choices=sorted(PEERS))
    parser.add_argument("workload", choices=("fraud", "window", "pass", *OPERATORS))
    parser.add_argument("data")
    parser.add_argument("--cap", type=float, default=300, help="seconds after which the run is stopped")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run one workload on one engine; returns its figures."""
    if options.workload in OPERATORS:
        return _run_operator(options)
    command, backend = PEERS[options.engine]
    data = data_set(options.data)
    work = Path(tempfile.mkdtemp(prefix="holdfast-peer-"))
    tallies, checkpoints = work / "tallies", work / "checkpoints"
    tallies.mkdir()
    checkpoints.mkdir()
    try:
        line, extra = command(options.workload, backend, str(data), str(tallies), str(checkpoints))
        done = measure.run(line, options.cap, {**os.environ, **extra}, cwd=work)
        counted = [json.loads(path.read_text()) for path in tallies.glob("*.json")]
    finally:
        shutil.rmtree(work, ignore_errors=True)
    figures: dict[str, Any] = {"label": options.engine, "workload": options.workload, "data": options.data}
    figures |= measure.usage_of(done)
    if not counted:
        return {**figures, "ok": False, "error": done.output[-2000:]}
    first = min(tally["first"] for tally in counted)
    last = max(tally["last"] for tally in counted)
    got: dict[str, float] = {}
    for tally in counted:
        for name, count in tally["counts"].items():
            got[name] = got.get(name, 0) + count
    want = expected(options.data)
    ok = got["n"] == want["n"] and all(got.get(name, 0) == value for name, value in want[options.workload].items())
    return {
        **figures,
        "events": int(got["n"]),
        "events_per_s": round(got["n"] / (last - first)),
        "busy_s": round(last - first, 2),
        "startup_s": round(first - done.began, 2),
        "tail_s": round(done.began + done.wall_s - last, 2),
        "ok": ok,
        **({} if ok else {"got": got, "want": want[options.workload]}),
    }


def run_flink_java(
    job: str, workload: str, backend: str, data: Path, events: int, cap_s: float
) -> tuple[measure.Run, dict[str, Any] | None]:
    """Run a Java job that prints its own figures; returns the run, and these figures or None if there are none."""
    checkpoints = Path(tempfile.mkdtemp(prefix="holdfast-peer-"))
    try:
        done = measure.run(flink_java(job, [workload, backend, str(data), str(events), str(checkpoints)]), cap_s)
    finally:
        shutil.rmtree(checkpoints, ignore_errors=True)
    return done, done.told


def rates(got: dict[str, Any]) -> dict[str, Any]:
    """The rates in the figures of a Java job."""
    return {
        "events": got["events"],
        "events_per_s": round(got["events"] / got["busy_s"]),
        "busy_s": got["busy_s"],
        "events_per_cpu_s": round(got["cpu_events"] / got["cpu_s"]),
    }


def _run_operator(options: argparse.Namespace) -> dict[str, Any]:
    """Run a job around one operator on Flink; it prints its figures."""
    backend = {"flink-java-rocksdb": "rocksdb", "flink-java-hashmap": "hashmap"}[options.engine]
    data, events = data_set(options.data), Events.size(options.data)
    done, got = run_flink_java("FlinkOperators", options.workload, backend, data, events, options.cap)
    figures: dict[str, Any] = {"label": options.engine, "workload": options.workload, "data": options.data}
    figures |= measure.usage_of(done)
    if got is None:
        return {**figures, "ok": False, "error": done.output[-2000:]}
    return {
        **figures,
        **rates(got),
        "results": got["results"],
        "sum": got["sum"],
    }
