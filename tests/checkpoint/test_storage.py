from __future__ import annotations

import errno
import mmap
import multiprocessing
import os
import re
import socket
import stat
from collections import Counter
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import obstore
import pytest

from holdfast.checkpoint.log_reader import LogReader
from holdfast.checkpoint.paths import JobPaths
from holdfast.checkpoint.stores import bucket, directory_store
from holdfast.checkpoint.stores.directory_store import DirectoryStore
from holdfast.checkpoint.stores.s3_store import S3Store
from holdfast.checkpoint.stores.storage import AlreadyExists, NotFound, RetryPolicy, Storage, Unavailable, open_store
from holdfast.errors import ConfigurationError, StorageError
from holdfast.metrics.requests import Requests
from holdfast.testing.faulty_storage import Fault, FaultyStorage

from .conftest import QUICK, quick


def test_a_get_returns_the_put_object(storage):
    storage.put("dir/a", b"one")
    storage.put("dir/a", bytearray(b"two"))
    storage.put_new("dir/b", memoryview(b"three"))
    assert storage.get("dir/a") == b"two"
    assert storage.get("dir/b") == b"three"
    assert storage.size("dir/b") == 5
    assert storage.exists("dir/a")
    assert not storage.exists("dir/c")
    assert sorted(storage.list("dir/")) == ["dir/a", "dir/b"]


def a_part_of_an_object_is_read_by_itself(storage):
    storage.put("dir/a", b"0123456789")
    assert storage.get_range("dir/a", 0, 3) == b"012"
    assert storage.get_range("dir/a", 7, 3) == b"789"
    assert storage.get_range("dir/a", 7, 30) == b"789"
    assert storage.get_range("dir/a", 10, 5) == b""
    assert storage.get_range("dir/a", 40, 5) == b""


def test_a_missing_object_is_not_found(storage):
    with pytest.raises(NotFound, match="dir/nothing"):
        storage.get("dir/nothing")
    with pytest.raises(NotFound, match="dir/nothing"):
        storage.get_range("dir/nothing", 2, 3)
    assert storage.list("dir/") == []


def test_deleting_a_missing_object_is_no_error(storage):
    storage.put("dir/a", b"1")
    storage.delete(["dir/a", "dir/nothing"])
    storage.delete([])
    assert not storage.exists("dir/a")


def test_an_empty_object_and_a_large_one_are_stored(storage):
    large = os.urandom(1 << 20) * 12
    storage.put_new("empty", b"")
    storage.put("large", large)
    assert storage.get("empty") == b""
    assert storage.get("large") == large


def the_memory_of_a_library_is_stored_whatever_the_format_of_its_items(storage):
    """Arrow says that its buffers consist of signed bytes."""
    buffer = memoryview(bytes(range(200, 256))).cast("b")
    storage.put("put", buffer)
    storage.put_new("log/new", buffer)
    assert storage.get("put") == storage.get("log/new") == bytes(range(200, 256))


def test_the_second_put_new_finds_the_first(storage):
    storage.put_new("log/1", b"first")
    with pytest.raises(AlreadyExists):
        storage.put_new("log/1", b"second")
    assert storage.get("log/1") == b"first"


def test_a_repeated_put_new_of_the_same_content_succeeds(storage):
    storage.put_new("log/1", b"mine")
    storage.put_new("log/1", b"mine")


def _put_all(uri: str, config: dict[str, str], name: str, positions: int, won: multiprocessing.Queue) -> None:
    storage = Storage.open(uri, config)
    mine = []
    for position in range(positions):
        try:
            storage.put_new(f"log/{position}", f"{name} {position}".encode())
            mine.append(position)
        except AlreadyExists:
            pass
    won.put((name, mine))


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_of_several_processes_exactly_one_puts_each_object(kind, tmp_path, s3_config):
    uri = str(tmp_path) if kind == "local" else f"s3://checkpoints/{tmp_path.name}"
    context = multiprocessing.get_context("spawn")
    won = context.Queue()
    positions = 60 if kind == "local" else 20
    processes = [
        context.Process(target=_put_all, args=(uri, s3_config, f"p{i}", positions, won), daemon=True) for i in range(3)
    ]
    for process in processes:
        process.start()
    results = dict(won.get(timeout=600) for _ in processes)
    for process in processes:
        process.join()
    assert sorted(position for mine in results.values() for position in mine) == list(range(positions))
    storage = Storage.open(uri, s3_config)
    for name, mine in results.items():
        for position in mine:
            assert storage.get(f"log/{position}") == f"{name} {position}".encode()


