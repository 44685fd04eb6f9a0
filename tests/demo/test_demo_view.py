from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from holdfast.demo.outputs import tail_files
from holdfast.demo.view import Figures, PlainView, view_for

ALERT = {
    "ts_ms": 43_200_000,
    "customer": "c0000042",
    "payment": "p1",
    "rule": "rate-limit-trip",
    "detail": "7 payments within 1 s",
    "planted": True,
}


def figures() -> Figures:
    shown = Figures(url="http://localhost:8081/jobs/x/metrics", status="RUNNING", planted=20, caught=19)
    shown.metrics = {
        "numRecordsInPerSecond": 198_432.4,
        "numRecordsIn": 1e6,
        "epochDuration": 812.3,
        "checkpointDuration": 1820,
        "stateSizeBytes": 412_309_504,
        "lastCheckpointSize": 28_114_432,
        "currentInputWatermark": 43_200_000,
        "lastCompletedCheckpointId": 17,
    }
    shown.by_rule = {"rate-limit-trip": 15, "impossible-travel": 5}
    shown.false_alerts = 1
    return shown


def test_precision_and_recall_are_unknown_before_there_is_something_to_judge() -> None:
    assert (Figures().precision, Figures().recall) == (None, None)
    assert (figures().precision, figures().recall) == (0.95, 0.95)


def the_latest_minute_of_totals_is_kept() -> None:
    shown = Figures()
    line: dict[str, Any] = {"minute_ms": 60_000, "merchant": "a", "payments": 2, "sum": 5.5}
    shown.take_totals([line, {**line, "merchant": "b"}])
    shown.take_totals([{**line, "minute_ms": 120_000, "payments": 7}, {**line, "merchant": "late"}])
    assert shown.totals == {"a": (7, 5.5)}
    assert shown.total_lines == 4


def the_plain_view_prints_lines() -> None:
    out = io.StringIO()
    shown = figures()
    with view_for(out) as view:
        assert isinstance(view, PlainView)
        view.show(shown, shown.take_alerts([ALERT]))
    first, second = out.getvalue().splitlines()
    assert first == "ALERT 12:00:00 c0000042 rate-limit-trip: 7 payments within 1 s"
    for part in ("events/s 198,432", "checkpoint 17 in 1,820 ms", "state 412.3 MB (+28.11 MB)", "watermark 12:00:00"):
        assert part in second
    assert "precision 95.0%  recall 95.0% of 20 planted" in second


def the_screen_shows_the_same() -> None:
    shown = figures()
    shown.take_alerts([ALERT])
    shown.take_totals([{"minute_ms": 60_000, "merchant": "m00007", "payments": 2, "sum": 5.5}])
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(shown.screen())
    text = console.export_text()
    for part in ("198,432", "412.3 MB", "95.0% of 20 planted", "c0000042", "m00007", "5.50", "rate-limit-trip 15"):
        assert part in text


def the_screen_of_a_job_that_only_starts_has_no_figures_yet() -> None:
    console = Console(width=140, record=True, file=io.StringIO())
    console.print(Figures().screen())
    assert "the first minute is not over yet" in console.export_text()


def the_tail_gives_each_finished_file_once_and_no_hidden_one(tmp_path: Path) -> None:
    hour = tmp_path / "2025-01-01--10"
    hour.mkdir()
    (hour / "part-0-1").write_text('{"old": 1}\n')
    tail = tail_files(tmp_path)
    assert tail() == []
    (hour / "part-0-2").write_text('{"a": 1}\n{"a": 2}\n')
    (hour / ".part-0-3.inprogress.x").write_text('{"a": 3}')
    (tmp_path / "2025-01-01--11").mkdir()
    assert tail() == [{"a": 1}, {"a": 2}]
    (tmp_path / "2025-01-01--11" / "part-1-4").write_text('{"a": 4}\n')
    assert tail() == [{"a": 4}]
    assert tail() == []


def the_tail_of_a_directory_that_does_not_exist_yet_is_empty(tmp_path: Path) -> None:
    assert tail_files(tmp_path / "later")() == []
