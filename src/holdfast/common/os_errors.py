"""What the operating system's refusals mean to a user, and what to do about them."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

__all__ = ["REMEDIES", "reason"]

REMEDIES = {
    errno.ENOSPC: "free space on the device, then start the job again: it resumes from its last checkpoint",
    errno.EDQUOT: "the user's disk quota is used up; raise it or free space, then start the job again",
    errno.EACCES: "let the user who runs the job read and write the directory, or choose another",
    errno.EPERM: "let the user who runs the job write the directory",
    errno.EROFS: "the file system is mounted read-only; choose another directory",
    errno.ENOTDIR: "a file is where a directory should be; choose another directory",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
"""What to do, by error number; whoever needs more of a file system adds to it."""


def reason(error: OSError, remedies: Mapping[int, str] = REMEDIES) -> str:
    """Why a file cannot be had, with the remedy where one is known; ``remedies`` by error number.

    >>> reason(OSError(errno.EMFILE, ""))
    'Too many open files; raise the limit of open files (ulimit -n)'
    """
    number = error.errno or 0
    remedy = remedies.get(number)
    return f"{os.strerror(number)}; {remedy}" if remedy else os.strerror(number)