@pytest.mark.parametrize("method", ["put", "put_new", "get", "get_range", "size", "list", "delete"])
def test_a_call_is_repeated_until_the_store_answers(method, faulty, memory):
    memory.objects["a/b"] = b"x"
    storage = quick(faulty)
    for n in (1, 2, 3):
        faulty.on_call(n, method, Fault.UNAVAILABLE)
    call = {
        "put": lambda: storage.put("a/c", b"y"),
        "put_new": lambda: storage.put_new("a/c", b"y"),
        "get": lambda: storage.get("a/b"),
        "get_range": lambda: storage.get_range("a/b", 0, 1),
        "size": lambda: storage.size("a/b"),
        "list": lambda: storage.list("a/"),
        "delete": lambda: storage.delete(["a/b"]),
    }[method]
    call()
    assert len([c for c in faulty.calls if c.split()[0] == method]) == 4


@pytest.mark.parametrize("method", ["put", "put_new", "delete"])
def test_a_call_whose_answer_was_lost_succeeds_once(method, faulty, memory):
    memory.objects["a"] = b"x"
    faulty.on_call(1, method, Fault.LOST_ANSWER)
    faulty.on_call(2, method, Fault.LOST_ANSWER)
    storage = quick(faulty)
    if method == "put":
        storage.put("b", b"y")
    elif method == "put_new":
        storage.put_new("b", b"y")
    else:
        storage.delete(["a"])
    assert memory.objects.get("b", b"y") == b"y"
    assert ("a" in memory.objects) == (method != "delete")


def test_a_lost_answer_is_not_mistaken_for_somebody_elses_put(faulty, memory):
    memory.objects["log/1"] = b"theirs"
    faulty.on_call(1, "put_new", Fault.UNAVAILABLE)
    with pytest.raises(AlreadyExists):
        quick(faulty).put_new("log/1", b"mine")


def test_a_conflict_with_a_put_that_fails_later_is_repeated(memory):
    class Conflicting(FaultyStorage):
        conflicts = 2

        def put_new(self, path, data):
            if self.conflicts:
                self.conflicts -= 1
                raise AlreadyExists("409")
            super().put_new(path, data)

    quick(Conflicting(memory)).put_new("log/1", b"mine")
    assert memory.objects["log/1"] == b"mine"


def test_a_store_that_stays_away_ends_the_call_within_the_budget(memory):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds

    faulty = FaultyStorage(memory, lambda method, path: Fault.UNAVAILABLE)
    storage = Storage(faulty, RetryPolicy(budget=10.0), sleep=sleep, clock=lambda: now[0])
    with pytest.raises(StorageError, match=r"could not get a within 10 s \(\d+ tries\).*503") as raised:
        storage.get("a")
    assert not isinstance(raised.value, Unavailable)
    assert 5.0 < now[0] <= 10.0
    assert 4 < len(faulty.calls) < 20


def test_a_call_that_fails_after_a_long_transfer_is_repeated(memory):
    """A request that hangs, or a large object, takes longer than the budget before it fails."""
    now = [0.0]

    class Slow(FaultyStorage):
        def put(self, path, data):
            now[0] += 300.0
            super().put(path, data)

    faulty = Slow(memory)
    faulty.on_call(1, "put", Fault.UNAVAILABLE)
    Storage(faulty, RetryPolicy(budget=10.0), sleep=lambda seconds: None, clock=lambda: now[0]).put("a", b"large")
    assert memory.objects["a"] == b"large"


def test_a_refusal_is_not_repeated(faulty):
    faulty.on_call(1, "get", Fault.REFUSED)
    with pytest.raises(StorageError, match="refused"):
        quick(faulty).get("a")
    assert faulty.calls == ["get a"]


