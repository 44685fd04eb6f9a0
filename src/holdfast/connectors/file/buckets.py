"""Buckets: the subdirectories into which a file sink sorts its records."""

from __future__ import annotations

import re
import time
import zoneinfo
from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime, tzinfo

from holdfast.checkpoint.stores.object_store import leaves
from holdfast.errors import ConfigurationError

__all__ = ["BasePathBucketAssigner", "BucketAssigner", "DateTimeBucketAssigner", "check_bucket"]

_LETTERS = {"yyyy": "%Y", "MM": "%m", "dd": "%d", "HH": "%H", "mm": "%M", "ss": "%S"}


class BucketAssigner(ABC):
    """Chooses the bucket of records, a subdirectory."""

    @abstractmethod
    def bucket(self) -> str:
        """Return the bucket for records written now: a relative path, empty for the base path itself."""

    @staticmethod
    def base_path_bucket_assigner() -> BucketAssigner:
        """Write all records to the base path."""
        return BasePathBucketAssigner()

    @staticmethod
    def date_time_bucket_assigner(format_str: str = "yyyy-MM-dd--HH", timezone_id: str | None = None) -> BucketAssigner:
        """Write records to a subdirectory named after the time of writing.

        Args:
            format_str: The name, with ``yyyy``, ``MM``, ``dd``, ``HH``, ``mm`` and ``ss``.
            timezone_id: The time zone, e.g. ``Asia/Kolkata``; None: the machine's.

        Raises:
            ConfigurationError: other letters in the format, or an unknown zone.
        """
        return DateTimeBucketAssigner(format_str, timezone_id)


def check_bucket(bucket: str) -> None:
    """Check that a bucket is a subdirectory, with a name that any file system and store takes.

    Raises:
        ConfigurationError: it is not.
    """
    if leaves(bucket) or re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", bucket):
        raise ConfigurationError(
            f"FileSink: {bucket!r} is no bucket: it must be a path within the base path, such as 2026-11-30/north, without "
            "control characters, in UTF-8"
        )


class BasePathBucketAssigner(BucketAssigner):
    """Writes all records to the base path."""

    def bucket(self) -> str:
        """Return the base path, as an empty string."""
        return ""


class DateTimeBucketAssigner(BucketAssigner):
    """Writes records to a bucket named after the time of writing.

    Args:
        format: The name in Java's letters: ``yyyy``, ``MM``, ``dd``, ``HH``, ``mm``, ``ss`` and all other characters.
        timezone: A zone's name, e.g. ``Asia/Kolkata``; None: that of the machine.
        clock: Seconds since 1970.

    Raises:
        ConfigurationError: other letters in the format, or an unknown zone.

    Examples:
        >>> DateTimeBucketAssigner("yyyy-MM-dd--HH", "UTC", clock=lambda: 86400.0).bucket()
        '1970-01-02--00'
    """

    def __init__(
        self,
        format: str = "yyyy-MM-dd--HH",
        timezone: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._format = re.sub(r"[A-Za-z]+|%", lambda match: _letters(match.group(), format), format)
        check_bucket(format)
        try:
            self._zone: tzinfo | None = zoneinfo.ZoneInfo(timezone) if timezone is not None else None
        except (zoneinfo.ZoneInfoNotFoundError, ValueError):
            raise ConfigurationError(f"unknown time zone {timezone!r}; zones are named like Asia/Kolkata") from None
        self._clock = clock

    def bucket(self) -> str:
        """Return the bucket of the current time."""
        return datetime.fromtimestamp(self._clock(), self._zone).strftime(self._format)


def _letters(letters: str, format: str) -> str:
    if letters == "%":
        return "%%"
    try:
        return "".join(_LETTERS[run.group()] for run in re.finditer(r"(.)\1*", letters))
    except KeyError as e:
        raise ConfigurationError(
            f"the bucket format {format!r} has {e.args[0]!r}; known are {', '.join(_LETTERS)}"
        ) from None
