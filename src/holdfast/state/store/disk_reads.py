"""Reads of files that are larger than the system's page cache."""

from __future__ import annotations

import os
import resource
import sys

__all__ = ["blocks_read", "read_ahead"]


def blocks_read() -> int:
    """The blocks of 512 bytes that this thread has had read from disks; 0 where the system does not tell."""
    if sys.platform != "linux":
        return 0
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def read_ahead(descriptor: int, offset: int, size: int) -> None:
    """Let the system read a part of a file into its page cache; returns before it is there."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
