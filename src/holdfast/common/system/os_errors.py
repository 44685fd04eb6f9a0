"""Explanations and remedies for errors of the operating system."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

__all__ = ["REMEDIES", "reason"]

REMEDIES = {
    errno.ENOSPC: "free space on the device; if the job has failed, start it again: it resumes from its last checkpoint",
    errno.EDQUOT: "the user's disk quota is used up; raise it or free space; if the job has failed, start it again",
    errno.EACCES: "let the user who runs the job read and write the directory, or choose another",
    errno.EPERM: "let the user who runs the job write the directory",
    errno.EROFS: "the file system is mounted read-only; choose another directory",
    errno.ENOTDIR: "a file is where a directory should be; choose another directory",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
"""Remedies by error number; callers may pass their own."""


def reason(error: OSError, remedies: Mapping[int, str] = REMEDIES) -> str:
    """Describe an OSError, with its remedy from ``remedies`` (by error number) if there is one.

    >>> reason(OSError(errno.EMFILE, ""))
    'Too many open files; raise the limit of open files (ulimit -n)'
    """
    number = error.errno or 0
    remedy = remedies.get(number)
    return f"{os.strerror(number)}; {remedy}" if remedy else os.strerror(number)
