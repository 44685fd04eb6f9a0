"""The changelogs of a job's operators with keyed state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple, Protocol

from holdfast.checkpoint.changelog import ChangelogLog, ChangelogReader, ChangelogSettings
from holdfast.checkpoint.metadata import changelog_uid
from holdfast.connectors.base import Committer, JobInfo
from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.plan.operator import StateKind
from holdfast.runtime.plan.plan import JobPlan, Vertex
from holdfast.runtime.plan.task_messages import JobSetup

__all__ = [
    "Changelog",
    "changelog_committers",
    "changelog_topics",
    "check_changelogs",
    "follower",
    "judge_changelogs",
    "new_changelog",
    "opener",
]


class Changelog(Protocol):
    """The changelog of one operator."""

    topic: str

    def validate(self) -> None:
        """Create the log, or check the existing one.

        Raises:
            ConfigurationError: the log cannot be used; names the remedy.
        """

    @property
    def where(self) -> str:
        """The log and its operator, for messages."""

    def exists(self) -> bool:
        """Check the log without creating it; returns whether it exists.

        Raises:
            ConfigurationError: the log cannot be used; names the remedy.
            HoldfastError: it cannot be checked at the moment.
        """

    def create_committer(self, job: JobInfo, uid: str) -> Committer:
        """Create the committer of its transactions, in the driver. ``uid``: the uid of their committables."""

    def open(self, job: JobInfo, uid: str, subtask: int) -> ChangelogLog:
        """Open the log in a task. ``uid``: the uid of the committables."""

    def follow(self) -> ChangelogReader:
        """Open the log for a standby copy."""


def new_changelog(settings: ChangelogSettings, job_name: str, uid: str, max_parallelism: int) -> Changelog:
    """The changelog of the operator ``uid`` as configured."""
    from holdfast.connectors.kafka.changelogs.changelog import KafkaChangelog  # other jobs need no Kafka client

    return KafkaChangelog(settings, job_name, uid, max_parallelism)


def _changelogs(plan: JobPlan) -> Iterator[tuple[str, Changelog]]:
    settings = plan.settings.changelog
    if settings is None or plan.settings.batch:  # in BATCH mode, state ends with the input
        return
    for vertex in plan.vertices:
        for chained in vertex.chain:
            if StateKind.KEYED in chained.factory.state:
                yield chained.uid, new_changelog(settings, plan.name, chained.uid, vertex.max_parallelism)


def check_changelogs(plan: JobPlan) -> None:
    """Create the changelogs of a job, or check existing ones.

    Raises:
        ConfigurationError: a log cannot be used, or the job has no checkpoints; names the remedy.
    """
    for _, changelog in _changelogs(plan):
        _check_beside_checkpoints(plan)
        changelog.validate()


def _check_beside_checkpoints(plan: JobPlan) -> None:
    if not plan.settings.checkpoint_uri:
        raise ConfigurationError(
            "state.changelog.storage: a changelog is kept beside the checkpoints, and the job has none: set "
            "execution.checkpointing.dir"
        )


class ChangelogNotes(NamedTuple):
    """What a start would find about a job's changelogs."""

    problems: list[tuple[str, str]]
    """Reasons to refuse the start: the operator's uid, and the reason with the remedy."""
    notes: list[str]
    """What the start would do, and what could not be checked."""


def judge_changelogs(plan: JobPlan) -> ChangelogNotes:
    """Check the changelogs of a job before its start; creates and reads nothing.

    Whether a log holds the checkpoint's state is not checked: if it does not, the state is restored from the files.
    """
    found = ChangelogNotes([], [])
    for uid, changelog in _changelogs(plan):
        try:
            _check_beside_checkpoints(plan)
            if not changelog.exists():
                found.notes.append(
                    f"{changelog.where} does not exist: the state is restored from the checkpoint's files, and the start "
                    "creates the topic and fills it from them"
                )
        except ConfigurationError as error:
            found.problems.append((uid, str(error)))
        except HoldfastError as error:
            found.notes.append(
                f"the changelogs could not be checked: {error}. The state can be restored from the checkpoint's files "
                "without them, but a start waits until the brokers answer (or state.changelog.enabled is false)"
            )
            break  # the other logs have the same brokers
    return found


def changelog_committers(plan: JobPlan, job: JobInfo) -> dict[str, Committer]:
    """The committers of the changelogs, by the uid of their committables. A log that was deleted meanwhile is recreated.

    Raises:
        ConfigurationError: a log can no longer be used; names the remedy.
    """
    found = {}
    for uid, changelog in _changelogs(plan):
        changelog.validate()
        found[changelog_uid(uid)] = changelog.create_committer(job, changelog_uid(uid))
    return found


def changelog_topics(plan: JobPlan) -> frozenset[str]:
    """The topics of a job's changelogs."""
    return frozenset(changelog.topic for _, changelog in _changelogs(plan))


def opener(setup: JobSetup, vertex: Vertex, subtask: int) -> Callable[[str], ChangelogLog] | None:
    """Returns the function that opens the changelog of an operator in a subtask, by uid; None without changelogs."""
    settings = setup.plan.settings.changelog
    if settings is None or setup.plan.settings.batch:
        return None
    return partial(_open, settings, setup, vertex, subtask)


def _open(settings: ChangelogSettings, setup: JobSetup, vertex: Vertex, subtask: int, uid: str) -> ChangelogLog:
    changelog = new_changelog(settings, setup.plan.name, uid, vertex.max_parallelism)
    return changelog.open(setup.job, changelog_uid(uid), subtask)


def follower(setup: JobSetup, vertex: Vertex) -> Callable[[str], ChangelogReader]:
    """Returns the function that opens the changelog of a vertex's operator for a standby copy, by uid."""
    settings = setup.plan.settings.changelog
    assert settings is not None
    return partial(_follow, settings, setup.plan.name, vertex.max_parallelism)


def _follow(settings: ChangelogSettings, job_name: str, max_parallelism: int, uid: str) -> ChangelogReader:
    return new_changelog(settings, job_name, uid, max_parallelism).follow()
