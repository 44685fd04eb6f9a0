"""Several hosts: a real Spark cluster with speculation, whose hosts come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from holdfast.testing.chaos.faults import brokers, drivers, hosts
from holdfast.testing.chaos.scenarios.numbers import NumberedScenario
from holdfast.testing.chaos.stage import Stage
from holdfast.testing.cluster import LocalCluster

__all__ = ["Hosts"]


class Hosts(NumberedScenario):
    """The numbered job on a cluster of two hosts."""

    name = "hosts"
    about = "a cluster's hosts, executors and slots die, lag and are overtaken by speculation, return with an old disk"
    without_spark = False
    # An attempt that was overtaken may open a transaction after the last commit: only the brokers abort that one, and
    # no output behind it is visible until then.
    sink_properties: ClassVar = {"transaction.timeout.ms": "20000"}
    row = (5, 12)
    share = 0.5
    faults: ClassVar = {
        "driver killed": drivers.kill_driver,
        "driver overtaken by a rival": drivers.overtake,
        "rescaled while it runs": drivers.rescale,
        "killed while it is rescaled": drivers.rescale_and_die,
        "broker killed": brokers.kill_broker,
    }

    def __init__(self, stage: Stage, rate: float) -> None:
        super().__init__(stage, rate)
        self.cluster = LocalCluster(cores=2)

        def kill_slot(stage: Stage) -> str:
            return hosts.kill_slot(stage, self.cluster)

        def kill_executor(stage: Stage) -> str:
            return hosts.kill_executor(stage, self.cluster)

        self.kills = (kill_slot, kill_slot, kill_executor)

    def deck(self) -> dict[str, Callable[[], str]]:
        """With those of the cluster."""
        stage, cluster = self.stage, self.cluster
        return {
            **super().deck(),
            "executor killed": lambda: hosts.kill_executor(stage, cluster),
            "slots of a host killed": lambda: hosts.kill_slot(stage, cluster),
            "slots of a host lag": lambda: hosts.lag(stage, cluster),
            "host lost with its disk": lambda: hosts.lose_host(stage, cluster),
            "host returns with an old disk": lambda: hosts.return_with_old_disk(stage, cluster),
        }

    def prepare(self) -> None:
        """Start the cluster first."""
        stage = self.stage
        stage.at_the_end(self.cluster.stop)
        self.cluster.start()
        settings = self.cluster.settings()
        del settings["execution.checkpointing.dir"]
        stage.configuration |= settings | {
            "spark.speculation": "true",
            "spark.speculation.interval": "100ms",
            "spark.speculation.multiplier": "1.5",
            "spark.speculation.quantile": "0.5",
            "spark.speculation.minTaskRuntime": "2s",
        }
        super().prepare()
