"""What a storage is asked: counts of requests and bytes, and what they cost."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from holdfast.common.config_options import ConfigOption, StorageCostOptions
from holdfast.common.configuration import Configuration
from holdfast.errors import ConfigurationError
from holdfast.metrics.rate import Rate

__all__ = [
    "EXPRESS_SUFFIX",
    "KINDS",
    "MONTH_S",
    "NONE",
    "RequestCounter",
    "RequestPrices",
    "RequestRates",
    "Requests",
    "s3_endpoint",
]

MONTH_S = 30 * 86_400
"""The seconds of a month, as bills are told."""

KINDS = "put", "get", "head", "list", "delete"
_SPAN_S = 60.0
"""Seconds over which rates are reckoned: bases, merges and clean-ups are rare, and take many requests at once."""
_FREE = 0.0, 0.0
_PRICES: Mapping[str, tuple[float, float]] = {
    "s3": (5.0, 0.4),
    "s3a": (5.0, 0.4),
    "gs": (5.0, 0.4),
    "abfs": (6.5, 0.5),
    "abfss": (6.5, 0.5),
    "wasb": (6.5, 0.5),
    "wasbs": (6.5, 0.5),
}
"""By scheme: dollars a million requests that write or list, and that read, of the standard (hot) class."""
_EXPRESS = 1.13, 0.03
"""The same of S3 Express One Zone."""
EXPRESS_SUFFIX = "--x-s3"
"""The end of their names."""
_AWS = (".amazonaws.com", ".amazonaws.com.cn")


class Requests(NamedTuple):
    """Numbers of requests by kind, and of bytes."""

    put: int = 0
    get: int = 0
    head: int = 0
    list: int = 0
    delete: int = 0
    retries: int = 0
    """Requests, counted above, that repeat one that failed."""
    throttled: int = 0
    """Requests, counted above, to which the storage answered that there are too many."""
    bytes_written: int = 0
    bytes_read: int = 0
    log_records: int = 0
    """Entries and manifests that were appended to a topic (`execution.checkpointing.log`), and are no requests."""
    log_bytes: int = 0

    @property
    def total(self) -> int:
        """All requests."""
        return sum(self[: len(KINDS)])

    def plus(self, other: Requests) -> Requests:
        """The sums.

        >>> Requests(put=1).plus(Requests(put=2, get=1))[:2]
        (3, 1)
        """
        return Requests(*(a + b for a, b in zip(self, other)))


NONE = Requests()


class RequestCounter:
    """Counts the requests of one process to one storage. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counted = NONE

    def add(self, requests: Requests) -> None:
        """Count requests."""
        with self._lock:
            self._counted = self._counted.plus(requests)

    def drain(self) -> Requests:
        """The requests since the last call."""
        with self._lock:
            counted, self._counted = self._counted, NONE
        return counted


@dataclass(frozen=True)
class RequestPrices:
    """What requests cost, in dollars a million. Deletions are free in all stores."""

    writes: float = 0.0
    """Requests that write or list."""
    reads: float = 0.0

    @classmethod
    def of(cls, uri: str, config: Mapping[str, str]) -> RequestPrices:
        """The prices of a storage: the configured ones, or those of its kind; stores of one's own are free.

        >>> RequestPrices.of("s3://bucket/jobs", {})
        RequestPrices(writes=5.0, reads=0.4)
        >>> RequestPrices.of("s3://bucket/jobs", {"s3.endpoint": "http://minio:9000"})
        RequestPrices(writes=0.0, reads=0.0)

        Raises:
            ConfigurationError: a price is negative.
        """
        settings = Configuration.from_dict(dict(config))
        writes, reads = _usual(uri, config)
        return cls(
            _not_negative(settings, StorageCostOptions.WRITES, writes),
            _not_negative(settings, StorageCostOptions.READS, reads),
        )

    def cost(self, requests: Requests) -> float:
        """What the requests cost, in dollars."""
        return (self.writes * (requests.put + requests.list) + self.reads * (requests.get + requests.head)) / 1e6


def _usual(uri: str, config: Mapping[str, str]) -> tuple[float, float]:
    parts = urlsplit(uri)
    if parts.scheme in ("s3", "s3a"):
        endpoint = s3_endpoint(config)
        host = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").hostname or ""
        if endpoint and not host.endswith(_AWS):
            return _FREE
        if parts.netloc.endswith(EXPRESS_SUFFIX):
            return _EXPRESS
    return _PRICES.get(parts.scheme, _FREE)


def _not_negative(settings: Configuration, option: ConfigOption[float | None], usual: float) -> float:
    value = settings.get(option)
    if value is None:
        return usual
    if not 0 <= value < float("inf"):
        raise ConfigurationError(f"{option.key} is {value}: give the dollars that a million requests cost, 0 for none")
    return value


def s3_endpoint(config: Mapping[str, str]) -> str:
    """The server of S3: the configured one, or the environment's; empty for Amazon's."""
    variables = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
    return config.get("s3.endpoint") or next(filter(None, map(os.environ.get, variables)), "")


class RequestRates:
    """All requests of a job, how many there are a second, and what they cost. Not thread-safe.

    Args:
        began: The time, in seconds of the caller's clock.
    """

    def __init__(self, began: float) -> None:
        self._sum = NONE
        self._cost = 0.0
        self._request_rate, self._cost_rate = Rate(began, _SPAN_S), Rate(began, _SPAN_S)

    def add(self, requests: Requests, cost: float, start: float, end: float) -> None:
        """Add the requests of a time, and their cost in dollars."""
        self._sum = self._sum.plus(requests)
        self._cost += cost
        self._request_rate.add(requests.total, start, end)
        self._cost_rate.add(cost, start, end)

    def values(self, now: float) -> dict[str, float]:
        """The metrics by name; costs are dollars."""
        total = self._sum
        return {
            **{f"storageRequests.{kind}": count for kind, count in zip(KINDS, total)},
            "storageRetries": total.retries,
            "storageThrottles": total.throttled,
            "storageBytesWritten": total.bytes_written,
            "storageBytesRead": total.bytes_read,
            "checkpointLogRecords": total.log_records,
            "checkpointLogBytes": total.log_bytes,
            "storageRequestsPerSecond": self._request_rate.per_second(now),
            "storageCost": self._cost,
            "storageCostPerMonth": MONTH_S * self._cost_rate.per_second(now),
        }
