"""Stages: builds the stages of an epoch as RDDs, with few calls to the JVM (0.2 ms each).

The elements of the RDDs are frames: bytes that neither Python nor Java parses on the way.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from py4j.java_collections import ListConverter, MapConverter
from pyspark import Broadcast, SparkContext

from holdfast.runtime.host.shipping import load_and_run
from holdfast.runtime.jvm.pyspark_internals import (
    cloudpickled,
    gateway_client,
    java_broadcast,
    java_context,
    jvm,
    pickled_reference,
    python_includes,
    raw_connection,
    raw_serializer,
)
from holdfast.runtime.spark.level_task import LevelTask, packed_calls
from holdfast.runtime.spark.placement import Placement

__all__ = ["Stages", "name_stages"]

_LARGEST_PROPERTY = 1 << 14
"""Limit of an epoch's packed calls, in characters; every task receives the calls of all tasks."""
_LARGEST_TASK = 1 << 20
"""A larger pickled task, in bytes, is broadcast, as in PySpark itself."""
_FEW_CHANNELS = 16
"""With at most this many partitions on both sides, the shuffle serialises frames in Java's own form.

Spark would choose Kryo, which takes 2 ms to set up in every task; Java's form takes longer per channel.
"""


_CALL_SITE, _CALL_SITES = "callSite.short", "callSite.long"
"""Properties from which Spark takes the names of stages, and their details. Without them, it reads a stack for each RDD."""


