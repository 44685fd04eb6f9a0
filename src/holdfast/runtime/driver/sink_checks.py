"""Checks of a job's sinks and changelogs before it starts."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from holdfast.connectors.base import ExclusiveSink, Sink
from holdfast.errors import ConfigurationError, ServiceUnavailable
from holdfast.runtime.plan.plan import JobPlan
from holdfast.runtime.task.changelogs import check_changelogs

__all__ = ["check_exclusive", "check_services"]

_log = logging.getLogger("holdfast")


def check_exclusive(sinks: Sequence[tuple[str, Sink]]) -> None:
    """Refuse a job in which two sinks claim the same exclusive name, such as a prefix of Kafka's transactional ids.

    Args:
        sinks: The sinks with their uids.

    Raises:
        ConfigurationError: names both.
    """
    holders: dict[str, str] = {}
    for uid, sink in sinks:
        name = sink.exclusive_name if isinstance(sink, ExclusiveSink) else None
        if name is None:
            continue
        if name in holders:
            raise ConfigurationError(
                f"two sinks of the job (uids {holders[name]} and {uid}) have {name}: each needs one of its own. Give them "
                "different ones, or unite the streams and write them by one sink"
            )
        holders[name] = uid


def check_services(plan: JobPlan, continues: Callable[[], bool]) -> None:
    """Let sinks and changelogs check the services that they write to.

    Args:
        plan: The job.
        continues: Whether the job has a checkpoint to continue from. Then a service that does not answer is no error here:
            as in a running job, the restart strategy waits for it.

    Raises:
        ConfigurationError: a check failed, or a service does not answer at a job's first start.
    """
    checks: list[Callable[[], None]] = [sink.validate for _, sink in plan.sinks]
    checks.append(partial(check_changelogs, plan))
    for check in checks:
        try:
            check()
        except ServiceUnavailable as error:
            if not continues():
                raise ConfigurationError(str(error)) from error
            _log.warning("job %r goes on from its checkpoint, and waits for a service: %s", plan.name, error)
