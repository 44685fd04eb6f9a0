"""Certificates for servers of tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

__all__ = ["certificate"]


def certificate(directory: Path, name: str = "server") -> Path:
    """A server's certificate for 127.0.0.1, which is its own authority; the key is beside it, for the directory's owner."""
    made = directory / f"{name}.crt"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=tests",
         "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", made.with_suffix(".key"), "-out", made],
        check=True, capture_output=True,
    )  # fmt: skip
    owner = directory.stat()
    os.chown(made.with_suffix(".key"), owner.st_uid, owner.st_gid)
    return made
