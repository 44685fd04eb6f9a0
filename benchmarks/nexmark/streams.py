"""From bytes of JSON to the streams of persons, auctions and bids that the queries read."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from benchmarks.nexmark.events import Auction, Bid, Event, Person
from holdfast.common import DeserializationSchema, Duration, WatermarkStrategy
from holdfast.datastream import DataStream

DAY_MS = 86_400_000
MINUTE_MS = 60_000
Fields = Callable[[Any], Any]
_decode = msgspec.json.Decoder(Event).decode


class EventSchema(DeserializationSchema):
    """Decodes the events of lines in files, or of records in Kafka."""

    def deserialize(self, data: bytes) -> Event:
        return _decode(data)

    def deserialize_batch(self, data: Sequence[bytes]) -> list[Event]:
        return list(map(_decode, data))


def times() -> WatermarkStrategy:
    """The events' own times, and watermarks 4 s behind the latest event, as in the specification."""
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(4))
    return strategy.with_timestamp_assigner(lambda event, _: event.date_time)


def persons(events: DataStream, fields: Fields) -> DataStream:
    """Some fields of the persons."""
    return events.filter(lambda event: type(event) is Person).map(fields)


def auctions(events: DataStream, fields: Fields) -> DataStream:
    """Some fields of the auctions."""
    return events.filter(lambda event: type(event) is Auction).map(fields)


def bids(events: DataStream, fields: Fields) -> DataStream:
    """Some fields of the bids."""
    return events.filter(lambda event: type(event) is Bid).map(fields)


def whole_auctions(events: DataStream) -> DataStream:
    """All fields of the auctions."""
    return auctions(
        events,
        lambda auction: (
            *(auction.id, auction.item_name, auction.description, auction.initial_bid, auction.reserve),
            *(auction.date_time, auction.expires, auction.seller, auction.category, auction.extra),
        ),
    )


def whole_bids(events: DataStream) -> DataStream:
    """All fields of the bids."""
    return bids(events, lambda bid: (bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.date_time, bid.extra))


def day_of(time: int) -> str:
    """The day of a time (UTC), e.g. ``2015-07-15``."""
    return _day(time // DAY_MS)


def minute_of(time: int) -> str:
    """The minute of a time within its day (UTC), e.g. ``23:59``."""
    minute = time % DAY_MS // MINUTE_MS
    return f"{minute // 60:02d}:{minute % 60:02d}"


@lru_cache(1024)
def _day(number: int) -> str:
    return (datetime.date(1970, 1, 1) + datetime.timedelta(days=number)).isoformat()
