"""The changelogs of a job's operators with keyed state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from holdfast.checkpoint.changelog import ChangelogLog, ChangelogReader, ChangelogSettings
from holdfast.checkpoint.metadata import changelog_uid
from holdfast.connectors.base import Committer, JobInfo
from holdfast.errors import ConfigurationError
from holdfast.runtime.operators.base import StateKind
from holdfast.runtime.plan import JobPlan, Vertex
from holdfast.runtime.task_messages import JobSetup

__all__ = ["Changelog", "changelog_committers", "check_changelogs", "follower", "new_changelog", "opener"]


class Changelog(Protocol):
    """The changelog of one operator."""

    def validate(self) -> None:
        """Create the log, or check the one that is there.

        Raises:
            ConfigurationError: the log cannot be used; names the remedy.
        """

    def create_committer(self, job: JobInfo, uid: str) -> Committer:
        """Create the committer of its transactions, in the driver. ``uid``: that of their committables."""

    def open(self, job: JobInfo, uid: str, subtask: int) -> ChangelogLog:
        """Open the log in a task. ``uid``: that of the committables."""

    def follow(self) -> ChangelogReader:
        """Read the log for a standby copy."""


def new_changelog(settings: ChangelogSettings, job_name: str, uid: str, max_parallelism: int) -> Changelog:
    """The changelog of the operator ``uid`` as configured."""
    from holdfast.connectors.kafka.changelog import KafkaChangelog  # other jobs need no Kafka client

    return KafkaChangelog(settings, job_name, uid, max_parallelism)


def _changelogs(plan: JobPlan) -> Iterator[tuple[str, Changelog]]:
    settings = plan.settings.changelog
    if settings is None or plan.settings.batch:  # with the input, the state of a job in BATCH mode ends
        return
    for vertex in plan.vertices:
        for chained in vertex.chain:
            if StateKind.KEYED in chained.factory.state:
                yield chained.uid, new_changelog(settings, plan.name, chained.uid, vertex.max_parallelism)


def check_changelogs(plan: JobPlan) -> None:
    """Create the changelogs of a job, or check those that are there.

    Raises:
        ConfigurationError: a log cannot be used, or the job has no checkpoints; names the remedy.
    """
    for _, changelog in _changelogs(plan):
        if not plan.settings.checkpoint_uri:
            raise ConfigurationError(
                "state.changelog.storage: a changelog is kept beside the checkpoints, and the job has none: set "
                "execution.checkpointing.dir"
            )
        changelog.validate()


def changelog_committers(plan: JobPlan, job: JobInfo) -> dict[str, Committer]:
    """The committers of the changelogs, by the uid of their committables."""
    return {changelog_uid(uid): changelog.create_committer(job, changelog_uid(uid)) for uid, changelog in _changelogs(plan)}


def opener(setup: JobSetup, vertex: Vertex, subtask: int) -> Callable[[str], ChangelogLog] | None:
    """Opens the changelog of an operator of a subtask, by uid; None: the job has no changelogs."""
    settings = setup.plan.settings.changelog
    if settings is None or setup.plan.settings.batch:
        return None
    return partial(_open, settings, setup, vertex, subtask)


def _open(settings: ChangelogSettings, setup: JobSetup, vertex: Vertex, subtask: int, uid: str) -> ChangelogLog:
    changelog = new_changelog(settings, setup.plan.name, uid, vertex.max_parallelism)
    return changelog.open(setup.job, changelog_uid(uid), subtask)


def follower(setup: JobSetup, vertex: Vertex) -> Callable[[str], ChangelogReader]:
    """Opens the changelog of an operator of a vertex for a standby copy, by uid."""
    settings = setup.plan.settings.changelog
    assert settings is not None
    return partial(_follow, settings, setup.plan.name, vertex.max_parallelism)


def _follow(settings: ChangelogSettings, job_name: str, max_parallelism: int, uid: str) -> ChangelogReader:
    return new_changelog(settings, job_name, uid, max_parallelism).follow()
