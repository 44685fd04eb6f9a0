"""Sinks that work with each checkpoint's output as a DataFrame, on the job's session; foreach_checkpoint is one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast.runtime.jvm.pyspark_internals import is_stopped
from holdfast.spark.checkpoint_sink import CheckpointSink
from holdfast.spark.frames import session_of, spark_frame
from holdfast.spark.in_driver import InDriver
from holdfast.spark.staged_output import StagedOutput

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["FrameSink", "foreach_sink"]

Work = Callable[["SparkSession", StagedOutput], None]
"""Works with the output of a checkpoint on a session."""


class FrameSink(CheckpointSink):
    """A sink whose output is delivered to a function that works on a session.

    Args:
        name: The sink's name, for messages.
        work: The function; it is not sent to the workers.
        session: The session; None: the active one.
    """

    def __init__(self, name: str, work: Work, session: SparkSession | None = None) -> None:
        super().__init__(name, _OnSession(name, work, session))

    def in_session(self, session: SparkSession | None) -> FrameSink:
        """The sink of a job on this session."""
        given = self.deliver
        assert isinstance(given, _OnSession)
        sink = copy.copy(self)
        sink._deliver = InDriver(_OnSession(given.name, given.work, session))
        return sink


class _OnSession:
    def __init__(self, name: str, work: Work, session: SparkSession | None) -> None:
        self.name = name
        self.work = work
        self._session = session

    def __call__(self, output: StagedOutput) -> None:
        from holdfast.runtime.host.shipping import is_local, spark_failure
        from holdfast.runtime.spark.stages import name_stages

        session = session_of(self._session)
        context = session.sparkContext
        try:
            context.setJobGroup(f"holdfast-output-{id(self)}", f"{self.name}: checkpoint {output.checkpoint_id}")
            name_stages(context, None)  # in a start this is the thread of the epochs
            self.work(session, output)
        except Exception as error:
            if is_stopped(context):
                raise spark_failure(error, is_local(context.master), stopped=True) from error
            raise


def foreach_sink(function: Callable[[DataFrame, int], object]) -> FrameSink:
    """The sink that calls a function.

    Args:
        function: Called with the DataFrame of a checkpoint's output, and the checkpoint's id.

    Raises:
        TypeError: this is no function.
    """
    if not callable(function):
        raise TypeError(f"foreach_checkpoint() takes a function of a DataFrame and a checkpoint's id, not {function!r}.")
    return FrameSink("foreach_checkpoint", _Foreach(function))


class _Foreach:
    def __init__(self, function: Callable[[DataFrame, int], object]) -> None:
        self._function = function

    def __call__(self, session: SparkSession, output: StagedOutput) -> None:
        self._function(spark_frame(session, output), int(output.checkpoint_id))
