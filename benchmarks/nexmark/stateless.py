"""The queries without keyed state: q0, q1, q2, q10, q13, q14, q21, q22."""

from __future__ import annotations

import asyncio
import re
from decimal import Decimal
from pathlib import Path

from benchmarks.nexmark.events import Bid
from benchmarks.nexmark.streams import bids, day_of, minute_of
from holdfast.common import Time
from holdfast.datastream import AsyncDataStream, DataStream, RuntimeContext
from holdfast.datastream.operations.lookup_join import AsyncLookupFunction, LookupCache, LookupJoin

SIDE_INPUT = "nexmark.side-input"
"""The job parameter with the path of q13's side input."""
_CHANNELS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
_CHANNEL_ID = re.compile(r"(?:&|^)channel_id=([^&]*)")


def q0(events: DataStream) -> DataStream:
    """Pass through: every bid. Measures decoding and the way through the engine."""
    return bids(events, lambda bid: (bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra))


def in_euros(price: int) -> Decimal:
    """The price times 0.908, as a decimal with three places."""
    return Decimal(908 * price).scaleb(-3)


def q1(events: DataStream) -> DataStream:
    """Currency conversion: every bid with its price in euros, a decimal with three places as in SQL."""
    return bids(events, lambda bid: (bid.auction, bid.bidder, in_euros(bid.price), bid.date_time, bid.extra))


def q2(events: DataStream) -> DataStream:
    """Selection: auction and price of the bids on every 123rd auction."""
    return bids(events, lambda bid: (bid.auction, bid.price)).filter(lambda row: row[0] % 123 == 0)


def q10(events: DataStream) -> DataStream:
    """Log to a file system: every bid with its day and its minute, the columns by which SQL partitions the files.

    A FileSink sorts rows into directories by the time of writing, not by their fields, so the columns are in the rows.
    """
    return bids(
        events,
        lambda bid: (
            *(bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra),
            *(day_of(bid.date_time), minute_of(bid.date_time)),
        ),
    )


class SideInput(AsyncLookupFunction[int, str]):
    """The rows of a file of key and value, read when the job starts, as Flink's file system table does."""

    async def open(self, runtime_context: RuntimeContext) -> None:  # type: ignore[override]
        path = Path(runtime_context.get_job_parameter(SIDE_INPUT, ""))
        lines = (await asyncio.to_thread(path.read_text)).splitlines()
        self.rows = {int(key): value for key, value in (line.split(",") for line in lines)}

    async def async_lookup(self, key: int) -> list[str]:
        return [self.rows[key]] if key in self.rows else []


def q13(events: DataStream) -> DataStream:
    """Bounded side input join: every bid with the value that a static table has for its auction modulo 10,000.

    SQL's lookup join (``FOR SYSTEM_TIME AS OF`` the processing time) is a `LookupJoin` here. The job parameter
    ``nexmark.side-input`` is the table's file.
    """
    rows = bids(events, lambda bid: (bid.auction, bid.bidder, bid.price, bid.date_time))
    join = LookupJoin(lambda row: row[0] % 10_000, SideInput(), lambda row, side: (*row, side), LookupCache(10_000))
    return AsyncDataStream.unordered_wait(rows, join, Time.seconds(60), 1000)


def kind_of_time(time: int) -> str:
    """The part of the day (UTC)."""
    hour = time // 3_600_000 % 24
    if 8 <= hour <= 18:
        return "dayTime"
    return "nightTime" if hour <= 6 or hour >= 20 else "otherTime"


def _calculated(bid: Bid) -> tuple[int, int, Decimal, str, int, str, int]:
    euros, letters = in_euros(bid.price), bid.extra.count("c")
    return bid.auction, bid.bidder, euros, kind_of_time(bid.date_time), bid.date_time, bid.extra, letters


def q14(events: DataStream) -> DataStream:
    """Calculation: bids of 1 to 50 million in euros (exclusive), with the part of the day and a user's function's count."""
    dear = events.filter(lambda event: type(event) is Bid and 1_000_000_000 < 908 * event.price < 50_000_000_000)
    return dear.map(_calculated)


def channel_id(channel: str, url: str) -> str | None:
    """The id of a bid's channel: a number for the four large ones, else the parameter of the URL, if any."""
    known = _CHANNELS.get(channel.lower())
    if known is not None:
        return known
    found = _CHANNEL_ID.search(url)
    return None if found is None else found.group(1)


def q21(events: DataStream) -> DataStream:
    """Add channel id: the bids whose channel has an id, by its name or in the URL, with that id."""
    rows = bids(events, lambda bid: (bid.auction, bid.bidder, bid.price, bid.channel, channel_id(bid.channel, bid.url)))
    return rows.filter(lambda row: row[4] is not None)


def q22(events: DataStream) -> DataStream:
    """Get URL directories: every bid with the first three directories of its URL."""
    return bids(events, lambda bid: (bid.auction, bid.bidder, bid.price, bid.channel, *bid.url.split("/")[3:6]))
