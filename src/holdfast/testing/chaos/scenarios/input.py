"""Input that is transactional, grows and loses its beginning; equal keys of different types; changes of parallelism."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import orjson
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import NewPartitions

from holdfast.errors import HoldfastError
from holdfast.testing.chaos.faults import brokers, drivers
from holdfast.testing.chaos.programs.mixed import FORMS, problems, sent
from holdfast.testing.chaos.scenario import Scenario
from holdfast.testing.chaos.topics import Watcher, read_topic

__all__ = ["InputScenario"]

_MOST_PARTITIONS = 6
_TELL_S = 240.0
_DRAIN_S = 480.0
_KEYS_EACH = 8
_ABORTED = 0.25
_GAP = 100_000
_BOUNDED = {"records": 40, "stop": 25, "trimmed": 30}


class TransactionalFeed:
    """Writes numbered records in transactions. Some transactions are aborted, and their numbers are used again.

    Args:
        bootstrap_servers: The brokers.
        topic: The input topic.
        seed: Seed of all choices.
        rate: Records per second.
    """

    def __init__(self, bootstrap_servers: str, topic: str, seed: int, rate: float) -> None:
        self._topic = topic
        self._rate = rate
        self._random = random.Random(seed)
        self._numbers: Counter[int] = Counter()
        self._properties = {
            "bootstrap.servers": bootstrap_servers,
            "transactional.id": f"feed-{topic}",
            "linger.ms": 2,
            "topic.metadata.refresh.interval.ms": 1000,
            "log_level": 0,
        }
        self._producer = Producer(self._properties)
        self.partitions = 2
        """The number of partitions to write to; each partition has its own keys."""
        self._stopping = threading.Event()
        self._failed: list[Exception] = []
        self._thread = threading.Thread(target=self._run, name="feed")

    def start(self) -> None:
        """Start the feed."""
        self._producer.init_transactions(30)
        self._thread.start()

    def grow(self, partitions: int) -> None:
        """Write to this many partitions, once the client knows them."""
        while len(self._producer.list_topics(self._topic, timeout=60).topics[self._topic].partitions) < partitions:
            time.sleep(0.05)
        self.partitions = partitions

    def stop(self) -> None:
        """Stop after the records written so far.

        Raises:
            HoldfastError: Kafka did not take a record.
        """
        self._stopping.set()
        self._thread.join()
        if self._failed:
            raise HoldfastError(f"the input could not be written: {self._failed[0]}")

    def abandon(self) -> None:
        """Stop without flushing."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._random.uniform(0.02, 0.2)):
                try:
                    self._transaction()
                except KafkaException as error:
                    if not error.args[0].fatal():
                        raise
                    # Its transaction has timed out: the machine is slow. Whether it was committed is unknown, so its numbers
                    # are not given again.
                    self._numbers.update(dict.fromkeys(range(_KEYS_EACH * self.partitions), _GAP))
                    self._producer = Producer(self._properties)
                    self._producer.init_transactions(60)
        except Exception as error:
            self._failed.append(error)

    def _transaction(self) -> None:
        numbers = Counter(self._numbers)
        self._producer.begin_transaction()
        for _ in range(self._random.randint(1, max(2, int(self._rate / 5)))):
            key = self._random.randrange(_KEYS_EACH * self.partitions)
            numbers[key] += 1
            value = orjson.dumps((key, self._random.randrange(FORMS * 2), numbers[key], time.time_ns() // 1_000_000))
            self._producer.produce(self._topic, value, partition=key // _KEYS_EACH)
        if self._random.random() < _ABORTED:
            self._persist(self._producer.abort_transaction)
        else:
            self._persist(self._producer.commit_transaction)
            self._numbers = numbers

    def _persist(self, call: Callable[[float], None]) -> None:
        while True:
            try:
                return call(30)
            except KafkaException as error:
                if not error.args[0].retriable():
                    raise


class InputScenario(Scenario):
    """The mixed job. Every driver uses another parallelism for its stateless operators."""

    name = "input"
    about = "transactions with aborts, partitions added, retention, equal keys, another parallelism at every start"
    faults: ClassVar = {
        "driver killed, another parallelism": drivers.kill_driver,
        "driver killed several times": drivers.kill_driver_repeatedly,
        "driver dies at steps of its recovery": drivers.die_at_steps,
        "driver overtaken by a rival": drivers.overtake,
        "broker paused": brokers.pause_broker,
    }
    kills = (drivers.kill_driver,)
    lives = 0

    def deck(self) -> dict[str, Callable[[], str]]:
        """The faults, including those of the input."""
        return {
            **super().deck(),
            "partition added": self.add_partition,
            "a stranger's transaction left open": self.leave_open,
            "retention deletes what was not read while the job is down": lambda: self.overtake_by_retention(down=True),
            "retention deletes what was not read while the job sleeps": lambda: self.overtake_by_retention(down=False),
            "a bounded job beside, a partition begins beyond its end": self.run_bounded,
        }

    def prepare(self) -> None:
        """Start broker, feed and the first driver."""
        stage = self.stage
        stage.start_kafka()
        stage.program = "holdfast.testing.chaos.programs.mixed"
        stage.configuration["state.backend.cache.size"] = "64kb"
        stage.vary = lambda: {"parallelism": [stage.random.randint(1, 3), stage.random.randint(1, 3)]}
        self.begin_life()

    def begin_life(self) -> None:
        """Create topics, feed and job under new names."""
        stage, servers = self.stage, self.stage.kafka.bootstrap_servers
        self.lives += 1
        stage.job_name = f"chaos-{self.lives}"
        self.input, self.output = f"input-{self.lives}", f"output-{self.lives}"
        self.feed = TransactionalFeed(servers, self.input, stage.seed + self.lives, self.rate)
        stage.kafka.create_topic(self.input, self.feed.partitions)
        stage.kafka.create_topic(self.output, 2)
        stage.settings = {
            "input": self.input,
            "output": self.output,
            "clients": {"bootstrap.servers": servers},
            "without_spark": True,
        }
        stage.watcher = Watcher(servers, [self.output], sent, ("seen",))
        stage.at_the_end(stage.watcher.close)
        stage.start_driver()
        stage.at_the_end(self.feed.abandon)
        self.feed.start()

    def add_partition(self) -> str:
        """Add a partition; its records are read from its beginning."""
        if self.feed.partitions == _MOST_PARTITIONS:
            return "the topic already has enough partitions"
        admin = self.stage.kafka.admin()
        more = self.feed.partitions + 1
        admin.create_partitions([NewPartitions(self.input, more)])[self.input].result()
        self.feed.grow(more)
        return f"partition {more - 1} added"

    def leave_open(self) -> str:
        """Another producer's transaction blocks readers until it times out."""
        stranger = Producer(
            {
                "bootstrap.servers": self.stage.kafka.bootstrap_servers,
                "transactional.id": "stranger",
                "transaction.timeout.ms": 2000,
                "log_level": 0,
            }
        )
        stranger.init_transactions(30)
        stranger.begin_transaction()
        stranger.produce(self.input, b"[99, 0, 1, 0]", partition=0)
        stranger.flush(30)
        return "a transaction of another producer was left open until it timed out"

    def overtake_by_retention(self, *, down: bool) -> str:
        """Delete records before they are read: the job must report it."""
        stage = self.stage
        driver = stage.driver
        if down:
            stage.kill_driver()
        else:
            driver.pause(driver.process.pid)
        time.sleep(stage.random.uniform(1.0, 2.0))  # the feed continues
        self.feed.stop()
        self._delete_all(self.input)
        if down:
            driver = stage.start_driver()
        else:
            driver.resume()
        stage.until(lambda: driver.exit_code is not None, _TELL_S, tend=False)
        if "InputLost" not in driver.log():
            stage.violation(f"records were deleted unread; driver {driver.number} does not report it: {driver.last_error()}")
        stage.kill_driver()
        self.begin_life()
        return f"records were deleted unread, as driver {driver.number} reported; another job started"

    def run_bounded(self) -> str:
        """Run a job with stopping offsets, one of which is already deleted; it must end."""
        stage, servers = self.stage, self.stage.kafka.bootstrap_servers
        job, source, output = (f"{what}-{len(stage.report.injections)}" for what in ("bounded", "bounded-in", "bounded-out"))
        stage.kafka.create_topic(source, 2)
        stage.kafka.create_topic(output, 1)
        producer = Producer({"bootstrap.servers": servers})
        for number in range(1, _BOUNDED["records"] + 1):
            for partition in range(2):
                producer.produce(source, orjson.dumps((partition, number, number, 0)), partition=partition)
        producer.flush(30)
        self._delete_all(source, {1: _BOUNDED["trimmed"]})
        driver = stage.start_beside(
            job=job, input=source, output=output, partitions=2, stop=_BOUNDED["stop"], parallelism=[2, 2]
        )
        if not stage.until(lambda: driver.exit_code is not None, _TELL_S):
            stage.violation(f"bounded job {job} does not end; a partition begins beyond its end")
            driver.end()
        elif driver.exit_code != 0:
            stage.violation(f"bounded job {job} fails: {driver.last_error()}")
        numbers = [(0, number) for number in range(1, _BOUNDED["stop"] + 1)]
        for problem in problems(numbers, [o for part in read_topic(servers, output) for o in part]):
            stage.violation(f"bounded job {job}: {problem}")
        return f"bounded job {job} has ended"

    def judge(self) -> None:
        """Compare the visible output with the input, once no new output arrives."""
        stage, servers = self.stage, self.stage.kafka.bootstrap_servers
        self.feed.stop()
        numbers = [(record[0], record[2]) for part in read_topic(servers, self.input) for record in part]
        stage.report.events = len(numbers)
        stage.say(f"the input ends after {len(numbers)} records; the job drains")
        if not stage.until(lambda: stage.watcher.counts[self.output] >= len(numbers), _DRAIN_S):
            stage.violation(f"the job does not drain: {stage.watcher.counts[self.output]} of {len(numbers)} are visible")
        stage.pause(1.0, 1.0)  # give surplus output time to appear
        stage.stop_driver()
        written = [output for part in read_topic(servers, self.output) for output in part]
        stage.report.outputs = len(written)
        for problem in problems(numbers, written):
            stage.violation(problem)

    def _delete_all(self, topic: str, before: dict[int, int] | None = None) -> None:
        """Delete the records of a topic, or only those before given offsets."""
        admin: Any = self.stage.kafka.admin()
        if before is None:
            count = len(admin.list_topics(topic, timeout=60).topics[topic].partitions)
            before = dict.fromkeys(range(count), -1)
        for deleted in admin.delete_records([TopicPartition(topic, p, offset) for p, offset in before.items()]).values():
            deleted.result()
