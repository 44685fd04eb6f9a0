"""Checkpoint logs in topics of a real broker."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checkpoint.conftest import checkpoint
from engine.inprocess import LEDGERS, Lab
from engine.programs import records, sessions, sessions_model
from engine.test_same_results import config, visible
from holdfast.checkpoint import log as checkpoint_log
from holdfast.checkpoint import retention
from holdfast.checkpoint.handles import InlineFile
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.manifests import read_checkpoint
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.retention import Retention
from holdfast.checkpoint.stores.kafka_topic import KafkaTopic
from holdfast.checkpoint.stores.signed_store import KEY_FILE
from holdfast.checkpoint.stores.storage import Storage, Unavailable
from holdfast.cli.commands import app
from holdfast.common import Configuration, WatermarkStrategy
from holdfast.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaSource
from holdfast.errors import ConfigurationError, Fenced, StorageError
from holdfast.state_api.snapshots.catalog import list_snapshots, open_snapshot
from holdfast.testing import InProcessEnvironment
from holdfast.testing.kafka import KafkaBroker
from kafka_fixtures import produce, read_all

pytestmark = pytest.mark.kafka

PATHS = JobPaths.of("job")


def settings(servers: str, topic: str) -> Mapping[str, str]:
    log = "execution.checkpointing.log"
    return {log: "kafka", f"{log}.topic": topic, f"{log}.kafka.bootstrap.servers": servers}


@pytest.fixture
def topic(kafka: KafkaBroker, new_topic: Callable[..., str]) -> str:
    """The name of a topic that the log creates."""
    name = new_topic()
    kafka.delete_topic(name)
    return name


def driver(directory: Path, kafka: KafkaBroker, topic: str) -> CheckpointLog:
    log = CheckpointLog(Storage.open(str(directory), settings(kafka.bootstrap_servers, topic)), PATHS)
    log.take_over()
    return log


def complete(log: CheckpointLog, *files: InlineFile) -> int:
    made = checkpoint(log.owned.next_id, log.owned.generation, *files)
    log.complete(made)
    return made.checkpoint_id


def an_epoch_is_one_record_and_a_second_driver_fences_the_first(kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    first = driver(tmp_path, kafka, topic)
    complete(first)
    complete(first)
    assert len(read_all(kafka.bootstrap_servers, topic)) == 1 + 2
    second = driver(tmp_path, kafka, topic)
    assert [c.checkpoint_id for c in second.owned.retained] == [3, 2]
    with pytest.raises(Fenced, match="generation 2"):
        complete(first)
    assert complete(second) == 5
    assert len(read_all(kafka.bootstrap_servers, topic)) == 6  # the first driver's last record is ignored
    assert driver(tmp_path, kafka, topic).owned.retained[0].checkpoint_id == 5
    (newest, *_) = list_snapshots(str(tmp_path), settings(kafka.bootstrap_servers, topic))
    assert (newest.checkpoint_id, newest.problem) == (5, "")
    assert open_snapshot(newest.path, settings(kafka.bootstrap_servers, topic)).checkpoint.checkpoint_id == 5


def an_entry_of_megabytes_is_several_records(
    kafka: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.manifests.LARGEST_LAYER", 8 << 20)
    log = driver(tmp_path, kafka, topic)
    content = InlineFile("job/state/large", os.urandom(3 << 20), b"")
    number = complete(log, content)
    assert len(read_all(kafka.bootstrap_servers, topic)) == 1 + 5
    again = driver(tmp_path, kafka, topic)
    (found,) = read_checkpoint(again._storage, PATHS, number).operators["op"].subtasks[0].keyed[0].deltas
    assert found == content


@pytest.mark.parametrize("signed", [False, True])
def the_tools_read_a_log_in_a_topic_and_sign_refuses_it_by_name(
    kafka: KafkaBroker, topic: str, tmp_path: Path, signed: bool
) -> None:
    keys, directory = tmp_path / "keys", tmp_path / "checkpoints"
    keys.touch(0o600)
    keys.write_text("6b" * 32)
    told = {**settings(kafka.bootstrap_servers, topic), **({KEY_FILE: str(keys)} if signed else {})}
    LEDGERS["out"].committed.clear()
    job = Lab(sessions(records(7, 300, keys=20), cut=20), tmp_path, budget=20, config=config("rocksdb", "64"))
    try:
        job.config |= told | {
            "execution.checkpointing.dir": str(directory),
            "execution.checkpointing.num-retained": "2",
            "execution.checkpointing.data-inline-threshold": "0",
        }
        assert not job._run_until("after commit", 4)
    finally:
        job.close()
    second, first, *_ = (each.path for each in list_snapshots(str(directory), told))
    log, _, number = second.rpartition("/")

    def run(*arguments: str, options: Mapping[str, str] = told) -> Any:
        given = [each for key, value in options.items() for each in ("-D", f"{key}={value}")]
        return CliRunner().invoke(app, ["checkpoints", *arguments, *given])

    shown = run("show", second, "--json")
    assert (shown.exit_code, json.loads(shown.stdout)["checkpoint_id"]) == (0, int(number)), shown.output
    verified = run("verify", second, "--json")
    assert (verified.exit_code, json.loads(verified.stdout)["damaged"]) == (0, []), verified.output
    differs = run("diff", first, second, "--json")
    assert differs.exit_code == 0, differs.output
    assert "position" in {line["what"] for line in json.loads(differs.stdout)}
    victim = directory / next(open_snapshot(second, told).checkpoint.files()).path
    intact = victim.read_bytes()
    victim.write_bytes(intact[:-1])
    damaged = run("verify", second, "--json")
    assert (damaged.exit_code, len(json.loads(damaged.stdout)["damaged"])) == (1, 1), damaged.output
    victim.write_bytes(intact)

    for place in (second, log.removesuffix("/log")):
        without = run("show", place, options={key: value for key, value in told.items() if key == KEY_FILE})
        assert without.exit_code == 1
        said = " ".join(without.output.split())
        assert f"the job's checkpoint log goes on in topic {topic} since position 1. Set execution.checkpointing.log" in said

    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    for options in (told, {}):
        refused = run("sign", log.removesuffix("/log"), "--adopt-unsigned", options={**options, KEY_FILE: str(keys)})
        assert refused.exit_code == 1
        said = " ".join(refused.output.split())
        assert f"is in topic {topic}, and records of a topic cannot be signed again. Keep the keys" in said
    assert {path: path.read_bytes() for path in before} == before


def a_broker_that_is_killed_and_comes_back_delays_a_checkpoint(tmp_path: Path) -> None:
    with KafkaBroker(tmp_path / "kafka") as broker:
        log = driver(tmp_path / "checkpoints", broker, "log")
        complete(log)
        broker.kill()
        back = threading.Thread(target=broker.start)
        back.start()
        complete(log)
        back.join()
        assert [c.checkpoint_id for c in driver(tmp_path / "checkpoints", broker, "log").owned.retained] == [3, 2]
        broker.kill()
        waits = CheckpointLog(Storage.open(str(tmp_path / "checkpoints"), settings(broker.bootstrap_servers, "log")), PATHS)
        with pytest.raises(Unavailable):
            waits._storage._store.get(PATHS.log_entry(2))


def a_topic_that_is_deleted_is_told_by_name(kafka: KafkaBroker, topic: str, tmp_path: Path) -> None:
    log = driver(tmp_path, kafka, topic)
    complete(log)
    kafka.delete_topic(topic)
    with pytest.raises(StorageError, match=rf"topic {topic} \(the checkpoint log\)"):
        log.still_mine()
    with pytest.raises(ConfigurationError, match=rf"topic {topic}, where the checkpoint log of .* is, was deleted"):
        driver(tmp_path, kafka, topic)
    kafka.create_topic(topic, retention_ms="-1")
    with pytest.raises(ConfigurationError, match=rf"topic {topic}, .*was deleted and created anew"):
        driver(tmp_path, kafka, topic)


def the_old_records_are_deleted(kafka: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_TRIM_EVERY", 20)
    log = driver(tmp_path, kafka, topic)
    upkeep = Retention(log._storage, PATHS, log)
    for _ in range(30):
        complete(log)
        upkeep.collect()
    assert KafkaTopic(topic, {"bootstrap.servers": kafka.bootstrap_servers}).bounds()[0] > 10
    again = driver(tmp_path, kafka, topic)
    assert [c.checkpoint_id for c in again.owned.retained] == [31, 30, 29]
    complete(again)


@pytest.mark.parametrize(
    ("partitions", "topic_settings", "said"),
    [
        (1, {"cleanup_policy": "compact"}, r"has cleanup\.policy=compact.*Set cleanup\.policy=delete"),
        (1, {"retention_ms": "3600000"}, r"has retention\.ms=3600000.*Set retention\.ms=-1"),
        (1, {"retention_ms": "-1", "max_message_bytes": "100000"}, r"has max\.message\.bytes=100000.*set it to 1048588"),
        (2, {"retention_ms": "-1"}, r"has 2 partitions, but the order of a checkpoint log is that of one"),
    ],
)
def a_topic_that_would_lose_records_is_refused(
    kafka: KafkaBroker,
    new_topic: Callable[..., str],
    tmp_path: Path,
    partitions: int,
    topic_settings: dict[str, str],
    said: str,
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        driver(tmp_path, kafka, new_topic(partitions, **topic_settings))
    assert not list(tmp_path.glob("job/log/*"))


def a_topic_with_one_replica_is_warned_of(
    kafka: KafkaBroker, topic: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    driver(tmp_path, kafka, topic)
    assert f"topic {topic} has one replica: the checkpoint log is lost with its broker" in caplog.text


def the_results_of_a_job_whose_log_is_in_a_topic_are_those_of_one_whose_log_is_not(
    kafka: KafkaBroker, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sink is not Kafka's. Drivers die at each point, disks are lost, the parallelism changes."""
    monkeypatch.setattr(retention, "_TRIM_EVERY", 3)
    monkeypatch.setattr(checkpoint_log, "_NOTED_S", 0.0)
    data = records(7, 600, keys=20)
    LEDGERS["out"].committed.clear()
    job = Lab(sessions(data, cut=20), tmp_path, budget=20, config=config("rocksdb", "64"))
    try:
        assert not job._run_until("after complete", 2)  # its log is in the store yet
        job.config |= settings(kafka.bootstrap_servers, topic)
        job.config["execution.checkpointing.dir"] = str(tmp_path / "checkpoints")
        for point in ("before complete", "after complete", "within commit", "run"):
            assert not job._run_until(point, 2)
        shutil.rmtree(job.disk)
        job.parallelism = 3
        assert not job._run_until("before commit", 2)
        job.run()
        assert visible() == sessions_model(data)
    finally:
        job.close()
    assert read_all(kafka.bootstrap_servers, topic)


def a_pattern_does_not_match_the_topic_of_its_jobs_own_log(
    kafka: KafkaBroker, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    name = new_topic()
    produce(kafka.bootstrap_servers, name, ["1", "2"])
    config = {**settings(kafka.bootstrap_servers, f"{name}-checkpoints"), "execution.checkpointing.dir": str(tmp_path)}
    env = InProcessEnvironment(Configuration.from_dict(config))
    latest = KafkaOffsetsInitializer.latest()
    pattern = re.compile(f"{name}.*")
    read = KafkaSource(bootstrap_servers=kafka.bootstrap_servers, topic_pattern=pattern, bounded=latest)
    with env.from_source(read, WatermarkStrategy.no_watermarks(), "in").execute_and_collect(name) as found:
        assert sorted(found) == ["1", "2"]
    assert read_all(kafka.bootstrap_servers, f"{name}-checkpoints")
