"""The output of Spark's Structured Streaming: its log says which files of a directory belong to it.

The log is the directory ``_spark_metadata``: a file for each batch, ``0``, ``1`` and so on, with a line of JSON for each
file, and now and then one with all files until then, ``9.compact``. Other files come from attempts that failed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from holdfast.errors import ConfigurationError

__all__ = ["LOG", "committed_files", "is_committed"]

LOG = "_spark_metadata"
_COMPACT = ".compact"


def committed_files(log: Mapping[str, Any], read: Callable[[str], bytes]) -> frozenset[str]:
    """The names of the files that a log has. Spark gives each attempt's files names of their own.

    Args:
        log: The names of the log's files; the values are passed to ``read``.
        read: Reads a file of the log.

    Raises:
        ConfigurationError: the log cannot be read.
    """
    numbers = {name: int(name.removesuffix(_COMPACT)) for name in log if name.removesuffix(_COMPACT).isdecimal()}
    compact = max((number for name, number in numbers.items() if name.endswith(_COMPACT)), default=-1)
    batches = [name for name, number in numbers.items() if number > compact or name == f"{compact}{_COMPACT}"]
    found: dict[str, None] = {}
    for name in sorted(batches, key=numbers.__getitem__):
        version, *lines = read(log[name]).split(b"\n")
        if version != b"v1":
            raise ConfigurationError(f"{log[name]}: is no log of Spark's output that can be read: {version[:80]!r}")
        for line in filter(None, lines):
            try:
                entry = orjson.loads(line)
                file, deleted = entry["path"].rpartition("/")[2], entry.get("action") == "delete"
            except (ValueError, KeyError, AttributeError) as error:
                raise ConfigurationError(
                    f"{log[name]}: is no log of Spark's output that can be read: {line[:80]!r}"
                ) from error
            if deleted:
                found.pop(file, None)
            else:
                found[file] = None
    return frozenset(found)


def is_committed(path: str, logs: Iterable[tuple[str, frozenset[str]]]) -> bool:
    """Whether a file belongs to the output of the directories that it is in; ``logs``: directories and their files."""
    return all(path.rpartition("/")[2] in files for directory, files in logs if path.startswith(f"{directory}/"))
