"""Jobs on a real Spark cluster: programs reach the executors, state stays where it is, and any part may be lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numbered
import pytest

from effort import EFFORT
from holdfast.runtime.driver import job_registry
from holdfast.testing.cluster import LocalCluster
from started_programs import CLUSTER_JVM

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
    if SPARE in started_cluster.hosts:
        started_cluster.lose_host(SPARE)
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
        until = time.monotonic() + 600
        while not condition():
            assert self._process.poll() is None, f"the driver has ended:\n{self.log}"
            assert time.monotonic() < until, f"it does not happen:\n{self.log}"
            time.sleep(0.2)  # a look at all processes takes a while

    def epochs(self, count: int) -> None:
        """Wait until so many more epochs have made their output visible."""
        goal = self.committed + count
        self.until(lambda: self.committed >= goal)

    @property
    def committed(self) -> int:
        """The latest epoch whose output is visible."""
        return max((int(path.name.split("-")[2]) for path in self.output.glob("part-*")), default=0)

    def metrics(self) -> dict[str, float]:
        """The metrics of the running job, by its REST API; empty before it has one."""
        found = [each for each in job_registry.records() if each.pid == self._process.pid and each.url]
        if not found:
            return {}
        page = f"{found[0].url}/jobs/{found[0].job_id}/metrics"

        def get(query: str) -> list[dict[str, str]]:
            asked = urllib.request.Request(page + query, headers={"Authorization": f"Bearer {found[0].token}"})
            with urllib.request.urlopen(asked, timeout=300) as answer:
                return list(json.loads(answer.read()))

        names = ",".join(each["id"] for each in get(""))
        return {each["id"]: float(each["value"]) for each in get(f"?get={names}")}

    def result(self) -> dict[str, float]:
        """The metrics of the job when it has ended."""
        return json.loads(self.lines()[-1])

    def lines(self) -> list[str]:
        """What the driver has printed when it has ended."""
        said, _ = self._process.communicate(timeout=600)
        assert self._process.returncode == 0, f"{said.decode()}\n{self.log}"
        return said.decode().splitlines()

    @property
    def log(self) -> str:
        return self._said.read_text()

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Starts a driver, and sees to it that it ends."""
    launched = []

    def launch(*command: str) -> Driver:
        launched.append(Driver(tmp_path / "output", list(command)))
        return launched[-1]

    yield launch
    for driver in launched:
        driver.stop()


@pytest.fixture
def settings(cluster: LocalCluster, tmp_path: Path) -> dict[str, str]:
    return {
        **cluster.settings(executors=2),
        "execution.checkpointing.dir": f"file://{tmp_path}/checkpoints",
        # So long that no socket can have a name in it, as on hosts whose names are long.
        "io.tmp.dirs": str(cluster.local_disks / ("a-long-name-" * 9)),
        "holdfast.epoch.max-records": "250",
        "rest.port": "0",
        "spark.driver.extraJavaOptions": CLUSTER_JVM,
    }


@pytest.fixture
def start(launch: Callable[..., Driver], settings: dict[str, str], tmp_path: Path) -> Callable[..., Driver]:
    """Starts a driver of the numbered job as a plain Python program."""

    def start(records: int, kind: str = "plain", **more: str) -> Driver:
        return launch(sys.executable, DRIVER, json.dumps(settings | more), str(records), str(tmp_path / "output"), kind)

    return start


def test_a_plain_program_runs_on_the_cluster_and_its_state_stays_where_it_is(cluster, start):
    records = 4_000
    # Else an executor that is late by some epochs gets its share of the partitions, and their state, after the start.
    driver = start(records, **{"spark.scheduler.minRegisteredResourcesRatio": "1.0"})
    driver.until(lambda: all(len(cluster.slots(host)) == 1 for host in cluster.hosts))
    metrics = driver.result()
    numbered.judge(records, driver.output)
    assert metrics["numEpochs"] >= records / 250
    assert metrics["localStateShare"] == 1.0, driver.log
    assert metrics["numRestarts"] == 0


def test_spark_submit_brings_the_program_s_modules(cluster, launch, settings, tmp_path):
    submit = str(Path(sys.executable).with_name("spark-submit"))
    of_spark = {key: value for key, value in settings.items() if key.startswith("spark.") and key != "spark.master"}
    of_job = {key: value for key, value in settings.items() if key not in (*of_spark, "spark.master")}
    options = [word for key, value in of_spark.items() for word in ("--conf", f"{key}={value}")]
    command = [submit, "--master", cluster.url, "--py-files", MODULE, *options, DRIVER]
    driver = launch(*command, json.dumps(of_job), "2000", str(tmp_path / "output"), "submitted")
    assert driver.result()["numRestarts"] == 0
    numbered.judge(2_000, driver.output)


