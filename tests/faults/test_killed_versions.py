"""A program stops with a savepoint while it is behind and processes die, and goes on hours later in another version.

It shows on real Spark, from Kafka to Kafka and with ``kill -9``: a stop is whole or has not happened; a savepoint that is
moved is restored on another backend, at another parallelism, with a schema that has changed; programs that do not fit it are
refused before they read input; timers that are overdue fire once, in order; and committed output is not computed again.
"""

from __future__ import annotations

import json
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from accounts import REFUSED
from seed_programs import KEPT, Feed, Program, Reader, new_seed, scattered_payments

from holdfast.checkpoint.savepoint import read_savepoint

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(1800)]

HOURS = 5
TIMERS = 3


def stop(program: Program, directory: Path) -> None:
    program.request("POST", "/stop", {"targetDirectory": directory.as_uri(), "drain": False})


def whole(directory: Path) -> list[Path]:
    """The savepoints in a directory that look whole."""
    return [made for made in directory.glob("*") if (made / "_metadata").exists()]


def test_a_program_stops_amid_faults_and_goes_on_hours_later_in_another_version(
    kafka: Any, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    draw = random.Random(seed := new_seed())
    payments, results = new_topic(2), new_topic(2, **KEPT)
    feed = Feed(kafka.bootstrap_servers, payments, scattered_payments(seed, 2))
    reader = Reader(kafka.bootstrap_servers, results)
    (slow := tmp_path / "slow").touch()
    environment = {
        "KAFKA": kafka.bootstrap_servers,
        "PAYMENTS_TOPIC": payments,
        "RESULTS_TOPIC": results,
        "SLOW": str(slow),
        "VERSIONS": "1",
    }
    backends = draw.sample(["rocksdb", "hashmap"], 2)
    settings = {"state.backend.type": backends[0], "execution.checkpointing.num-retained": "1"}
    program = Program(str(Path(__file__).with_name("accounts.py")), "accounts", environment, feed, **settings)
    with program:
        # The driver dies at any moment of a stop, with backpressure.
        program.start(hours=-HOURS)
        program.wait_for_checkpoints(2)
        stop(program, tmp_path / "killed")
        program.let_pass(draw.uniform(0, 1))
        program.kill()
        for savepoint in whole(tmp_path / "killed"):
            read_savepoint(savepoint.as_uri())

        # Epochs go on, and retention deletes files, while a savepoint is made; then a slot dies while the job stops.
        program.start(hours=-HOURS)
        program.wait_for_checkpoints(2)
        made = program.request("POST", "/savepoints", {"target-directory": (tmp_path / "running").as_uri()})
        page = f"/savepoints/{made['request-id']}"
        program.wait(lambda: program.request("GET", page)["status"]["id"] == "COMPLETED", "saved", program.driver)
        program.wait_for_checkpoints(2)
        read_savepoint(made["location"])
        stop(program, tmp_path / "stopped")
        program.let_pass(draw.uniform(0, 0.3))
        program.driver.kill(*draw.sample(program.driver.members("slot"), 1))
        assert program.wait_for_end(program.driver) == 0
        (savepoint,) = whole(tmp_path / "stopped")
        first = reader.by_key()

        # Hours later, elsewhere, two programs are refused, and the driver of the third dies in its first epoch.
        slow.unlink()
        moved = shutil.move(savepoint, tmp_path / "moved")
        for directory in (program.checkpoints, program.directory / "local", tmp_path / "running", tmp_path / "killed"):
            shutil.rmtree(directory, ignore_errors=True)
        program._configuration |= {
            "state.backend.type": backends[1],
            "parallelism.default": "3",
            "execution.state-recovery.path": moved.as_uri(),
        }
        program._environment["VERSIONS"] = "other type,without audit,2"
        point = draw.choice(["before the metadata", "between metadata and sink commit"])
        driver = program.start(point)
        assert program.wait_for_end(driver) == -signal.SIGKILL
        told = [line for line in driver.log().splitlines() if line.startswith(REFUSED)]
        assert [line.removeprefix(REFUSED).partition(":")[0] for line in told] == ["other type", "without audit"]
        assert "state 'account'" in told[0]
        assert "'audit'" in told[1]
        assert not list(tmp_path.glob("read by o*")) + list(tmp_path.glob("read by w*")), "input was read"

        # The third program goes on.
        program._environment["VERSIONS"] = "2"
        program.start()
        program.wait_for_checkpoints(3)
        program._feed = None
        assert feed._producer.flush(600) == 0
        due = len(feed.sent) + TIMERS * len(first)
        program.wait(lambda: reader.look() >= due, f"all {due} results visible", program.driver)
        program.kill()
        found = reader.by_key()
    reader.close()
    assert {m: len(told) - TIMERS for m, told in found.items()} == Counter(merchant for merchant, _ in feed.sent)
    for merchant, told in found.items():
        before = first[merchant]
        assert told[: len(before)] == before, "what the stop made visible"
        assert {each["version"] for each in before} == {"1"}
        assert {each["version"] for each in told[len(before) :]} == {"2"}
        numbered = [each for each in told if "nth" in each]
        assert [each["nth"] for each in numbered] == list(range(1, len(numbered) + 1))
        tokens = [each["token"] for each in numbered]
        assert [each["previous"] for each in numbered] == [None, *tokens[:-1]], "nothing committed was computed again"
        assert [each["audit"] for each in before] == list(range(1, len(before) + 1))
        added = [each["added"] for each in told[len(before) :]]
        assert added == list(range(1, len(added) + 1))
        units = [each["unit"] for each in numbered[len(before) :]]
        assert units[:2] == [["EUR"], ["USD"]][: len(units)], "migrated when it was read"
        assert [each["timer"] for each in told if "timer" in each] == sorted(numbered[0]["due"])
        assert len(numbered[0]["due"]) == TIMERS
    print(f"{len(feed.sent)} payments, {len(program.drivers)} drivers, {backends}, {json.dumps(point)}")
