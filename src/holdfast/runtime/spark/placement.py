"""Placement: keeps the tasks of a partition on one host, where their state is.

An anchor is a cached RDD with one small block per partition. Spark prefers to run a task where its cached input is. United
with the shuffled frames under the same partitioner, the anchor keeps each partition's tasks on the host of its block, epoch
after epoch. Every host gets its fair share of the partitions; when executors come or go, few partitions move.
"""

from __future__ import annotations

import logging
import struct
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pyspark import RDD, SparkContext

from holdfast.runtime.host.shipping import is_local
from holdfast.runtime.jvm.pyspark_internals import gateway, java_context, jvm, raw_pairs, raw_serializer

__all__ = ["Placement", "neighbours", "place", "standby_hosts"]

log = logging.getLogger(__name__)

_LOOK_EVERY = 5.0
"""Seconds between two checks of the executors. A change counts if two checks see it, because lost executors are often
replaced.
"""


def place(
    width: int, cores: Mapping[str, int], before: Sequence[str] = (), standbys: Sequence[Sequence[str]] = ()
) -> list[str]:
    """Choose a host for each partition: shares proportional to the hosts' cores, with few moves.

    >>> place(4, {"a": 1, "b": 1})
    ['a', 'b', 'a', 'b']
    >>> place(4, {"a": 1, "b": 1, "c": 2}, ["a", "b", "a", "b"])
    ['a', 'b', 'c', 'c']

    Args:
        width: The number of partitions.
        cores: The number of executor cores on each host.
        before: The current hosts of the partitions; empty at first.
        standbys: The hosts with standby copies of each partition's state; partitions that must move go there first.
    """
    total = sum(cores.values())
    if not total:
        return []
    held = Counter(host for host in before if host in cores)
    shares = {host: width * count // total for host, count in cores.items()}
    # The remainder goes to hosts whose share was rounded down, first to those that already hold more, so that less moves.
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
    for number, copies in enumerate(standbys):
        host = next((copy for copy in copies if shares.get(copy, 0) > 0), "")
        if not result[number] and host:
            shares[host] -= 1
            result[number] = host
    free = [host for turn in range(width) for host in sorted(cores) if shares[host] > turn]
    return [host or free.pop(0) for host in result]


def standby_hosts(hosts: Sequence[str], replicas: int, before: Sequence[Sequence[str]] = ()) -> list[list[str]]:
    """Choose the hosts of each partition's standby copies: not its own, evenly loaded, with few moves.

    >>> standby_hosts(["a", "b", "c", "a"], 1)
    [['b'], ['a'], ['a'], ['c']]
    >>> standby_hosts(["b", "b", "c", "c"], 1, [["b"], ["a"], ["a"], ["c"]])
    [['c'], ['c'], ['b'], ['b']]

    Args:
        hosts: The hosts of the partitions. Only these get standby copies, because tasks look after the copies.
        replicas: The number of copies of a partition; fewer if there are too few other hosts.
        before: The current hosts of the copies.
    """
    present = set(hosts)
    chosen = [
        [copy for copy in copies if copy in present and copy != host][:replicas] for host, copies in zip(hosts, before)
    ]
    chosen += [[] for _ in hosts[len(chosen) :]]
    load = Counter(copy for copies in chosen for copy in copies)
    for host, copies in zip(hosts, chosen):
        others = present - {host, *copies}
        while others and len(copies) < replicas:
            least = min(sorted(others), key=load.__getitem__)
            others.remove(least)
            copies.append(least)
            load[least] += 1
    return chosen


def neighbours(hosts: Sequence[str], standbys: Sequence[Sequence[str]]) -> list[list[int]]:
    """For each partition: the partitions whose standby copies its tasks look after, on its host.

    >>> neighbours(["a", "b", "a"], [["b"], ["a"], ["b"]])
    [[], [0, 2], [1]]
    """
    found: list[list[int]] = [[] for _ in hosts]
    placed: dict[str, list[int]] = {}
    for number, host in enumerate(hosts):
        placed.setdefault(host, []).append(number)
    for number, copies in enumerate(standbys):
        for copy in copies:
            there = placed[copy]
            found[there[number % len(there)]].append(number)
    return found


class Placement:
    """The anchors of a job.

    Args:
        context: The Spark that the job runs on.
        widths: The numbers of partitions of the stages.
        name: The job's name, for Spark's UI.
        replicas: The number of standby copies of each partition's state.
    """

    def __init__(self, context: SparkContext, widths: Iterable[int], name: str, replicas: int = 0) -> None:
        self._context = context
        self._widths = sorted(set(widths))
        self._name = name
        self._local = is_local(context.master)
        self._hosts: dict[int, list[str]] = {width: [] for width in self._widths}
        self._replicas = replicas
        self._standbys: dict[int, list[list[str]]] = {width: [] for width in self._widths}
        self._anchors: dict[int, Any] = {}
        self.arrangement = 0
        """Increases whenever partitions are placed again and the anchors change."""
        self._cores = self._seen = self._look()
        self._looked = time.monotonic()
        self._arrange()

    def anchor(self, width: int) -> Any:
        """The anchor for stages of this many partitions, an RDD of the JVM."""
        return self._anchors[width]

    def stage(self, width: int, frames: Any) -> Any:
        """The input of a stage, an RDD of the JVM: the partitioned frames, on the partitions' hosts."""
        if self._local:
            return frames.rdd()
        return self._beside(self._anchors[width], frames).rdd()

    def _beside(self, anchor: Any, partitions: Any) -> Any:
        """Unite an anchor's partitions with others, as an RDD of the JVM, which Spark computes where the anchor is."""
        blocks = anchor.toJavaRDD()
        united = gateway(self._context).new_array(jvm(self._context).JavaRDD, 3)
        # Twice: Spark takes the host that most inputs of the union prefer, and a shuffle may prefer any host.
        united[0], united[1], united[2] = blocks, blocks, partitions
        return java_context(self._context).union(united)

    def neighbours(self, width: int) -> list[list[int]]:
        """For each partition: the partitions whose standby copies its tasks look after."""
        return neighbours(self._hosts[width], self._standbys[width]) or [[] for _ in range(width)]

    def follow_executors(self) -> None:
        """Move partitions if executors have joined or left permanently."""
        if self._local or time.monotonic() - self._looked < _LOOK_EVERY:
            return
        self._looked = time.monotonic()
        seen, self._seen = self._seen, self._look()
        if seen == self._seen and seen != self._cores:
            log.info("executor cores by host are now %s; placing the partitions of %r anew", dict(seen), self._name)
            self._cores = seen
            old = list(self._anchors.values())
            self._arrange()
            for anchor in old:
                anchor.unpersist(False)

    def close(self) -> None:
        """Free the anchors in Spark."""
        for anchor in self._anchors.values():
            anchor.unpersist(False)

    def _arrange(self) -> None:
        self.arrangement += 1
        for width in self._widths:
            hosts = self._hosts[width] = place(width, self._cores, self._hosts[width], self._standbys[width])
            if self._local:  # one host: nothing to place, and no Spark job to wait for
                self._anchors[width] = java_context(self._context).parallelize([b""] * width, width).rdd()
                continue
            copies = self._standbys[width] = standby_hosts(hosts, self._replicas, self._standbys[width])
            anchor = self._anchors[width] = self._anchor(width, [[host] for host in hosts])
            if any(copies):
                # Spark prefers the host of a cached block; if that is lost, the host of the map output, which is the
                # standby's.
                self._anchors[width] = self._anchor(width, [own or [host] for own, host in zip(copies, hosts)], anchor)
                anchor.unpersist(False)
        if self._replicas and not any(map(any, self._standbys.values())):
            log.warning(
                "state.changelog.num-standby-replicas is %d, but the tasks of %r run on one host: its state has no standby "
                "copies until executors of another host join",
                self._replicas,
                self._name,
            )

    def _anchor(self, width: int, outputs: Sequence[Sequence[str]], beside: Any = None) -> Any:
        """Create an anchor whose blocks are on the same hosts as those of another one.

        Args:
            width: The number of partitions.
            outputs: By partition, the hosts of the map output from which the block is made.
            beside: The other anchor; None: the blocks are where their map output is.
        """
        java: Any = jvm(self._context)
        # A partition's only map output is on its hosts, so Spark runs the reduce task there, and caches its block there.
        located = [(number, host) for number, hosts in enumerate(outputs) for host in hosts] or [
            (n, "") for n in range(width)
        ]
        numbers = [number for number, _ in located]
        keyed: Any = self._located([host for _, host in located]).mapPartitionsWithIndex(
            lambda index, _: iter((struct.pack(">q", numbers[index]), b""))
        )
        pairs = java.PairwiseRDD(raw_pairs(keyed).rdd()).asJavaPairRDD()
        anchor = java.PythonRDD.valueOfPair(pairs.partitionBy(java.PythonPartitioner(width, id(int)))).rdd()
        anchor.setName(f"{self._name}: placement").cache()
        (anchor if beside is None else self._beside(beside, anchor.toJavaRDD())).count()  # computes the blocks
        return anchor

    def _located(self, hosts: Sequence[str]) -> RDD[Any]:
        """An RDD with one partition per host, computed on that host if it has executors."""
        java: Any = jvm(self._context)
        located = java.java.util.ArrayList()
        for host in hosts:
            wanted = java.java.util.ArrayList()
            if host:
                wanted.add(host)
            located.add(java.scala.Tuple2(b"", java.PythonUtils.toSeq(wanted)))
        kind = java.scala.reflect.ClassTag.apply(java.java.lang.Class.forName("[B"))
        blocks = java_context(self._context).sc().makeRDD(java.PythonUtils.toSeq(located), kind).toJavaRDD()
        return RDD(blocks, self._context, raw_serializer())

    def _look(self) -> Mapping[str, int]:
        """The number of executor cores on each host."""
        if self._local:
            return {}
        cores: Counter[str] = Counter()
        members = java_context(self._context).sc().statusStore().executorList(True)
        for number in range(members.size()):
            member = members.apply(number)
            if member.id() != "driver":
                cores[member.hostPort().rsplit(":", 1)[0]] += member.totalCores()
        return cores
