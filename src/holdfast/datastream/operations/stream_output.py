"""StreamOutput: where a stream ends, in a sink, on the console or in the program."""

from __future__ import annotations

from collections.abc import Callable, Generator
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, cast, overload

from holdfast.common.values.type_variables import T
from holdfast.connectors.base import Sink
from holdfast.connectors.collect import CollectSink
from holdfast.connectors.print import PrintSink
from holdfast.datastream.data_stream_sink import CloseableIterator, DataStreamSink
from holdfast.datastream.operations.operator_settings import check_count
from holdfast.graph.execution_mode import check_bounded
from holdfast.graph.transformations import Physical, SideOutput, Transformation
from holdfast.runtime.operators.stateless import SinkOperator

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = ["StreamOutput"]


class StreamOutput(Generic[T]):
    """The calls that end a stream."""

    _env: StreamExecutionEnvironment
    _transformation: Transformation

    def sink_to(self, sink: Sink[T]) -> DataStreamSink:
        """Write the elements to a sink (Kafka, files, ...).

        Raises:
            TypeError: the argument is not a sink.
        """
        return self._sink_to(sink, type(sink).__name__, "sink_to()")

    def add_sink(self, sink_func: Sink[T]) -> DataStreamSink:
        """Write the elements to a sink; Flink's older name of ``sink_to``."""
        return self._sink_to(sink_func, type(sink_func).__name__, "add_sink()")

    def print(self, sink_identifier: str | None = None) -> DataStreamSink:
        """Write the elements' texts to standard output, as Flink does.

        Args:
            sink_identifier: Prefix of each line. With more than one subtask it includes the subtask's number.
        """
        return self._sink_to(PrintSink(sink_identifier, self._transformation.output_type), "Print to Std. Out", "print()")

    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, limit: None = None) -> CloseableIterator[T]: ...

    @overload
    def execute_and_collect(self, job_execution_name: str | None = None, *, limit: int) -> list[T]: ...

    @overload
    def execute_and_collect(self, job_execution_name: str | None, limit: int) -> list[T]: ...

    def execute_and_collect(
        self, job_execution_name: str | None = None, limit: int | None = None
    ) -> CloseableIterator[T] | list[T]:
        """Run the program as built so far, and read this stream's elements.

        Args:
            job_execution_name: The job's name; also ``pipeline.name``.
            limit: Read at most this many elements, cancel the job, and return them as a list.

        Returns:
            A CloseableIterator over the elements, or a list if there is a limit.

        Raises:
            JobFailed: the job failed (also while iterating).
        """
        if limit is not None:
            check_count(limit, "limit")
        sink = CollectSink()
        end = self._sink_to(sink, "Data stream collect sink", "execute_and_collect()")
        before = self._transformation.inputs[0] if isinstance(self._transformation, SideOutput) else self._transformation
        if isinstance(before, Physical):
            sink_node = end._transformation  # equal parallelism chains the sink and saves a shuffle
            sink_node.parallelism, sink_node.parallelism_configured = before.parallelism, before.parallelism_configured
        try:
            client = self._env.execute_async(job_execution_name)
        except BaseException:
            self._env._operators.remove(end._transformation)
            raise
        results = CloseableIterator(cast("Generator[T, None, None]", sink.results(client)), client, sink.mailbox)
        if limit is None:
            return results
        with results:
            return list(islice(results, limit))

    def execute_to_dataframe(self, job_execution_name: str | None = None) -> DataFrame:
        """Run the program as built so far, which must be bounded, and return this stream's elements as a Spark DataFrame.

        The DataFrame has the columns that ``to_arrow()`` of `execute_and_collect` has, in the declared type, else in the
        types of the values. Tasks write its rows as Arrow, and Spark's tasks read them: the driver handles none. With
        ``execution.checkpointing.dir`` they stay beside the job's checkpoints, otherwise until this process ends.

        Args:
            job_execution_name: The job's name; also ``pipeline.name``.

        Raises:
            ConfigurationError: a source of the program is unbounded, or Spark has no type for a column.
            UserCodeError: the elements have no columns.
            JobFailed: the job failed.
        """
        from holdfast.spark.results import Results, ResultsSink, temporary_directory  # needs pyarrow

        results = Results()
        kept = self._env._configuration.get_string("execution.checkpointing.dir", "")
        sink = ResultsSink(results, None if kept else temporary_directory())
        end = self._sink_to(sink, "DataFrame", "execute_to_dataframe()")
        try:
            check_bounded(self._env._operators, "execute_to_dataframe()")
            self._env.execute(job_execution_name)
        finally:
            if end._transformation in self._env._operators:
                self._env._operators.remove(end._transformation)
        return results.frame(self._env._spark)

    def foreach_checkpoint(self, function: Callable[[DataFrame, int], object]) -> DataStreamSink:
        """Call a function with each checkpoint's output of this stream, as a DataFrame, and with the checkpoint's id.

        It is called in the driver, on the job's session, once the checkpoint is complete: one checkpoint after the other, in
        order of their ids, and not for one without output. The next checkpoint completes after it has returned. It is called
        again after a crash, until it is known to have returned: with the same id and the same rows. So what it writes under
        the id is written exactly once. The rows are deleted when it has returned.

        Args:
            function: The function; it stays in the driver, and need not be pickled.

        Raises:
            TypeError: this is no function.
        """
        from holdfast.spark.frame_sink import foreach_sink  # needs pyarrow

        return self._sink_to(foreach_sink(function), "Foreach checkpoint", "foreach_checkpoint()")

    def _sink_to(self, sink: Sink, name: str, where: str) -> DataStreamSink:
        given: Any = sink
        if not isinstance(given, Sink):
            remedy = " Call build() on it." if hasattr(given, "build") else ""
            raise TypeError(f"{where} takes a Sink, not a {type(given).__name__}.{remedy}")
        declared = self._transformation.output_type
        if declared is not None and hasattr(given, "of_type"):
            sink = given = given.of_type(declared)
        if hasattr(given, "in_session"):
            sink = given.in_session(self._env._spark)
        node = self._env._add_operator(
            inputs=(self._transformation,),
            kind="Sink",
            name=name,
            factory=SinkOperator(sink),
            functions=(("sink", sink),),
            is_sink=True,
        )
        return DataStreamSink(node)
