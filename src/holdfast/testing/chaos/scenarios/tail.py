"""Kafka loses acknowledged records: the job must report it, and must not continue as if nothing were lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from holdfast.errors import HoldfastError
from holdfast.testing.chaos.faults import drivers
from holdfast.testing.chaos.faults.brokers import kill_broker
from holdfast.testing.chaos.programs.numbered import PARTITIONS, Numbers
from holdfast.testing.chaos.scenarios.numbers import NumberedScenario
from holdfast.testing.chaos.topics import Feed, read_topic
from holdfast.testing.kafka import KafkaBroker

__all__ = ["Tail"]

_TELL_S = 240.0
_IN_SYNC_S = 300.0
_METADATA = "__cluster_metadata-0"


class Tail(NumberedScenario):
    """The numbered job in several lives, each of which ends with the loss of the input's tail."""

    name = "tail"
    about = "Kafka loses its tail: a broker's disk is restored, an unclean election, a replica of the tokens gone"
    brokers = 3
    keys = 31
    broker_properties: ClassVar = {
        "default_replication_factor": "1",  # as on a default broker: the job's own topics must not rely on it
        "unclean_leader_election_interval_ms": "1000",
        "leader_imbalance_check_interval_seconds": "5",
    }
    faults: ClassVar = {
        "driver killed": drivers.kill_driver,
        "driver dies at steps of its recovery": drivers.die_at_steps,
    }
    kills = (drivers.kill_driver,)
    row = (2, 6)
    share = 0.4

    def deck(self) -> dict[str, Callable[[], str]]:
        """The faults, including those that end the job's life."""
        return {
            **super().deck(),
            "broker killed": self.kill_broker,
            "disk restored, the partition ends below the job's position": lambda: self.restore_disk(grow=False),
            "disk restored, the partition has grown beyond the job's position": lambda: self.restore_disk(grow=True),
            "unclean election": self.elect_unclean,
            "broker of the tokens away, back with an empty disk": self.lose_token_replica,
        }

    def create_topics(self) -> None:
        """Create output topics on all brokers, and the input on two, which may diverge."""
        kafka = self.stage.kafka
        for name, topic in self.topics.items():
            if name == "input":
                kafka.create_topic(
                    topic, PARTITIONS, replication=2, min_insync_replicas="1", unclean_leader_election_enable="true"
                )
            else:
                kafka.create_topic(topic, PARTITIONS)

    def kill_broker(self) -> str:
        """Kill one broker; the others have all acknowledged records."""
        self._await_replicas()
        return kill_broker(self.stage)

    def restore_disk(self, *, grow: bool) -> str:
        """Restore older disks of a partition's brokers."""
        self._await_replicas()
        stage = self.stage
        partition = stage.random.randrange(PARTITIONS)
        holders = self._holders(partition)
        old = stage.directory / "old-disk"
        for broker in holders:
            shutil.copytree(self._data(broker, partition), old / str(broker.node_id))
        stage.pause(0.5, 2.0)  # the records acknowledged now will be lost
        acknowledged = self._finish()[partition]
        if grow:
            stage.kill_driver()
        for broker in holders:
            stage.kill_broker(broker)
        for broker in holders:
            shutil.rmtree(self._data(broker, partition))
            shutil.move(old / str(broker.node_id), self._data(broker, partition))
        shutil.rmtree(old)
        for broker in holders:
            broker.start(wait=False)
        stage.kafka.start()
        return self._must_tell(f"partition {partition} was restored from an older disk", partition, acknowledged, grow=grow)

    def elect_unclean(self) -> str:
        """Make a lagging follower the leader."""
        self._await_replicas()
        stage = self.stage
        partition = stage.random.randrange(PARTITIONS)
        leader = stage.kafka.leader(self.topics["input"], partition)
        follower = next(b for b in self._holders(partition) if b is not leader)
        follower.pause()
        stage.pause(4.0, 5.0)  # until the leader is the partition's only in-sync replica
        acknowledged = self._finish()[partition]
        stage.kill_broker(leader)
        follower.resume()
        stage.until(lambda: stage.kafka.leads(follower, self.topics["input"], partition), _TELL_S, tend=False)
        leader.start()
        return self._must_tell(f"partition {partition} has a leader that was behind", partition, acknowledged, grow=False)

    def lose_token_replica(self) -> str:
        """Output continues without the leader of the token topic, and after its return with an empty disk."""
        self._await_replicas()
        stage = self.stage
        broker = stage.kafka.leader(f"{self.topics['elements']}-holdfast-tokens")
        stage.kill_broker(broker)
        took = stage.recovered(_TELL_S)
        for path in (broker.directory / "data").iterdir():
            if path.is_dir() and path.name != _METADATA:
                shutil.rmtree(path)
        broker.start()
        return f"broker {broker.node_id} was gone, new output after {took:.1f} s; it came back with an empty disk"

    def _await_replicas(self) -> None:
        """Wait until every replica is in sync: then Kafka loses only what the fault makes it lose."""
        admin = self.stage.kafka.admin()

        def in_sync() -> bool:
            topics = admin.list_topics(timeout=60).topics
            partitions = [p for topic in self.topics.values() for p in topics[topic].partitions.values()]
            return all(len(p.isrs) == len(p.replicas) for p in partitions)

        if not self.stage.until(in_sync, _IN_SYNC_S):
            raise HoldfastError(f"the brokers are not in sync within {_IN_SYNC_S:.0f} s")

    def _finish(self) -> list[list[Any]]:
        """Check that all acknowledged records were read and produced the expected output; returns them by partition."""
        self.feed.stop()
        expected = self.expected()
        self.drain(expected)
        self.compare(expected)
        return read_topic(self.stage.kafka.bootstrap_servers, self.topics["input"])

    def _must_tell(self, what: str, partition: int, acknowledged: list[Any], *, grow: bool) -> str:
        """Check that the job reports the loss of acknowledged records that it had read."""
        stage = self.stage
        kept = set(map(tuple, read_topic(stage.kafka.bootstrap_servers, self.topics["input"])[partition]))
        lost = sum(tuple(record) not in kept for record in acknowledged)
        what = f"{what}, {lost} of {len(acknowledged)} acknowledged records lost"
        if not lost:
            raise HoldfastError(f"{what}: the fault had no effect")
        if grow:
            more = Feed(stage.kafka.bootstrap_servers, self.topics["input"], Numbers(self.keys, 0), self.rate)
            more.start()
            stage.until(lambda: more.written >= self.feed.written, _TELL_S, tend=False)
            more.stop()
            stage.start_driver()
        driver = stage.driver
        stage.until(lambda: driver.exit_code is not None, _TELL_S, tend=False)
        reported = "InputLost" in driver.log()
        if not reported:
            stage.violation(f"{what}, and driver {driver.number} does not report that input was lost: {driver.last_error()}")
        stage.kill_driver()
        self.begin_life()
        return f"{what}, {'' if reported else 'not '}reported by driver {driver.number}; another job started"

    def _holders(self, partition: int) -> list[KafkaBroker]:
        found = self.stage.kafka.admin().list_topics(self.topics["input"], timeout=60)
        replicas = found.topics[self.topics["input"]].partitions[partition].replicas
        return [broker for broker in self.stage.kafka.brokers if broker.node_id in replicas]

    def _data(self, broker: KafkaBroker, partition: int) -> Path:
        return broker.directory / "data" / f"{self.topics['input']}-{partition}"
