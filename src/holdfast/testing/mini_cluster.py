"""MiniCluster: a local Spark that the tests of a session share."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING

from holdfast.common.configuration import Configuration
from holdfast.datastream.stream_execution_environment import StreamExecutionEnvironment
from holdfast.errors import HoldfastError
from holdfast.runtime.jvm.pyspark_internals import active_context

if TYPE_CHECKING:
    from pyspark import SparkContext
    from typing_extensions import Self

__all__ = ["MiniCluster"]


class MiniCluster:
    """A real Spark in one JVM on this machine, for tests of whole programs. Starting it takes seconds, so share it.

    If this process has a Spark already, the cluster is that one, and `stop` leaves it running.

    Args:
        slots: The number of tasks that run at the same time; the default parallelism of its environments.
        configuration: Settings of Spark (``spark.*``).

    Examples:
        >>> with MiniCluster(slots=2) as cluster:  # doctest: +SKIP
        ...     env = cluster.environment()
        ...     env.from_collection([1, 2, 3]).print()
        ...     env.execute("numbers")
    """

    def __init__(self, slots: int = 2, configuration: Mapping[str, str] | None = None) -> None:
        self.slots = slots
        self._settings = {"spark.master": f"local[{slots},4]", **(configuration or {})}
        self._context: SparkContext | None = None
        self._owned = False

    def start(self) -> Self:
        """Start Spark.

        Raises:
            ConfigurationError: there is no Java to run it on.
        """
        from holdfast.runtime.spark.spark_context import spark_context

        self._owned = active_context() is None
        self._context = spark_context("mini cluster", self._settings)
        return self

    def environment(self, configuration: Configuration | None = None) -> StreamExecutionEnvironment:
        """Create an environment whose jobs run on the cluster.

        Args:
            configuration: The settings, under Flink's keys.
        """
        if self._context is None:
            raise HoldfastError("the mini cluster is not running: use it in a with statement, or call start()")
        return StreamExecutionEnvironment(configuration).set_parallelism(self.slots)

    def stop(self) -> None:
        """Stop Spark, if this cluster has started it."""
        context, self._context = self._context, None
        if context is not None and self._owned:
            context.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self.stop()
