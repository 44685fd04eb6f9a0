"""Jobs on a real Spark cluster: programs reach the executors, state stays where it is, and any part may be lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numbered
import pytest

from holdfast.testing.cluster import LocalCluster

pytestmark = [pytest.mark.spark, pytest.mark.fault]

HERE = Path(__file__).parent
DRIVER = str(HERE / "driver.py")
MODULE = str(HERE / "numbered.py")


HOSTS = ("127.0.0.2", "127.0.0.3")
SPARE = "127.0.0.4"


@pytest.fixture(scope="module")
def started_cluster() -> Iterator[LocalCluster]:
    with LocalCluster(HOSTS) as cluster:
        yield cluster


@pytest.fixture
def cluster(started_cluster: LocalCluster) -> LocalCluster:
    """The cluster with its two workers, whatever an earlier test has done to it."""
    for host in HOSTS:
        if host not in started_cluster.hosts:
            started_cluster.add_worker(host)
    return started_cluster


class Driver:
    """A driver's process."""

    def __init__(self, output: Path, command: list[str]) -> None:
        self.output = output
        self._said = output.with_suffix(".log")
        with self._said.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            )

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait while the job runs."""
        until = time.monotonic() + 120
        while not condition():
            assert self._process.poll() is None, f"the driver has ended:\n{self.log}"
            assert time.monotonic() < until, f"it does not happen:\n{self.log}"
            time.sleep(0.05)

    def epochs(self, count: int) -> None:
        """Wait until so many more epochs have made their output visible."""
        goal = self.committed + count
        self.until(lambda: self.committed >= goal)

    @property
    def committed(self) -> int:
        """The latest epoch whose output is visible."""
        return max((int(path.name.split("-")[2]) for path in self.output.glob("part-*")), default=0)

    def result(self) -> dict[str, float]:
        """The metrics of the job when it has ended."""
        said, _ = self._process.communicate(timeout=150)
        assert self._process.returncode == 0, self.log
        return json.loads(said.splitlines()[-1])

    def failure(self) -> str:
        """What the driver said when it failed."""
        self._process.communicate(timeout=150)
        assert self._process.returncode != 0
        return self.log

    @property
    def log(self) -> str:
        return self._said.read_text()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@pytest.fixture
def start(cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts the driver of a job, as a plain Python program or by the command before it."""
    started = []

    def start(
        records: int, happening: str = "nothing", settings: dict[str, str] | None = None, command: tuple[str, ...] = ()
    ) -> Driver:
        merged = {
            **cluster.settings(),
            "execution.checkpointing.dir": f"file://{tmp_path}/checkpoints",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "spark.cores.max": str(len(cluster.hosts)),
            "rest.port": "0",
            "holdfast.epoch.max-records": "250",
            **({} if command else {"python.files": MODULE}),
            **(settings or {}),
        }
        output = tmp_path / "output"
        arguments = [DRIVER, json.dumps(merged), str(records), str(output), happening]
        started.append(Driver(output, [*(command or (sys.executable,)), *arguments]))
        return started[-1]

    yield start
    for driver in started:
        driver.stop()


def test_a_plain_program_runs_on_the_cluster_and_its_state_stays_where_it_is(cluster, start):
    records = 15_000
    driver = start(records)
    driver.until(lambda: all(len(cluster.slots(host)) == 1 for host in cluster.hosts))
    metrics = driver.result()
    numbered.judge(records, driver.output)
    assert metrics["numEpochs"] >= records / 250
    assert metrics["localStateShare"] >= 0.99
    assert metrics["numRestarts"] == 0


def test_spark_submit_brings_the_program_s_modules(cluster, start):
    submit = Path(sys.executable).with_name("spark-submit")
    command = [str(submit), "--master", cluster.url, "--py-files", MODULE]
    for key, value in cluster.settings(2).items():
        if key.startswith("spark.") and key != "spark.master":
            command += ["--conf", f"{key}={value}"]
    driver = start(2_000, command=tuple(command))
    assert driver.result()["numRestarts"] == 0
    numbered.judge(2_000, driver.output)


def test_executors_and_hosts_come_and_go(cluster, start):
    """An executor is killed; a host goes with its disk; another host comes."""
    records = 20_000
    lost = HOSTS[1]
    driver = start(records, settings={"spark.cores.max": "4"})
    driver.epochs(4)
    before = cluster.executors(HOSTS[0])
    cluster.kill_executor(HOSTS[0])
    driver.until(lambda: set(cluster.executors(HOSTS[0])) - set(before))
    driver.epochs(4)
    cluster.lose_host(lost)
    driver.epochs(4)
    assert not list(cluster.local_disks.rglob(lost)), "something runs there"
    cluster.add_worker(SPARE)
    driver.until(lambda: cluster.slots(SPARE))
    driver.epochs(4)
    metrics = driver.result()
    numbered.judge(records, driver.output)
    assert metrics["numStateFetches"] >= 2, "one for the host that went, one for the one that came"
    cluster.lose_host(SPARE)


@pytest.mark.parametrize("happening", ["task_dies"])
def test_a_task_that_dies_is_run_again_by_spark(cluster, start, happening):
    driver = start(2_000, happening)
    metrics = driver.result()
    numbered.judge(2_000, driver.output)
    assert Path(f"{driver.output}.death").exists()
    assert metrics["numRestarts"] == 0, "Spark's own retry is enough"


def test_the_output_of_a_task_that_was_overtaken_never_shows(cluster, start):
    """Speculation: a task lags, Spark starts it once more elsewhere, that one wins; then the first one goes on."""
    speculation = {
        "spark.speculation": "true",
        "spark.speculation.interval": "100ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "1s",
    }
    driver = start(4_000, "task_lags", speculation)
    metrics = driver.result()
    numbered.judge(4_000, driver.output)
    assert Path(f"{driver.output}.lag").exists()
    assert metrics["numRestarts"] == 0
