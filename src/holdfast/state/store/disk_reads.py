"""Reads of files that are larger than the system's page cache."""

from __future__ import annotations

import os
import resource
import sys

__all__ = ["blocks_read", "read_ahead"]


def blocks_read() -> int:
    """The blocks of 512 bytes that this thread has read from disks; 0 on systems that do not count them."""
    if sys.platform != "linux":
        return 0
    return resource.getrusage(resource.RUSAGE_THREAD).ru_inblock


def read_ahead(descriptor: int, offset: int, size: int) -> None:
    """Ask the system to read a part of a file into its page cache; does not wait."""
    if sys.platform == "linux":
        os.posix_fadvise(descriptor, offset, size, os.POSIX_FADV_WILLNEED)
