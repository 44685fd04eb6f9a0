"""The scenarios, one per module: a program with its infrastructure and its possible faults."""

from __future__ import annotations

from holdfast.testing.chaos.scenario import Scenario
from holdfast.testing.chaos.scenarios.cdc import Cdc
from holdfast.testing.chaos.scenarios.changelogs import Changelogs
from holdfast.testing.chaos.scenarios.hosts import Hosts
from holdfast.testing.chaos.scenarios.input import InputScenario
from holdfast.testing.chaos.scenarios.large import Large
from holdfast.testing.chaos.scenarios.log import Log
from holdfast.testing.chaos.scenarios.network import Network
from holdfast.testing.chaos.scenarios.outbox import Outbox
from holdfast.testing.chaos.scenarios.processes import Processes
from holdfast.testing.chaos.scenarios.standby import Standby
from holdfast.testing.chaos.scenarios.tail import Tail
from holdfast.testing.chaos.scenarios.time import TimeScenario

__all__ = ["SCENARIOS"]

SCENARIOS: dict[str, type[Scenario]] = {
    scenario.name: scenario
    for scenario in (
        Processes,
        Large,
        Log,
        Network,
        Outbox,
        Tail,
        TimeScenario,
        InputScenario,
        Hosts,
        Changelogs,
        Standby,
        Cdc,
    )
}
