"""Flink's REST API over the jobs of this driver."""

from __future__ import annotations

from holdfast.rest.app import JobView
from holdfast.rest.server import RestServer

__all__ = ["JobView", "RestServer"]
