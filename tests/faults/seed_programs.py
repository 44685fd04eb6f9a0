"""The examples as driver processes that come and go, their input, and plain-Python models that judge their output."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import driver_with_faults
from confluent_kafka import Consumer, Producer, TopicPartition

from holdfast.runtime.driver.job_registry import records
from holdfast.testing.chaos.processes import DriverProcess
from kafka_fixtures import read_all
from started_programs import QUICK_JVM

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 600.0
MINUTE = 60_000
START = 1_700_000_040_000
"""A full minute."""
KEPT = {"retention_ms": "-1"}
"""For topics of results: their records have event time, which is long ago, and Kafka would delete them after minutes."""
EPOCH = 400
"""The most payments of an epoch."""


def new_seed() -> int:
    """A seed for this run, printed; ``FAULT_SEED`` repeats one."""
    seed = int(os.environ.get("FAULT_SEED", random.SystemRandom().randrange(1_000_000)))
    print(f"FAULT_SEED={seed}")
    return seed


class Feed:
    """Writes payments to Kafka, at a steady pace, while the test waits for something; remembers them for the model."""

    def __init__(self, servers: str, topic: str, payments: Iterator[tuple[int, str, int]], rate: float = 300.0) -> None:
        self._producer = Producer({"bootstrap.servers": servers, "linger.ms": 2, "enable.idempotence": True})
        self._topic = topic
        self._payments = payments
        self._rate = rate
        self._began = time.monotonic()
        self.sent: list[tuple[str, int]] = []
        """Merchant and event time, in the order in which they were written."""

    def go_on(self, most: int) -> None:
        due = min((time.monotonic() - self._began) * self._rate, most)
        while len(self.sent) < due:
            self._write(*next(self._payments))
        self._producer.poll(0)

    def end(self, partitions: int) -> None:
        """A last payment in every partition moves event time past all that came before."""
        last = max(at for _, at in self.sent) + 10 * MINUTE
        for partition in range(partitions):
            self._write(partition, f"last-{partition}", last)
        assert self._producer.flush(600) == 0

    def _write(self, partition: int, merchant: str, at: int) -> None:
        payment = json.dumps({"merchant_id": merchant, "ts_ms": at})
        self._producer.produce(self._topic, payment, partition=partition, on_delivery=_delivered)
        self.sent.append((merchant, at))


def _delivered(error: Any, message: Any) -> None:
    assert error is None, error


class Reader:
    """A read_committed reader that follows a topic."""

    def __init__(self, servers: str, topic: str) -> None:
        self._servers, self._topic = servers, topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "group.id": "judge",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 10,
            }
        )
        partitions = self._consumer.list_topics(topic, timeout=120).topics[topic].partitions
        self._consumer.assign([TopicPartition(topic, p, 0) for p in partitions])
        self.count = 0

    def look(self) -> int:
        """How many records are visible by now."""
        self.count += len(self._consumer.consume(10_000, 0.05))
        return self.count

    def by_key(self) -> dict[str, list[Any]]:
        """All that is visible, read anew: the values of each key in the order of the log."""
        found: dict[str, list[Any]] = defaultdict(list)
        for message in read_all(self._servers, self._topic):
            found[message.key().decode()].append(json.loads(message.value()))
        return dict(found)

    def close(self) -> None:
        self._consumer.close()


class Program:
    """One example, as one driver after the other: `start`, `kill`, `start` ...

    On a failure the ends of the drivers' logs are printed.
    """

    def __init__(
        self, example: str, job: str, environment: dict[str, str], feed: Feed | None = None, **settings: str
    ) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hf-"))
        self.checkpoints = self.directory / "checkpoints" / job
        self._feed = feed
        self._program = str(ROOT / "examples" / example)
        self._environment = {**environment, "CHECKPOINTS": (self.directory / "checkpoints").as_uri()}
        self._configuration = {
            "parallelism.default": "2",
            "holdfast.epoch.target-duration": "100 ms",
            "holdfast.epoch.max-records": str(EPOCH),
            "holdfast.batch.records": "32",
            "holdfast.frame.records": "32",
            "restart-strategy.exponential-delay.initial-backoff": "100 ms",
            "rest.port": "0",
            "execution.checkpointing.dir": self._environment["CHECKPOINTS"],
            "io.tmp.dirs": str(self.directory / "local"),
            "spark.master": "local[2,4]",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(self.directory / "spark"),
            "spark.driver.memory": "512m",
            "spark.driver.extraJavaOptions": QUICK_JVM,
            **settings,
        }
        self.drivers: list[DriverProcess] = []

    @property
    def driver(self) -> DriverProcess:
        """The newest one."""
        return self.drivers[-1]

    @property
    def parallelism(self) -> str:
        """That of the drivers that are started from now on."""
        return self._configuration["parallelism.default"]

    def rescale(self, parallelism: int) -> None:
        """The drivers that are started from now on have another parallelism."""
        self._configuration = {**self._configuration, "parallelism.default": str(parallelism)}

    def start(
        self, point: str = "", nth: int = 1, sign: str = "SIGKILL", without_spark: bool = False, hours: int = 0
    ) -> DriverProcess:
        """Start a driver, which sends itself a signal when it reaches a point for the n-th time.

        Without Spark its tasks run in its own process, a fork, and it starts at once. Its clock is so many ``hours`` ahead.
        """
        settings = {
            "program": self._program,
            "environment": self._environment,
            "configuration": self._configuration,
            "fault": [point, nth, sign] if point else None,
            "without_spark": without_spark,
            "hours": hours,
        }
        script = [str(Path(driver_with_faults.__file__))]
        forked = driver_with_faults.main if without_spark else None
        self.drivers.append(DriverProcess(len(self.drivers) + 1, self.directory, settings, script, main=forked))
        return self.driver

    def kill(self) -> None:
        """``kill -9`` for the newest driver; what it started ends by itself."""
        self.driver.kill(self.driver.process.pid)
        self.driver.process.wait()

    def position(self) -> int:
        """The last position of the checkpoint log."""
        log = self.checkpoints / "log"
        return max((int(entry.name) for entry in log.iterdir() if entry.name.isdigit()), default=0) if log.exists() else 0

    def let_pass(self, seconds: float) -> None:
        """Let the job run for so long: a fault comes at any moment."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._go_on()
            time.sleep(0.02)

    def wait(self, condition: Callable[[], object], what: str, *alive: DriverProcess) -> None:
        """Wait until something is so, while these drivers must not end."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            self._go_on()
            for driver in alive:
                assert driver.exit_code is None, f"driver {driver.number} ended ({driver.exit_code}), not yet {what}"
            assert time.monotonic() < deadline, f"not {what} within {PATIENCE:.0f} s"
            time.sleep(0.02)

    def wait_for_checkpoints(self, number: int) -> None:
        """Wait until the newest driver has completed some more; its take-over and recovery count as one."""
        position = self.position()
        self.wait(lambda: self.position() > position + number, f"{number} checkpoints further", self.driver)

    def request(self, method: str, page: str, body: Any = None) -> dict[str, Any]:
        """Ask the REST API of the newest driver about its job."""
        pid = self.driver.process.pid
        (record,) = [each for each in records() if each.pid == pid]
        asked = urllib.request.Request(
            f"{record.url}/jobs/{record.job_id}{page}", None if body is None else json.dumps(body).encode(), method=method
        )
        asked.add_header("Authorization", f"Bearer {record.token}")
        with urllib.request.urlopen(asked, timeout=300) as answer:
            return dict(json.loads(answer.read()))

    def members(self, kind: str) -> list[int]:
        """The newest driver's processes of a kind; there may be none for a moment after one was killed."""
        found: list[int] = []

        def look() -> list[int]:
            found[:] = self.driver.members(kind)
            return found

        self.wait(look, f"with a {kind}", self.driver)
        return found

    def wait_for_end(self, driver: DriverProcess) -> int:
        """Wait until a driver has ended; its exit code."""
        self.wait(lambda: driver.exit_code is not None, f"the end of driver {driver.number}")
        return driver.process.wait()

    def _go_on(self) -> None:
        if self._feed is not None:
            # No more than some epochs ahead of the job, so that a slow machine does not drown in the backlog.
            self._feed.go_on(EPOCH * (self.position() + 5))

    def __enter__(self) -> Program:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        for driver in self.drivers:
            driver.end()
        if error is not None:
            for driver in self.drivers[-3:]:
                tail = "\n".join(driver.log().splitlines()[-60:])
                print(f"---- driver {driver.number} (exit code {driver.exit_code}), end of its log:\n{tail}")
        shutil.rmtree(self.directory, ignore_errors=True)


