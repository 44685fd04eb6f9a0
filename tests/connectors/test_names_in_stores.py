"""Names of files and directories in object stores: of any spelling, and those that a store cannot have."""

from __future__ import annotations

import http.client
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from connector_harness import Crash, SinkRun, SourceRun, flat

from holdfast.checkpoint.stores.storage import FileStorage, RetryPolicy, Storage
from holdfast.common.serialization import Encoder
from holdfast.common.time import Duration
from holdfast.connectors.file.buckets import BucketAssigner
from holdfast.datastream.connectors.file_system import FileSink, FileSource, StreamFormat
from holdfast.errors import ConfigurationError
from holdfast.testing.memory_store import MemoryStore

NAMES = ["a b", "a%20b", "100%", "a+b", "ü ñ 漢", "e\u0301", "a#b?c&d=e", "~t'(x)!*", "a\\b", "[x]{y}<z>|^`", 'q"u:', "end "]


def lines_of(*paths: str) -> FileSource:
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), *paths).build()


def put(server: str, key: str, data: bytes) -> None:
    """Put an object under any name, which obstore does not."""
    connection = http.client.HTTPConnection(server.removeprefix("http://"))
    connection.request("PUT", f"/checkpoints/{quote(key)}", data)
    assert connection.getresponse().status == 200
    connection.close()


class At(BucketAssigner):
    """One bucket."""

    def __init__(self, name: str) -> None:
        self.name = name

    def bucket(self) -> str:
        return self.name


def sink_to(path: str, bucket: str) -> FileSink:
    return FileSink.for_row_format(path, Encoder.simple_string_encoder()).with_bucket_assigner(At(bucket)).build()


def the_files_of_any_name_are_found_and_read(s3_server: str, s3_config: dict[str, str], tmp_path: Path) -> None:
    for name in NAMES:
        put(s3_server, f"{tmp_path.name}/{name}/{name}", f"{name}.\n".encode())
    found = flat(SourceRun(lines_of(f"s3://checkpoints/{tmp_path.name}"), config=s3_config).start().run())
    assert sorted(found) == sorted(f"{name}." for name in NAMES)
    for name in NAMES:
        path = f"s3://checkpoints/{tmp_path.name}/{name}/{name}"
        assert flat(SourceRun(lines_of(path), config=s3_config).start().run()) == [f"{name}."]


@pytest.mark.parametrize("name", NAMES)
def a_sink_and_a_checkpoint_may_have_directories_of_any_name(name: str, s3_config: dict[str, str], tmp_path: Path) -> None:
    uri = f"s3://checkpoints/{tmp_path.name}/{name}"
    SinkRun(sink_to(uri, name), config=s3_config, parallelism=1).epoch([["x"]])
    storage = Storage.open(f"s3://checkpoints/{tmp_path.name}", s3_config)
    (written,) = storage.list("")
    assert written.startswith(f"{name}/{name}/part-")
    Storage.open(uri, s3_config).put("checkpoint", b"y")
    assert storage.get(f"{name}/checkpoint") == b"y"


@pytest.mark.parametrize("key", ["a//b", "../b", "./b"])
def an_object_whose_name_cannot_be_read_is_told_before_any_input(
    key: str, s3_server: str, s3_config: dict[str, str], tmp_path: Path
) -> None:
    put(s3_server, f"{tmp_path.name}/{key}", b"1\n")
    uri = f"s3://checkpoints/{tmp_path.name}"
    with pytest.raises(ConfigurationError, match=r"cannot be read: cannot list .*give the object another name.*uid 'in'"):
        SourceRun(lines_of(uri), uid="in", config=s3_config).start()
    with pytest.raises(ConfigurationError, match=r"cannot be read: cannot look up .*give the object another name.*uid 'in'"):
        SourceRun(lines_of(f"{uri}/{key}"), uid="in", config=s3_config).start()


@pytest.mark.parametrize("bucket", ["2026-11-30/", "2026//11", "./2026", ".", "a/./b/"])
def a_bucket_names_the_same_directory_as_in_a_file_system(bucket: str, s3_config: dict[str, str], tmp_path: Path) -> None:
    for base, config in ((str(tmp_path), {}), (f"s3://checkpoints/{tmp_path.name}", s3_config)):
        SinkRun(sink_to(base, bucket), config=config, parallelism=1).epoch([["x"]])
    local = {str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("part-*")}
    stored = Storage.open(f"s3://checkpoints/{tmp_path.name}", s3_config).list("")
    assert {str(Path(path).parent) for path in stored} == local


@pytest.mark.parametrize("bucket", ["/x", "a/../../b", "..", "a\nb", "a\0b", "\udcfc"])
def a_bucket_outside_of_the_base_path_is_refused_before_it_is_in_a_checkpoint(bucket: str, tmp_path: Path) -> None:
    run = SinkRun(sink_to(f"{tmp_path}/out", bucket), parallelism=1)
    with pytest.raises(ConfigurationError, match="is no bucket: it must be a path within the base path"):
        run.epoch([["x"]])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


AZURE = "c@a.dfs.core.windows.net"


@pytest.mark.parametrize(
    ("before", "now"), [("s3://b", "s3a://b/"), ("s3a://b", "S3://b"), (f"abfs://{AZURE}", f"abfss://{AZURE}")]
)
def a_uri_that_is_spelled_otherwise_names_the_same_files(before: str, now: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    monkeypatch.setattr(FileStorage, "open", classmethod(lambda cls, uri, config=None: cls(store, RetryPolicy(budget=1.0))))
    rows = [f"{n} {'x' * 100}" for n in range(40)]
    store.objects["in/a"] = b"first\n"

    def watching(root: str, position: Any) -> SourceRun:
        source = FileSource.for_record_stream_format(StreamFormat.text_line_format(), f"{root.rstrip('/')}/in")
        run = SourceRun(source.monitor_continuously(Duration.of_seconds(1)).build())
        run.state = position
        if position is not None:
            run.source.check_position(position)
        return run.start()

    run = watching(before, None)
    assert flat(run.epoch()) == ["first"]
    store.objects["in/b"] = "".join(f"{row}\n" for row in rows).encode()
    read = flat(run.crash().epoch(10))
    assert 0 < len(read) < len(rows)
    spelled = {  # as releases stored it that kept the spelling
        kind: {path.replace("s3://", "s3a://"): at for path, at in files.items()} for kind, files in run.state.items()
    }
    store.objects["in/c"] = b"last\n"
    for position in (run.state, spelled):
        assert sorted(read + flat(watching(now, position).epoch(1000))) == sorted(["last", *rows])


def the_part_files_of_a_failed_epoch_are_deleted_although_the_storage_is_spelled_otherwise(
    s3_config: dict[str, str], tmp_path: Path
) -> None:
    run = SinkRun(sink_to(f"s3://checkpoints/{tmp_path.name}", ""), "s3://checkpoints/jobs", parallelism=1, config=s3_config)
    with pytest.raises(Crash):
        run.epoch([["x"]], "prepared")
    out = Storage.open(f"s3://checkpoints/{tmp_path.name}", s3_config)
    assert len(out.list("")) == 1
    run.storage_uri = "s3a://checkpoints/jobs/"
    run.start()
    assert out.list("") == []