def test_executors_and_hosts_come_and_go(cluster, start, tmp_path):
    """An executor is killed; a host goes with its disk; another host comes."""

    def stores(host: str) -> list[str]:
        """The subtasks that have their state on the host's disk."""
        return sorted(path.name for path in cluster.local_disks.rglob(f"state/numbered/{host}/counting-*"))

    records = 4_000  # as long as the file is there, these take minutes
    kept, lost = HOSTS
    slow = tmp_path / "output.slow"
    slow.touch()
    driver = start(records, "slow", **{"holdfast.epoch.max-records": "100", "spark.cores.max": "100"})
    driver.epochs(3)
    before = cluster.executors(kept)
    cluster.kill_executor(kept)
    driver.until(lambda: set(cluster.executors(kept)) - set(before))
    driver.epochs(3)
    driver.until(lambda: stores(lost))
    cluster.lose_host(lost)
    driver.until(lambda: stores(kept) == ["counting-0", "counting-1"])
    driver.epochs(3)
    assert not list(cluster.local_disks.rglob(lost)), "the host is lost, but something runs there"
    cluster.add_worker(SPARE)
    driver.until(lambda: stores(SPARE))
    driver.epochs(3)
    slow.unlink()
    driver.result()
    numbered.judge(records, driver.output)
    cluster.kill_worker(SPARE)


@pytest.mark.skipif(EFFORT < 2, reason="takes minutes: make test EFFORT=2 ARGS='tests/cluster -k standby'")
def test_a_subtask_of_a_lost_host_goes_on_from_its_standby_copy(cluster, start, kafka, tmp_path):
    """Both hosts keep a copy of the other one's state; one of them goes with its disk."""
    records = 60_000
    slow = tmp_path / "output.slow"
    slow.touch()
    driver = start(
        records,
        "held",  # for ten minutes, if need be
        **{
            "holdfast.epoch.max-records": "1000",
            "spark.cores.max": "100",
            "spark.scheduler.minRegisteredResourcesRatio": "1.0",
            "state.changelog.enabled": "true",
            "state.changelog.storage": "kafka",
            "state.changelog.partitions": "2",
            "state.changelog.num-standby-replicas": "1",
            "state.changelog.kafka.bootstrap.servers": kafka.bootstrap_servers,
        },
    )
    driver.until(lambda: driver.metrics().get("numStandbyCopies") == 2.0)
    before = driver.metrics()
    cluster.lose_host(HOSTS[1])
    driver.epochs(3)
    slow.unlink()
    metrics = driver.result()
    numbered.judge(records, driver.output)
    assert metrics["numStandbyTakeovers"] >= 1, driver.log
    # Neither from the checkpoint's files nor from the changelog's beginning: those count as fetches.
    assert metrics["numStateFetches"] == before["numStateFetches"], driver.log


def test_tasks_that_die_and_tasks_that_were_overtaken_leave_no_trace(cluster, start):
    """A task dies, and Spark runs it again. Another one lags, Spark starts it once more elsewhere; then both end."""
    driver = start(
        4_000,
        "mishaps",
        **{
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.1",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "1s",
        },
    )
    metrics = driver.result()
    numbered.judge(4_000, driver.output)
    for happened in ("death", "lag", "zombie"):
        assert driver.output.with_suffix(f".{happened}").exists(), happened
    assert metrics["numRestarts"] == 0, "Spark's tries are enough"


def test_errors_of_the_executors_python_are_reported(cluster, launch, settings, tmp_path):
    bare = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    if sys.prefix == sys.base_prefix:
        pytest.skip("this Python has no other one below it that lacks its packages")
    pythons = {
        "/opt/no/python": r"There is no /opt/no/python on host 127\.0\.0\.[23]: set PYSPARK_PYTHON",
        bare: rf"the job cannot be loaded on host 127\.0\.0\.[23] by {re.escape(bare)}: No module named .*pip install",
    }
    if other := another_python():
        pythons[other] = r"The executors' Python does not fit: .*3\.\d+"
    settings = {**settings, "spark.cores.max": "1"}
    program = str(HERE / "wrong_python.py")
    driver = launch(sys.executable, program, json.dumps(settings), str(tmp_path / "output"), *pythons)
    for said, expected in zip(driver.lines(), pythons.values(), strict=True):
        assert re.search(expected, json.loads(said))


def another_python() -> str | None:
    """A Python of this machine whose version is not this one's."""
    for minor in (10, 11, 12, 13):
        name = f"python3.{minor}"
        if minor != sys.version_info.minor and (found := shutil.which(name)):
            told = subprocess.run([found, "-c", "import sys; print(sys.executable)"], capture_output=True, text=True)
            if told.returncode == 0:
                return told.stdout.strip()
    return None
