"""The Kafka program of docs/getting-started.md between two topics of a real broker, killed and started again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kafka_fixtures import committed_values, produce

ROOT = Path(__file__).resolve().parents[2]
MINUTE = 60_000

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.fault]


def program(servers: str, source: str, target: str, checkpoints: str) -> str:
    """The page's program, with addresses and names of this test."""
    page = (ROOT / "docs" / "getting-started.md").read_text()
    (code,) = [c for c in re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL) if "KafkaSource" in c]
    for old, new in {
        '"localhost:9092"': repr(servers),
        '"upi-payments"': repr(source),
        '.set_topic("upi-counts")': f".set_topic({target!r})",
        '"~/checkpoints"': repr(Path(checkpoints).as_uri()),
    }.items():
        assert old in code
        code = code.replace(old, new)
    return code


def payments(minute: int, merchant: str, number: int) -> list[bytes]:
    return [json.dumps({"merchant_id": merchant, "ts_ms": minute * MINUTE + i}).encode() for i in range(number)]


def test_the_kafka_program_counts_each_payment_once_although_it_is_killed(kafka: Any, new_topic: Callable[..., str]) -> None:
    servers, source, target = kafka.bootstrap_servers, new_topic(), new_topic()
    with tempfile.TemporaryDirectory(prefix="docs-", ignore_cleanup_errors=True) as directory:
        Path(directory, "upi.py").write_text(program(servers, source, target, f"{directory}/checkpoints"))
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": directory}

        def start() -> subprocess.Popen[bytes]:
            with Path(directory, "log").open("ab") as log:
                return subprocess.Popen([sys.executable, "upi.py"], cwd=directory, env=environment, stdout=log, stderr=log)

        def wait_for(driver: subprocess.Popen[bytes], results: int) -> list[str]:
            deadline = time.monotonic() + 600
            while len(found := committed_values(servers, target)) < results:
                assert driver.poll() is None, Path(directory, "log").read_text()
                assert time.monotonic() < deadline, (found, Path(directory, "log").read_text())
                time.sleep(0.2)
            return found

        produce(servers, source, payments(1, "m1", 3) + payments(1, "m2", 2) + payments(3, "m1", 4))
        driver = start()
        try:
            wait_for(driver, 2)
            driver.kill()
            driver.wait()
            produce(servers, source, payments(3, "m1", 1) + payments(5, "m1", 1))
            driver = start()
            assert sorted(wait_for(driver, 3)) == ['["m1", 3]', '["m1", 5]', '["m2", 2]']
        finally:
            driver.kill()
            driver.wait()
