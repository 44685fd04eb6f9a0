"""What the operating system's refusals mean to a user, and what to do about them."""

from __future__ import annotations

import errno
import os

__all__ = ["reason"]

_REMEDY = {
    errno.ENOSPC: "free space on the device, then start the job again: it resumes from its last checkpoint",
    errno.EDQUOT: "the user's disk quota is used up; raise it or free space, then start the job again",
    errno.EACCES: "let the user who runs the job read and write the directory, or choose another",
    errno.EPERM: "let the user who runs the job write the directory; the file system must support hard links",
    errno.ENOTSUP: "the file system does not support hard links, which put-if-absent needs; choose another",
    errno.EROFS: "the file system is mounted read-only; choose another directory",
    errno.ENOTDIR: "a file is where a directory should be; choose another directory",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}


def reason(error: OSError) -> str:
    """Why a file cannot be had, with the remedy where one is known.

    >>> reason(OSError(errno.EMFILE, ""))
    'Too many open files; raise the limit of open files (ulimit -n)'
    """
    number = error.errno or 0
    remedy = _REMEDY.get(number)
    return f"{os.strerror(number)}; {remedy}" if remedy else os.strerror(number)
