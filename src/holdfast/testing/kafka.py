"""A real Kafka broker (KRaft, one JVM) for development and tests; several form a cluster.

`holdfast kafka` runs one on localhost:9092.

In tests, with random free ports on the loopback interface::

    with KafkaBroker() as kafka:
        kafka.create_topic("payments", partitions=4)
        ...
        kafka.kill()       # kill -9
        kafka.start()      # on the same data and port
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO

from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.errors import ConfigurationError, HoldfastError
from holdfast.runtime.jvm.aot_cache import AotCache
from holdfast.runtime.jvm.java import find_java
from holdfast.testing.kafka_distribution import KAFKA_VERSION, kafka_jars
from holdfast.testing.ports import ReservedPort

__all__ = ["KafkaBroker", "KafkaCluster", "run_broker"]

_START_TIMEOUT_S = 300.0
_STOP_TIMEOUT_S = 30.0

_LOG4J = """\
rootLogger.level = INFO
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss.SSS} %-5p %c{1}: %m%n
"""

_SMALL = {
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "log.cleaner.dedupe.buffer.size": "16777216",
    # Retention uses the records' timestamps, and would delete a program's old data while it is in use.
    "log.retention.ms": "-1",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}
"""Settings for a broker that shares a developer's machine with the job under test."""

_features: dict[str, bytes] = {}
"""By version: the records of a new cluster (`bootstrap.checkpoint`), which are the same for all of them."""
_launcher = ThreadPoolExecutor(max_workers=1, thread_name_prefix="kafka-launcher")
"""Starts all brokers. The kernel ends them with the *thread* that started them, so it must live as long as this process."""


def new_id() -> str:
    """An id as Kafka gives them to clusters and directories."""
    return urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


