"""The stages of an epoch as RDDs, built with few calls to the JVM: each takes 0.2 ms, and what lasts is made once.

Frames are the RDDs' elements as they are, bytes that neither Python nor Java takes apart on their way.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from py4j.java_collections import ListConverter, MapConverter
from pyspark import Broadcast, SparkContext, cloudpickle
from pyspark.serializers import NoOpSerializer
from pyspark.util import local_connect_and_auth

from holdfast.runtime.level_task import LevelTask
from holdfast.runtime.placement import Placement
from holdfast.runtime.shipping import load_and_run

__all__ = ["Stages"]

_LARGEST_TASK = 1 << 20
"""Bytes of a pickled task beyond which Spark's broadcast takes it to the executors, as in PySpark itself."""


class _Pickled:
    """Stands for an object that has been pickled already; unpickled, it is that object."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._content,)


class _Call:
    """Unpickled, it is the function with its first arguments."""

    def __init__(self, function: _Pickled, *arguments: Any) -> None:
        self._parts = function, *arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return functools.partial, self._parts


class Stages:
    """Builds and runs the stages of a job's epochs.

    Args:
        context: The Spark that the job runs on.
        widths: How many partitions each level has.
        placement: Where the partitions are.
        setup: What each task may read besides.
    """

    def __init__(self, context: SparkContext, widths: Sequence[int], placement: Placement, setup: Broadcast[bytes]) -> None:
        self._context = context
        self._widths = widths
        self._placement = placement
        jvm: Any = context._jvm
        # Names of classes and of their methods are looked up in the JVM whenever they are written out.
        self._function, self._rdd, self._pairs = jvm.SimplePythonFunction, jvm.PythonRDD, jvm.PairwiseRDD
        self._value_of_pair, self._collect_and_serve = jvm.PythonRDD.valueOfPair, jvm.PythonRDD.collectAndServe
        self._partitioners = {width: jvm.PythonPartitioner(width, id(int)) for width in set(widths)}
        client: Any = context._gateway._gateway_client
        self._to_list = functools.partial(ListConverter().convert, gateway_client=client)
        self._environment = MapConverter().convert(context.environment, client)
        self._includes: tuple[list[str], Any] = ([], self._to_list([]))
        self._broadcasts = self._to_list([setup._jbroadcast])
        self._accumulator = context._javaAccumulator
        # By Spark's own cloudpickle: the executors' Python may have none, or another release of it.
        self._load_and_run = _Pickled(cloudpickle.dumps(load_and_run()))
        self._setup = _Pickled(_pickled_reference(context, setup))
        self._serializer = NoOpSerializer()

    def collect(self, tasks: Sequence[LevelTask]) -> list[bytes]:
        """Run the tasks of all levels, one Spark job; the frames that the last level gives."""
        kept = []  # a broadcast lives as long as its object
        frames = None
        for width, task in zip(self._widths, tasks):
            source = self._placement.anchor(width) if frames is None else self._placement.stage(width, frames)
            function, sent = self._python_function(task)
            kept.append(sent)
            stage = self._rdd(source, function, False, False)
            if task.last:
                return self._fetch(self._collect_and_serve(stage))
            following = self._partitioners[self._widths[task.level + 1]]
            frames = self._value_of_pair(self._pairs(stage).asJavaPairRDD().partitionBy(following))
        raise AssertionError("no level is the last")

    def _python_function(self, task: LevelTask) -> tuple[Any, Broadcast[bytes] | None]:
        call = _Call(self._load_and_run, pickle.dumps(task, 5), self._setup)
        command = pickle.dumps((call, None, self._serializer, self._serializer), 5)
        broadcasts, sent = self._broadcasts, None
        if len(command) > _LARGEST_TASK:
            sent = self._context.broadcast(command)
            command = _pickled_reference(self._context, sent)
            broadcasts = self._to_list([self._broadcasts[0], sent._jbroadcast])
        if self._includes[0] != self._context._python_includes:
            self._includes = list(self._context._python_includes), self._to_list(self._context._python_includes)
        context = self._context
        function = self._function(
            bytearray(command),
            self._environment,
            self._includes[1],
            context.pythonExec,
            context.pythonVer,
            broadcasts,
            self._accumulator,
        )
        return function, sent

    def _fetch(self, served: Any) -> list[bytes]:
        """What the JVM serves on a socket of its own."""
        file, connection = local_connect_and_auth(served[0], served[1])
        with connection, file:
            connection.settimeout(None)
            frames: Iterator[bytes] = self._serializer.load_stream(file)
            return list(frames)

    def run_on_all(self, width: int, function: Callable[[int, Iterable[Any]], Iterator[bytes]]) -> None:
        """Run a function for each partition of a level, where the partitions are; it must be able to unpickle anywhere."""
        from pyspark import RDD

        RDD(self._placement.anchor(width).toJavaRDD(), self._context, self._serializer).mapPartitionsWithIndex(
            function
        ).count()


def _pickled_reference(context: SparkContext, broadcast: Broadcast[bytes]) -> bytes:
    """The broadcast as tasks refer to it; PySpark notes down which ones were pickled, for a function to be made of it."""
    content = pickle.dumps(broadcast, 5)
    context._pickled_broadcast_vars.clear()
    return content
