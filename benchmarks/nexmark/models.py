"""The results of the queries, computed from a list of events in the simplest way: the judges of the programs.

A model takes the events in the order of the stream, and gives the rows of the result; for a changelog, those of the final
table. The running results of q17 and q18 are given for each bid, in the order of the stream; of q15 and q16 only the last.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

from benchmarks.nexmark.events import Auction, Bid, Event, Person

Row = tuple[Any, ...]
Rows = Iterable[Row]


def _of(kind: type, events: Sequence[Event]) -> Iterator[Any]:
    return (event for event in events if isinstance(event, kind))


def _format(time: int, form: str) -> str:
    return datetime.fromtimestamp(time // 1000, timezone.utc).strftime(form)


def q0(events: Sequence[Event]) -> Rows:
    return ((b.auction, b.bidder, b.price, b.date_time, b.extra) for b in _of(Bid, events))


def q1(events: Sequence[Event]) -> Rows:
    return ((b.auction, b.bidder, Decimal("0.908") * b.price, b.date_time, b.extra) for b in _of(Bid, events))


def q2(events: Sequence[Event]) -> Rows:
    return ((b.auction, b.price) for b in _of(Bid, events) if b.auction % 123 == 0)


def q3(events: Sequence[Event]) -> Rows:
    local = {p.id: p for p in _of(Person, events) if p.state in {"OR", "ID", "CA"}}
    for auction in _of(Auction, events):
        if auction.category == 10 and auction.seller in local:
            seller = local[auction.seller]
            yield seller.name, seller.city, seller.state, auction.id


def _valid(events: Sequence[Event]) -> dict[int, tuple[Auction, list[Bid]]]:
    """The auctions that have valid bids, with these."""
    opened = {auction.id: auction for auction in _of(Auction, events)}
    valid: dict[int, tuple[Auction, list[Bid]]] = {}
    for bid in _of(Bid, events):
        auction = opened.get(bid.auction)
        if auction is not None and auction.date_time <= bid.date_time <= auction.expires:
            valid.setdefault(auction.id, (auction, []))[1].append(bid)
    return valid


def q4(events: Sequence[Event]) -> Rows:
    prices = defaultdict(list)
    for auction, bids in _valid(events).values():
        prices[auction.category].append(max(bid.price for bid in bids))
    return ((category, sum(final) // len(final)) for category, final in prices.items())


def q5(events: Sequence[Event]) -> Rows:
    counts: dict[int, Counter[int]] = defaultdict(Counter)
    for bid in _of(Bid, events):
        for end in range(bid.date_time // 2000 * 2000 + 2000, bid.date_time + 10_001, 2000):
            counts[end][bid.auction] += 1
    for end, of_window in counts.items():
        most = max(of_window.values())
        yield from ((auction, count, end) for auction, count in of_window.items() if count == most)


def q6(events: Sequence[Event]) -> Rows:
    closed = sorted(_valid(events).values(), key=lambda pair: (pair[0].expires, pair[0].id))
    last: dict[int, list[int]] = defaultdict(list)
    for auction, bids in closed:
        prices = last[auction.seller]
        prices.append(max(bid.price for bid in bids))
        yield auction.seller, sum(prices[-10:]) // len(prices[-10:])


def q7(events: Sequence[Event]) -> Rows:
    windows = defaultdict(list)
    for bid in _of(Bid, events):
        windows[bid.date_time // 10_000].append(bid)
    for bids in windows.values():
        most = max(bid.price for bid in bids)
        yield from ((b.auction, b.price, b.bidder, b.date_time, b.extra) for b in bids if b.price == most)


def q8(events: Sequence[Event]) -> Rows:
    sellers = {(auction.seller, auction.date_time // 10_000) for auction in _of(Auction, events)}
    for person in _of(Person, events):
        if (person.id, person.date_time // 10_000) in sellers:
            yield person.id, person.name, person.date_time // 10_000 * 10_000


def q9(events: Sequence[Event]) -> Rows:
    for auction, bids in _valid(events).values():
        best = min(bids, key=lambda bid: (-bid.price, bid.date_time))
        yield (
            *(auction.id, auction.item_name, auction.description, auction.initial_bid, auction.reserve),
            *(auction.date_time, auction.expires, auction.seller, auction.category, auction.extra),
            *(best.auction, best.bidder, best.price, best.date_time, best.extra),
        )


def q10(events: Sequence[Event]) -> Rows:
    for bid in _of(Bid, events):
        day, minute = _format(bid.date_time, "%Y-%m-%d"), _format(bid.date_time, "%H:%M")
        yield bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra, day, minute


def q11(events: Sequence[Event]) -> Rows:
    times = defaultdict(list)
    for bid in _of(Bid, events):
        times[bid.bidder].append(bid.date_time)
    for bidder, made in times.items():
        made.sort()
        start, count = made[0], 0
        for time, following in zip(made, [*made[1:], None]):
            count += 1
            if following is None or following > time + 10_000:  # sessions that touch are one
                yield bidder, count, start, time + 10_000
                start, count = following, 0


def q12(events: Sequence[Event]) -> Rows:
    """Each bidder's number of bids: the sum over all windows, whatever these are."""
    return Counter(bid.bidder for bid in _of(Bid, events)).items()


