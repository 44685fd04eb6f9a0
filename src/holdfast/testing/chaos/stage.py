"""The stage of a scenario: brokers, disk, drivers and visible output, with the means to break them."""

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
    from holdfast.testing.postgres import PostgresServer
    from holdfast.testing.tcp_proxy import TcpProxy

__all__ = ["JOB_NAME", "Stage"]

JOB_NAME = "chaos"
_RECOVERY_S = 480.0
_ENOUGH = 3
_UNALIGNED = 0.8
"""The share of drivers that make unaligned checkpoints, if any do."""
_DISK = "192m"
_BROKER = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.max.timeout.ms": "900000",
}


class Stage:
    """The environment in which a scenario runs.

    Args:
        scenario: The scenario's name.
        seed: Seed of faults and input.
        directory: The working directory; None: a new temporary one.
        say: Called with progress messages.
        unaligned: Whether most drivers make unaligned checkpoints.
    """

    def __init__(
        self, scenario: str, seed: int, directory: Path | None, say: Callable[[str], None], *, unaligned: bool = False
    ) -> None:
        self.random = random.Random(seed)
        self.seed = seed
        self.directory = Path(tempfile.mkdtemp(prefix="hfchaos-")) if directory is None else directory / scenario
        self.directory.mkdir(parents=True, exist_ok=True)
        self.disk = self.directory / "disk"
        """Checkpoints and local stores; if possible, a small file system."""
        self.disk.mkdir(exist_ok=True)
        self.small_disk = False
        """Whether `disk` is a separate small file system."""
        self.report = Report(scenario, seed, self.directory)
        self.say = say
        self.unaligned = unaligned
        self.job_name = JOB_NAME
        self.program = ""
        """The module that builds the job."""
        self.settings: dict[str, Any] = {}
        """Settings for the driver and the program."""
        self.configuration: dict[str, str] = self._configuration()
        self.vary: Callable[[], dict[str, Any]] = dict
        """Returns settings that vary from driver to driver."""
        self.expected_stop = ""
        """While a driver may end by itself: text that its log must contain."""
        self.began = time.monotonic()
        self.watcher: Watcher
        """Follows the outputs; created by the scenario."""
        self.driver: DriverProcess
        self.start_s = 2.0
        """Approximate seconds from a driver's start to its first output."""
        self.longest_fault_s = 60.0
        """Upper limit of a fault's duration."""
        self.proxies: list[KafkaProxy] = []
        """The proxies between the job and each broker, if the scenario has them."""
        self.database: PostgresServer
        """The database, if the scenario has one; the job reaches it through a proxy."""
        self.database_proxy: TcpProxy
        self._ended = 0
        self._kafka: KafkaCluster | None = None
        self._drivers: list[DriverProcess] = []
        self._closing: list[Callable[[], None]] = []

    # infrastructure

    @property
    def kafka(self) -> KafkaCluster:
        """The brokers."""
        if self._kafka is None:
            raise HoldfastError("the scenario has no brokers: it starts them in prepare()")
        return self._kafka

    @property
    def state_directory(self) -> Path:
        """The directory of the local stores."""
        return self.disk / "local" / "state"

    @property
    def checkpoints(self) -> Path:
        """The directory of the job's checkpoints."""
        return self.disk / "checkpoints" / self.job_name

    @property
    def kills(self) -> int:
        """The number of processes killed so far."""
        return self.report.kills.total()

    def start_kafka(self, brokers: int = 1, *, proxied: bool = False, **properties: str) -> None:
        """Start the brokers.

        Args:
            brokers: The number of brokers.
            proxied: Whether the job reaches them through proxies.
            properties: Broker settings; ``_`` stands for ``.``.
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
        """The job's bootstrap servers; the feed and the judge use ``kafka.bootstrap_servers``."""
        return ",".join(proxy.bootstrap_servers for proxy in self.proxies) or self.kafka.bootstrap_servers

    def small_disk_of_its_own(self) -> None:
        """Make `disk` a file system that can be filled, if the machine permits it."""
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "holdfast-chaos", str(self.disk)],
            capture_output=True,
            check=False,
        )
        self.small_disk = mounted.returncode == 0

    def at_the_end(self, call: Callable[[], None]) -> None:
        """Register a call for the end of the campaign; the last one is called first."""
        self._closing.append(call)

    # drivers

    def start_driver(self, **settings: Any) -> DriverProcess:
        """Start another driver; the previous one is not touched.

        Args:
            settings: Settings of this driver, in addition to the stage's.
        """
        self.driver = self.start_beside(**settings)
        return self.driver

    def start_beside(self, **settings: Any) -> DriverProcess:
        """Start a driver that is not replaced when it ends; settings as for `start_driver`."""
        self.report.drivers += 1
        varied = self.vary()
        configuration = {**self.configuration, **varied.pop("configuration", {})}
        given = {"program": self.program, "job": self.job_name, **self.settings, **varied, **settings}
        if self.unaligned:  # a driver without them, or with another parallelism, goes on with the channel state it finds
            configuration["execution.checkpointing.unaligned.enabled"] = str(self.random.random() < _UNALIGNED).lower()
            given["width"] = self.random.randint(1, 3)
        driver = DriverProcess(
            self.report.drivers,
            self.directory,
            {**given, "configuration": configuration},
            kills=self.report.kills,
            main=main if given.get("without_spark") else None,
        )
        self._drivers.append(driver)
        return driver

    @property
    def live_drivers(self) -> list[DriverProcess]:
        """The drivers that run, the oldest first."""
        return [driver for driver in self._drivers if driver.exit_code is None]

    def told(self, text: str) -> int:
        """How often the logs of all drivers say this."""
        return sum(driver.log().count(text) for driver in self._drivers)

    def kill_driver(self) -> None:
        """``kill -9`` for the driver unless it is dead; its leftover processes may end by themselves, or not."""
        if self.driver.exit_code is None:
            self.driver.kill(self.driver.process.pid)
            self.driver.process.wait()

    def kill_broker(self, broker: KafkaBroker) -> None:
        """``kill -9``, counted if the broker is running."""
        self.report.kills["broker"] += broker.running
        broker.kill()

    def violation(self, text: str) -> None:
        """Record a violation of the guarantees."""
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
        """Let the job run until a condition holds; returns False if it does not hold in time.

        Args:
            condition: The condition.
            patience: Seconds to wait at most.
            tend: Whether to replace a driver that ends.
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
        """Wait until output of input sent after this call is visible; returns the seconds it took.

        Raises:
            HoldfastError: no such output arrives; the campaign ends.
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
        """Check that the job does not restart within the block, in which nothing justifies a restart."""
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
        """Stop the job gracefully."""
        self.driver.process.terminate()
        try:
            code = self.driver.process.wait(60)
            if code != 0:
                self.violation(
                    f"gracefully stopped, driver {self.driver.number} ends with exit code {code}: {self.driver.last_error()}"
                )
        except subprocess.TimeoutExpired:
            self.violation(f"driver {self.driver.number} does not stop within 60 s")

    # the end

    def close(self) -> None:
        """End all processes; keep the directory if there are violations."""
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
            "holdfast.epoch.target-duration": "300 ms",
            "restart-strategy.exponential-delay.initial-backoff": "500 ms",
            "restart-strategy.exponential-delay.max-backoff": "4 s",
        }
