"""Whether another user could have planted something in a local directory: who owns it, and all on the way to it."""

from __future__ import annotations

import os
import stat

__all__ = ["planted_by"]

_LINKS = 40
"""Maximum number of links on the way to a directory, as in Linux."""


def planted_by(directory: str) -> str:
    """Why others may have created a directory, or can replace it or write to it; empty if they cannot.

    Every directory and link on the way must belong to this user or to root. Directories that do not exist yet will belong to
    this user.

    Args:
        directory: An absolute path.
    """
    trusted = (os.geteuid(), 0)
    waiting = [part for part in reversed(directory.split("/")) if part]
    at, links, shared = "/", 0, False
    while waiting:
        part = waiting.pop()
        if part == "..":
            at = os.path.dirname(at)
            continue
        path = os.path.join(at, part)
        try:
            found = os.lstat(path)
        except OSError:
            return ""  # it will be created, or cannot be used
        if found.st_uid not in trusted:
            return f"{path} belongs to user {found.st_uid}, and the job runs as user {os.geteuid()}"
        last = path == directory
        if stat.S_ISLNK(found.st_mode):
            links += 1
            if links > _LINKS:
                return ""  # it cannot be used
            if last and shared:
                return f"{path} is a link, in a directory that all users can write to"
            target = os.readlink(path)
            waiting += [each for each in reversed(target.split("/")) if each not in ("", ".")]
            at = "/" if target.startswith("/") else at
            continue
        if not waiting and found.st_mode & stat.S_IWOTH:
            return f"{path} has mode {stat.S_IMODE(found.st_mode):04o}, so all users can write to it"
        shared = bool(found.st_mode & stat.S_IWOTH)
        at = path
    return ""