class KafkaBroker:
    """A broker process that is its own controller, or a member of a `KafkaCluster`.

    Args:
        directory: The directory for data and log; None: a temporary one, removed by `close`.
        port: The port for clients; None: a free one.
        properties: Broker settings (``server.properties``) on top of the defaults.
        heap: The JVM's ``-Xmx``.
        node_id: The broker's id.
        host: The address to listen on, also advertised to clients.
        version: The Kafka version to run.
    """

    def __init__(
        self,
        directory: str | Path | None = None,
        *,
        port: int | None = None,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
        node_id: int = 1,
        host: str = "127.0.0.1",
        version: str = KAFKA_VERSION,
    ) -> None:
        self._temporary = directory is None
        self.directory = Path(tempfile.mkdtemp(prefix="holdfast-kafka-") if directory is None else directory)
        self.host = host
        self.node_id = node_id
        self._reserved: list[ReservedPort] = []
        self.port = self._reserve_port() if port is None else port
        self.controller_port = self._reserve_port()
        self.heap = heap
        self.version = version
        self.properties = dict(properties or {})
        self.voters = ""
        self.cluster_id = new_id()
        self.replication = 1
        self.jvm_options: Sequence[str] | None = None
        """Options of the JVM; None: those that use the AOT cache of Kafka's classes, if there is one."""
        self._listeners: dict[str, tuple[int, int]] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._admin: AdminClient | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients, e.g. ``127.0.0.1:45123``."""
        return f"{self.host}:{self.port}"

    @property
    def log_file(self) -> Path:
        """The broker's own log."""
        return self.directory / "broker.log"

    @property
    def running(self) -> bool:
        """Whether the broker's process is running."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise HoldfastError("the Kafka broker is not running")
        return self._process.pid

    def add_listener(self, name: str, advertised_port: int) -> int:
        """Add a listener, from the next start on, that advertises ``advertised_port`` to its clients.

        Returns: the port, for a `holdfast.testing.proxy.KafkaProxy` between the two.
        """
        port = self._reserve_port()
        self._listeners[name] = port, advertised_port
        return port

    def start(self, *, wait: bool = True) -> KafkaBroker:
        """Start the broker, or restart it on its data; returns when it answers.

        Raises:
            ConfigurationError: Java is missing or wrong, Kafka could not be fetched, or the port is taken.
            HoldfastError: the broker ended or did not answer in time; ends with the tail of its log.
        """
        if self.running:
            return self
        java = find_java()
        jars = kafka_jars(java, self.version)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                raise ConfigurationError(
                    f"Kafka cannot listen on {self.bootstrap_servers}: {error.strerror}. Free the port, or choose "
                    f"another one (--port)"
                ) from error
        self.directory.mkdir(parents=True, exist_ok=True)
        config = self._write_config()
        jvm = [
            f"-Xmx{self.heap}", "-Xms128m", "-XX:TieredStopAtLevel=1", "-XX:+ExitOnOutOfMemoryError",
            "-Djava.awt.headless=true", f"-Dlog4j2.configurationFile={self.directory / 'log4j2.properties'}",
            "-cp", os.pathsep.join(jars),
        ]  # fmt: skip
        program = str(java.executable)
        with self.log_file.open("ab") as log:
            if not (self.directory / "data" / "meta.properties").exists():
                self._format([program, *jvm], config, log)
            options = AotCache.of(java, jars, "kafka").to_use() if self.jvm_options is None else self.jvm_options
            setpriv = shutil.which("setpriv")
            die_with_us = [setpriv, "--pdeathsig", "KILL"] if setpriv else []
            command = [*die_with_us, program, *options, *jvm, "kafka.Kafka", str(config)]
            self._process = _launcher.submit(
                subprocess.Popen, command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            ).result()
        atexit.register(self.kill)
        if wait:
            self.wait_ready()
        return self

    def _format(self, jvm: list[str], config: Path, log: IO[bytes]) -> None:
        """Make the broker's data directory: by Kafka's tool, which takes seconds, or as the tool has made another one."""
        data = self.directory / "data"
        if self.version in _features:
            data.mkdir(exist_ok=True)
            (data / "bootstrap.checkpoint").write_bytes(_features[self.version])
            known = {"version": 1, "cluster.id": self.cluster_id, "node.id": self.node_id, "directory.id": new_id()}
            (data / "meta.properties").write_text("".join(f"{key}={value}\n" for key, value in known.items()))
            return
        done = subprocess.run(
            [*jvm, "kafka.tools.StorageTool", "format", f"--cluster-id={self.cluster_id}", "-c", str(config)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False, timeout=_START_TIMEOUT_S,
        )  # fmt: skip
        if done.returncode == 0:
            _features[self.version] = (data / "bootstrap.checkpoint").read_bytes()

    def wait_ready(self) -> None:
        """Wait until the broker answers clients.

        Raises:
            HoldfastError: the broker ended, or did not answer in time; the message ends with the tail of its log.
        """
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                raise HoldfastError(f"the Kafka broker ended at start; the tail of {self.log_file}:\n{self._log_tail()}")
            try:
                if self.node_id in admin.list_topics(timeout=1).brokers:
                    return
            except Exception:  # not up yet, whatever the error
                time.sleep(0.05)
        raise HoldfastError(f"no answer from the Kafka broker; the tail of {self.log_file}:\n{self._log_tail()}")

    def stop(self, timeout: float = _STOP_TIMEOUT_S) -> None:
        """Shut the broker down gracefully (SIGTERM), as an operator would; kill it after ``timeout`` seconds."""
        self._end(signal.SIGTERM, timeout)

    def kill(self) -> None:
        """``kill -9``."""
        self._end(signal.SIGKILL)

    def restart(self) -> KafkaBroker:
        """Stop and start on the same data and ports."""
        self.stop()
        return self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the process (SIGSTOP) within the block: connections stay open, requests get no answer."""
        self.pause()
        try:
            yield
        finally:
            self.resume()

    def pause(self) -> None:
        """SIGSTOP."""
        os.kill(self.pid, signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    def close(self) -> None:
        """Kill the broker, give its ports back, and remove its directory if it is temporary."""
        self.kill()
        for port in self._reserved:
            port.close()
        atexit.unregister(self.kill)
        if self._temporary:
            shutil.rmtree(self.directory, ignore_errors=True)

    def admin(self) -> AdminClient:
        """The admin client, shared by all calls: pending requests would die with the last reference to it."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        return self._admin

    def create_topic(self, name: str, partitions: int = 1, **config: str) -> None:
        """Create a topic and wait until it is usable. In settings, ``_`` stands for ``.``: ``cleanup_policy="compact"``."""
        create_topic(self.admin(), name, partitions, self.replication, config)

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait for its end."""
        admin = self.admin()
        admin.delete_topics([name])[name].result()
        while name in admin.list_topics(timeout=60).topics:
            time.sleep(0.02)

    def __enter__(self) -> KafkaBroker:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _reserve_port(self) -> int:
        self._reserved.append(ReservedPort(self.host))
        return self._reserved[-1].number

    def _end(self, how: signal.Signals, timeout: float = _STOP_TIMEOUT_S) -> None:
        process = self._process
        if process is None:
            return
        if self._paused and process.poll() is None:
            self.resume()
        process.send_signal(how)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._process = None

    def _log_tail(self) -> str:
        return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-25:])

    def _write_config(self) -> Path:
        replicas = str(self.replication)
        listening = [f"PLAINTEXT://{self.host}:{self.port}"]
        advertised = list(listening)
        for name, (port, told) in self._listeners.items():
            listening.append(f"{name}://{self.host}:{port}")
            advertised.append(f"{name}://{self.host}:{told}")
        protocols = ",".join(f"{name}:PLAINTEXT" for name in ("CONTROLLER", "PLAINTEXT", *self._listeners))
        settings = {
            **_SMALL,
            "process.roles": "broker,controller",
            "node.id": str(self.node_id),
            "controller.quorum.voters": self.voters or f"{self.node_id}@127.0.0.1:{self.controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": protocols,
            "listeners": ",".join([*listening, f"CONTROLLER://127.0.0.1:{self.controller_port}"]),
            "advertised.listeners": ",".join(advertised),
            "log.dirs": str(self.directory / "data"),
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": str(max(1, self.replication - 1)),
            "share.coordinator.state.topic.replication.factor": replicas,
            "share.coordinator.state.topic.min.isr": str(max(1, self.replication - 1)),
            "min.insync.replicas": str(max(1, self.replication - 1)),
            **self.properties,
        }
        (self.directory / "log4j2.properties").write_text(_LOG4J)
        path = self.directory / "server.properties"
        path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return path


