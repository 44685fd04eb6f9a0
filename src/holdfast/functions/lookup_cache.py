"""LookupCache, the settings of a lookup join's cache, and the cache itself."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.common.time import Duration, Time, to_milliseconds

__all__ = ["CachedRows", "LookupCache"]


@dataclass(frozen=True)
class LookupCache:
    """What a lookup join keeps in memory, in each subtask; the names are Flink's. The cache is empty after a restart."""

    max_rows: int = 10_000
    """The most keys; those that have not been used for the longest time go first."""
    expire_after_write: Time | Duration | None = None
    """How long the rows of a key are used after they were read; None: as long as there is room."""
    expire_after_access: Time | Duration | None = None
    """How long the rows of a key are kept after their last use; None: as long as there is room."""
    cache_missing_key: bool = True
    """Whether to remember keys without rows."""

    def __post_init__(self) -> None:
        if isinstance(self.max_rows, bool) or not isinstance(self.max_rows, int) or self.max_rows < 1:
            raise ValueError(f"max_rows of a LookupCache is a whole number of at least 1, not {self.max_rows!r}")
        for name in ("expire_after_write", "expire_after_access"):
            span = getattr(self, name)
            if span is not None and to_milliseconds(span) < 1:
                raise ValueError(f"{name} of a LookupCache is a span of at least 1 ms, not {span!r}")


class CachedRows:
    """The rows of keys, by the rules of a LookupCache.

    >>> now = [0.0]
    >>> cache = CachedRows(LookupCache(2, Time.seconds(10)), lambda: now[0])
    >>> for key in "abc":
    ...     cache.put(key, [key.upper()])
    >>> cache.get("a"), cache.get("b")
    (None, ['B'])
    >>> now[0] = 10.0
    >>> cache.get("b") is None
    True
    """

    def __init__(self, settings: LookupCache, clock: Callable[[], float]) -> None:
        """``clock``: the time in seconds."""
        self._settings = settings
        self._clock = clock
        write, access = settings.expire_after_write, settings.expire_after_access
        self._write = None if write is None else to_milliseconds(write) / 1000
        self._access = None if access is None else to_milliseconds(access) / 1000
        self._rows: OrderedDict[Any, tuple[list[Any], float, float]] = OrderedDict()
        """By key, the last used one last: the rows, when they were read, and when they were last used."""

    def __len__(self) -> int:
        """The number of keys."""
        return len(self._rows)

    def get(self, key: Any) -> list[Any] | None:
        """The rows of a key; None if they are not known."""
        found = self._rows.get(key)
        if found is None:
            return None
        rows, written, used = found
        now = self._clock()
        if (self._write is not None and now - written >= self._write) or (
            self._access is not None and now - used >= self._access
        ):
            del self._rows[key]
            return None
        self._rows[key] = rows, written, now
        self._rows.move_to_end(key)
        return rows

    def put(self, key: Any, rows: list[Any]) -> None:
        """Remember the rows of a key, which have just been read."""
        if not rows and not self._settings.cache_missing_key:
            return
        now = self._clock()
        self._rows[key] = rows, now, now
        self._rows.move_to_end(key)
        if len(self._rows) > self._settings.max_rows:
            self._rows.popitem(last=False)
