"""The demo as a user runs it, headless: killed, started again, stopped with Ctrl-C; its files against its generator."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from holdfast.connectors.datagen import SPLITS
from holdfast.demo.pipeline import generator
from holdfast.testing.postgres import binaries

pytestmark = [pytest.mark.spark, pytest.mark.fault]


class Demo:
    """A running demo and what it prints."""

    def __init__(self, state_dir: Path, *options: str) -> None:
        self.errors = state_dir / "stderr"
        with open(self.errors, "ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.demo", "--rate", "4000", "--state-dir", str(state_dir), *options],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, "NO_COLOR": "1"},
            )
        self.lines: list[str] = []

    def wait_for(self, pattern: str) -> re.Match[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if match := re.search(pattern, line):
                return match
        raise AssertionError(
            f"{pattern!r} was not printed:\n{''.join(self.lines[-40:])}\n{self.errors.read_text(errors='replace')[-4000:]}"
        )

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        assert self.process.stdout is not None
        self.lines += self.process.stdout.readlines()
        return self.process.wait(600)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Demo] = []

    def run(*options: str, state_dir: Path = tmp_path) -> Demo:
        started.append(Demo(state_dir, *options))
        return started[-1]

    yield run
    for demo in started:
        if demo.process.poll() is None:
            demo.process.kill()
            demo.process.wait()
        assert demo.process.stdout is not None
        demo.process.stdout.close()


def number_of(payment_id: str) -> int:
    return int(payment_id[1:])


def planted_until(last: dict[int, int]) -> Iterator[dict[str, Any]]:
    """The fraudulent payments of each split up to a payment's number."""
    source = generator(1.0)
    for split, number in last.items():
        for block in range(number // (1000 * SPLITS) + 1):
            for payment in source.block(split, block):
                if payment["is_fraud"] and number_of(payment["payment_id"]) <= number:
                    yield payment


def the_demo_resumes_after_kill_9_and_reports_every_planted_fraud_once(start: Any, tmp_path: Path) -> None:
    first = start()
    killed_at = int(first.wait_for(r"checkpoint ([3-9]|\d\d+) in")[1])
    first.stop(signal.SIGKILL)
    second = start()
    assert int(second.wait_for(r"checkpoint (\d+) in")[1]) > killed_at
    second.wait_for(r"alerts [1-9]")
    assert second.stop(signal.SIGINT) == 0
    assert "start again to resume" in second.lines[-1]

    files = [path for path in (tmp_path / "embedded" / "alerts").rglob("part-*") if not path.name.startswith(".")]
    alerts = [orjson.loads(line) for path in files for line in path.read_bytes().splitlines()]
    repeated = [key for key, n in Counter((a["payment"], a["rule"]) for a in alerts).items() if n > 1]
    assert repeated == []
    by_payment = {alert["payment"]: alert["rule"] for alert in alerts}
    last: dict[int, int] = {}
    for payment in map(number_of, by_payment):
        last[payment % SPLITS] = max(payment, last.get(payment % SPLITS, 0))
    assert len(last) == SPLITS
    planted = list(planted_until(last))
    single = {p["payment_id"] for p in planted if p["fraud_kind"] != "velocity"}
    assert single - by_payment.keys() == set()
    assert {alert["payment"] for alert in alerts if not alert["planted"]} & single == set()


@pytest.mark.kafka
def the_demo_runs_from_kafka_to_kafka_and_resumes(start: Any, tmp_path: Path) -> None:
    """On a broker that it starts; its view reads the output topics as anyone would, and its metrics are the REST API's."""
    first = start("--kafka", "--rate", "1000")
    first.wait_for(r"^Kafka is on \S+: demo-payments -> demo-alerts, demo-totals")
    first.wait_for(r"^ALERT ")
    checkpoint = int(first.wait_for(r"checkpoint (\d+) in .*recall 100\.0%")[1])
    assert first.stop(signal.SIGINT) == 0
    assert re.search(r"precision (100|9\d)\.\d%, recall (100|9\d)\.\d%", first.lines[-1]), first.lines[-1]
    second = start("--kafka", "--rate", "1000")
    assert int(second.wait_for(r"checkpoint (\d+) in")[1]) > checkpoint
    second.wait_for(r"^ALERT ")
    assert second.stop(signal.SIGINT) == 0


@pytest.mark.skipif(binaries() is None, reason="PostgreSQL is not installed")
def the_demo_on_change_data_kills_its_job_and_ends_with_tables_as_sql_has_them(start: Any) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        Path(directory).chmod(0o755)  # a server of root runs as another user, who enters it
        demo = start("--cdc", "--rate", "200", "--kill-every", "1", state_dir=Path(directory))
        demo.wait_for(r"^PostgreSQL: payments -> balances, alerts .* psql postgresql://")
        demo.wait_for(r"KILL ")
        assert demo.stop(signal.SIGINT) == 0, demo.errors.read_text()
        assert re.search(r"compared by SQL: .* balances, 0 differ; [\d,]+ alerts, 0 differ", demo.lines[-1]), demo.lines[-1]
        assert "start again to resume" in demo.lines[-1]
