"""The campaign: keeps the job running as a cluster manager would, injects faults, and judges what came out."""

from __future__ import annotations

import random
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.errors import HoldfastError
from holdfast.testing.chaos.driver import JOB_NAME
from holdfast.testing.chaos.processes import DriverProcess
from holdfast.testing.chaos.program import ELEMENTS, INPUT, TOTALS, Expected, compare
from holdfast.testing.chaos.topics import PARTITIONS, Feed, Watcher, read_topic, records_of
from holdfast.testing.kafka import KafkaBroker, KafkaCluster

__all__ = ["Campaign", "Injection", "Verdict"]

_RECOVERY_S = 240.0
_DRAIN_S = 240.0
_DISK = "192m"
_BROKER = {
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    "transaction.max.timeout.ms": "900000",
}


@dataclass
class Injection:
    """One fault, and what followed."""

    at: float
    """Seconds since the campaign began."""
    fault: str
    what: str
    recovered: float | None = None
    """Seconds from the fault (or from its end, if it lasted) until output newer than that was visible."""


@dataclass
class Verdict:
    """The outcome."""

    seed: int
    directory: Path
    seconds: float = 0.0
    injections: list[Injection] = field(default_factory=list)
    drivers: int = 0
    restarts_in_place: int = 0
    events: int = 0
    outputs: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def table(self) -> str:
        """The figures, for people."""
        rows = [f"{'fault':<34}{'times':>6}{'recovery, median s':>20}{'max s':>9}"]
        for fault in sorted({i.fault for i in self.injections}):
            taken = [i.recovered for i in self.injections if i.fault == fault and i.recovered is not None]
            shown = f"{statistics.median(taken):>20.1f}{max(taken):>9.1f}" if taken else f"{'-':>20}{'-':>9}"
            rows.append(f"{fault:<34}{sum(i.fault == fault for i in self.injections):>6}{shown}")
        taken = [i.recovered for i in self.injections if i.recovered is not None]
        if taken:
            rows.append(f"{'all':<34}{len(self.injections):>6}{statistics.median(taken):>20.1f}{max(taken):>9.1f}")
        rows += [
            f"seed {self.seed}, {self.seconds:.0f} s, {self.events} events in, {self.outputs} records out, "
            f"{self.drivers} drivers, {self.restarts_in_place} restarts in place",
            *(f"VIOLATION: {violation}" for violation in self.violations),
            f"FAILED: all is kept in {self.directory}"
            if self.violations
            else "verdict: nothing lost, nothing twice, in order",
        ]
        return "\n".join(rows)


