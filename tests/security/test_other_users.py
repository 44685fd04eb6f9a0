"""Another user of the machine reads and runs nothing of a job: the tests are that user, with the real protocols."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from started_programs import surroundings, wait_until

SECRET = "silence-of-the-plan"  # another one than in other tests, which look at all command lines


@contextmanager
def spark_with_a_secret(directory: Path, *settings: str) -> Iterator[int]:
    """A local Spark that Holdfast has started, with a broadcast that holds the secret; gives the process of its JVM."""
    program = f"""
import sys
from holdfast.runtime.spark.spark_context import jvm_process, spark_context
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


@contextmanager
def running_job(directory: Path) -> Iterator[tuple[int, str]]:
    """A job with a secret among its settings, in its first epoch; gives its process and the token of the JVM's gateway."""
    program = f"""
import sys, time
from holdfast.common import Configuration
from holdfast.datastream import StreamExecutionEnvironment
settings = {{
    "execution.checkpointing.dir": sys.argv[1],
    "s3.secret-key": "{SECRET}",
    "spark.hadoop.fs.s3a.secret.key": "{SECRET}",
}}
env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings)).set_parallelism(1)
def first(number):
    open(sys.argv[1] + "/runs", "w").close()
    time.sleep(3600)
env.from_collection([1]).key_by(lambda n: n).map(first).print()
job = env.execute_async("looked-at")
from pyspark import SparkContext
print(SparkContext._gateway.gateway_parameters.auth_token, flush=True)
sys.stdin.read()
""".replace("sys.argv[1]", repr(str(directory / "checkpoints")))
    (file := directory / "program.py").touch(mode=0o600)
    file.write_text(program)
    with subprocess.Popen(
        [sys.executable, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **surroundings(directory), "HOME": str(directory)},
    ) as running:
        assert running.stdout is not None
        try:
            token = running.stdout.readline().strip()
            wait_until((directory / "checkpoints" / "runs").exists, running, directory)
            yield running.pid, token
        finally:
            running.kill()


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory for temporary files that every user can enter."""
    directory = Path(tempfile.mkdtemp(prefix="shared-", dir="/tmp"))
    directory.chmod(0o1777)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def looks(process: int, directory: Path, token: str = "") -> list[str]:
    """What another user who looks at a process and a directory gets, and the last line, which counts what there was."""
    return as_another_user("onlooker.py", str(process), SECRET, str(directory), token)


def as_another_user(script: str, *arguments: str) -> list[str]:
    """The lines of a script that gives up its rights."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    command = [*as_root, sys.executable, str(Path(__file__).with_name(script)), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()


def attack(process: int) -> str:
    """What another user gets from the ports of a process."""
    return as_another_user("attacker.py", str(process), SECRET)[-1]


@pytest.mark.spark
def the_attack_succeeds_on_a_spark_without_authentication(tmp_path: Path) -> None:
    with spark_with_a_secret(tmp_path, "spark.authenticate=false") as process:
        assert attack(process).startswith("read ")


@pytest.mark.spark
def test_no_port_of_the_spark_that_holdfast_starts_gives_another_user_a_block_and_its_files_are_its_users_alone(
    tmp_path: Path,
) -> None:
    tmp_path.chmod(0o1777)
    with spark_with_a_secret(tmp_path) as process:
        assert attack(process).startswith("refused by ")
        assert attack(process) != "refused by 0 ports"
        spark = tmp_path / f"holdfast-{os.getuid()}"
        assert stat.S_IMODE(spark.stat().st_mode) == 0o700
        assert list((spark / "spark").glob("blockmgr-*"))
        assert not [*tmp_path.glob("blockmgr-*"), *tmp_path.glob("spark-*")]


def the_daemon_of_sparks_workers_forks_none_for_another_user(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast.runtime.spark.pyspark_daemon", "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": SECRET},
    ) as daemon:
        assert daemon.stdin is not None
        assert daemon.stdout is not None
        port = int.from_bytes(daemon.stdout.read(4), "big")
        assert as_another_user("knocker.py", str(port)) == ["answered"]
        with socket.create_connection(("127.0.0.1", port)) as own:
            process = int.from_bytes(own.recv(4), "big")
            assert Path(f"/proc/{process}").exists(), "for its own user it forks a worker"
        daemon.stdin.close()


@pytest.mark.spark
def test_another_user_gets_no_secret_no_file_no_socket_and_no_call_from_a_running_job(shared: Path) -> None:
    (bait := shared / "bait").write_text("open to all")
    bait.chmod(0o644)
    with running_job(shared) as (process, token):
        *got, looked_at = looks(process, shared)
        *with_token, _ = looks(process, shared, token)
        sockets = [path for path in shared.rglob("*.sock") if path.is_socket()]
    caches = [str(shared / ".cache"), str(shared / ".cache" / "holdfast")]  # directories of the user; only names are seen
    by_umask = [line for line in got if line.startswith(str(shared / "checkpoints"))]
    assert {*got} - {*caches, *by_umask} == {str(bait)}
    assert sockets, looked_at
    assert any(line.startswith("gateway ") for line in with_token), "the call itself is one that the gateway runs"
