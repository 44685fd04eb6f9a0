"""The changelog in memory keeps Kafka's promises when a thread writes while another one compacts or reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from holdfast.checkpoint.changelog import ChangelogSettings, LogRecord, Row
from holdfast.connectors.base import JobInfo

from .changelog_model import Broker, Entry, ModelLog, Topic

JOB = JobInfo("job", "job", 1, "")


class Interrupted(list[Entry]):
    """The entries of a partition. At the end of the n-th iteration over them, another thread may come in."""

    def __init__(self, entries: list[Entry], iteration: int, come_in: Callable[[], Any]) -> None:
        super().__init__(entries)
        self.left = iteration
        self.come_in = come_in

    def __iter__(self) -> Iterator[Entry]:
        yield from super().__iter__()
        self.left -= 1
        if not self.left:
            self.come_in()


def compact(topic: Topic, reader: ModelLog) -> list[LogRecord]:
    topic.compact()
    return []


def read(topic: Topic, reader: ModelLog) -> list[LogRecord]:
    return [record for records in reader.read({0: 0}) for record in records]


@pytest.mark.parametrize(("work", "iteration"), [(compact, 1), (compact, 2), (compact, 3), (read, 1), (read, 2)])
def a_write_is_not_lost_while_another_thread_compacts_or_reads(work, iteration):
    broker = Broker(partitions=1)
    changelog = broker.changelog(ChangelogSettings({}), "job", "op", 128)
    topic = broker.topics["op"]

    def write(key: bytes, value: bytes | None) -> list[Any]:
        log = changelog.open(JOB, "op", 0)
        log.begin(1, 0)
        log.append([Row(0, key, value)])
        return log.prepare()[0]

    reader = changelog.follow()
    reader.commit(write(b"deleted", b"1"))
    reader.commit(write(b"kept", b"1"))
    with ThreadPoolExecutor(1) as threads:
        writes: list[Future[list[Any]]] = []

        def come_in() -> None:
            writes.append(threads.submit(write, b"deleted", None))
            wait(writes, timeout=0.05)  # it need not be able to

        topic.log[0] = Interrupted(topic.log[0], iteration, come_in)
        found = work(topic, reader)
        reader.commit(writes[0].result())
    assert topic.committed() == {b"kept": b"1"}
    found += read_on(reader, found)
    assert [record.content.value for record in found if isinstance(record.content, Row)][-1] is None


def read_on(reader: ModelLog, found: list[LogRecord]) -> list[LogRecord]:
    start = found[-1].offset + 1 if found else 0
    return [record for records in reader.read({0: start}) for record in records]
