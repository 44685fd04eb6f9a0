"""An error of a file that no attempt cures ends the job and names the file; any other one is tried again.

By the numbers of the system's errors, and with real ones.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from connector_harness import Crash, SinkRun, SourceRun, attempts
from hypothesis import given, settings
from hypothesis import strategies as st

from effort import examples
from holdfast.checkpoint.stores.object_store import NotFound, Unavailable
from holdfast.common import Duration, Encoder, Types
from holdfast.connectors.file.refusals import failure
from holdfast.datastream.connectors.file_system import BucketAssigner, FileSink, FileSource, JsonLinesEncoder, StreamFormat
from holdfast.datastream.formats.parquet import ParquetBulkWriters
from holdfast.errors import ConfigurationError, HoldfastError, InputLost, StorageError, UserCodeError

LASTING = """
    EACCES EPERM EROFS EEXIST EISDIR ENOTDIR ENAMETOOLONG ELOOP EINVAL EILSEQ ENXIO ENODEV EXDEV EFBIG EOVERFLOW EMLINK
    ENOSYS EOPNOTSUPP
"""


@pytest.mark.parametrize("name", errno.errorcode.values())
def an_error_of_the_system_ends_the_job_if_it_lasts(name: str) -> None:
    error = failure("/data/a: cannot be read", OSError(getattr(errno, name), "x"))
    assert "/data/a" in str(error)
    assert attempts(error) == (1 if name in LASTING.replace("EOPNOTSUPP", "ENOTSUP EOPNOTSUPP").split() else 20)


def a_refusal_of_a_store_ends_the_job_and_its_silence_does_not() -> None:
    silent = StorageError("no answer for a minute")
    silent.__cause__ = Unavailable("503")
    for error, ends in ((StorageError("403"), True), (silent, False), (NotFound("the upload is gone"), False)):
        assert attempts(failure("s3://data/a: cannot be read", error)) == (1 if ends else 20)


def a_name_node_in_safe_mode_and_a_quota_are_no_reason_to_end_the_job() -> None:
    pytest.importorskip("hdfs_native", reason="needs pip install 'holdfast[hdfs]'")
    from holdfast.checkpoint.stores.hdfs_store import HDFSStore

    store = HDFSStore("localhost:1", "data", {})
    for text, ends in (("SafeModeException", False), ("QuotaExceeded", False), ("AccessControlException", True)):
        with pytest.raises(StorageError, match=text) as raised, store._errors("get", "a"):
            raise RuntimeError(text)
        assert isinstance(raised.value, Unavailable) is not ends


# ---- reading ----


def _removed(path: Path) -> None:
    path.unlink()


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _above_a_file(path: Path) -> None:
    shutil.rmtree(path.parent)
    path.parent.write_text("no directory")


def _empty(path: Path) -> None:
    path.write_bytes(b"")


READ = {each.__name__: each for each in (_removed, _directory, _circle, _above_a_file, _empty)}


def lines(path: Path) -> FileSource:
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(path)).build()


def _parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"n": list(range(100))}), path, row_group_size=10)


FORMS: dict[str, tuple[Callable[[Path], Any], Any]] = {
    "lines": (lambda path: path.write_text("line\n" * 100), StreamFormat.text_line_format),
    "parquet": (_parquet, StreamFormat.parquet),
}


@pytest.mark.parametrize("name", READ)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("begun", [False, True])
def a_file_that_can_be_read_no_more_ends_the_job_and_is_named(form: str, name: str, begun: bool, tmp_path: Path) -> None:
    path = tmp_path / "input" / "file"
    path.parent.mkdir()
    write, make = FORMS[form]
    write(path)
    run = SourceRun(FileSource(make(), [str(path)]), uid="in").start()
    if begun:
        run.epoch(10)
    READ[name](path)
    if not begun and form == "lines" and name == "_empty":
        assert run.run() == {}
        return
    with pytest.raises(HoldfastError, match=f"{path}.*uid 'in'|{path}: is not a Parquet") as raised:
        run.run()
    assert isinstance(raised.value, ConfigurationError | InputLost | UserCodeError)
    assert attempts(raised.value) <= 2


@pytest.mark.parametrize("name", READ)
def a_file_that_can_be_read_no_more_is_named_by_the_task_that_reads_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "input" / "file"
    path.parent.mkdir()
    path.write_text("line\n" * 100)
    run = SourceRun(lines(path), uid="in").start()
    (part,) = run.enumerator.plan(10).ranges
    READ[name](path)
    with pytest.raises(HoldfastError, match=rf"{path}.*uid 'in'") as raised:
        run.read(part)
    assert attempts(raised.value) == 1


def a_name_that_is_none_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "file").write_text("1\n")
    for name in ("x" * 300, "pipe", "circle", "file/x"):
        with pytest.raises(ConfigurationError, match=rf"{tmp_path / name}.*uid 'in'"):
            SourceRun(lines(tmp_path / name), uid="in").start()


@pytest.mark.parametrize("watched", [True, False])
def a_file_whose_name_is_not_in_utf_8_is_refused_by_name(watched: bool, tmp_path: Path) -> None:
    (tmp_path / "umlaut-\udcfc.csv").write_text("1\n")  # as a system with Latin-1 writes it
    interval = Duration.of_millis(1) if watched else None
    source = FileSource(StreamFormat.text_line_format(), str(tmp_path), discovery_interval=interval)
    with pytest.raises(ConfigurationError, match=rf"{tmp_path}/umlaut-\\udcfc.csv: .* rename it .*uid 'in'"):
        SourceRun(source, uid="in").start()


@contextmanager
def limit(kind: int, size: int) -> Iterator[None]:
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


@pytest.mark.parametrize("form", FORMS)
def the_lack_of_open_files_is_no_reason_to_end_the_job(form: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write, make = FORMS[form]
    write(path)
    run = SourceRun(FileSource(make(), [str(path)]), uid="in").start()
    values = run.epoch(10)
    with limit(resource.RLIMIT_NOFILE, 3), pytest.raises(StorageError) as raised:
        run.epoch(10)
    assert f"{path}: cannot be read: Too many open files" in str(raised.value)
    assert "uid 'in'" in str(raised.value)
    assert attempts(raised.value) == 20
    run.crash()
    assert len(values[str(path)]) + len(run.run()[str(path)]) == 100


# ---- writing ----

SINKS: dict[str, Callable[[str], Any]] = {
    "lines": lambda base: FileSink.for_row_format(base, Encoder.simple_string_encoder()),
    "parquet": lambda base: FileSink.for_bulk_format(
        base, ParquetBulkWriters.for_row_type(Types.ROW_NAMED(["n"], [Types.LONG()]))
    ),
}


def sink(form: str, base: Path) -> SinkRun:
    assigner = BucketAssigner.base_path_bucket_assigner()
    return SinkRun(SINKS[form](str(base)).with_bucket_assigner(assigner).build(), parallelism=1, uid="out")


def rows(form: str, count: int) -> list[Any]:
    return [f"line {n}" if form == "lines" else {"n": n * 7919 % 2**40} for n in range(count)]


@pytest.mark.parametrize("form", SINKS)
def a_directory_that_is_a_file_ends_the_job(form: str, tmp_path: Path) -> None:
    run = sink(form, tmp_path / "out")
    run.epoch([rows(form, 3)])
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").write_text("no directory")
    with pytest.raises(ConfigurationError, match=rf"FileSink \(uid 'out'\): cannot write {tmp_path}/out.*exists") as raised:
        run.epoch([rows(form, 3)])
    assert attempts(raised.value) == 1


@pytest.mark.parametrize("form", SINKS)
def a_file_larger_than_the_limit_ends_the_job(form: str, tmp_path: Path) -> None:
    run = sink(form, tmp_path / "out")
    with limit(resource.RLIMIT_FSIZE, 1 << 10), pytest.raises(ConfigurationError) as raised:
        run.epoch([rows(form, 2000)])
    assert f"FileSink (uid 'out'): cannot finish {tmp_path}/out" in str(raised.value)
    assert "ulimit -f" in str(raised.value)
    run.start()
    run.epoch([rows(form, 3)])


@pytest.mark.parametrize("form", SINKS)
def a_sink_without_another_open_file_is_tried_again(form: str, tmp_path: Path) -> None:
    run = sink(form, tmp_path / "out")
    run.epoch([rows(form, 3)])
    with limit(resource.RLIMIT_NOFILE, 3), pytest.raises(StorageError, match=r"uid 'out'.*Too many open files") as raised:
        run.epoch([rows(form, 3)])
    assert attempts(raised.value) == 20


def a_prepared_file_whose_directory_is_a_file_ends_the_job(tmp_path: Path) -> None:
    run = sink("lines", tmp_path / "out")
    with pytest.raises(Crash):
        run.epoch([["a"]], crash_at="complete")
    shutil.rmtree(tmp_path / "out")
    (tmp_path / "out").write_text("no directory")
    with pytest.raises(ConfigurationError, match=r"FileSink \(uid 'out'\): cannot finish .*Not a directory"):
        run.committer.commit(run.committables)


# ---- content ----

FIELDS = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])
TEXTS: dict[str, tuple[bytes, Callable[[], Any]]] = {
    "lines": ("line ä\n".encode() * 50, StreamFormat.text_line_format),
    "json": ('{"n": 17, "text": "ä"}\n'.encode() * 50, StreamFormat.json_lines),
    "csv": ("17,ä\n".encode() * 50, StreamFormat.csv),
}


@pytest.mark.parametrize("name", TEXTS)
def a_damaged_text_is_named_with_its_line_or_read(name: str, tmp_path: Path) -> None:
    """A flipped bit may give another text."""
    whole, form = TEXTS[name]
    path = tmp_path / "damaged"

    @given(st.integers(0, len(whole) - 1), st.integers(0, 7), st.booleans())
    @settings(max_examples=examples(30), deadline=None)
    def check(at: int, bit: int, cut: bool) -> None:
        damaged = bytearray(whole)
        damaged[at] ^= 1 << bit
        path.write_bytes(whole[:at] if cut else damaged)
        try:
            SourceRun(FileSource(form(), [str(path)])).start().run()
        except UserCodeError as error:
            line = whole.count(b"\n", 0, at) + 1
            assert error.record in {f"{path}, line {line}", f"{path}, line {line + 1}"}  # noqa: PT017
            assert attempts(error) == 2  # noqa: PT017

    check()


BULK = {"avro": StreamFormat.avro, "parquet": StreamFormat.parquet, "arrow": StreamFormat.arrow}


@pytest.mark.parametrize("form", BULK)
@pytest.mark.parametrize("content", [b"", b"17,x\n" * 100, b"PAR1", b"Obj\x01", b"ARROW1\0\0", b"\0" * 1000])
def a_file_of_another_format_ends_the_job_and_is_named(form: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(UserCodeError, match=f"{path}: .*cannot? be read|{path}: is not") as raised:
        SourceRun(FileSource(BULK[form](), [str(path)])).start().run()
    assert raised.value.record == str(path)
    assert attempts(raised.value) == 2


def a_record_that_has_no_form_in_json_is_no_error_of_the_file(tmp_path: Path) -> None:
    made = FileSink.for_row_format(str(tmp_path), JsonLinesEncoder())
    run = SinkRun(made.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build(), parallelism=1)
    with pytest.raises(TypeError, match="object"):
        run.epoch([[object()]])
