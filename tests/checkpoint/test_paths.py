from __future__ import annotations

from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.paths import (
    HoldName,
    JobPaths,
    StateFileName,
    names_checkpoint,
    new_attempt,
    restored_position,
    safe_name,
)
from holdfast.errors import ConfigurationError


@given(st.text(), st.text())
def test_different_names_have_different_directories(one, other):
    if one != other:
        assert safe_name(one) != safe_name(other)


@given(st.text())
def test_a_directory_has_only_characters_that_every_store_takes(name):
    directory = safe_name(name)
    assert 0 < len(directory) < 100
    assert directory[0] not in "."
    assert all(c.isascii() and (c.isalnum() or c in "_.-") for c in directory)


@given(st.integers(0, 10**9), st.integers(0, 10**15), st.text(), st.integers(0, 9999))
def test_a_state_files_name_tells_what_went_into_it(generation, epoch, uid, subtask):
    paths = JobPaths.of("job")
    attempt = new_attempt()
    path = paths.state_file(generation, epoch, uid, subtask, attempt, "delta")
    expected = StateFileName(generation, epoch, safe_name(uid), subtask, attempt, "delta")
    assert paths.parse_state_file(path) == expected
    assert paths.parse_state_file(paths.part_file(path)) == expected
    assert paths.parse_log_entry(path) is None
    assert JobPaths.of("job 2").parse_state_file(path) is None


def test_a_log_entrys_name_tells_its_position():
    paths = JobPaths.of("job")
    assert paths.log_entry(17) == "job/log/00000000000000000017"
    assert paths.parse_log_entry(paths.log_entry(17)) == 17
    assert paths.parse_log_entry(paths.part_file(paths.log_entry(17))) == 17
    assert paths.parse_log_entry("job/log/readme") is None
    assert paths.parse_state_file("job/state/readme") is None


def the_objects_of_another_job_are_not_this_jobs():
    one, other = JobPaths.of("one"), JobPaths.of("two")
    assert one.parse_log_entry(other.log_entry(17)) is None
    assert one.parse_probe(other.probe(1_700_000_000_000)) is None


def an_unfinished_file_is_known_by_its_name():
    path = JobPaths.of("job").log_entry(17)
    assert JobPaths.is_part(JobPaths.part_file(path))
    assert not JobPaths.is_part(path)


def the_objects_of_a_job_have_these_names():
    """Other releases find them by the same ones."""
    paths = JobPaths.of("a job")
    job = "a-job-" + safe_name("a job")[-8:]
    hold = HoldName(17, 600, "5e1f" * 8)
    names = {
        paths.visible: "visible",
        paths.log_prefix: "log/",
        paths.state_prefix: "state/",
        paths.probe_prefix: "check/",
        paths.hold(hold): "holds/00000000000000000017-600-5e1f5e1f5e1f5e1f5e1f5e1f5e1f5e1f",
        paths.heartbeat("driver-2"): "leader/driver-2",
        paths.standstill("host-1", 77): "slots/host-1-77",
        paths.archive(1_700_000_000_000, "ab12"): "history/001700000000000-ab12",
        paths.state_file(3, 17, "sum", 2, "ab12", "delta"): "state/0000000003-00000000000000000017-sum-00002-ab12.delta",
    }
    assert list(names) == [f"{job}/{name}" for name in names.values()]
    assert paths.parse_hold(paths.hold(hold)) == hold
    assert paths.parse_hold("a-job/holds/readme") is None
    manifest = paths.parse_state_file(paths.manifest(3, 17))
    assert manifest is not None
    assert manifest == StateFileName(3, 17, "metadata", 0, manifest.attempt, "manifest")


@pytest.mark.parametrize(
    ("path", "checkpoint"),
    [("17", True), ("s3://bucket/job/log/017/ ", True), ("s3://bucket/17/savepoint-5e1f07", False), ("/17/x17", False)],
)
def a_path_that_ends_with_a_number_names_a_checkpoint(path: str, checkpoint: bool):
    assert names_checkpoint(path) is checkpoint


def test_a_probes_name_tells_its_age():
    paths = JobPaths.of("job")
    assert paths.parse_probe(paths.probe(1_700_000_000_000)) == 1_700_000_000_000
    assert paths.parse_probe("job/check/readme") is None


@pytest.mark.parametrize(
    "path",
    [
        "/data/job/log/00000000000000000017",
        "file:///data/job/log/00000000000000000017/",
        "/data//job/../job/log/17",
        "17",
        "00000000000000000017",
    ],
)
def a_checkpoint_of_this_job_is_restored_however_its_path_is_written(path: str):
    assert restored_position(path, "file:///data/job/log/") == 17
    assert restored_position(path, "/data/job/log") == 17


def test_an_object_store_has_two_schemes():
    assert restored_position("s3a://bucket/x/job/log/0017", "s3://bucket/x/job/log/") == 17


@pytest.mark.parametrize(
    "path",
    [
        "/data/other/log/00000000000000000017",
        "/elsewhere/job/log/00000000000000000017",
        "s3://data/job/log/00000000000000000017",
        "log/17",
        "/data/job/state/17",
    ],
)
def a_checkpoint_of_another_job_or_storage_is_refused_with_the_remedy(path: str):
    with pytest.raises(ConfigurationError, match=r"another job or another storage.*job/log/0{18}17.*set pipeline\.name"):
        restored_position(path, "file:///data/job/log/")


def a_checkpoint_in_another_bucket_is_refused():
    with pytest.raises(ConfigurationError, match="another job or another storage"):
        restored_position("s3://other/x/job/log/17", "s3://bucket/x/job/log/")


@pytest.mark.parametrize("path", ["/data/job/log", "latest", "/data/job/log/x17"])
def a_path_that_names_no_checkpoint_is_refused(path: str):
    with pytest.raises(ConfigurationError, match=r"must name a checkpoint, as /data/job/log/0{18}17"):
        restored_position(path, "/data/job/log")


parts = st.lists(st.sampled_from(["data", "job", "log", "17", "a b", "%41", ".hidden"]), min_size=1, max_size=4).map(
    "/".join
)
spellings = st.sampled_from(["/{}", "/{}/", "//{}", "/x/../{}", "/./{}", "file:///{}", "file:/{}/"])


@given(parts, parts, spellings, spellings, st.integers(0, 10**9))
def a_path_restores_if_and_only_if_it_lies_in_this_jobs_log(one: str, other: str, spelt: str, ours: str, number: int):
    def spell(form: str, directory: str) -> str:
        return form.format(quote(directory) if form.startswith("file:") else directory)

    log = spell(ours, other)
    path = f"{spell(spelt, one).rstrip('/')}/{number:020d}"
    if one == other:
        assert restored_position(path, log) == number
    else:
        with pytest.raises(ConfigurationError, match="another job or another storage"):
            restored_position(path, log)
