"""What a Spark that Holdfast has not started leaves open to others, or writes without end, is told with the remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.runtime.spark.spark_context import left_open, started_settings, without_bound

SHUT = {
    "spark.master": "spark://host:7077",
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.ui.enabled": "false",
}


def a_shut_spark_leaves_nothing_open(tmp_path: Path) -> None:
    assert left_open(SHUT) == ""
    local = started_settings("local[2]", str(tmp_path))
    assert left_open({**local, "spark.master": "local[2]"}) == ""
    cluster = started_settings("spark://host:7077", str(tmp_path))
    assert left_open({**SHUT, **cluster}) == ""


@pytest.mark.parametrize(
    ("settings", "told", "remedy"),
    [
        ({"spark.authenticate": "false"}, "its ports answer whoever reaches them", "Set spark.authenticate=true"),
        ({"spark.network.crypto.enabled": "false"}, "its traffic can be read", "Set spark.network.crypto.enabled=true"),
        ({"spark.ui.enabled": "true"}, "its web interface shows its settings", "Set spark.ui.enabled=false"),
    ],
)
def test_what_is_open_is_told_with_its_remedy(settings: dict[str, str], told: str, remedy: str) -> None:
    text = left_open({**SHUT, **settings})
    assert text.startswith(told)
    assert text.count(". ") == 1
    assert f". {remedy}" in text
    assert text.endswith(" (docs/security.md)")


def a_web_interface_is_on_by_default_and_may_ask_who_looks() -> None:
    default = {key: value for key, value in SHUT.items() if key != "spark.ui.enabled"}
    assert "its web interface" in left_open(default)
    assert left_open({**default, "spark.acls.enable": "true"}) == ""
    assert left_open({**default, "spark.ui.filters": "org.example.Login"}) == ""


def an_event_log_that_others_can_read_is_told(tmp_path: Path) -> None:
    settings = {**SHUT, "spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{tmp_path}"}
    tmp_path.chmod(0o755)
    assert left_open(settings) == (
        f"other users can read its event log in {tmp_path}. Give {tmp_path} mode 0700 (docs/security.md)"
    )
    assert left_open({**settings, "spark.ui.enabled": "true"}).count("; ") == 1
    tmp_path.chmod(0o700)
    assert left_open(settings) == ""
    assert left_open({**settings, "spark.eventLog.dir": "s3a://bucket/events"}) == ""


def an_event_log_has_no_end_which_is_told_with_the_remedy(tmp_path: Path) -> None:
    text = without_bound({**SHUT, "spark.eventLog.enabled": "true"})
    assert text.startswith("it writes an event log")
    assert "Set spark.eventLog.enabled=false" in text
    assert without_bound(started_settings("local[2]", str(tmp_path))) == ""
