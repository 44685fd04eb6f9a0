"""A driver that carries out by hand what the coordinator machine says."""

from __future__ import annotations

from typing import Any

from holdfast.checkpoint.metadata import CheckpointMetadata
from holdfast.common import Configuration, WatermarkStrategy
from holdfast.connectors.base import EpochInput, JobInfo, SplitRange
from holdfast.connectors.collection import CollectionSource
from holdfast.datastream import StreamExecutionEnvironment
from holdfast.runtime.plan.task_messages import TaskReport
from holdfast.runtime.protocol import events, instructions
from holdfast.runtime.protocol.events import Instant, PlannedInput
from holdfast.runtime.protocol.instructions import Notice
from holdfast.runtime.protocol.machine import CoordinatorMachine
from holdfast.runtime.protocol.pacing import Pace
from holdfast.runtime.protocol.restart import FixedDelay

SOURCE = "numbers"
POSITION = {"sizes": {"collection": 3}, "next": {"collection": 1}}


class Driver:
    """Carries out by hand what the machine says."""

    def __init__(self, attempts: int = 3, **settings: str) -> None:
        config = Configuration.from_dict({key.replace("_", "."): value for key, value in settings.items()})
        env = StreamExecutionEnvironment.get_execution_environment(config, spark=object())  # type: ignore[arg-type]
        env.set_parallelism(1)
        stream = env.from_source(CollectionSource([1, 2, 3]), WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
        stream.map(lambda n: n).print()
        self.plan = env._plan("job")
        self.replan = env._replan(self.plan)
        self.machine = CoordinatorMachine(self.plan, FixedDelay(attempts, 50), Pace(1.0, 100))
        self.seconds = 0.0
        self.given: list[Any] = []
        self.notices: list[Any] = []

    def tell(self, event: Any) -> list[Any]:
        """What the machine gives in answer, but for notices."""
        self.seconds += 0.001
        given = self.machine.handle(event, Instant(1_700_000_000_000 + round(self.seconds * 1000), self.seconds))
        self.given = [instruction for instruction in given if not isinstance(instruction, Notice)]
        self.notices = [instruction for instruction in given if isinstance(instruction, Notice)]
        return self.given

    def open(self, restored: CheckpointMetadata | None = None) -> None:
        """Bring the job to the planning of its first epoch."""
        (take_over,) = self.tell(events.Start())
        assert isinstance(take_over, instructions.TakeOver)
        self.take_over(restored)

    def take_over(self, restored: CheckpointMetadata | None = None) -> None:
        next_id = 2 if restored is None else restored.checkpoint_id + 2
        self.tell(events.TookOver(JobInfo("id", "job", 1, None), restored, next_id))
        self.tell(events.Recovered())
        (plan,) = self.tell(events.Opened())
        assert isinstance(plan, instructions.Plan)

    def planned(self, finished: bool = False, ranges: int = 1) -> list[Any]:
        parts = tuple(SplitRange(f"s{n}", 0, 1) for n in range(ranges))
        return self.tell(events.Planned({SOURCE: PlannedInput(EpochInput(parts, finished=finished), POSITION)}))

    def reports(self, assignment: Any) -> list[TaskReport]:
        tasks = [(v.id, n) for v in self.plan.vertices for n in range(v.parallelism)]
        return [TaskReport(task, f"a{assignment.epoch}") for task in tasks]

    def ran(self, run: Any) -> list[Any]:
        return self.tell(events.Ran(run.epoch, self.reports(run.assignment)))

    def epoch(self, finished: bool = False) -> Any:
        """An epoch up to its commit, which is under way then."""
        (run,) = self.planned(finished)
        (complete,) = self.ran(run)
        self.tell(events.Completed(complete.epoch))
        return self.given[0]

    def commit(self, commit: Any) -> list[Any]:
        self.tell(events.Committed(commit.epoch))
        (acknowledge,) = (i for i in self.given if isinstance(i, instructions.Acknowledge))
        return self.tell(events.Acknowledged(acknowledge.epoch))


def kinds(given: list[Any]) -> list[str]:
    return [type(instruction).__name__ for instruction in given]
