"""Archive: a job's pages as its driver last stored them, for a dashboard when the driver is gone.

An archive has the answers of the REST API, by their path below ``/jobs/<id>``: whatever release reads it shows what the
release that wrote it showed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
import orjson

from holdfast.checkpoint.container import pack, unpack
from holdfast.checkpoint.parsing import parsing
from holdfast.metrics.job import TERMINAL, JobSnapshot
from holdfast.rest import shapes
from holdfast.rest.view import job_view

__all__ = ["LOST", "Archive", "archived"]

LOST = "DIED"
"""The state of a job whose driver ended without a word."""
_LONGEST_TEXT = 20_000
"""Characters of a failure's text that are kept."""


class Archive(msgspec.Struct, frozen=True):
    """What is kept of one run of a job."""

    job_id: str
    written_ms: int
    """When it was stored, by the driver's clock."""
    overview: dict[str, Any]
    """Its entry in ``/jobs/overview``."""
    pages: dict[str, Any]
    """By path below ``/jobs/<id>``; empty for the job itself."""
    metrics: dict[str, float]

    @property
    def ended(self) -> bool:
        """Whether the job had ended in its driver."""
        return self.overview["state"] in TERMINAL

    def lost(self) -> Archive:
        """The archive of a driver that died after it had stored this."""
        end = {"state": LOST, "end-time": self.written_ms}
        pages = self.pages | {
            "": self.pages[""] | end,
            "view": self.pages["view"] | {"state": LOST, "ended": self.written_ms},
        }
        return msgspec.structs.replace(self, overview=self.overview | end, pages=pages)

    def encode(self) -> bytes:
        """The stored form: a contained file."""
        return pack(orjson.dumps(msgspec.structs.asdict(self), default=str))

    @staticmethod
    def decode(data: bytes, where: str) -> Archive:
        """Read the stored form.

        Raises:
            CorruptFile: it is not an archive.
        """
        content = unpack(data, where)
        with parsing(where, "the archive of a job"):
            return msgspec.json.decode(content, type=Archive)


def archived(job: JobSnapshot, config: Mapping[str, str]) -> Archive:
    """Archive a job. Its size is bounded, since that of a snapshot is; secrets are hidden.

    Args:
        job: A snapshot of the job.
        config: Its settings.
    """
    failures = tuple(
        f if len(f.text) <= _LONGEST_TEXT else type(f)(f.timestamp_ms, f"{f.text[:_LONGEST_TEXT]} ...", f.task_name)
        for f in job.failures
    )
    job = replace(job, failures=failures)
    return Archive(
        job_id=job.job_id,
        written_ms=job.now_ms,
        overview=shapes.job_overview(job),
        pages={
            "": shapes.job_details(job),
            "view": job_view(job),
            "checkpoints": shapes.checkpoints(job),
            "exceptions": shapes.exceptions(job),
            "plan": shapes.plan(job),
            "config": shapes.config(job, config),
        },
        metrics={**job.user_values, **job.values},
    )