def test_a_usable_storage_passes_the_check_and_keeps_nothing_of_it(storage, paths):
    storage.check(paths)
    assert storage.list(paths.probe_prefix) == []


def test_a_store_that_ignores_put_if_absent_fails_the_check(memory, paths):
    class Overwriting(FaultyStorage):
        def put_new(self, path, data):
            self.put(path, data)

    with pytest.raises(ConfigurationError, match="put-if-absent"):
        quick(Overwriting(memory)).check(paths)


def test_a_directory_that_cannot_be_made_fails_the_check(tmp_path, paths):
    (tmp_path / "file").write_text("in the way")
    storage = Storage.open(str(tmp_path / "file" / "checkpoints"))
    with pytest.raises(ConfigurationError, match="a file is where a directory should be"):
        storage.check(paths)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_without_permission_fails_the_check(tmp_path, paths):
    tmp_path.chmod(stat.S_IREAD | stat.S_IEXEC)
    with pytest.raises(ConfigurationError, match="let the user who runs the job"):
        Storage.open(str(tmp_path / "checkpoints")).check(paths)


def test_a_missing_bucket_fails_the_check_and_is_no_empty_storage(s3_config, paths):
    storage = Storage.open("s3://nowhere-at-all/x", s3_config)
    with pytest.raises(ConfigurationError, match="bucket nowhere-at-all does not exist; create it"):
        storage.check(paths)
    with pytest.raises(StorageError, match="does not exist") as raised:
        storage.get("log/1")
    assert not isinstance(raised.value, NotFound)


def test_a_missing_endpoint_is_named(s3_config):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    store = S3Store("bucket", "", {**s3_config, "s3.endpoint": f"http://127.0.0.1:{port}"})
    with pytest.raises(StorageError, match=f"127.0.0.1:{port}"):
        Storage(store, RetryPolicy(budget=0.2, first_delay=0.05)).get("a")


