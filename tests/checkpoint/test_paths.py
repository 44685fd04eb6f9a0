from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.checkpoint.paths import JobPaths, StateFileName, new_attempt, safe_name


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


def test_a_probes_name_tells_its_age():
    paths = JobPaths.of("job")
    assert paths.parse_probe(paths.probe(1_700_000_000_000)) == 1_700_000_000_000
    assert paths.parse_probe("job/check/readme") is None
