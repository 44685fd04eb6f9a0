"""Where the tasks of a partition run: always on the same host, so that they find their state there.

An anchor is a cached RDD with one small block a partition. Spark prefers to run a task where its cached input is; united
with the shuffled frames by the same partitioner, the anchor keeps each partition's tasks on the host that has the
block, epoch after epoch. Which host that is, is decided here: every host has its fair share of the partitions, and when
executors come or go, as few partitions as possible move.
"""

from __future__ import annotations

import logging
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.serializers import NoOpSerializer

from holdfast.runtime.shipping import is_local

__all__ = ["Placement", "place"]

log = logging.getLogger(__name__)

_LOOK_EVERY = 5.0
"""Seconds between two looks at the executors. A change counts when it is seen twice: a lost executor is often replaced."""


def place(width: int, cores: Mapping[str, int], before: Sequence[str] = ()) -> list[str]:
    """A host for each partition: shares in proportion to the hosts' cores, and few moves.

    >>> place(4, {"a": 1, "b": 1})
    ['a', 'b', 'a', 'b']
    >>> place(4, {"a": 1, "b": 1, "c": 2}, ["a", "b", "a", "b"])
    ['a', 'b', 'c', 'c']

    Args:
        width: How many partitions.
        cores: How many cores of executors there are on each host.
        before: Where the partitions were until now; empty if nowhere.
    """
    total = sum(cores.values())
    if not total:
        return []
    held = Counter(host for host in before if host in cores)
    shares = {host: width * count // total for host, count in cores.items()}
    # What division leaves over goes to hosts whose share was cut, first to those that have more already, so that less moves.
    cut = {host: rest for host, count in cores.items() if (rest := width * count % total)}
    order = sorted(cut, key=lambda host: (-(held[host] > shares[host]), -cut[host], host))
    for host in order[: width - sum(shares.values())]:
        shares[host] += 1
    result: list[str] = []
    for host in before:
        keep = shares.get(host, 0) > 0
        shares[host] = shares.get(host, 0) - keep
        result.append(host if keep else "")
    result += [""] * (width - len(result))
    free = [host for turn in range(width) for host in sorted(cores) if shares[host] > turn]
    return [host or free.pop(0) for host in result]


class Placement:
    """The anchors of a job.

    Args:
        context: The Spark that the job runs on.
        widths: The numbers of partitions that stages have.
        name: Of the job, for Spark's user interface.
    """

    def __init__(self, context: SparkContext, widths: Iterable[int], name: str) -> None:
        self._context = context
        self._widths = sorted(set(widths))
        self._name = name
        self._local = is_local(context.master)
        self._hosts: dict[int, list[str]] = {width: [] for width in self._widths}
        self._anchors: dict[int, Any] = {}
        self.arrangement = 0
        """Rises when partitions are placed anew: the anchors are others then."""
        self._cores = self._seen = self._look()
        self._looked = time.monotonic()
        self._arrange()

    def anchor(self, width: int) -> Any:
        """The anchor for stages of this many partitions, an RDD of the JVM."""
        return self._anchors[width]

    def stage(self, width: int, frames: Any) -> Any:
        """The input of a stage, an RDD of the JVM: the partitioned frames, where the partitions are."""
        if self._local:
            return frames.rdd()
        anchor = self._anchors[width].toJavaRDD()
        united = self._context._gateway.new_array(self._context._jvm.JavaRDD, 3)
        # Twice, for Spark takes the host that most of the united want, and a shuffle may want any one host.
        united[0], united[1], united[2] = anchor, anchor, frames
        return self._context._jsc.union(united).rdd()

    def follow_executors(self) -> None:
        """Move partitions if executors have come or gone for good."""
        if self._local or time.monotonic() - self._looked < _LOOK_EVERY:
            return
        self._looked = time.monotonic()
        seen, self._seen = self._seen, self._look()
        if seen == self._seen and seen != self._cores:
            log.info("cores of executors by host are now %s; partitions of %r are placed anew", dict(seen), self._name)
            self._cores = seen
            old = list(self._anchors.values())
            self._arrange()
            for anchor in old:
                anchor.unpersist(False)

    def close(self) -> None:
        """Free what Spark keeps."""
        for anchor in self._anchors.values():
            anchor.unpersist(False)

    def _arrange(self) -> None:
        jvm: Any = self._context._jvm
        self.arrangement += 1
        for width in self._widths:
            self._hosts[width] = place(width, self._cores, self._hosts[width])
            if self._local:  # one host: nothing to place, and no Spark job to wait for
                self._anchors[width] = self._context._jsc.parallelize([b""] * width, width).rdd()
                continue
            # The one map output for a partition is on its host, so Spark runs (and caches) its reduce task there.
            keyed: Any = self._located(width, self._hosts[width]).mapPartitionsWithIndex(
                lambda partition, _: iter((struct.pack(">q", partition), b""))
            )
            keyed._bypass_serializer = True
            pairs = jvm.PairwiseRDD(keyed._jrdd.rdd()).asJavaPairRDD()
            anchor = jvm.PythonRDD.valueOfPair(pairs.partitionBy(jvm.PythonPartitioner(width, id(int)))).rdd()
            anchor.setName(f"{self._name}: placement").cache()
            anchor.count()
            self._anchors[width] = anchor

    def _located(self, width: int, hosts: Sequence[str]) -> RDD[Any]:
        """An RDD of a partition each, computed on these hosts if they have executors."""
        jvm: Any = self._context._jvm
        located = jvm.java.util.ArrayList()
        for number in range(width):
            wanted = jvm.java.util.ArrayList()
            if hosts:
                wanted.add(hosts[number])
            located.add(jvm.scala.Tuple2(b"", jvm.PythonUtils.toSeq(wanted)))
        kind = jvm.scala.reflect.ClassTag.apply(jvm.java.lang.Class.forName("[B"))
        java = self._context._jsc.sc().makeRDD(jvm.PythonUtils.toSeq(located), kind).toJavaRDD()
        return RDD(java, self._context, NoOpSerializer())

    def _look(self) -> Mapping[str, int]:
        """How many cores of executors there are on each host."""
        if self._local:
            return {}
        cores: Counter[str] = Counter()
        members = self._context._jsc.sc().statusStore().executorList(True)
        for number in range(members.size()):
            member = members.apply(number)
            if member.id() != "driver":
                cores[member.hostPort().rsplit(":", 1)[0]] += member.totalCores()
        return cores
