"""A real Spark standalone cluster on this machine: a master, and workers bound to their own loopback addresses.

In tests::

    with LocalCluster() as cluster:                     # workers 127.0.0.2 and 127.0.0.3
        configuration = Configuration.from_dict(cluster.settings())
        ...
        cluster.kill_executor("127.0.0.2")              # kill -9; Spark starts another one
        cluster.lose_host("127.0.0.3")                  # worker, executors and local disk are gone
        cluster.add_worker("127.0.0.4")

The addresses stand for hosts: Spark places tasks by them, and Holdfast's local directories contain the address. A process
belongs to the host whose worker is its ancestor; on Linux, its environment identifies the worker.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.jvm.java import find_java, home_for_scripts

__all__ = ["LocalCluster"]

_MASTER = "127.0.0.1"
_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 15.0
_MARK = "HOLDFAST_TEST_HOST"
_INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "JAVA_HOME", "LD_LIBRARY_PATH")
"""Environment variables that the cluster's processes inherit; no Python path, as on a separate machine."""


class LocalCluster:
    """A master and its workers, as real processes; `stop` ends them.

    Args:
        hosts: The workers' addresses, in 127.0.0.0/8.
        cores: Cores per worker.
        memory: Memory per worker, for its executors.
        executor_memory: Memory that a job requests per executor.
    """

    def __init__(
        self,
        hosts: Sequence[str] = ("127.0.0.2", "127.0.0.3"),
        cores: int = 1,
        memory: str = "1200m",
        executor_memory: str = "512m",
    ) -> None:
        if not sys.platform.startswith("linux"):
            raise ConfigurationError("LocalCluster needs Linux: its hosts are addresses of 127.0.0.0/8 and entries of /proc")
        self.directory = Path(tempfile.mkdtemp(prefix="hfc-"))
        self.cores = cores
        self._memory = memory
        self._executor_memory = executor_memory
        self._first_hosts = tuple(hosts)
        self._id = uuid.uuid4().hex
        self._port = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    # what a job needs to know

    @property
    def url(self) -> str:
        """The value for ``spark.master``."""
        if not self._port:
            raise HoldfastError("the cluster has not been started")
        return f"spark://{_MASTER}:{self._port}"

    @property
    def local_disks(self) -> Path:
        """The value for ``io.tmp.dirs``; `lose_host` removes a host's part of it."""
        return self.directory / "disk"

    @property
    def hosts(self) -> list[str]:
        """The addresses of the running workers."""
        return [host for host, process in self._processes.items() if host != _MASTER and process.poll() is None]

    def settings(self, executors: int | None = None) -> dict[str, str]:
        """The configuration of a job on this cluster, with checkpoints in the cluster's directory.

        Args:
            executors: The number of one-core executors for the job; None: all.
        """
        settings = {
            "spark.master": self.url,
            "spark.driver.host": _MASTER,
            "spark.driver.bindAddress": _MASTER,
            "spark.ui.enabled": "false",
            "spark.executor.cores": "1",
            "spark.executor.memory": self._executor_memory,
            "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "io.tmp.dirs": str(self.local_disks),
            "execution.checkpointing.dir": f"file://{self.directory}/checkpoints",
        }
        if executors is not None:
            settings["spark.cores.max"] = str(executors)
        return settings

    # life

    def start(self) -> LocalCluster:
        """Start the master and the workers; returns when all workers have registered.

        Raises:
            ConfigurationError: Java is missing or wrong, or an address cannot be used.
            HoldfastError: a process ended or did not answer in time; ends with the tail of its log.
        """
        atexit.register(self.stop)
        started = self._launch(_MASTER, "org.apache.spark.deploy.master.Master", [], r"Starting Spark master at \S+:(\d+)")
        self._port = int(started.group(1))
        for host in self._first_hosts:
            self._launch_worker(host)
        for host in self._first_hosts:
            self._await_registration(host)
        return self

    def add_worker(self, host: str) -> None:
        """Start an additional worker, or restart a killed one; returns when it has registered.

        Raises:
            HoldfastError: the host already has a worker, or its worker does not start.
        """
        if host in self.hosts:
            raise HoldfastError(f"the cluster already has a worker at {host}")
        self._launch_worker(host)
        self._await_registration(host)

    def stop(self) -> None:
        """End all processes on the cluster, then the cluster itself, and remove its directory."""
        atexit.unregister(self.stop)
        for host in [*self.hosts, *{host for _, host in self._marked()}]:
            self.kill_worker(host)
        process = self._processes.pop(_MASTER, None)
        if process is not None:
            process.kill()
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> LocalCluster:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    # faults

    def kill_worker(self, host: str) -> None:
        """``kill -9`` for all processes of a host: its worker, executors, Python workers and task slots."""
        worker = self._processes.pop(host, None)
        if worker is not None:
            worker.kill()  # first, because it would replace killed executors
            worker.wait()

        def all_killed() -> bool:
            remaining = [pid for pid, owner in self._marked() if owner == host]
            for pid in remaining:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not remaining

        self._await(all_killed, _STOP_TIMEOUT_S, f"the end of the processes of {host}")

    def lose_host(self, host: str) -> None:
        """Kill a host and delete its local disk."""
        self.kill_worker(host)
        self.wipe_disk(host)
        shutil.rmtree(self.directory / host, ignore_errors=True)

    def wipe_disk(self, host: str) -> None:
        """Delete Holdfast's data on the host's local disk, as if the disk were replaced or cleaned."""
        for path in sorted(self.local_disks.rglob(host)):
            shutil.rmtree(path, ignore_errors=True)

    def kill_executor(self, host: str, *, wipe_disk: bool = False) -> None:
        """``kill -9`` for a host's executors; their Python workers end with them. Spark starts new executors.

        Args:
            host: The worker's address.
            wipe_disk: Whether to delete Holdfast's data on the host's disk, too.

        Raises:
            HoldfastError: the host has no executor.
        """
        executors = self.executors(host)
        if not executors:
            raise HoldfastError(f"no executor runs on {host}")
        for pid in executors:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if wipe_disk:
            self.wipe_disk(host)

    # who runs

    def executors(self, host: str) -> list[int]:
        """The process ids of a host's executors."""
        return self._running(host, "CoarseGrainedExecutorBackend")

    def slots(self, host: str) -> list[int]:
        """The process ids of a host's task slots."""
        return self._running(host, "holdfast.runtime.slots.slot_main")

    def processes(self) -> list[int]:
        """The process ids of all processes on the cluster's hosts."""
        return [pid for pid, _ in self._marked()]

    def _running(self, host: str, what: str) -> list[int]:
        found = []
        for pid, owner in self._marked():
            if owner == host:
                with contextlib.suppress(OSError):
                    if what.encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                        found.append(pid)
        return found

    def _marked(self) -> Iterator[tuple[int, str]]:
        mark = f"\0{_MARK}={self._id}/".encode()
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    environment = b"\0" + Path(f"/proc/{entry}/environ").read_bytes()
                    at = environment.find(mark)
                    if at >= 0:
                        yield int(entry), environment[at + len(mark) :].split(b"\0", 1)[0].decode()

    # starting

    def _launch_worker(self, host: str) -> None:
        arguments = [
            "--cores",
            str(self.cores),
            "--memory",
            self._memory,
            "--work-dir",
            str(self.directory / host),
            self.url,
        ]
        self._launch(host, "org.apache.spark.deploy.worker.Worker", arguments, r"Starting Spark worker")

    def _launch(self, host: str, main: str, arguments: list[str], sign: str) -> re.Match[str]:
        import pyspark

        with socket.socket() as probe:
            try:
                probe.bind((host, 0))
            except OSError as error:
                raise ConfigurationError(f"this machine cannot listen on {host}: {error.strerror}") from error
        home = os.path.dirname(pyspark.__file__)
        environment = {name: os.environ[name] for name in _INHERITED if name in os.environ}
        environment |= {
            "SPARK_HOME": home,
            "SPARK_SCALA_VERSION": _scala_version(home),
            "SPARK_LOCAL_IP": host,
            "SPARK_LOCAL_DIRS": str(self.directory / host / "spark"),
        }
        if host != _MASTER:
            environment[_MARK] = f"{self._id}/{host}"
        java = find_java(own_first=True)  # as for the driver
        environment["JAVA_HOME"] = str(home_for_scripts(java, self.directory / "java"))  # Java for the executors
        jvm = [str(java.executable), "-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        with self._log(host).open("wb") as log:
            self._processes[host] = subprocess.Popen(
                [*jvm, "-cp", f"{home}/jars/*", main, "--host", host, "--port", "0", "--webui-port", "0", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.directory,
                start_new_session=True,
            )
        return self._await_log(host, sign)

    def _await_registration(self, host: str) -> None:
        self._await_log(host, "Successfully registered with master")

    def _log(self, host: str) -> Path:
        return self.directory / f"{host}.log"

    def _await_log(self, host: str, sign: str) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def said() -> bool:
            text = self._log(host).read_text(errors="replace")
            match = re.search(sign, text)
            if match is not None:
                found.append(match)
            elif self._processes[host].poll() is not None:
                raise HoldfastError(f"Spark's process for {host} ended at start:\n{text[-2000:]}")
            return match is not None

        self._await(said, _START_TIMEOUT_S, f"{sign!r} in the log of Spark's process for {host}", self._log(host))
        return found[0]

    @staticmethod
    def _await(condition: Callable[[], bool], seconds: float, what: str, log: Path | None = None) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                tail = f":\n{log.read_text(errors='replace')[-2000:]}" if log else ""
                raise HoldfastError(f"no {what} within {seconds:g} s{tail}")
            time.sleep(0.05)


def _scala_version(home: str) -> str:
    """The Scala version of this Spark; without start scripts, the worker needs it as a setting."""
    for jar in os.listdir(os.path.join(home, "jars")):
        if match := re.fullmatch(r"spark-core_(\d+\.\d+)-.*\.jar", jar):
            return match.group(1)
    raise ConfigurationError(f"{home}/jars holds no spark-core jar; is this Spark complete?")
