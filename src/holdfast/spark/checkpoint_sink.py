"""CheckpointSink: hands the output of each checkpoint to a function in the driver."""

from __future__ import annotations

import copy
import uuid
import weakref
from typing import Any

from holdfast.common.typeinfo import TypeInformation
from holdfast.connectors.base import JobInfo, WriterContext
from holdfast.spark.delivery import Deliver, StagedCommitter
from holdfast.spark.element_columns import ElementColumns
from holdfast.spark.staged_output import StagedWriter, StagingArea, check_staged

__all__ = ["CheckpointSink"]


class _InDriver:
    """Something that stays in the driver, while the sink is copied and pickled."""

    def __init__(self, deliver: Deliver) -> None:
        self.deliver = deliver


_kept: weakref.WeakValueDictionary[str, _InDriver] = weakref.WeakValueDictionary()
"""By the token of a sink. Each copy of the sink in this process holds it."""


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
        self._keep(deliver)

    def _keep(self, deliver: Deliver) -> None:
        self._token = uuid.uuid4().hex
        self._in_driver: _InDriver | None = _InDriver(deliver)
        _kept[self._token] = self._in_driver

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_in_driver": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._in_driver = _kept.get(self._token)

    @property
    def deliver(self) -> Deliver:
        """The function; only in the process that built the program."""
        assert self._in_driver is not None
        return self._in_driver.deliver

    def of_type(self, declared: TypeInformation) -> CheckpointSink:
        """The sink for a stream of this type."""
        sink = copy.copy(self)
        sink._columns = ElementColumns(declared)
        return sink

    def validate(self) -> None:
        """Accept: the job's storage is checked by the job."""

    def create_writer(self, context: WriterContext) -> StagedWriter:
        """Create a writer."""
        return StagedWriter(StagingArea.of(context.job, context.uid), self._columns, context, self._name)

    def check_prepared(self, data: Any) -> None:
        """Check that output is staged."""
        check_staged(data, self._name)

    def create_committer(self, job: JobInfo, uid: str) -> StagedCommitter:
        """Create the committer, which delivers output."""
        return StagedCommitter(StagingArea.of(job, uid), job, (self._name, uid), self.deliver)
