"""A job with this environment's Python and PySpark: it runs, its driver is killed, and it resumes at another parallelism.

`make smoke PYTHON=python3.12 PYSPARK=4.0` runs it in a fresh environment, which has neither pytest nor Kafka.
"""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyspark

import holdfast

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cluster"))
import numbered

RECORDS = 20_000
PATIENCE_S = 600


def run(directory: Path, parallelism: int) -> None:
    """The job, in a driver of its own."""
    settings = {
        "spark.master": "local[2]",
        "execution.checkpointing.dir": f"file://{directory}/checkpoints",
        "io.tmp.dirs": f"{directory}/local",
        "holdfast.epoch.max-records": "500",
        "rest.port": "0",
    }
    env = numbered.environment(settings).set_parallelism(parallelism)
    numbered.build(env, RECORDS, str(directory / "output"))
    env.execute("smoke")


def start(directory: Path, parallelism: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, str(directory), str(parallelism)])


def main() -> None:
    on = f"Python {platform.python_version()}, PySpark {pyspark.__version__}"
    print(f"Holdfast {holdfast.__version__} on {on}, {'compiled' if holdfast.compiled.IN_USE else 'plain Python'}")
    with tempfile.TemporaryDirectory(prefix="holdfast-smoke-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        driver = start(directory, 2)
        until = time.monotonic() + PATIENCE_S
        while len(list((directory / "output").glob("part-*"))) < 4:
            assert driver.poll() is None, "the job has ended too soon"
            assert time.monotonic() < until, "the job gives no output"
            time.sleep(0.02)
        os.kill(driver.pid, signal.SIGKILL)
        driver.wait()
        before = len(list((directory / "output").glob("part-*")))
        assert start(directory, 3).wait(PATIENCE_S) == 0
        numbered.judge(RECORDS, directory / "output")
        print(f"{on}: killed with {before} files of output, resumed, {RECORDS} records counted once")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]), int(sys.argv[2]))
    else:
        main()
