"""What a storage is asked, and what that costs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast.errors import ConfigurationError
from holdfast.metrics.requests import MONTH_S, RequestCounter, RequestPrices, RequestRates, Requests


def a_request_of_one_of_many_threads_is_not_lost() -> None:
    counter = RequestCounter()
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: counter.add(Requests(put=1, bytes_written=n)), range(1_000)))
    assert counter.drain() == Requests(put=1_000, bytes_written=499_500)
    assert counter.drain() == Requests()


@pytest.mark.parametrize(
    ("uri", "config", "writes", "reads"),
    [
        ("", {}, 0.0, 0.0),
        ("/var/checkpoints", {}, 0.0, 0.0),
        ("hdfs://namenode/checkpoints", {}, 0.0, 0.0),
        ("s3://bucket/jobs", {}, 5.0, 0.4),
        ("s3://bucket/jobs", {"s3.endpoint": "https://s3.eu-central-1.amazonaws.com"}, 5.0, 0.4),
        ("s3://bucket/jobs", {"s3.endpoint": "minio:9000"}, 0.0, 0.0),
        ("s3://bucket/jobs", {"s3.endpoint": "https://amazonaws.com.example.org"}, 0.0, 0.0),
        ("s3://bucket--use1-az4--x-s3/jobs", {}, 1.13, 0.03),
        ("gs://bucket/jobs", {}, 5.0, 0.4),
        ("abfss://container@account.dfs.core.windows.net/jobs", {}, 6.5, 0.5),
        ("s3://bucket", {"s3.endpoint": "minio:9000", "holdfast.storage.price.writes": "2.5"}, 2.5, 0.0),
        ("gs://bucket", {"holdfast.storage.price.reads": "1"}, 5.0, 1.0),
    ],
)
def the_prices_are_those_of_the_kind_of_storage_unless_they_are_set(
    uri: str, config: dict[str, str], writes: float, reads: float
) -> None:
    assert RequestPrices.of(uri, config) == RequestPrices(writes, reads)


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"])
def a_store_of_ones_own_that_the_environment_names_is_free(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "http://minio:9000")
    assert RequestPrices.of("s3://bucket/jobs", {}) == RequestPrices(0.0, 0.0)
    amazon = {"s3.endpoint": "https://s3.eu-central-1.amazonaws.com"}
    assert RequestPrices.of("s3://bucket/jobs", amazon) == RequestPrices(5.0, 0.4)


@pytest.mark.parametrize("price", ["-1", "nan", "inf"])
def a_price_that_is_none_is_refused(price: str) -> None:
    with pytest.raises(ConfigurationError, match=r"holdfast.storage.price.writes is .*dollars that a million requests cost"):
        RequestPrices.of("s3://bucket", {"holdfast.storage.price.writes": price})


def a_read_costs_less_than_a_write_or_a_listing_and_a_deletion_nothing() -> None:
    prices = RequestPrices(5.0, 0.4)
    assert prices.cost(Requests(put=600_000, list=400_000, delete=7)) == pytest.approx(5.0)
    assert prices.cost(Requests(get=500_000, head=500_000)) == pytest.approx(0.4)


def the_cost_of_a_month_follows_from_the_last_minute() -> None:
    rates = RequestRates(0.0)
    for second in range(200):
        rates.add(Requests(put=2), 1e-5, float(second), second + 1.0)
    values = rates.values(200.0)
    assert values["storageRequests.put"] == 400
    assert values["storageRequestsPerSecond"] == pytest.approx(2.0)
    assert values["storageCost"] == pytest.approx(2e-3)
    assert values["storageCostPerMonth"] == pytest.approx(1e-5 * MONTH_S)