def judge(
    program: Program, feed: Feed, partitions: int, reader: Reader, model: Callable[[Any], dict[str, list[Any]]]
) -> None:
    """End the input, wait for the output that is due, and compare what readers see with the model, key by key."""
    feed.end(partitions)
    program._feed = None
    expected = model(feed.sent)
    due = sum(map(len, expected.values()))
    program.wait(lambda: reader.look() >= due, f"all {due} records visible", program.driver)
    program.kill()
    found = reader.by_key()
    wrong = {k: (expected.get(k), found.get(k)) for k in expected | found if expected.get(k) != found.get(k)}
    print(f"{len(feed.sent)} payments, {due} results, {len(program.drivers)} drivers, log position {program.position()}")
    assert not wrong, f"{len(wrong)} keys of {len(expected)} are wrong; expected and found: {dict(list(wrong.items())[:3])}"


# ---- payments per merchant and minute ------------------------------------------------------------------------------------


def scattered_payments(seed: int, partitions: int) -> Iterator[tuple[int, str, int]]:
    """Partition, merchant, event time; up to 4 s out of order. A minute has about 150 payments."""
    draw = random.Random(seed)
    now = START
    while True:
        now += draw.randrange(800)
        yield draw.randrange(partitions), f"m{draw.randrange(12)}", now - draw.randrange(4000)


