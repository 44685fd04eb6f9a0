"""The dashboard and the alerts in deploy/monitoring ask for metrics that a job has, and name pages that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from holdfast.metrics.prometheus import JobCollector

from . import programs
from .inprocess import Lab

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = ROOT / "deploy" / "monitoring" / "grafana-dashboard.json"
ALERTS = ROOT / "deploy" / "monitoring" / "alerts.yml"


def expressions(panel: Any) -> list[str]:
    if isinstance(panel, dict):
        return [v for k, v in panel.items() if k == "expr"] + [e for v in panel.values() for e in expressions(v)]
    return [e for v in panel for e in expressions(v)] if isinstance(panel, list) else []


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of a job's metrics, as Prometheus scrapes them."""
    lab = Lab(programs.windows(programs.records(1, 300)), tmp_path_factory.mktemp("job")).run()
    registry = CollectorRegistry()
    assert lab.metrics is not None
    metrics = lab.metrics
    registry.register(JobCollector(lambda: [metrics.snapshot()]))
    return set(re.findall(r"^(flink_\w+)\{", generate_latest(registry).decode(), re.MULTILINE))


@pytest.mark.parametrize("file", [DASHBOARD, ALERTS], ids=lambda path: path.name)
def test_every_metric_that_a_file_asks_for_is_one_of_a_job(file: Path, exposed: set[str]) -> None:
    text = "\n".join(expressions(json.loads(file.read_text()))) if file == DASHBOARD else file.read_text()
    asked = set(re.findall(r"\bflink_\w+", text))
    assert len(asked) >= 6
    assert asked - exposed == set()


def test_every_page_that_an_alert_names_exists() -> None:
    pages = re.findall(r"\((docs/[\w-]+\.md)|; (docs/[\w-]+\.md)", ALERTS.read_text())
    assert pages
    assert [page for pair in pages for page in pair if page and not (ROOT / page).exists()] == []


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool (Debian's package prometheus) is not installed")
def test_promtool_accepts_the_alerts() -> None:
    checked = subprocess.run(["promtool", "check", "rules", ALERTS], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