class KafkaCluster:
    """Several brokers in one cluster, with topics replicated to all of them.

    Args:
        n: The number of brokers.
        properties: Broker settings for all brokers.
        heap: The ``-Xmx`` of each JVM.
    """

    def __init__(self, n: int = 3, *, properties: Mapping[str, str] | None = None, heap: str = "384m") -> None:
        self.brokers = [KafkaBroker(node_id=i + 1, properties=properties, heap=heap) for i in range(n)]
        voters = ",".join(f"{b.node_id}@127.0.0.1:{b.controller_port}" for b in self.brokers)
        for broker in self.brokers:
            broker.voters = voters
            broker.replication = n
            broker.cluster_id = self.brokers[0].cluster_id
        self._admin: AdminClient | None = None

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, for clients."""
        return ",".join(b.bootstrap_servers for b in self.brokers)

    def start(self) -> KafkaCluster:
        """Start every broker that is not running; returns when all brokers answer."""
        for broker in self.brokers:
            broker.start(wait=False)
        for broker in self.brokers:
            broker.wait_ready()
        return self

    def close(self) -> None:
        """Kill all brokers and remove their data."""
        for broker in self.brokers:
            broker.close()

    def admin(self) -> AdminClient:
        """The admin client, shared by all calls: pending requests would die with the last reference to it."""
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        return self._admin

    def create_topic(self, name: str, partitions: int = 1, *, replication: int | None = None, **config: str) -> None:
        """Create a topic, replicated to all brokers by default. In settings, ``_`` stands for ``.``."""
        create_topic(self.admin(), name, partitions, replication or len(self.brokers), config)

    def leader(self, topic: str, partition: int = 0) -> KafkaBroker:
        """The broker that leads the partition.

        Raises:
            HoldfastError: the partition has no leader now.
        """
        found = next((broker for broker in self.brokers if self.leads(broker, topic, partition)), None)
        if found is None:
            raise HoldfastError(f"topic {topic}, partition {partition} has no leader")
        return found

    def leads(self, broker: KafkaBroker, topic: str, partition: int = 0) -> bool:
        """Whether the broker leads the partition."""
        found: int = self.admin().list_topics(topic, timeout=60).topics[topic].partitions[partition].leader
        return broker.node_id == found

    def __enter__(self) -> KafkaCluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def create_topic(admin: AdminClient, name: str, partitions: int, replication: int, config: Mapping[str, str]) -> None:
    """Create a topic and wait until every partition has a leader."""
    settings = {key.replace("_", "."): value for key, value in config.items()}
    admin.create_topics([NewTopic(name, partitions, replication, config=settings)])[name].result()
    while True:
        topic = admin.list_topics(timeout=60).topics.get(name)
        if topic and len(topic.partitions) == partitions and all(p.leader >= 0 for p in topic.partitions.values()):
            return
        time.sleep(0.02)


def run_broker(
    directory: str | Path | None, host: str, port: int, topics: Iterable[str], ready: Callable[[str, str, Path], None]
) -> None:
    """Run one broker in the foreground until Ctrl-C or SIGTERM, which raise KeyboardInterrupt once it has stopped.

    Args:
        directory: Keep the data here; None: a temporary directory, removed at the end.
        host: The address to listen on.
        port: The port for clients.
        topics: Topics to create, as ``name`` or ``name:partitions``.
        ready: Called with the address, the version and the log file when the broker is up.

    Raises:
        HoldfastError: the broker does not start, or ended by itself.
    """
    wanted = [(name, _partitions(spec, number)) for spec in topics for name, _, number in [spec.partition(":")]]
    broker = KafkaBroker(directory, host=host, port=port, properties={"auto.create.topics.enable": "true"})
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        broker.start()
        existing = broker.admin().list_topics(timeout=60).topics
        for name, partitions in wanted:
            if name not in existing:
                broker.create_topic(name, partitions)
        ready(broker.bootstrap_servers, broker.version, broker.log_file)
        assert broker._process is not None
        while broker._process.poll() is None:
            time.sleep(0.2)  # short, because another thread may get the signal, which does not end a wait
        raise HoldfastError(f"The broker ended:\n{broker._log_tail()}")
    except KeyboardInterrupt:
        broker.stop()
        raise
    finally:
        broker.close()


def _partitions(spec: str, number: str) -> int:
    if not number:
        return 1
    if not number.isdigit() or int(number) == 0:
        raise ConfigurationError(f"topic {spec!r}: write NAME or NAME:PARTITIONS, e.g. payments:4")
    return int(number)
