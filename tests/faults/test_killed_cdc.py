"""A PostgresCdcSource and a PostgresSink repeat and lose nothing when driver and tasks die in any phase.

With ``kill -9``, on a real server.

A run of the suite tries some phases by chance, ``make test EFFORT=3 ARGS=tests/faults/test_killed_cdc.py`` all of them. The
job runs in one process, which is all of it: driver, reader and sink die at once.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cdc_job import PHASES
from seed_programs import new_seed

from effort import examples
from started_programs import output_of, surroundings, wait_until

sys.path.append(str(Path(__file__).parents[1] / "connectors"))
from postgres_server import PostgresServer, postgres_server

pytestmark = [pytest.mark.fault, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres_server() as running:
        yield running


def write(server: PostgresServer, draw: random.Random, transactions: int) -> None:
    with server.connect() as connection:
        for _ in range(transactions):
            with connection.transaction():
                for _ in range(draw.randint(1, 6)):
                    key = draw.randrange(150)
                    statement = draw.choice(
                        [
                            "INSERT INTO orders VALUES (%s, 1) ON CONFLICT (id) DO UPDATE SET amount = orders.amount + 1",
                            "UPDATE orders SET amount = amount + 1 WHERE id = %s",
                            "DELETE FROM orders WHERE id = %s",
                        ]
                    )
                    connection.execute(statement, (key,))


def replayed(out: Path) -> dict[int, int]:
    """The table that the files' changes make; each of them must fit what is there."""
    table: dict[int, int] = {}
    parts = [(part, *part.name.split("-")[1:3]) for part in out.glob("part-*")]
    for part, _, _ in sorted(parts, key=lambda each: (int(each[2]), int(each[1]))):
        for line in part.read_text().splitlines():
            kind, key, amount = json.loads(line)
            if kind == "INSERT":
                assert key not in table, f"{line} comes twice ({part.name})"
            else:
                known = amount - 1 if kind == "UPDATE_AFTER" else amount
                assert table.get(key) == known, f"{line} does not fit {table.get(key)} ({part.name})"
            if kind == "DELETE":
                del table[key]
            elif kind != "UPDATE_BEFORE":
                table[key] = amount
    return table


def test_a_process_dies_in_each_phase_and_no_change_is_lost_or_repeated(server: PostgresServer, tmp_path: Path) -> None:
    draw = random.Random(new_seed())
    server.execute("CREATE TABLE orders (id int8 PRIMARY KEY, amount int8)", "ALTER TABLE orders REPLICA IDENTITY FULL")
    server.execute("CREATE TABLE copy (id int8 PRIMARY KEY, amount int8 NOT NULL)")
    server.execute("INSERT INTO orders SELECT i, 0 FROM generate_series(1, 120) i")
    (out := tmp_path / "out").mkdir()

    def start(phase: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(Path(__file__).with_name("cdc_job.py")), server.url(), str(tmp_path), phase]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **surroundings(tmp_path)}
        )

    chosen = set(draw.sample(sorted(PHASES), min(examples(4), len(PHASES))))
    for phase in PHASES:  # in their order: there is one slot, and one snapshot
        if phase not in chosen:
            continue
        print(phase)
        job = start(phase)
        while job.poll() is None:
            write(server, draw, 3)
            _wait(job, 0.1)
        _, errors = output_of(job, tmp_path)
        assert job.returncode == -signal.SIGKILL, errors

    write(server, draw, 30)
    expected: dict[int, int] = dict(server.execute("SELECT id, amount FROM orders"))
    job = start("")

    def copy() -> dict[int, int]:
        return dict(server.execute("SELECT id, amount FROM copy"))

    try:
        wait_until(lambda: _matches(out, expected) and copy() == expected, job, tmp_path)
    finally:
        job.kill()
        job.communicate()
    assert replayed(out) == expected


def _matches(out: Path, expected: dict[int, int]) -> bool:
    """Whether the files have all; one that is about to be renamed is read the next time."""
    try:
        return replayed(out) == expected
    except (OSError, AssertionError):
        return False


def _wait(job: subprocess.Popen[Any], seconds: float) -> None:
    try:
        job.wait(seconds)
    except subprocess.TimeoutExpired:
        pass  # it is alive