def minute_counts(payments: list[tuple[str, int]]) -> dict[str, list[Any]]:
    """What `upi_per_minute.py` must write: for each merchant the counts of its minutes, in order."""
    counts = Counter((merchant, at // MINUTE) for merchant, at in payments if not merchant.startswith("last"))
    expected: dict[str, list[Any]] = defaultdict(list)
    for merchant, minute in sorted(counts):
        expected[merchant].append([merchant, counts[merchant, minute]])
    return dict(expected)


# ---- the rate limit ------------------------------------------------------------------------------------------------------

GROUPS, GROUP, ROUND_MS = 4, 20, 40_000


def bursts_of_payments(seed: int) -> Iterator[tuple[int, str, int]]:
    """Rounds of 40 s, in each a group of merchants pays, 8 to 15 times each; the same group again after three rounds.

    So no merchant pays for the second time while its timer (a minute after its first payment) may or may not have fired:
    what must come out does not depend on how records and watermarks meet.
    """
    draw = random.Random(seed)
    for number in range(10**9):
        start = START + number * ROUND_MS
        merchants = [f"g{number % GROUPS}-{i}" for i in range(GROUP)]
        burst = sorted((start + draw.randrange(ROUND_MS), m) for m in merchants for _ in range(draw.randint(8, 15)))
        for at, merchant in burst:
            yield 0, merchant, at


def rate_limit_trips(payments: list[tuple[str, int]]) -> dict[str, list[Any]]:
    """What `fraud_counter.py` must write: an alert for each payment beyond the tenth of a burst."""
    expected: dict[str, list[Any]] = defaultdict(list)
    counting: dict[str, tuple[int, int]] = {}
    for merchant, at in payments:
        first, count = counting.get(merchant, (at, 0))
        if at >= first + MINUTE:
            first, count = at, 0
        counting[merchant] = (first, count + 1)
        if count + 1 > 10:
            expected[merchant].append([merchant, "rate-limit-trip"])
    return dict(expected)
