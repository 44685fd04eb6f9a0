"""The two programs "from Kafka to Kafka" of docs/from-structured-streaming.md, beside each other on one broker.

`make smoke-kafka` runs it in a fresh environment, with the PySpark that fits Spark's Kafka connector. Both are killed when
they have written the first minutes, and started again. Both write the same totals then, the job each of them once.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pyspark
from confluent_kafka import Consumer, Producer, TopicPartition
from with_packages import environment

from holdfast.testing.kafka import KafkaBroker

PAGE = (Path(__file__).parents[2] / "docs" / "from-structured-streaming.md").read_text()
PROGRAMS: dict[str, str] = dict(
    re.findall(r"^<!-- kafka: (\w+) -->\n```python\n(.*?)^```\n", PAGE, re.MULTILINE | re.DOTALL)
)
TOPIC = {"pyspark": '"topic", "totals"', "holdfast": 'topic="totals"'}
PACKAGES = {
    "pyspark": {
        "PYSPARK_SUBMIT_ARGS": f"--packages org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__} pyspark-shell"
    },
    "holdfast": {},
}
SHOPS = ("tea", "books", "bread")
MINUTE_MS = 60_000
PATIENCE_S = 600


def code(program: str, servers: str, directory: Path) -> str:
    """The page's program with this broker and directory, and a topic of its own for the totals."""
    text = PROGRAMS[program]
    for old, new in {
        '"localhost:9092"': repr(servers),
        '"/checkpoints/': f'"{directory.as_uri()}/',
        TOPIC[program]: TOPIC[program].replace("totals", program),
    }.items():
        assert old in text, f"the page's program has no {old}"
        text = text.replace(old, new)
    return text


def pay(servers: str, minutes: range) -> dict[int, list[str]]:
    """Write payments of these minutes, in order of time; returns each minute's totals."""
    producer = Producer({"bootstrap.servers": servers})
    for minute in minutes:
        for n in range(5):
            for number, shop in enumerate(SHOPS):
                value = json.dumps({"shop": shop, "amount": minute * 7 + number + n})
                producer.produce("payments", value, timestamp=minute * MINUTE_MS + n * 9_000 + number)
    assert producer.flush(60) == 0
    return {
        minute: [total(shop, sum(minute * 7 + number + n for n in range(5))) for number, shop in enumerate(SHOPS)]
        for minute in minutes
    }


def total(shop: str, amount: int) -> str:
    return json.dumps({"shop": shop, "total": amount})


def written(servers: str, topic: str) -> Counter[str]:
    """The totals in a topic, with how often a reader of committed records finds each."""
    reader = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})
    found: Counter[str] = Counter()
    try:
        _, end = reader.get_watermark_offsets(TopicPartition(topic, 0), timeout=60)
        reader.assign([TopicPartition(topic, 0, 0)])
        position = 0
        while position < end:
            for message in reader.consume(1000, timeout=1):
                assert message.error() is None, message.error()
                row = json.loads(message.value())
                found[total(row["shop"], row["total"])] += 1
            (at,) = reader.position([TopicPartition(topic, 0)])
            position = max(position, at.offset)
    finally:
        reader.close()
    return found


def start(program: str, servers: str, directory: Path, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    with (directory / f"{program}.log").open("ab") as log:
        command = [sys.executable, "-c", code(program, servers, directory)]
        return subprocess.Popen(command, cwd=directory, env=variables | PACKAGES[program], stdout=log, stderr=log)


def wait_for(totals: set[str], servers: str, program: str, driver: subprocess.Popen[bytes]) -> Counter[str]:
    """What the program has written once all these totals are there."""
    until = time.monotonic() + PATIENCE_S
    while not totals <= set(found := written(servers, program)):
        assert driver.poll() is None, f"{program} has ended"
        assert time.monotonic() < until, f"{program} has written {found}"
        time.sleep(0.5)
    return found


def main() -> None:
    """Run both until the first minutes are written, kill them, and run them again until the next ones are."""
    with (
        tempfile.TemporaryDirectory(prefix="smoke-", ignore_cleanup_errors=True) as name,
        KafkaBroker(f"{name}/broker") as broker,
    ):
        servers, directory = broker.bootstrap_servers, Path(name)
        for topic in ("payments", *PROGRAMS):
            broker.create_topic(topic, partitions=1)
        variables = {**environment(), "TMPDIR": name}
        totals: dict[int, list[str]] = {}
        for minutes in (range(1, 5), range(6, 9)):
            totals |= pay(servers, minutes)
            closed = {each for minute in totals if minute != minutes[-1] for each in totals[minute]}
            drivers = {program: start(program, servers, directory, variables) for program in PROGRAMS}
            try:
                found = {program: wait_for(closed, servers, program, driver) for program, driver in drivers.items()}
            except AssertionError:
                print(*((directory / f"{program}.log").read_text() for program in PROGRAMS), sep="\n")
                raise
            finally:
                for driver in drivers.values():
                    driver.kill()
                    driver.wait()
            assert set(found["pyspark"]) == closed
            assert found["holdfast"] == Counter(closed)
        print(f"PySpark {pyspark.__version__}: {len(closed)} totals, the job's each once")


if __name__ == "__main__":
    main()
