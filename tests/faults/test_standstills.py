"""A job that stands still says what stands, and where; a slow one does not; both can be ended, and go on later."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from awaiting import until
from holdfast.rest.tokens import read_token
from s3_fixtures import Relay
from started_programs import output_of, surroundings

pytestmark = [pytest.mark.spark, pytest.mark.fault]

PROGRAM = """
import asyncio, json, sys, threading, time
from holdfast.common import Configuration, Time
from holdfast.datastream import AsyncDataStream, AsyncFunction, StreamExecutionEnvironment
from holdfast.rest.server import RestServer

directory, kind, more = sys.argv[1:]
blocks = __import__("os").path.join(directory, "blocks")

def work(n):
    if kind == "blocked" and n == 3 and __import__("os").path.exists(blocks):
        threading.Event().wait()
    if kind == "slow":
        time.sleep(0.5)
    return n

settings = {
    "execution.checkpointing.dir": directory + "/checkpoints", "io.tmp.dirs": directory + "/local", "rest.port": "0",
    "restart-strategy.type": "none", **json.loads(more),
}
env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(settings)).set_parallelism(1)
numbers = env.from_collection(list(range(60)))

class Ask(AsyncFunction):
    async def async_invoke(self, value):
        if value == 3 and __import__("os").path.exists(blocks):
            await asyncio.Event().wait()
        return [value]

if kind == "unanswered":
    AsyncDataStream.unordered_wait(numbers, Ask(), Time.seconds(3600), 100).name("worker").print()
else:
    numbers.map(work).name("worker").print()

client = env.execute_async("numbers")
while not (server := RestServer.running()):
    time.sleep(0.05)
print(server.url, server.token, client.get_job_id(), file=sys.stderr, flush=True)
if kind == "stopped":
    from pyspark import SparkContext
    SparkContext._active_spark_context.stop()
try:
    client.get_job_execution_result().result()
except KeyboardInterrupt:
    try:
        client._interrupt().result()
    except KeyboardInterrupt:
        client._interrupt().result()