@pytest.mark.parametrize(
    ("bucket", "host"),
    [
        ("state", "state.s3.us-east-1.amazonaws.com"),
        ("state--use1-az4--x-s3", "state--use1-az4--x-s3.s3express-use1-az4.us-east-1.amazonaws.com"),
    ],
)
def a_directory_bucket_is_asked_at_its_own_host(bucket, host, monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    store = S3Store(bucket, "", {"s3.access-key": "a", "s3.secret-key": "b", "s3.region": "us-east-1"})
    assert urlsplit(obstore.sign(store._bucket, "GET", "key", timedelta(minutes=1))).hostname == host


@pytest.mark.parametrize(
    ("uri", "config", "message"),
    [
        ("", {}, "empty"),
        ("ftp://name/x", {}, "cannot be stored under ftp://"),
        ("file://tmp/x", {}, "did you mean file:///tmp/x"),
        ("s3:///x", {}, "names no bucket"),
        ("s3:/savepoint-1", {}, "needs the name of a bucket"),
        ("hdfs:", {}, "needs the name of a bucket or host"),
        ("s3://b/x", {"s3.access-key": "a"}, "belong together"),
        ("s3://b/x", {"s3.path.style.access": "maybe"}, "must be true or false"),
        ("s3://b/x", {"s3.endpoint": "ftp://x"}, "s3.endpoint"),
    ],
)
def test_a_uri_or_setting_that_cannot_work_is_refused(uri, config, message):
    with pytest.raises(ConfigurationError, match=message):
        Storage.open(uri, config)


def test_a_file_uri_and_a_plain_path_name_the_same_place(tmp_path):
    Storage.open((tmp_path / "with space").as_uri()).put("a/b", b"x")
    assert Storage.open(str(tmp_path / "with space")).get("a/b") == b"x"
    assert Storage.open(str(tmp_path)).locate("a/b") == f"{tmp_path.as_uri()}/a/b"


def test_credentials_come_from_the_profile_when_nothing_else_names_them(tmp_path, monkeypatch, s3_config):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    credentials = tmp_path / "credentials"
    credentials.write_text("[default]\naws_access_key_id = access\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(credentials))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = S3Store("checkpoints", tmp_path.name, {"s3.endpoint": s3_config["s3.endpoint"]})
    Storage(store, QUICK).put("a", b"x")
    assert Storage(store, QUICK).get("a") == b"x"


def the_requests_are_counted_as_the_server_counts_them(relay, tmp_path):
    handler, config = relay
    served = Counter()
    handler.watch = staticmethod(lambda request, done: None if done else served.update([request.split()[0]]))
    storage = Storage.open(f"s3://checkpoints/{tmp_path.name}", config).with_retries(QUICK)
    storage.requests.drain()
    storage.put("job/a", b"12345")
    storage.put_new("job/b", b"67")
    with pytest.raises(AlreadyExists):
        storage.put_new("job/b", b"89")
    storage.get("job/a")
    storage.get_range("job/a", 1, 2)
    assert not storage.exists("job/c")
    storage.list("job/")
    storage.delete(["job/a", "job/b"])
    assert served == {"PUT": 3, "GET": 4, "HEAD": 1, "POST": 1}, "one GET reads what is there, one lists"
    assert storage.requests.drain() == Requests(put=3, get=3, head=1, list=1, delete=1, bytes_written=9, bytes_read=7)
    handler.faults[:] = ["503", "503", "lost"]
    storage.put("job/d", b"1")
    assert storage.requests.drain() == Requests(put=4, retries=3, throttled=2, bytes_written=4)


def the_requests_of_a_process_are_counted_together(tmp_path):
    first, second = Storage.open(str(tmp_path)), Storage.open(str(tmp_path))
    first.put("job/a", b"1")
    second.get("job/a")
    assert first.requests.drain() == Requests(put=1, get=1, bytes_written=1, bytes_read=1)


@pytest.mark.parametrize("faults", [["503", "503"], ["lost"], ["hang"], ["lost", "503", "lost"]])
def test_put_new_on_s3_survives_503s_time_outs_and_lost_answers(relay, faults, tmp_path):
    handler, config = relay
    storage = Storage(S3Store("checkpoints", tmp_path.name, config, timeout_s=0.5), RetryPolicy(budget=20, first_delay=0.01))
    handler.faults[:] = faults
    storage.put_new("log/1", b"mine")
    assert storage.get("log/1") == b"mine"
    handler.faults[:] = faults
    with pytest.raises(AlreadyExists):
        storage.put_new("log/1", b"another's")


@pytest.mark.parametrize("fault", ["503", "lost", "hang"])
def test_every_call_on_s3_survives_a_fault(relay, fault, tmp_path):
    handler, config = relay
    storage = Storage(S3Store("checkpoints", tmp_path.name, config, timeout_s=0.5), RetryPolicy(budget=20, first_delay=0.01))
    for call in (
        lambda: storage.put("a/b", b"x"),
        lambda: storage.get("a/b"),
        lambda: storage.size("a/b"),
        lambda: storage.list("a/"),
        lambda: storage.delete(["a/b"]),
    ):
        handler.faults.append(fault)
        call()
        assert handler.faults == []
    assert not storage.exists("a/b")


@pytest.mark.parametrize("fault", ["503", "lost", "hang"])
@pytest.mark.parametrize("at", [0, 1, 3, 4])
def test_a_part_of_a_large_object_that_fails_is_sent_again(relay, fault, at, tmp_path, monkeypatch):
    monkeypatch.setattr(bucket, "PART", 64 << 10)
    monkeypatch.setattr("moto.s3.models.S3_UPLOAD_PART_MIN_SIZE", 64 << 10)  # S3 takes none below 5 MB
    handler, config = relay
    data = os.urandom(150 << 10)
    sent = []
    handler.watch = staticmethod(lambda request, done: sent.append(request) if done else None)
    storage = Storage(S3Store("checkpoints", tmp_path.name, config, timeout_s=0.5), RetryPolicy(budget=20, first_delay=0.01))
    handler.faults[:] = [""] * at + [fault]
    storage.put("a/large", data)  # begin, three parts, complete
    assert handler.faults == []
    assert storage.get("a/large") == data
    parts = [request for request in sent if "partNumber" in request]
    assert len(parts) <= 4 or (at == 4 and fault != "503")  # not the whole object


def test_a_full_disk_is_a_clear_failure_and_leaves_nothing(tmp_path, monkeypatch):
    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    store = DirectoryStore(str(tmp_path))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageError, match="No space left on device; free space") as raised:
        Storage(store, QUICK).put("a/b", b"x")
    monkeypatch.undo()
    assert not isinstance(raised.value, Unavailable)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


_MEGABYTE = 1 << 20


@pytest.mark.parametrize("size", [8 * _MEGABYTE - 1, 8 * _MEGABYTE, 9 * _MEGABYTE + 1, 10 * _MEGABYTE])
def a_large_file_is_whole_and_does_not_fill_the_page_cache(on_disk, size):
    data = os.urandom(size)
    store = DirectoryStore(str(on_disk))
    store.put("f", data)
    assert store.get("f") == data
    large = size >= 8 * _MEGABYTE

    def is_cached(name: str) -> bool:
        store.put(name, data)
        with open(on_disk / name, "rb") as file:
            try:
                return os.preadv(file.fileno(), [bytearray(4096)], 0, os.RWF_NOWAIT) == 4096
            except BlockingIOError:
                return False

    # A kernel under pressure may write one of them through its cache all the same.
    assert any(is_cached(name) is not large for name in "ghijk")


@pytest.mark.parametrize("written", [0, 3])
def a_large_file_is_whole_where_the_page_cache_cannot_be_avoided(on_disk, monkeypatch, written):
    write, calls = os.write, iter(range(100))

    def refusing(descriptor: int, data: mmap.mmap) -> int:
        if next(calls) == written:
            raise OSError(errno.EINVAL, "Invalid argument")
        return write(descriptor, data)

    monkeypatch.setattr(directory_store.os, "write", refusing)
    data = os.urandom(9 * _MEGABYTE + 1)
    store = DirectoryStore(str(on_disk))
    store.put("f", data)
    assert store.get("f") == data
    assert next(calls) == written + 2, "the rest is one write"


def test_a_part_file_of_a_killed_process_is_listed_but_never_read(tmp_path):
    storage = Storage.open(str(tmp_path))
    storage.put("state/a", b"x")
    part = Path(tmp_path / "state" / "b.0123456789ab.part")
    part.write_bytes(b"half")
    assert sorted(storage.list("state/")) == ["state/a", "state/b.0123456789ab.part"]
    assert not storage.exists("state/b")


@pytest.mark.parametrize(("method", "finish"), [("put", "replace"), ("put_new", "link")])
@pytest.mark.parametrize("finished", [False, True])
def test_a_put_whose_part_file_another_driver_deletes_is_repeated(tmp_path, monkeypatch, method, finish, finished):
    store = DirectoryStore(str(tmp_path))
    original = getattr(os, finish)

    def interrupted(part: str, target: str) -> None:
        monkeypatch.undo()
        if finished:
            original(part, target)
            Path(part).unlink(missing_ok=True)  # `replace` has moved it
        else:
            Path(part).unlink()
            original(part, target)

    monkeypatch.setattr(os, finish, interrupted)
    getattr(Storage(store, QUICK), method)("log/5", b"x")
    assert store.list("log") == ["log/5"]
    assert store.get("log/5") == b"x"


@pytest.mark.parametrize(
    ("uri", "remedy"),
    [
        ("s3://bucket/x", "set s3.access-key and s3.secret-key"),
        ("gs://bucket/x", "set gs.auth.service.account.json.keyfile or"),
        ("abfss://c@account.dfs.core.windows.net/x", "set fs.azure.account.key.<account>"),
    ],
)
def test_credentials_that_are_nowhere_are_told_with_the_way_out(
    uri: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    obstore = pytest.importorskip("obstore")
    asked = "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 2 ms - status code: 403"

    def without(*_: object, **__: object) -> None:
        raise obstore.exceptions.BaseError(asked)

    storage = Storage(open_store(uri, {}), QUICK)
    monkeypatch.setattr(obstore, "list", without)
    told = f"cannot list .*: no credentials were found: {re.escape(remedy)}.*They must allow .*169.254"
    with pytest.raises(StorageError, match=told):
        storage.list("")
    with pytest.raises(StorageError, match=told):  # it is no empty log
        LogReader(storage, JobPaths.of("job")).read_retained()
