"""Submits a job: creates it from its plan, and starts it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from holdfast.common.secrets import concealed
from holdfast.errors import ConfigurationError
from holdfast.runtime.driver.job import Job
from holdfast.runtime.driver.watched_start import watched_start
from holdfast.runtime.host.shipping import in_short
from holdfast.runtime.plan.plan import JobPlan

__all__ = ["submit"]

_log = logging.getLogger("holdfast")


def submit(plan: JobPlan, session: Any, replan: Callable[[int], JobPlan]) -> Job:
    """Start a job; returns at once.

    Args:
        plan: The job.
        replan: Makes its plan for another parallelism.
        session: The SparkSession to run on; None: the active one, or else a new local one.

    Raises:
        ConfigurationError: the job cannot run as configured; no input has been read.
    """
    try:
        with watched_start(plan.name):
            job = Job(plan, session, replan)
    except ConfigurationError as error:
        _log.debug("job %r cannot run", plan.name, exc_info=True)
        raise concealed(in_short(error), plan.config) from None
    job.start()
    return job