class _Pickled:
    """A placeholder for a pickled object; unpickling yields that object."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._content,)


class _Call:
    """A placeholder for a partial function; unpickling yields the function with its first arguments."""

    def __init__(self, function: _Pickled, *arguments: Any) -> None:
        self._parts = function, *arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return functools.partial, self._parts


class Stages:
    """Builds and runs the stages of a job's epochs.

    While an epoch runs, the stages of the next one are built; what differs is in a property of the Spark job.

    Args:
        context: The Spark that the job runs on.
        tasks: The task of each level, without calls.
        widths: The number of partitions of each level.
        placement: The hosts of the partitions.
        setup: The broadcast of the job's setup.
        names: The name of each level, for Spark's UI.
    """

    def __init__(
        self,
        context: SparkContext,
        tasks: Sequence[LevelTask],
        widths: Sequence[int],
        placement: Placement,
        setup: Broadcast[bytes],
        names: Sequence[str],
    ) -> None:
        self._context = context
        self._tasks = tasks
        self._widths = widths
        self._placement = placement
        self._names = names
        self._named = ""
        """The level, or the Spark job, after which RDDs are currently named."""
        java: Any = jvm(context)
        # Py4J looks up a class or method in the JVM at every access by name.
        self._function, self._rdd, self._pairs = java.SimplePythonFunction, java.PythonRDD, java.PairwiseRDD
        self._value_of_pair = java.PythonRDD.valueOfPair
        self._partitioners = {width: java.PythonPartitioner(width, id(int)) for width in set(widths)}
        self._java = java.org.apache.spark.serializer.JavaSerializer(java_context(context).sc().conf())
        self._as_scala, self._serve = java.scala.jdk.javaapi.CollectionConverters.asScala, java.PythonRDD.serveIterator
        client: Any = gateway_client(context)
        self._to_list = functools.partial(ListConverter().convert, gateway_client=client)
        self._environment = MapConverter().convert(context.environment, client)
        self._broadcasts = self._to_list([java_broadcast(setup)])
        self._load_and_run = _Pickled(cloudpickled(load_and_run()))
        self._setup = _Pickled(pickled_reference(context, setup))
        self._serializer = raw_serializer()
        self._ahead: tuple[Any, Any] | None = None
        """The stages of the next epoch, with the placement and the broadcasts that they depend on."""

    def collect(self, calls: Sequence[Sequence[bytes]]) -> list[bytes]:
        """Run the tasks of all levels as one Spark job; returns the frames of the last level.

        Args:
            calls: By level and partition, the pickled (assignment, vertex, subtask).
        """
        packed = packed_calls(calls)
        small = len(packed) <= _LARGEST_PROPERTY
        self._context.setLocalProperty(self._tasks[0].calls_property, packed if small else "")
        kept: list[Broadcast[bytes]] = []  # a broadcast lives as long as its object
        if small:
            ahead, self._ahead = self._ahead, None
            fits = ahead is not None and ahead[0] == self._surroundings()
            stages = ahead[1] if ahead is not None and fits else self._build(self._tasks, kept)
        else:
            stages = self._build([replace(task, calls=own) for task, own in zip(self._tasks, calls)], kept)
        # `collect` would have Spark analyse its own classes for the function's closure (10 ms).
        running = stages.collectAsync()
        if small:
            self._ahead = self._surroundings(), self._build(self._tasks, kept)
        return self._fetch(running.get())

    def _fetch(self, collected: Any) -> list[bytes]:
        """Fetch the frames of a list in the JVM over a new connection: Py4J's own delays a large answer by 40 ms."""
        port, secret, _ = self._serve(self._as_scala(collected.iterator()), "serve frames")
        file, connection = raw_connection(port, secret)
        with connection, file:
            connection.settimeout(None)
            frames: Iterator[bytes] = self._serializer.load_stream(file)
            return list(frames)

    def _surroundings(self) -> Any:
        return self._placement.arrangement, python_includes(self._context)

    def _build(self, tasks: Sequence[LevelTask], kept: list[Broadcast[bytes]]) -> Any:
        """Build the stages as an RDD of the JVM, for one run; ``kept`` gets the broadcasts that must live until then."""
        frames = None
        for width, task, name in zip(self._widths, tasks, self._names):
            self._name_stages(name)
            source = self._placement.anchor(width) if frames is None else self._placement.stage(width, frames)
            stage = self._rdd(source, self._python_function(task, kept), False, False)
            if task.last:
                return stage.asJavaRDD()
            following = self._widths[task.level + 1]
            shuffled = self._pairs(stage).asJavaPairRDD().partitionBy(self._partitioners[following])
            if max(width, following) <= _FEW_CHANNELS:
                shuffled.rdd().setSerializer(self._java)
            frames = self._value_of_pair(shuffled)
        raise AssertionError("no level is the last")

    def _name_stages(self, name: str) -> None:
        """Name the RDDs created next. The last level's name stays: the Spark job's own stage takes it."""
        if not self._named:
            name_stages(self._context, name, "\n".join(self._names))
        elif name != self._named:
            self._context.setLocalProperty(_CALL_SITE, name)
        self._named = name

    def _python_function(self, task: LevelTask, kept: list[Broadcast[bytes]]) -> Any:
        call = _Call(self._load_and_run, pickle.dumps(task, 5), self._setup)
        command = pickle.dumps((call, None, self._serializer, self._serializer), 5)
        broadcasts = self._broadcasts
        if len(command) > _LARGEST_TASK:
            sent = self._context.broadcast(command)
            kept.append(sent)
            command = pickled_reference(self._context, sent)
            broadcasts = self._to_list([self._broadcasts[0], java_broadcast(sent)])
        context = self._context
        return self._function(
            bytearray(command),
            self._environment,
            self._to_list(python_includes(context)),
            context.pythonExec,
            context.pythonVer,
            broadcasts,
            None,  # no accumulator: Spark's scheduler would ask this process for each task in turn
        )

    def run_on_all(self, width: int, function: Callable[[int, Iterable[Any]], Iterator[bytes]]) -> None:
        """Run a function for each partition of a level, on its host; any Python must be able to unpickle it."""
        from pyspark import RDD

        RDD(self._placement.anchor(width).toJavaRDD(), self._context, self._serializer).mapPartitionsWithIndex(
            function
        ).count()


def name_stages(context: SparkContext, name: str | None, details: str | None = None) -> None:
    """Name what this thread makes Spark do; None: as Spark names it itself."""
    context.setLocalProperty(_CALL_SITE, name)
    context.setLocalProperty(_CALL_SITES, details or name)