class Campaign:
    """One run.

    Args:
        seconds: How long faults are injected.
        seed: Decides on faults and input.
        brokers: 1, or 3 for a cluster.
        rate: Records a second.
        keys: How many keys they have.
        directory: Where everything is kept; a new temporary one if None.
        only: Only faults whose names contain one of these.
        say: Told what happens.
    """

    def __init__(
        self,
        seconds: float,
        seed: int,
        brokers: int = 1,
        rate: float = 1000.0,
        keys: int = 97,
        directory: Path | None = None,
        only: Sequence[str] = (),
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.random = random.Random(seed)
        self.seconds = seconds
        self.directory = Path(tempfile.mkdtemp(prefix="hfchaos-")) if directory is None else directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.disk = self.directory / "disk"
        """Checkpoints and local stores; a small file system of its own where that is possible."""
        self.disk.mkdir(exist_ok=True)
        self._mounted = False
        heap = "512m" if brokers == 1 else "320m"
        self.kafka = KafkaCluster(brokers, properties=_BROKER, heap=heap)
        self.verdict = Verdict(seed, self.directory)
        self.expected_stop = ""
        """While a driver may end by itself: what its log must name."""
        self._rate, self._keys, self._seed = rate, keys, seed
        self._only = only
        self._say = say
        self._began = time.monotonic()
        self._retired: list[DriverProcess] = []

    # what faults work with

    @property
    def brokers(self) -> list[KafkaBroker]:
        """The brokers."""
        return self.kafka.brokers

    @property
    def small_disk(self) -> bool:
        """Whether `disk` is a small file system of its own."""
        return self._mounted

    @property
    def state_directory(self) -> Path:
        """Where the local stores are."""
        return self.disk / "local" / "state"

    @property
    def checkpoints(self) -> Path:
        """Where the job's checkpoints are."""
        return self.disk / "checkpoints" / JOB_NAME

    def start_driver(self) -> DriverProcess:
        """Start another driver; the one before is not touched."""
        self.verdict.drivers += 1
        self.driver = DriverProcess(
            self.verdict.drivers,
            self.directory,
            {"bootstrap.servers": self.kafka.bootstrap_servers, "configuration": self._configuration()},
        )
        return self.driver

    def kill_driver(self) -> None:
        """``kill -9``; what it leaves behind ends by itself, or not."""
        self.driver.kill(self.driver.process.pid)
        self.driver.process.wait()
        self._retired.append(self.driver)

    def retire(self, driver: DriverProcess) -> None:
        """A driver that is not the current one any more has ended."""
        self._retired.append(driver)

    def violation(self, text: str) -> None:
        """Something was not as it must be."""
        self.verdict.violations.append(text)
        self._say(f"VIOLATION: {text}")

    def pause(self, low: float, high: float) -> None:
        """Let the job run for a random time; a driver that ends is replaced."""
        until = time.monotonic() + self.random.uniform(low, high)
        while (left := until - time.monotonic()) > 0:
            self._tend()
            time.sleep(min(left, 0.2))  # time is what passes here

    def recovered(self, patience: float = _RECOVERY_S) -> float:
        """Wait until output is visible whose input was sent after this call; returns the seconds it took.

        Raises:
            HoldfastError: nothing comes; the campaign ends.
        """
        since = time.time_ns() // 1_000_000
        began = time.monotonic()
        while self.watcher.newest <= since:
            self._tend()
            if time.monotonic() - began > patience:
                raise HoldfastError(
                    f"no new output for {patience:.0f} s; driver {self.driver.number}: {self.driver.last_error()}"
                )
            self.watcher.wait(0.2)
        return time.monotonic() - began

    def _tend(self) -> None:
        """Replace the driver if it has ended."""
        code = self.driver.exit_code
        if code is None:
            return
        if not self.expected_stop or self.expected_stop not in self.driver.log():
            self.violation(f"driver {self.driver.number} ended by itself (exit code {code}): {self.driver.last_error()}")
        self._retired.append(self.driver)
        self.start_driver()

    # the run

    def run(self) -> Verdict:
        """Run it."""
        from holdfast.testing.chaos.faults import deck

        try:
            self._start()
            faults = {n: f for n, f in deck(self).items() if not self._only or any(part in n for part in self._only)}
            drawn: list[str] = []
            until = time.monotonic() + self.seconds
            while time.monotonic() < until:
                drawn = drawn or self.random.sample(sorted(faults), len(faults))
                name = drawn.pop()
                self._inject(name, faults[name])
                self.pause(0.5, 4.0)
            self._judge()
        except HoldfastError as error:
            self.violation(str(error))
        finally:
            self._close()
        return self.verdict

    def _inject(self, name: str, fault: Callable[[], str]) -> None:
        injection = Injection(time.monotonic() - self._began, name, "")
        self.verdict.injections.append(injection)
        self._say(f"{injection.at:6.1f} s  {name}")
        injection.what = fault()
        injection.recovered = self.recovered()
        self.expected_stop = ""
        self._say(f"          {injection.what}; new output after {injection.recovered:.1f} s")

    def _start(self) -> None:
        self._mount()
        self.kafka.start()
        for topic in (INPUT, ELEMENTS, TOTALS):
            self.kafka.create_topic(topic, PARTITIONS)
        self._feed = Feed(self.kafka.bootstrap_servers, self._rate, self._keys, self._seed)
        self.watcher = Watcher(self.kafka.bootstrap_servers)
        self.start_driver()
        self._feed.start()
        took = self.recovered()
        self._began = time.monotonic()
        self._say(f"seed {self._seed}: the job runs in {self.directory} (first output after {took:.1f} s)")

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

    def _judge(self) -> None:
        """Let the job drain, stop it, and compare what readers see with the model."""
        self.verdict.seconds = time.monotonic() - self._began
        self._feed.stop()
        self._say(f"the input ends after {self._feed.written} records; the job drains")
        numbers = records_of(read_topic(self.kafka.bootstrap_servers, INPUT))
        self.verdict.events = sum(map(len, numbers))
        for part in numbers:
            by_key: dict[str, int] = {}
            for key, number, *_ in part:
                if number != by_key.get(key, 0) + 1:
                    raise HoldfastError(f"the input itself is not numbered: {number} of {key} after {by_key.get(key, 0)}")
                by_key[key] = number
        expected = Expected.of(numbers)
        wanted = {ELEMENTS: sum(expected.elements.values()), TOTALS: sum(expected.totals.values())}
        self._drain(wanted)
        self.driver.process.terminate()
        try:
            code = self.driver.process.wait(60)
            if code != 0:
                self.violation(
                    f"stopped in order, driver {self.driver.number} ends with exit code {code}: {self.driver.last_error()}"
                )
        except subprocess.TimeoutExpired:
            self.violation(f"driver {self.driver.number} does not stop within 60 s")
        for topic, content in ((ELEMENTS, expected.elements), (TOTALS, expected.totals)):
            written = read_topic(self.kafka.bootstrap_servers, topic)
            self.verdict.outputs += sum(map(len, written))
            for problem in compare(topic, content, (record for part in written for record in part)):
                self.violation(problem)

    def _drain(self, wanted: dict[str, int]) -> None:
        last, since = -1, time.monotonic()
        while any(self.watcher.counts[topic] < number for topic, number in wanted.items()):
            self._tend()
            self.watcher.wait(0.5)
            seen = sum(self.watcher.counts.values())
            if seen != last:
                last, since = seen, time.monotonic()
            if time.monotonic() - since > _DRAIN_S:
                self.violation(f"the job does not drain: {dict(self.watcher.counts)} of {wanted} records are visible")
                return
        self.pause(2.0, 2.0)  # what should not come has a chance to come

    def _mount(self) -> None:
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "holdfast-chaos", str(self.disk)],
            capture_output=True,
            check=False,
        )
        self._mounted = mounted.returncode == 0

    def _close(self) -> None:
        if hasattr(self, "_feed"):
            self._feed.abandon()
        if hasattr(self, "watcher"):
            self.watcher.close()
        for driver in {id(d): d for d in [*self._retired, *([self.driver] if hasattr(self, "driver") else [])]}.values():
            self.verdict.restarts_in_place += driver.log().count("starts again in")
            driver.end()
        kept = bool(self.verdict.violations)
        if kept:
            for broker in self.brokers:
                shutil.copy(broker.log_file, self.directory / f"broker-{broker.node_id}.log")
            if self._mounted:
                shutil.copytree(self.disk, self.directory / "disk-copy", ignore=shutil.ignore_patterns("*.sock*"))
        self.kafka.close()
        if self._mounted:
            subprocess.run(["umount", "-l", str(self.disk)], check=True)
        if not kept:
            shutil.rmtree(self.directory, ignore_errors=True)
