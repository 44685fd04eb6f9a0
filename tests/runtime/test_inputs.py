"""A job that begins ends when a source's service does not answer; a job that goes on waits for it."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from holdfast.common import Types, WatermarkStrategy
from holdfast.connectors.base import JobInfo
from holdfast.connectors.kafka.source.positions import Positions
from holdfast.datastream.connectors.kafka import KafkaSource, KafkaTopicPartition
from holdfast.datastream.connectors.postgres import PostgresCdcSource
from holdfast.datastream.connectors.socket import SocketTextSource
from holdfast.errors import ConfigurationError, ServiceUnavailable
from holdfast.metrics.job import JobMetrics
from holdfast.runtime.driver.inputs import Inputs
from holdfast.runtime.plan.plan import SourceSpec

pytestmark = pytest.mark.usefixtures("no_broker")

ROWS = Types.ROW_NAMED(["id"], [Types.LONG()])


def opened(source: Any, state: Any | None) -> None:
    job = JobInfo("job", "job", 1, None)
    spec = SourceSpec("numbers", True, "numbers", source, WatermarkStrategy.no_watermarks())
    Inputs(JobMetrics("a" * 32, "job")).open(spec, job, state)


@pytest.fixture
def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


def kafka(port: int) -> KafkaSource:
    return KafkaSource(bootstrap_servers=f"127.0.0.1:{port}", topics="t")


@pytest.mark.parametrize(
    "source",
    [
        kafka,
        lambda port: SocketTextSource("127.0.0.1", port),
        lambda port: PostgresCdcSource(f"postgresql://postgres@127.0.0.1:{port}/postgres", {"public.t": ROWS}, "slot"),
    ],
    ids=["Kafka", "socket", "PostgreSQL"],
)
def a_job_that_begins_ends_if_a_service_of_its_input_does_not_answer(source: Any, closed_port: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"(?s)127\.0\.0\.1.*{closed_port}"):
        opened(source(closed_port), None)


def a_job_that_goes_on_waits_for_the_service_of_its_input(closed_port: int) -> None:
    state = Positions(next={KafkaTopicPartition("t", 0): 5}, topics={"t": "1"}).encode()
    with pytest.raises(ServiceUnavailable, match="Check that the broker runs"):
        opened(kafka(closed_port), state)
