"""The stage of a scenario: brokers, disk, drivers and what readers see; the handles by which faults break them."""

from __future__ import annotations

import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.testing.chaos.driver import main
from holdfast.testing.chaos.processes import DriverProcess
from holdfast.testing.chaos.report import Report
from holdfast.testing.kafka import KafkaBroker, KafkaCluster
from holdfast.testing.proxy import KafkaProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.testing.chaos.topics import Watcher

__all__ = ["JOB_NAME", "Stage"]

JOB_NAME = "chaos"
_RECOVERY_S = 240.0
_ENOUGH = 3
_DISK = "192m"
_BROKER = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.max.timeout.ms": "900000",
}


class Stage:
    """Where a scenario plays.

    Args:
        scenario: Its name.
        seed: Decides on faults and input.
        directory: Where everything is kept; a new temporary one if None.
        say: Told what happens.
    """

    def __init__(self, scenario: str, seed: int, directory: Path | None, say: Callable[[str], None]) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.directory = Path(tempfile.mkdtemp(prefix="hfchaos-")) if directory is None else directory / scenario
        self.directory.mkdir(parents=True, exist_ok=True)
        self.disk = self.directory / "disk"
        """Checkpoints and local stores; a small file system of its own where that is possible."""
        self.disk.mkdir(exist_ok=True)
        self.small_disk = False
        """Whether `disk` is a small file system of its own."""
        self.report = Report(scenario, seed, self.directory)
        self.say = say
        self.job_name = JOB_NAME
        self.program = ""
        """The module that builds the job."""
        self.settings: dict[str, Any] = {}
        """What the driver and the program read."""
        self.configuration: dict[str, str] = self._configuration()
        self.vary: Callable[[], dict[str, Any]] = dict
        """Gives settings that differ from driver to driver."""
        self.expected_stop = ""
        """While a driver may end by itself: what its log must name."""
        self.began = time.monotonic()
        self.watcher: Watcher
        """Follows the outputs; the scenario provides it."""
        self.driver: DriverProcess
        self.start_s = 2.0
        """About how long a driver takes from its start to its first output."""
        self.longest_fault_s = 60.0
        """No fault lasts longer."""
        self.proxies: list[KafkaProxy] = []
        """Between the job and each broker, where the scenario has some."""
        self._ended = 0
        self._kafka: KafkaCluster | None = None
        self._drivers: list[DriverProcess] = []
        self._closing: list[Callable[[], None]] = []

    # what there is

    @property
    def kafka(self) -> KafkaCluster:
        """The brokers."""
        if self._kafka is None:
            raise HoldfastError("the scenario has no brokers: it starts them in prepare()")
        return self._kafka

    @property
    def state_directory(self) -> Path:
        """Where the local stores are."""
        return self.disk / "local" / "state"

    @property
    def checkpoints(self) -> Path:
        """Where the job's checkpoints are."""
        return self.disk / "checkpoints" / self.job_name

    @property
    def kills(self) -> int:
        """How many processes were killed so far."""
        return self.report.kills.total()

    def start_kafka(self, brokers: int = 1, *, proxied: bool = False, **properties: str) -> None:
        """Start the brokers.

        Args:
            brokers: How many.
            proxied: Whether the job reaches them by proxies.
            properties: The brokers', with ``_`` for ``.``.
        """
        given = {key.replace("_", "."): value for key, value in properties.items()}
        heap = "512m" if brokers == 1 else "320m"
        self._kafka = KafkaCluster(brokers, properties={**_BROKER, **given}, heap=heap)
        if proxied:
            self.proxies = [KafkaProxy(broker) for broker in self._kafka.brokers]
        self._kafka.start()
        for proxy in self.proxies:
            self.at_the_end(proxy.start().close)

    @property
    def servers(self) -> str:
        """What the job connects to; the feed and the judge go by ``kafka.bootstrap_servers``."""
        return ",".join(proxy.bootstrap_servers for proxy in self.proxies) or self.kafka.bootstrap_servers

    def small_disk_of_its_own(self) -> None:
        """Make `disk` a file system that can be filled, where the machine lets us."""
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "holdfast-chaos", str(self.disk)],
            capture_output=True,
            check=False,
        )
        self.small_disk = mounted.returncode == 0

    def at_the_end(self, call: Callable[[], None]) -> None:
        """Have something called when the campaign is over, the last one first."""
        self._closing.append(call)

    # drivers

    def start_driver(self, **settings: Any) -> DriverProcess:
        """Start another driver; the one before is not touched.

        Args:
            settings: For this driver alone, on top of the stage's.
        """
        self.driver = self.start_beside(**settings)
        return self.driver

    def start_beside(self, **settings: Any) -> DriverProcess:
        """Start a driver that nobody replaces when it ends; its settings as for `start_driver`."""
        self.report.drivers += 1
        varied = self.vary()
        configuration = {**self.configuration, **varied.pop("configuration", {})}
        given = {"program": self.program, "job": self.job_name, **self.settings, **varied, **settings}
        driver = DriverProcess(
            self.report.drivers,
            self.directory,
            {**given, "configuration": configuration},
            kills=self.report.kills,
            main=main if given.get("without_spark") else None,
        )
        self._drivers.append(driver)
        return driver

    def kill_driver(self) -> None:
        """``kill -9``, if it has not been killed already; what it leaves behind ends by itself, or not."""
        if self.driver.exit_code is None:
            self.driver.kill(self.driver.process.pid)
            self.driver.process.wait()

    def kill_broker(self, broker: KafkaBroker) -> None:
        """``kill -9``, counted if it lives."""
        self.report.kills["broker"] += broker.running
        broker.kill()

    def violation(self, text: str) -> None:
        """Something was not as it must be."""
        self.report.violations.append(text)
        self.say(f"VIOLATION: {text}")

    # time

    def pause(self, low: float, high: float) -> None:
        """Let the job run for a random time; a driver that ends is replaced."""
        until = time.monotonic() + self.random.uniform(low, high)
        while (left := until - time.monotonic()) > 0:
            self.tend()
            time.sleep(min(left, 0.1))  # time is what passes here

    def until(self, condition: Callable[[], object], patience: float, *, tend: bool = True) -> bool:
        """Let the job run until something is so; false if it is not in time.

        Args:
            condition: What is awaited.
            patience: In seconds.
            tend: Whether a driver that ends is replaced.
        """
        deadline = time.monotonic() + patience
        while not condition():
            if tend:
                self.tend()
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    def recovered(self, patience: float = _RECOVERY_S) -> float:
        """Wait until output is visible whose input was sent after this call; returns the seconds it took.

        Raises:
            HoldfastError: nothing comes; the campaign ends.
        """
        since = time.time_ns() // 1_000_000
        began = time.monotonic()
        while self.watcher.newest <= since:
            self.tend()
            if time.monotonic() - began > patience:
                raise HoldfastError(
                    f"no new output for {patience:.0f} s; driver {self.driver.number}: {self.driver.last_error()}"
                )
            self.watcher.wait(0.1)
        return time.monotonic() - began

    @contextmanager
    def calm(self, what: str) -> Iterator[None]:
        """Within the block nothing happens for which a job would have to restart, so it must not."""
        driver = self.driver
        before = driver.restarts
        yield
        if self.driver is driver and driver.restarts > before:
            self.violation(f"{what}, and driver {driver.number} restarts: {driver.last_error()}")

    def tend(self) -> None:
        """Replace the driver if it has ended."""
        code = self.driver.exit_code
        if code is None:
            return
        if not self.expected_stop or self.expected_stop not in self.driver.log():
            self.violation(f"driver {self.driver.number} ended by itself (exit code {code}): {self.driver.last_error()}")
            self._ended += 1
            if self._ended > _ENOUGH:
                raise HoldfastError(f"{self._ended} drivers have ended by themselves")
        self.start_driver()

    def stop_driver(self) -> None:
        """Stop the job in order."""
        self.driver.process.terminate()
        try:
            code = self.driver.process.wait(60)
            if code != 0:
                self.violation(
                    f"stopped in order, driver {self.driver.number} ends with exit code {code}: {self.driver.last_error()}"
                )
        except subprocess.TimeoutExpired:
            self.violation(f"driver {self.driver.number} does not stop within 60 s")

    # the end

    def close(self) -> None:
        """End all processes; keep the directory if something was wrong."""
        for call in reversed(self._closing):
            call()
        for driver in self._drivers:
            self.report.restarts_in_place += driver.restarts
            driver.end()
        kept = bool(self.report.violations)
        if kept and self._kafka is not None:
            for broker in self._kafka.brokers:
                shutil.copy(broker.log_file, self.directory / f"broker-{broker.node_id}.log")
        if kept and self.small_disk:
            shutil.copytree(self.disk, self.directory / "disk-copy", ignore=shutil.ignore_patterns("*.sock*"))
        if self._kafka is not None:
            self._kafka.close()
        if self.small_disk:
            subprocess.run(["umount", "-l", str(self.disk)], check=True)
        if not kept:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _configuration(self) -> dict[str, str]:
        return {
            "spark.master": "local[2,4]",
            "spark.driver.memory": "512m",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(self.directory / "spark"),
            "rest.port": "0",
            "io.tmp.dirs": str(self.disk / "local"),
            "execution.checkpointing.dir": f"file://{self.disk}/checkpoints",
            "execution.checkpointing.interval": "300 ms",
            "restart-strategy.exponential-delay.initial-backoff": "500 ms",
            "restart-strategy.exponential-delay.max-backoff": "4 s",
        }
