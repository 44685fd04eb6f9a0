"""The queries with running results by key: q15 to q19."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.nexmark.events import Bid
from benchmarks.nexmark.streams import bids, day_of, minute_of, whole_bids
from holdfast.common import Types
from holdfast.datastream import DataStream, KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import MapStateDescriptor, ValueStateDescriptor


def rank_of(price: int) -> int:
    """The rank of a price: 0 below 100 dollars, 1 below 10,000, else 2."""
    return 0 if price < 10_000 else 1 if price < 1_000_000 else 2


class Statistics(KeyedProcessFunction):
    """Counts bids, distinct bidders and distinct auctions, each in total and by rank; emits the new row for each bid.

    Elements are ``(key, minute, price, bidder, auction)``; a row is the key, the latest minute and twelve counts. Which ids
    have occurred, and with which ranks, is in maps: an id costs one small entry, and only entries that change are written.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        long = Types.LONG()
        row = Types.TUPLE([Types.STRING(), *[long] * 12])
        self.row = runtime_context.get_state(ValueStateDescriptor("row", row))
        self.bidders = runtime_context.get_map_state(MapStateDescriptor("bidders", long, long))
        self.auctions = runtime_context.get_map_state(MapStateDescriptor("auctions", long, long))

    def process_element(self, value: tuple[Any, str, int, int, int], ctx: Any) -> Iterable[tuple[Any, ...]]:
        key, minute, price, bidder, auction = value
        rank = rank_of(price)
        latest, *counts = self.row.value() or ("", *[0] * 12)
        counts[0] += 1
        counts[1 + rank] += 1
        self._add(self.bidders, bidder, rank, counts, 4)
        self._add(self.auctions, auction, rank, counts, 8)
        latest = max(latest, minute)
        self.row.update((latest, *counts))
        return ((*key, latest, *counts),)

    @staticmethod
    def _add(ranks: Any, number: int, rank: int, counts: list[int], at: int) -> None:
        """Count an id among the distinct ones, in total and of the rank; ``ranks`` has a bit for each rank of an id."""
        known = ranks.get(number) or 0
        if known >> rank & 1:
            return
        ranks.put(number, known | 1 << rank)
        counts[at] += known == 0
        counts[at + 1 + rank] += 1


def q15(events: DataStream) -> DataStream:
    """Bidding statistics: for each day the numbers of bids, of distinct bidders and of distinct auctions, by rank of price.

    SQL's continuous ``GROUP BY``: each bid gives the day's new row, as an upsert. All bids of a day have one key.
    """
    rows = bids(events, lambda bid: ((day_of(bid.date_time),), "", bid.price, bid.bidder, bid.auction))
    statistics = rows.key_by(lambda row: row[0][0]).process(Statistics())
    return statistics.map(lambda row: (row[0], *row[2:]))


def q16(events: DataStream) -> DataStream:
    """Channel statistics: as q15, for each channel and day, with the latest minute."""

    def fields(bid: Bid) -> tuple[Any, ...]:
        key = (bid.channel, day_of(bid.date_time))
        return key, minute_of(bid.date_time), bid.price, bid.bidder, bid.auction

    return bids(events, fields).key_by(lambda row: row[0]).process(Statistics())


Totals = tuple[int, str, int, int, int, int, int, int, int]


def _with_bid(total: Totals, bid: Totals) -> Totals:
    auction, day, bids, low, middle, high, least, most, amount = total
    _, _, _, is_low, is_middle, is_high, price, _, _ = bid
    return (
        *(auction, day, bids + 1, low + is_low, middle + is_middle, high + is_high),
        *(price if price < least else least, price if price > most else most, amount + price),
    )


def _of_one(bid: Bid) -> Totals:
    price = bid.price
    low, high = price < 10_000, price >= 1_000_000
    day = day_of(bid.date_time)
    return bid.auction, day, 1, int(low), int(not low and not high), int(high), price, price, price


def q17(events: DataStream) -> DataStream:
    """Auction statistics: for each auction and day the numbers of bids by rank; least, highest, mean and total price.

    SQL's continuous ``GROUP BY``: each bid gives the new row, as an upsert. The mean is rounded down.
    """
    totals = bids(events, _of_one).key_by(lambda total: total[:2]).reduce(_with_bid)
    return totals.map(lambda total: (*total[:8], total[8] // total[2], total[8]))


def q18(events: DataStream) -> DataStream:
    """Find last bid: the newest bid of each bidder on each auction; of equal times, the bid that came first.

    SQL's ``ROW_NUMBER() OVER (PARTITION BY bidder, auction ORDER BY dateTime DESC) <= 1`` is `max_by` the bid's time:
    each bid gives the newest one of its bidder and auction, as an upsert.
    """
    return whole_bids(events).key_by(lambda bid: (bid[1], bid[0])).max_by(5)


def q19(events: DataStream) -> DataStream:
    """Auction top ten: the ten highest bids of each auction with their ranks, as a changelog; of equal prices, the first.

    SQL's ``ROW_NUMBER() ... <= 10`` with the number in the result, so a bid that enters also changes the ranks below it.
    """
    return whole_bids(events).key_by(lambda bid: bid[0]).top_n(10, lambda bid: bid[2], rank_field="rank_number")
