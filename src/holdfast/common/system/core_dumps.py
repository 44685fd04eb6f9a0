"""Core dumps: an image of a process's memory, with records and secrets, in a file that outlives it."""

from __future__ import annotations

import os
import resource

__all__ = ["ALLOWED", "forbid_core_dumps"]

ALLOWED = "HOLDFAST_CORE_DUMPS"
"""The environment variable that leaves the machine's limit as it is, if it is 1."""


def forbid_core_dumps() -> None:
    """Let this process and those that it starts leave no core dump, unless the user has allowed them."""
    if os.environ.get(ALLOWED) != "1":
        _, most = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, most))  # a program can raise it again
