"""Nothing is lost or repeated when a process dies in a phase of a savepoint, restore, rescaling, materialisation, retention
changelog or log in a topic: ``kill -9`` on real Spark, from Kafka to Kafka.

A run of the suite tries one phase by chance, ``make test EFFORT=41 ARGS=tests/faults/test_killed_phases.py`` all of them;
``PHASES=rescale`` before it takes only those whose names begin so.
"""

from __future__ import annotations

import http.client
import os
import random
import shutil
import signal
import urllib.error
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from phases import PHASES, Armed, Phase
from seed_programs import KEPT, Feed, Program, Reader, new_seed, scattered_payments

from effort import examples
from holdfast.checkpoint.log_reader import LogReader
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores.storage import Storage
from holdfast.errors import HoldfastError

JOB = "numbered-payments"

pytestmark = [pytest.mark.fault, pytest.mark.kafka, pytest.mark.spark, pytest.mark.timeout(7200)]


class Stored(Program):
    """The program, with its checkpoints in a directory or, with settings of S3, in a bucket; its log may be in a topic."""

    def __init__(self, environment: dict[str, str], feed: Feed, bucket: dict[str, str]) -> None:
        example = str(Path(__file__).with_name("numbered_payments.py"))
        super().__init__(example, JOB, environment, feed, **bucket)
        if bucket:
            self._configuration["execution.checkpointing.dir"] = f"s3://checkpoints/{self.directory.name}"
        self._bucket = bucket
        self.look_into({})

    def look_into(self, log: dict[str, str]) -> None:
        """Look for checkpoints, and have the log of later drivers, where these settings say."""
        self._configuration |= log
        self.storage = Storage.open(self._configuration["execution.checkpointing.dir"], self._bucket | log)

    def position(self) -> int:
        names = [path.rpartition("/")[2] for path in self.storage.list(JobPaths.of(JOB).log_prefix)]
        return max((int(name) for name in names if name.isdigit()), default=0)


def has_bases(program: Stored) -> bool:
    """Whether the newest checkpoint has a base for each subtask, so that a restore reads its files."""
    paths, storage = JobPaths.of(JOB), program.storage
    try:
        newest = LogReader(storage, paths).read_retained()[0].checkpoint_id
        operator = read_checkpoint(storage, paths, newest).operators["numbered"]
    except (HoldfastError, IndexError):
        return False  # it was deleted meanwhile: a newer one is there
    return all(handle.base for subtask in operator.subtasks for handle in subtask.keyed)


def lead_to(phase: Phase, program: Stored, armed: Armed, savepoints: Path, draw: random.Random) -> None:
    """Arm a phase and do what leads there."""
    armed.link(not phase.arrives)
    if phase.needs == "restart":
        program.kill()
        armed.arm(phase)
        program.start()
        return
    if phase.needs in ("loss", "rescale") and not phase.changelog:
        program.wait(lambda: has_bases(program), "with a base of each subtask", program.driver)
    armed.arm(phase)
    if phase.needs == "loss":
        shutil.rmtree(program.directory / "local" / "state", ignore_errors=True)
        for slot in program.members("slot"):
            program.driver.kill(slot)
    elif phase.needs == "rescale":
        ask(program, "PATCH", f"/rescaling?parallelism={draw.choice([1, 3, 4])}")
    elif phase.needs == "savepoint":
        ask(program, "POST", "/savepoints", {"target-directory": savepoints.as_uri()})


def ask(program: Program, *request: Any) -> None:
    """Send a request to a driver that may die before it answers."""
    try:
        program.request(*request)
    except urllib.error.HTTPError:
        raise
    except (OSError, http.client.HTTPException) as lost:
        print("no answer:", lost)


def test_a_process_dies_in_each_phase_and_nothing_is_lost_or_repeated(
    kafka: Any, new_topic: Callable[..., str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    draw = random.Random(seed := new_seed())
    payments, results = new_topic(2), new_topic(2, **KEPT)
    feed = Feed(kafka.bootstrap_servers, payments, scattered_payments(seed, 2))
    reader = Reader(kafka.bootstrap_servers, results)
    (directory := tmp_path / "phases").mkdir()
    environment = {
        "KAFKA": kafka.bootstrap_servers,
        "PAYMENTS_TOPIC": payments,
        "RESULTS_TOPIC": results,
        "ARMED": str(directory),
    }
    changelog = {
        "state.changelog.enabled": "true",
        "state.changelog.storage": "kafka",
        "state.changelog.partitions": "3",
        "state.changelog.kafka.bootstrap.servers": kafka.bootstrap_servers,
    }
    log = {
        "execution.checkpointing.log": "kafka",
        "execution.checkpointing.log.topic": new_topic(1, retention_ms="-1"),
        "execution.checkpointing.log.kafka.bootstrap.servers": kafka.bootstrap_servers,
    }
    armed = Armed(str(directory))
    phases = [phase for phase in PHASES if phase.name.startswith(os.environ.get("PHASES", ""))]
    tried = draw.sample(phases, min(examples(1), len(phases)))
    savepoints = tmp_path / "savepoints"
    linked = any("link" in phase.name for phase in tried)
    bucket = request.getfixturevalue("s3_config") if not linked and draw.random() < 0.5 else {}
    print("checkpoints in", "S3" if bucket else "a directory", flush=True)
    # What arrives late is in files.
    inline = "0" if any(phase.arrives for phase in tried) else draw.choice(("0", "20kb"))
    with Stored(environment, feed, bucket) as program:
        program._configuration["execution.checkpointing.data-inline-threshold"] = inline
        program.start()
        program.wait_for_checkpoints(2)
        for phase in sorted(tried, key=lambda each: (each.log, each.changelog)):
            if phase.log and not log.items() <= program._configuration.items():
                program.kill()
                program.look_into(log)
                program.start()
                program.wait_for_checkpoints(3)
            if phase.changelog and not changelog.items() <= program._configuration.items():
                program.kill()
                program._configuration |= changelog
                program.start()
                program.wait_for_checkpoints(3)
            lead_to(phase, program, armed, savepoints, draw)
            program.wait(lambda phase=phase: armed.reached(phase), f"in the phase {phase.name!r}")
            print("died in", phase.name, flush=True)
            if phase.driver:
                assert program.wait_for_end(program.driver) == -signal.SIGKILL
                program.start()
            elif phase.needs == "rescale":  # back to the parallelism of the next driver
                program.kill()
                program.start()
            program.wait_for_checkpoints(2)
        program._feed = None
        assert feed._producer.flush(600) == 0
        program.wait(lambda: reader.look() >= len(feed.sent), f"all {len(feed.sent)} results visible", program.driver)
        program.kill()
        found = reader.by_key()
    reader.close()
    sent: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for merchant, at in feed.sent:
        sent[merchant][at // 60_000] += 1
    assert {merchant: len(told) for merchant, told in found.items()} == {m: sum(each.values()) for m, each in sent.items()}
    for merchant, told in found.items():
        assert [each["nth"] for each in told] == list(range(1, len(told) + 1))
        minutes: dict[int, list[int]] = defaultdict(list)
        for each in told:
            minutes[each["ts_ms"] // 60_000].append(each["in_minute"])
        assert minutes == {minute: list(range(1, count + 1)) for minute, count in sent[merchant].items()}
    for made in savepoints.glob("*"):  # a savepoint that was not finished does not look whole
        assert (made / "_metadata").exists() or (made / "_in-progress").exists()