"""


class Running:
    """A program with its job, and what its REST API says."""

    def __init__(self, process: subprocess.Popen[str], directory: Path) -> None:
        self.process = process
        self._directory = directory
        assert process.stderr is not None
        line = next(line for line in process.stderr if line.startswith("http"))
        self.url, self.token, self.job = line.split()

    def view(self) -> dict[str, Any]:
        token = {"authorization": f"Bearer {read_token(self.token)}"}
        view: dict[str, Any] = httpx.get(f"{self.url}/jobs/{self.job}/view", headers=token, timeout=300).json()
        return view

    def findings(self) -> str:
        return "\n".join(f"{each['title']}: {each['detail']}" for each in self.view()["findings"])

    def told(self, command: str) -> str:
        """What a command says of it."""
        arguments = [sys.executable, "-m", "holdfast.cli", command, "-m", self.url]
        environment = {**os.environ, "HOLDFAST_TOKEN": self.token, "COLUMNS": "1000"}
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=300, env=environment)
        return done.stdout + done.stderr

    def metric(self, name: str) -> float:
        answer = httpx.get(f"{self.url}/jobs/{self.job}/metrics", params={"get": name}, timeout=300).json()
        return float(answer[0]["value"])

    def ended(self) -> list[str]:
        """The lines that the program has printed until it ends."""
        return output_of(self.process, self._directory)[0].splitlines()


@contextmanager
def running(directory: Path, kind: str, settings: Mapping[str, str] | None = None) -> Iterator[Running]:
    (directory / "program.py").write_text(PROGRAM)
    process = subprocess.Popen(
        [sys.executable, str(directory / "program.py"), str(directory), kind, json.dumps(settings or {})],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **surroundings(directory)},
    )
    with process:
        try:
            yield Running(process, directory)
        finally:
            process.kill()


def numbers(lines: list[str]) -> list[int]:
    return [int(line.rpartition(" ")[2]) for line in lines]


@pytest.mark.parametrize("way", ["cancel", "signals"])
def a_function_that_does_not_return_is_named_with_its_line_and_the_job_can_be_ended_without_it(
    tmp_path: Path, way: str
) -> None:
    (tmp_path / "blocks").touch()
    with running(tmp_path, "blocked") as job:
        until(lambda: "The operator worker stands still" in job.findings(), 120)
        said = job.findings()
        assert "program.py:" in said
        assert "threading.Event().wait()" in said
        assert "keeps up" not in said
        assert "The operator worker stands still" in job.told("list")
        if way == "cancel":
            token = {"authorization": f"Bearer {job.token}"}
            httpx.patch(f"{job.url}/jobs/{job.job}?mode=cancel&force=true", headers=token, timeout=300).raise_for_status()
        else:
            job.process.send_signal(signal.SIGINT)
            until(lambda: job.view()["state"] == "CANCELLING")
            job.process.send_signal(signal.SIGINT)
        before = numbers(job.ended())
    (tmp_path / "blocks").unlink()
    with running(tmp_path, "free") as job:
        assert sorted(before + numbers(job.ended())) == list(range(60))


def a_request_that_is_never_answered_is_named_with_the_line_that_waits(tmp_path: Path) -> None:
    (tmp_path / "blocks").touch()
    with running(tmp_path, "unanswered") as job:
        until(lambda: "The operator worker stands still" in job.findings(), 120)
        said = job.findings()
        assert "program.py:" in said
        assert "await asyncio.Event().wait()" in said


def a_function_that_is_slow_and_goes_on_does_not_stand_still(tmp_path: Path) -> None:
    with running(tmp_path, "slow") as job:
        until(lambda: "Its tasks go on: worker" in job.findings(), 120)
        until(lambda: any(each["seconds"] > 15 for each in job.view()["activities"]), 120)
        assert "stands still" not in job.findings()


def a_slot_that_is_stopped_is_told(tmp_path: Path) -> None:
    (tmp_path / "blocks").touch()
    with running(tmp_path, "blocked") as job:
        until(lambda: "stands still" in job.findings(), 120)
        (standing,) = [each for each in (tmp_path / "checkpoints").rglob("slots/*") if each.is_file()]
        process = int(standing.name.rpartition("-")[2])
        os.kill(process, signal.SIGSTOP)
        until(lambda: "its process is stopped (SIGSTOP)" in job.findings(), 120)
        os.kill(process, signal.SIGCONT)
        until(lambda: "The operator worker stands still" in job.findings(), 120)


def a_job_whose_spark_is_stopped_ends_in_order(tmp_path: Path) -> None:
    with running(tmp_path, "stopped") as job:
        _, said = output_of(job.process, tmp_path)
        assert "SparkGone" in said
        assert "the job resumes from its latest checkpoint" in said
    with running(tmp_path, "free") as job:
        assert sorted(set(numbers(job.ended()))) == list(range(60))


def a_storage_that_does_not_answer_is_named_and_the_job_goes_on_when_it_does(
    tmp_path: Path, relay: tuple[type[Relay], dict[str, str]]
) -> None:
    handler, config = relay
    stands, answers = threading.Event(), threading.Event()

    def watch(request: str, done: bool) -> None:
        """Nothing is answered from the moment that the checkpoint is to be stored."""
        if request.startswith("PUT") and request.endswith(f"/log/{2:020d}"):
            stands.set()
        if stands.is_set():
            answers.wait(300)

    handler.watch = staticmethod(watch)
    directory = f"s3://checkpoints/{tmp_path.name}"
    try:
        with running(tmp_path, "free", {**config, "execution.checkpointing.dir": directory}) as job:
            assert stands.wait(120)
            until(lambda: f"The checkpoint storage {directory} does not answer" in job.findings(), 120)
            until(lambda: "put_new" in job.findings(), 120)  # the line
            for said in (job.findings(), job.told("list"), job.told("status")):
                assert f"The checkpoint storage {directory} does not answer" in said
                assert "The driver does not get on with storing the checkpoint's metadata" in said
                assert "keeps up" not in said
            assert job.metric("currentActivityMs") > 10_000
            assert job.metric("timeSinceLastCheckpointMs") > 10_000
            answers.set()
            lines, said = output_of(job.process, tmp_path)
    finally:
        answers.set()
    assert numbers(lines.splitlines()) == list(range(60))
    assert f"job 'numbers': The checkpoint storage {directory} does not answer" in said
