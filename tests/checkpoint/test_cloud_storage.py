"""Storage on HDFS, Azure and Google Cloud Storage: the contract on real servers where one can be had, and the settings.

- HDFS: a name node and a data node of Apache Hadoop, from its jars, which PySpark's Ivy fetches.
- Azure: Azurite, Microsoft's emulator: the one whose ``main.js`` ``AZURITE`` names, or one that npm installs once.
- Google Cloud Storage: no emulator speaks the XML API that obstore uses. Its requests are those of S3 but for a few headers,
  so that a relay translates them for moto's server, which all tests of S3 use.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest

from azure_fixtures import create_container
from holdfast.checkpoint.ids import CheckpointId, Epoch
from holdfast.checkpoint.stores import bucket
from holdfast.checkpoint.stores.azure_store import azure_settings
from holdfast.checkpoint.stores.gs_store import gs_settings
from holdfast.checkpoint.stores.object_store import FileStore
from holdfast.checkpoint.stores.storage import AlreadyExists, FileStorage, NotFound, RetryPolicy, Storage, storage_options
from holdfast.common.serialization import Encoder
from holdfast.connectors.base import Committable, JobInfo, ReaderContext, WriterContext
from holdfast.datastream.connectors.file_system import FileSink, FileSource, StreamFormat
from holdfast.errors import ConfigurationError, StorageError
from holdfast.runtime.jvm.java import find_java
from holdfast.testing.kafka_distribution import cache_directory, spark_jars, trusted_authorities
from holdfast.testing.ports import ReservedPort
from started_programs import QUICK_JVM

QUICK = RetryPolicy(budget=2.0, first_delay=0.001, longest_delay=0.01)


def hadoop_jars() -> str:
    """The class path of a small HDFS: its jar and JUnit's, fetched once with PySpark's Ivy, beside PySpark's of Hadoop's."""
    (client,) = spark_jars().glob("hadoop-client-api-*.jar")
    version = client.stem.rpartition("-")[2]
    target = cache_directory() / f"hdfs-{version}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            for parts in (
                ["org.apache.hadoop", "hadoop-client-minicluster", version, "-notransitive"],
                ["org.junit.jupiter", "junit-jupiter-api", "5.10.2"],
            ):
                ivy = [str(find_java().executable), *trusted_authorities()]
                ivy += ["-cp", str(spark_jars() / "*"), "org.apache.ivy.Main"]
                ivy += ["-cache", f"{scratch}/ivy", "-confs", "default", "-dependency", *parts]
                ivy += ["-retrieve", f"{scratch}/jars/[artifact]-[revision].[ext]"]
                done = subprocess.run(ivy, capture_output=True, text=True, timeout=300, check=False)
                if done.returncode or "FAILED" in done.stdout or not list(Path(scratch, "jars").glob(f"{parts[1]}*")):
                    pytest.skip(f"{parts[1]} cannot be fetched, and is not in {target}")
            Path(scratch, "jars").rename(target)
    return os.pathsep.join([f"{target}/*", f"{spark_jars()}/*"])


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("hdfs_native", reason="needs pip install 'holdfast[hdfs]'")
    jars = hadoop_jars()
    directory, port, http_port = tmp_path_factory.mktemp("hdfs"), ReservedPort(), ReservedPort()
    details = directory / "details.json"
    manager = ["org.apache.hadoop.test.MiniDFSClusterManager", "-format", "-datanodes", "1"]
    manager += ["-nnport", str(port.number), "-httpport", str(http_port.number), "-writeDetails", str(details)]
    java = [str(find_java().executable), *QUICK_JVM.split(), "-Xmx384m", f"-Dtest.build.data={directory}", "-cp", jars]
    with open(directory / "log", "w") as log:
        cluster = subprocess.Popen([*java, *manager], stdout=log, stderr=log, cwd=directory)
    try:
        deadline = time.monotonic() + 600
        while not details.exists():
            failed = cluster.poll() is not None or time.monotonic() > deadline
            assert not failed, (directory / "log").read_text()[-2000:]
            time.sleep(0.1)
        yield f"hdfs://127.0.0.1:{port.number}"
    finally:
        cluster.kill()
        cluster.wait()
        port.close()
        http_port.close()


@pytest.fixture(params=["hdfs", "azure", "google"])
def settings(request: pytest.FixtureRequest) -> dict[str, str]:
    if request.param == "google":
        return cast(dict[str, str], request.getfixturevalue("google")[1])
    return cast(dict[str, str], request.getfixturevalue("azurite")) if request.param == "azure" else {}


@pytest.fixture
def opened(request: pytest.FixtureRequest, settings: dict[str, str], tmp_path: Path) -> Storage:
    config = settings
    if not config:
        uri = f"{request.getfixturevalue('hdfs')}/{tmp_path.name}"
    elif "gs.storage.root.url" in config:
        uri = f"gs://checkpoints/{tmp_path.name}/some/prefix"
    else:
        container = tmp_path.name.replace("_", "-").lower()
        create_container(config, container)
        uri = f"abfss://{container}@devstoreaccount1.dfs.core.windows.net/some/prefix"
    storage = Storage.open(uri, config)
    assert storage.uri == uri
    return Storage(storage._store, QUICK)


def an_object_is_put_read_in_parts_listed_and_deleted(opened: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket, "PART", 5 << 20)  # the least size of a part
    storage = opened
    assert storage.list("") == []
    storage.put("dir/a", b"one")
    storage.put("dir/a", bytearray(b"0123456789"))
    assert storage.get("dir/a") == b"0123456789"
    assert storage.size("dir/a") == 10
    assert [storage.get_range("dir/a", *part) for part in ((0, 3), (7, 3), (7, 30), (10, 5), (40, 5))] == [
        b"012",
        b"789",
        b"789",
        b"",
        b"",
    ]
    storage.put("dir/empty", b"")
    assert storage.get("dir/empty") == b""
    large = os.urandom(11 << 20)  # three parts
    storage.put("dir/large", memoryview(large))
    assert storage.get("dir/large") == large
    assert storage.get_range("dir/large", 10 << 20, 5) == large[10 << 20 :][:5]
    assert sorted(storage.list("dir/")) == ["dir/a", "dir/empty", "dir/large"]
    assert sorted(storage.list("")) == ["dir/a", "dir/empty", "dir/large"]
    assert storage.list("other/") == []
    storage.delete(["dir/nothing", "dir/a", "dir/large"])
    storage.delete([])
    assert storage.list("dir/") == ["dir/empty"]
    for call in (lambda: storage.get("dir/a"), lambda: storage.get_range("dir/a", 0, 1), lambda: storage.size("dir/a")):
        with pytest.raises(NotFound, match="dir/a"):
            call()


def test_of_two_puts_to_a_free_path_one_succeeds(opened: Storage) -> None:
    storage = opened
    storage.put_new("log/1", b"mine")
    storage.put_new("log/1", b"mine")  # a repeated call of the same writer, whose first answer was lost
    with pytest.raises(AlreadyExists):
        storage.put_new("log/1", b"yours")
    assert storage.get("log/1") == b"mine"
    assert storage.list("log/") == ["log/1"]


@pytest.mark.parametrize("kind", ["azure", "google"])
def a_missing_container_is_not_taken_for_an_empty_storage(kind: str, request: pytest.FixtureRequest) -> None:
    if kind == "azure":
        config = request.getfixturevalue("azurite")
        create_container(config, "there")
        storage = Storage.open("abfss://nowhere@devstoreaccount1.dfs.core.windows.net/x", config)
    else:
        storage = Storage.open("gs://nowhere/x", request.getfixturevalue("google")[1])
    for call in (lambda: storage.get("a"), lambda: storage.put("a", b""), lambda: storage.list("")):
        with pytest.raises(StorageError, match=r"the bucket nowhere.* does not exist; create it"):
            call()


def a_large_file_is_written_listed_and_moved_and_a_repeated_move_finds_it_there(opened: Storage) -> None:
    files = FileStorage(cast(FileStore, opened._store), QUICK)
    content = os.urandom(1 << 20) * 11
    writer = files.create("out/.inprogress/sink/1-a")
    for start in range(0, len(content), 1 << 20):
        writer.write(content[start : start + (1 << 20)])
    writer.close()
    (info,) = files.walk("out")
    assert (info.path, info.size) == ("out/.inprogress/sink/1-a", len(content))
    for _ in range(2):
        files.move("out/.inprogress/sink/1-a", "out/2026/part-0")
    assert [info.path for info in files.walk("out")] == ["out/2026/part-0"]
    assert files.get("out/2026/part-0") == content
    found = files.look_up("out/2026/part-0")
    assert (found.size, found) == (len(content), files.walk("out")[0])
    files.put("out/2026/part-0", b"another")
    assert files.look_up("out/2026/part-0").version != found.version
    assert files.walk("nothing") == []
    for call in (lambda: files.look_up("out/a"), lambda: files.look_up("out/2026"), lambda: files.move("out/a", "out/b")):
        with pytest.raises(NotFound):
            call()


def a_file_sink_and_a_file_source_work_on_a_real_store(settings: dict[str, str], opened: Storage) -> None:
    config = settings
    sink = FileSink.for_row_format(f"{opened.uri}/files", Encoder.simple_string_encoder()).build()
    committables: list[Committable] = []
    for generation in (1, 2):  # the second driver repeats what the first one did
        job = JobInfo("j", "job", generation, "checkpoints", config)
        committer = sink.create_committer(job, "sink")
        committer.recover(committables)
        writer = sink.create_writer(WriterContext(job, "sink", 0, 1))
        writer.begin_epoch(Epoch(generation), "a", CheckpointId(0))
        writer.write([f"line {n} of {generation}" for n in range(1000)], None)
        committables = [Committable("sink", 0, data) for data in writer.prepare_commit()]
        committer.commit(committables)
        writer.begin_epoch(Epoch(generation + 1), "a", CheckpointId(0))
        writer.write(["an epoch that fails"], None)
        writer.prepare_commit()
    sink.create_committer(JobInfo("j", "job", 3, "checkpoints", config), "sink").recover(committables)
    assert not [path for path in opened.list("files/") if "/." in path]
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), f"{opened.uri}/files").build()
    enumerator = source.create_enumerator(job, "source")
    enumerator.start(None)
    reader = source.create_reader(ReaderContext(job, "source", 0, 1))
    read: list[str] = []
    finished = False
    while not finished:
        planned = enumerator.plan(300)
        finished = planned.finished
        read += [value for part in planned.ranges for batch in reader.read(part, 100) for value in batch.values]
    assert sorted(read) == sorted(f"line {n} of {generation}" for n in range(1000) for generation in (1, 2))


# ---- settings -----------------------------------------------------------------------------------------------------------


def the_settings_of_azure_are_those_of_flink() -> None:
    at = "data@account.dfs.core.windows.net"
    by_host = {"fs.azure.account.key.account.dfs.core.windows.net": "a2V5"}
    for config in (by_host, {"fs.azure.account.key.account": "a2V5"}):
        assert azure_settings(at, config) == ("data", {"account_name": "account", "account_key": "a2V5"}, False)
    principal = {
        "fs.azure.account.oauth2.client.id": "id",
        "fs.azure.account.oauth2.client.secret": "secret",
        "fs.azure.account.oauth2.client.endpoint": "https://login.microsoftonline.com/tenant/oauth2/token",
    }
    expected = {"account_name": "account", "client_id": "id", "client_secret": "secret", "tenant_id": "tenant"}
    assert azure_settings(at, principal) == ("data", expected, False)
    assert azure_settings(at, {}) == ("data", {"account_name": "account"}, False)
    local = azure_settings(at, {"fs.azure.endpoint": "http://localhost:1/account/"})
    assert local == ("data", {"account_name": "account", "endpoint": "http://localhost:1/account"}, True)
    del principal["fs.azure.account.oauth2.client.secret"]
    with pytest.raises(ConfigurationError, match=r"client\.secret is missing"):
        azure_settings(at, principal)
    for scheme in ("abfs", "abfss", "wasb", "wasbs"):
        assert Storage.open(f"{scheme}://{at}/x/", by_host).uri == f"abfss://{at}/x"


def the_settings_of_google_are_those_of_flink() -> None:
    assert gs_settings({}) == ({}, False)
    assert gs_settings({"gs.auth.service.account.json.keyfile": "/k"}) == ({"service_account": "/k"}, False)
    emulated, http = gs_settings({"gs.storage.root.url": "http://localhost:4443/"})
    assert http
    assert '"gcs_base_url": "http://localhost:4443", "disable_oauth": true' in emulated["service_account_key"]


def test_only_the_settings_of_storages_are_passed_on() -> None:
    own = {"s3.region": "r", "gs.storage.root.url": "u", "fs.azure.endpoint": "e", "hdfs.dfs.replication": "1"}
    assert storage_options({**own, "parallelism.default": "2", "fs.default-scheme": "x"}) == own


@pytest.mark.parametrize(
    ("uri", "config", "said"),
    [
        ("gs:///x", {}, "names no bucket"),
        ("gs://b", {"gs.storage.root.url": "localhost"}, "gs.storage.root.url is 'localhost'; give a URL"),
        ("abfss://account.dfs.core.windows.net/x", {}, "names no container and account; give abfss://container@account"),
        ("abfss://c@a.dfs.core.windows.net", {"fs.azure.endpoint": "local"}, "fs.azure.endpoint is 'local'; give a URL"),
        ("ftp://host/x", {}, r"cannot be stored under ftp://; use file:///a/directory, s3://.* gs://.* abfss://.* hdfs://"),
    ],
)
def test_what_cannot_be_opened_is_refused_with_the_way_out(uri: str, config: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        Storage.open(uri, config)
