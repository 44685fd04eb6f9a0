"""Another user of the machine reads and runs nothing of a job: the tests are that user, with the real protocols."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from started_programs import surroundings

SECRET = "hush-hush-plan"


@contextmanager
def spark_with_a_secret(directory: Path, *settings: str) -> Iterator[int]:
    """A local Spark that Holdfast has started, with a broadcast that holds the secret; gives the process of its JVM."""
    program = f"""
import sys
from holdfast.runtime.spark_context import jvm_process, spark_context
context = spark_context("job", dict(each.split("=", 1) for each in sys.argv[1:]))
sent = context.broadcast("{SECRET}")
assert context.parallelize(range(2), 2).map(lambda n: (n, sent.value)).partitionBy(2).count() == 2
print(jvm_process(), flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, *settings],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **surroundings(directory)},
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        try:
            yield int(running.stdout.readline())
        finally:
            running.stdin.close()


def attack(process: int) -> str:
    """What another user gets from the ports of a process."""
    script = str(Path(__file__).with_name("attacker.py"))
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    command = [*as_root, sys.executable, script, str(process), SECRET]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.spark
def the_attack_succeeds_on_a_spark_without_authentication(tmp_path: Path) -> None:
    with spark_with_a_secret(tmp_path, "spark.authenticate=false") as process:
        assert attack(process).startswith("read ")


@pytest.mark.spark
def test_no_port_of_the_spark_that_holdfast_starts_gives_another_user_a_block(tmp_path: Path) -> None:
    with spark_with_a_secret(tmp_path) as process:
        assert attack(process).startswith("refused by ")
        assert attack(process) != "refused by 0 ports"


@pytest.mark.spark
def the_files_of_the_spark_that_holdfast_starts_are_in_a_directory_of_its_user_alone(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    with spark_with_a_secret(tmp_path):
        spark = tmp_path / f"holdfast-{os.getuid()}"
        assert stat.S_IMODE(spark.stat().st_mode) == 0o700
        assert list((spark / "spark").glob("blockmgr-*"))
        assert not [*tmp_path.glob("blockmgr-*"), *tmp_path.glob("spark-*")]
