"""Spark jobs that write savepoints, and why they fail."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from holdfast.errors import CheckpointError
from holdfast.runtime.host.shipping import SparkJobFailed, is_local, spark_failure

__all__ = ["on_spark"]

_TOLD = re.compile(r"^holdfast\.errors\.\w+: (.*?)\s*(?:^ SQLSTATE|^\tat |\Z)", re.DOTALL | re.MULTILINE)
"""Matches the error of a task in what Spark tells of it."""


def on_spark(context: Any, run: Callable[[], list[Any]]) -> list[Any]:
    """Run a Spark job.

    Raises:
        CheckpointError: a task failed; the message is that of the task.
        ConfigurationError: the executors are set up wrongly.
        SparkGone: Spark has ended.
    """
    try:
        return run()
    except (Py4JError, PySparkException) as error:
        found = _TOLD.findall(str(error))
        if found:
            raise CheckpointError(f"the savepoint was not written: {found[-1]}") from error
        failure = spark_failure(error, is_local(context.master))
        raise CheckpointError(str(failure)) if isinstance(failure, SparkJobFailed) else failure from error