def q13(events: Sequence[Event]) -> Rows:
    return ((b.auction, b.bidder, b.price, b.date_time, str(b.auction % 10_000)) for b in _of(Bid, events))


def q14(events: Sequence[Event]) -> Rows:
    kinds = {hour: "dayTime" for hour in range(8, 19)} | {hour: "nightTime" for hour in (*range(7), *range(20, 24))}
    for bid in _of(Bid, events):
        euros = Decimal("0.908") * bid.price
        if 1_000_000 < euros < 50_000_000:
            kind = kinds.get(int(_format(bid.date_time, "%H")), "otherTime")
            yield bid.auction, bid.bidder, euros, kind, bid.date_time, bid.extra, bid.extra.count("c")


def _statistics(bids: Sequence[Bid]) -> Row:
    ranks = [
        bids,
        [bid for bid in bids if bid.price < 10_000],
        [bid for bid in bids if 10_000 <= bid.price < 1_000_000],
        [bid for bid in bids if bid.price >= 1_000_000],
    ]
    counts = [len(rank) for rank in ranks]
    bidders = [len({bid.bidder for bid in rank}) for rank in ranks]
    auctions = [len({bid.auction for bid in rank}) for rank in ranks]
    return *counts, *bidders, *auctions


def q15(events: Sequence[Event]) -> Rows:
    """The last row of each day."""
    days = defaultdict(list)
    for bid in _of(Bid, events):
        days[_format(bid.date_time, "%Y-%m-%d")].append(bid)
    return ((day, *_statistics(bids)) for day, bids in days.items())


def q16(events: Sequence[Event]) -> Rows:
    """The last row of each channel and day."""
    groups = defaultdict(list)
    for bid in _of(Bid, events):
        groups[bid.channel, _format(bid.date_time, "%Y-%m-%d")].append(bid)
    for key, bids in groups.items():
        yield *key, max(_format(bid.date_time, "%H:%M") for bid in bids), *_statistics(bids)


def q17(events: Sequence[Event]) -> Rows:
    """The new row for each bid."""
    known: dict[tuple[int, str], Row] = {}
    for bid in _of(Bid, events):
        key = (bid.auction, _format(bid.date_time, "%Y-%m-%d"))
        n, low, middle, high, least, most, total = known.get(key, (0, 0, 0, 0, bid.price, bid.price, 0))
        low, middle, high = (
            low + (bid.price < 10_000),
            middle + (10_000 <= bid.price < 1_000_000),
            high + (bid.price >= 1_000_000),
        )
        row = known[key] = (n + 1, low, middle, high, min(least, bid.price), max(most, bid.price), total + bid.price)
        yield *key, *row[:6], row[6] // row[0], row[6]


def _whole(bid: Bid) -> Row:
    return bid.auction, bid.bidder, bid.price, bid.channel, bid.url, bid.date_time, bid.extra


def q18(events: Sequence[Event]) -> Rows:
    """The newest bid after each bid."""
    newest: dict[tuple[int, int], Bid] = {}
    for bid in _of(Bid, events):
        known = newest.get((bid.bidder, bid.auction))
        if known is None or bid.date_time > known.date_time:
            newest[bid.bidder, bid.auction] = bid
        yield _whole(newest[bid.bidder, bid.auction])


def q19(events: Sequence[Event]) -> Rows:
    by_auction = defaultdict(list)
    for bid in _of(Bid, events):
        by_auction[bid.auction].append(bid)
    for bids in by_auction.values():
        best = sorted(bids, key=lambda bid: -bid.price)[:10]  # stable: of equal prices, the first
        yield from ((*_whole(bid), rank) for rank, bid in enumerate(best, 1))


def q20(events: Sequence[Event]) -> Rows:
    opened = {auction.id: auction for auction in _of(Auction, events) if auction.category == 10}
    for bid in _of(Bid, events):
        a = opened.get(bid.auction)
        if a is not None:
            named = (a.item_name, a.description, a.initial_bid, a.reserve, a.date_time, a.expires)
            yield *_whole(bid), *named, a.seller, a.category, a.extra


def q21(events: Sequence[Event]) -> Rows:
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    for bid in _of(Bid, events):
        found = re.search(r"(&|^)channel_id=([^&]*)", bid.url)
        number = known.get(bid.channel.lower()) or (found and found.group(2))
        if number is not None:
            yield bid.auction, bid.bidder, bid.price, bid.channel, number


def q22(events: Sequence[Event]) -> Rows:
    for bid in _of(Bid, events):
        _, _, _, first, second, third, *_ = bid.url.split("/")
        yield bid.auction, bid.bidder, bid.price, bid.channel, first, second, third
