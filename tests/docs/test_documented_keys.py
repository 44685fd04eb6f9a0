"""docs/configuration.md lists the settings that the code reads, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from holdfast.common.configuration import DEPRECATED_KEYS
from holdfast.state.store.store import rocksdb_settings

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "holdfast"
_AREAS = "|".join(
    (
        r"execution|heartbeat|high-availability|job\.autoscaler|holdfast\.(?:batch|epoch|frame|log|storage)|io|parallelism|pipeline|python",
        r"rest|restart-strategy|s3|gs|fs\.azure|security\.(?:checkpoints|ssl)|spark|state|traces",
    )
)
_KEY = re.compile(rf"[\"']((?:{_AREAS})\.[a-z0-9.-]+[a-z0-9])[\"']")
_OF_OTHERS = re.compile(r"spark\.(?!master$)|heartbeat\.interval\.ms$")
"""What is handed on to Spark or Kafka as it is; which defaults it gets is no setting of ours."""


def documented() -> list[str]:
    text = (ROOT / "docs" / "configuration.md").read_text()
    return re.findall(r"^\| `([a-z0-9.-]+)` \|", text, re.MULTILINE)


def read_by_the_code() -> set[str]:
    keys = set(rocksdb_settings({}))
    for path in SOURCE.rglob("*.py"):
        if "testing" in path.parts or "demo" in path.parts:
            continue
        text = path.read_text()
        keys |= set(_KEY.findall(text))
        keys |= {f"state.backend.rocksdb.{name}" for name in re.findall(r"\{_PREFIX\}([a-z.-]+)", text)}
        if path.name == "rocksdb_options.py":
            keys |= {f"state.backend.rocksdb.{name}" for name in re.findall(r"_key\(\"([a-z.-]+)\"\)", text)}
    return {key for key in keys if not _OF_OTHERS.match(key)} - set(DEPRECATED_KEYS)


def test_every_setting_that_the_code_reads_is_documented() -> None:
    assert read_by_the_code() - set(documented()) == set()


def test_every_documented_setting_is_read_by_the_code() -> None:
    assert set(documented()) - read_by_the_code() == set()


def test_no_setting_is_documented_twice() -> None:
    keys = documented()
    assert sorted(keys) == sorted(set(keys))


def test_the_old_names_that_are_documented_are_those_that_are_understood() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    listed = set(re.findall(r"`([a-z0-9.-]+)`", text.split("Flink 1.x's names")[1]))
    assert listed == set(DEPRECATED_KEYS)


def test_the_documented_defaults_of_rocksdb_are_the_real_ones() -> None:
    text = (ROOT / "docs" / "configuration.md").read_text()
    shown = dict(re.findall(r"^\| `(state\.backend\.rocksdb\.[a-z0-9.-]+)` \| `([^`]+)` \|", text, re.MULTILINE))
    del shown["state.backend.rocksdb.predefined-options"]
    assert shown == rocksdb_settings({})
