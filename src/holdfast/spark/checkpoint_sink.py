"""CheckpointSink: hands the output of each checkpoint to a function in the driver."""

from __future__ import annotations

import copy
from typing import Any

from holdfast.common.formats.arrow import check_dataframes
from holdfast.common.typeinfo import TypeInformation
from holdfast.connectors.base import JobInfo, WriterContext
from holdfast.spark.delivery import Deliver, StagedCommitter
from holdfast.spark.element_columns import ElementColumns
from holdfast.spark.in_driver import InDriver
from holdfast.spark.staged_output import StagedWriter, StagingArea, check_staged

__all__ = ["CheckpointSink"]


class CheckpointSink:
    """A sink whose output is staged as Arrow, and delivered to a function in the driver once its checkpoint is complete.

    Args:
        name: The sink's name, for messages.
        deliver: The function; it is not sent to the workers.
        declared: The elements' type.
    """

    takes_columns = True

    def __init__(self, name: str, deliver: Deliver, declared: TypeInformation | None = None) -> None:
        self._name = name
        self._columns = ElementColumns(declared)
        self._deliver = InDriver(deliver)

    @property
    def deliver(self) -> Deliver:
        """The function; only in the process that built the program."""
        return self._deliver.value

    def of_type(self, declared: TypeInformation) -> CheckpointSink:
        """The sink for a stream of this type."""
        sink = copy.copy(self)
        sink._columns = ElementColumns(declared)
        return sink

    def validate(self) -> None:
        """Check that Spark can read what is staged.

        Raises:
            ConfigurationError: a library is not installed.
        """
        check_dataframes()

    def create_writer(self, context: WriterContext) -> StagedWriter:
        """Create a writer."""
        return StagedWriter(StagingArea.of(context.job, context.uid), self._columns, context, self._name)

    def check_prepared(self, data: Any) -> None:
        """Check that output is staged."""
        check_staged(data, self._name)

    def create_committer(self, job: JobInfo, uid: str) -> StagedCommitter:
        """Create the committer, which delivers output."""
        return StagedCommitter(StagingArea.of(job, uid), job, (self._name, uid), self.deliver)
