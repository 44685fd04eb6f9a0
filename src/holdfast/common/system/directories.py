"""Makes directories with the rights that are meant for them, whatever the umask."""

from __future__ import annotations

import os

__all__ = ["make_directories"]


def make_directories(path: str, mode: int) -> None:
    """Make a directory and those above it that are missing, each with this mode at most.

    `os.makedirs` gives its mode to the last one only: with a umask of 0, all users could replace those above it.

    Raises:
        FileExistsError: there is a file in its place.
        OSError: it cannot be made.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path.rstrip("/"))
    if parent:
        make_directories(parent, mode)
    try:
        os.mkdir(path, mode)
    except FileExistsError:  # another process has made it
        if not os.path.isdir(path):
            raise
