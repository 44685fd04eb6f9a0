"""Widgets that update while a job runs."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from holdfast.common.job_client import JobClient
from holdfast.connectors.collect import Mailbox
from holdfast.metrics.job import TERMINAL, JobMetrics
from holdfast.notebook.html import job_html, table_html

__all__ = ["show_job", "show_table"]

_INTERVAL_S = 1.0


def show_job(client: JobClient, metrics: JobMetrics) -> None:
    """Show a job, with a button that cancels it, until it has ended."""
    from IPython.display import display

    widgets = _widgets()
    page = widgets.HTML(job_html(metrics.snapshot()))
    cancel = widgets.Button(description="Cancel", tooltip="Stop the job after its current epoch")
    cancel.on_click(lambda _: client.cancel())
    box = widgets.VBox([page, cancel])
    display(box)

    def update() -> bool:
        job = metrics.snapshot()
        page.value = job_html(job)
        if job.status in TERMINAL:
            box.children = [page]
        return job.status not in TERMINAL

    _keep(update)


def show_table(mailbox: Mailbox, ended: Callable[[], bool] | None = None) -> None:
    """Show the latest records of a mailbox until ``ended``; without it, as long as the mailbox lives."""
    from IPython.display import display

    page = _widgets().HTML()
    of, shown = weakref.ref(mailbox), -1

    def update() -> bool:
        nonlocal shown
        last = ended is not None and ended()  # before the records are read: there are no others
        current = of()
        if current is None:
            return False
        elements, total = current.latest()
        if total != shown or last:
            shown = total
            page.value = table_html(elements, total, last)
        return not last

    going_on = update()
    display(page)
    if going_on:
        _keep(update)


def _widgets() -> Any:
    try:
        import ipywidgets
    except ImportError:
        raise ImportError("jobs and tables in notebooks need ipywidgets: pip install 'holdfast[notebook]'") from None
    return ipywidgets


def _keep(update: Callable[[], bool]) -> None:
    """Call ``update`` every second in the background until it returns False."""

    def run() -> None:
        going_on = True
        while going_on:
            time.sleep(_INTERVAL_S)
            going_on = update()

    threading.Thread(target=run, name="holdfast-notebook", daemon=True).start()
