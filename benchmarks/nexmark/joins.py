"""The queries that join streams without a window: q3, q4, q6, q9, q20."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.nexmark.events import Auction, Person
from benchmarks.nexmark.streams import bids, whole_auctions, whole_bids
from holdfast.common import TypeInformation, Types
from holdfast.datastream import DataStream, KeyedCoProcessFunction, KeyedProcessFunction, RuntimeContext
from holdfast.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from holdfast.table import KStream

_LONG, _STRING = Types.LONG(), Types.STRING()


class LocalItems(KeyedCoProcessFunction):
    """Joins persons (first input) with their auctions: keeps the person for good, auctions until the person comes."""

    def open(self, runtime_context: RuntimeContext) -> None:
        person = Types.TUPLE([_STRING, _STRING, _STRING])
        self.person = runtime_context.get_state(ValueStateDescriptor("person", person))
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("auctions", _LONG))

    def process_element1(self, value: tuple[int, str, str, str], ctx: Any) -> Iterator[tuple[str, str, str, int]]:
        person = value[1:]
        self.person.update(person)
        for auction in self.waiting.get():
            yield *person, auction
        self.waiting.clear()

    def process_element2(self, value: tuple[int, int], ctx: Any) -> Iterable[tuple[str, str, str, int]]:
        person = self.person.value()
        if person is not None:
            return ((*person, value[1]),)
        self.waiting.add(value[1])
        return ()


def q3(events: DataStream) -> DataStream:
    """Local item suggestion: name, city and state of sellers in Oregon, Idaho and California, with auctions of category 10.

    SQL's unbounded inner join: whichever comes first, person or auction, waits for the other in state.
    """
    local = events.filter(lambda event: type(event) is Person and event.state in ("OR", "ID", "CA"))
    local = local.map(lambda person: (person.id, person.name, person.city, person.state))
    items = events.filter(lambda event: type(event) is Auction and event.category == 10)
    items = items.map(lambda auction: (auction.seller, auction.id))
    both = local.key_by(lambda person: person[0]).connect(items.key_by(lambda item: item[0]))
    return both.process(LocalItems())


_AUCTION_FIELDS: list[TypeInformation[Any]] = [_LONG, _STRING, _STRING, *[_LONG] * 6, _STRING]
_BID_FIELDS: list[TypeInformation[Any]] = [_LONG, _LONG, _LONG, _LONG, _STRING]


class ValidBids(KeyedCoProcessFunction):
    """Joins auctions (first input) with the bids made while they are open. Bids wait until their auction comes."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.auction = runtime_context.get_state(ValueStateDescriptor("auction", Types.TUPLE(_AUCTION_FIELDS)))
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("bids", Types.TUPLE(_BID_FIELDS)))

    def process_element1(self, auction: tuple[Any, ...], ctx: Any) -> Iterator[tuple[Any, ...]]:
        self.auction.update(auction)
        for bid in self.waiting.get():
            if auction[5] <= bid[3] <= auction[6]:
                yield auction + bid
        self.waiting.clear()

    def process_element2(self, bid: tuple[Any, ...], ctx: Any) -> Iterable[tuple[Any, ...]]:
        auction = self.auction.value()
        if auction is None:
            self.waiting.add(bid)
        elif auction[5] <= bid[3] <= auction[6]:
            return (auction + bid,)
        return ()


ID, EXPIRES, SELLER, CATEGORY, PRICE, TIME = 0, 6, 7, 8, 12, 13
"""Positions in a row of `valid_bids`."""


def valid_bids(events: DataStream) -> DataStream:
    """Rows of an auction's ten fields, then auction, bidder, price, time and extra of a bid on it."""
    opened = whole_auctions(events)
    made = bids(events, lambda bid: (bid.auction, bid.bidder, bid.price, bid.date_time, bid.extra))
    return opened.key_by(lambda auction: auction[0]).connect(made.key_by(lambda bid: bid[0])).process(ValidBids())


def q4(events: DataStream) -> DataStream:
    """Average price for a category: the average of the highest valid bids of its auctions, rounded down, as a changelog.

    SQL's continuous result: a higher bid changes its auction's price, and the price its category's average.
    """
    prices = KStream.of(valid_bids(events), lambda row: row[ID], lambda row: (row[CATEGORY], row[PRICE]))
    final = prices.group_by_key().reduce(max, Types.TUPLE([_LONG, _LONG]))
    totals = final.group_by(lambda auction, price: price).aggregate(
        lambda: (0, 0),
        lambda category, price, total: (total[0] + price, total[1] + 1),
        lambda category, price, total: (total[0] - price, total[1] - 1) if total[1] > 1 else None,
        Types.TUPLE([_LONG, _LONG]),
    )
    return totals.map_values(lambda total: total[0] // total[1]).to_changelog()


class WinningBid(KeyedProcessFunction):
    """Emits seller, auction and highest price when the watermark says that the auction has closed."""

    def open(self, runtime_context: RuntimeContext) -> None:
        best = Types.TUPLE([_LONG, _LONG])
        self.best = runtime_context.get_state(ValueStateDescriptor("best", best))

    def process_element(self, value: tuple[Any, ...], ctx: Any) -> None:
        best = self.best.value()
        if best is None:
            ctx.timer_service().register_event_time_timer(value[EXPIRES])
        if best is None or value[PRICE] > best[1]:
            self.best.update((value[SELLER], value[PRICE]))

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, int, int]]:
        best = self.best.value()
        assert best is not None
        seller, price = best
        self.best.clear()
        yield seller, ctx.get_current_key(), price


class LastTen(KeyedProcessFunction):
    """Emits the average price of a seller's last ten closed auctions, in the order in which they closed."""

    def open(self, runtime_context: RuntimeContext) -> None:
        pair = Types.TUPLE([_LONG, _LONG])
        self.closed = runtime_context.get_map_state(MapStateDescriptor("closed", _LONG, Types.LIST(pair)))
        self.last = runtime_context.get_list_state(ListStateDescriptor("last", _LONG))

    def process_element(self, value: tuple[int, int, int], ctx: Any) -> None:
        closed = self.closed.get(ctx.timestamp()) or []
        self.closed.put(ctx.timestamp(), [*closed, value[1:]])
        ctx.timer_service().register_event_time_timer(ctx.timestamp())

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[tuple[int, int]]:
        last = list(self.last.get())
        for _, price in sorted(self.closed.get(timestamp) or ()):
            last = [*last, price][-10:]
            yield ctx.get_current_key(), sum(last) // len(last)
        self.closed.remove(timestamp)
        self.last.update(last)


def q6(events: DataStream) -> DataStream:
    """Average selling price by seller, over the seller's last ten closed auctions, rounded down; a result for each closing.

    Flink SQL cannot express it. An auction is closed when the watermark has passed its end; its price is its highest valid
    bid, and an auction without one does not count. Auctions that close in the same millisecond are ordered by their ids.
    """
    closed = valid_bids(events).key_by(lambda row: row[ID]).process(WinningBid())
    return closed.key_by(lambda row: row[0]).process(LastTen())


def q9(events: DataStream) -> DataStream:
    """Winning bids: each auction with its highest valid bid (of equal ones the earliest), as a changelog.

    SQL's ``ROW_NUMBER() ... <= 1`` is `top_n` of one; a higher bid replaces the row.
    """
    best = valid_bids(events).key_by(lambda row: row[ID])
    return best.top_n(1, lambda row: (row[PRICE], -row[TIME]))


class WithAuction(KeyedCoProcessFunction):
    """Joins bids (second input) with their auctions if these are of category 10.

    The auction stays in state, as in SQL; of an auction of another category only that it has come. A bid waits only while
    its auction has not come, so state does not grow with the bids.
    """

    def open(self, runtime_context: RuntimeContext) -> None:
        self.auction = runtime_context.get_state(ValueStateDescriptor("auction", Types.TUPLE(_AUCTION_FIELDS)))
        self.other = runtime_context.get_state(ValueStateDescriptor("other", Types.BOOLEAN()))
        bid = Types.TUPLE([_LONG, _LONG, _LONG, _STRING, _STRING, _LONG, _STRING])
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("bids", bid))

    def process_element1(self, auction: tuple[Any, ...], ctx: Any) -> Iterable[tuple[Any, ...]]:
        waiting = list(self.waiting.get())
        self.waiting.clear()
        if auction[8] != 10:
            self.other.update(True)
            return ()
        self.auction.update(auction)
        return [(*bid, *auction[1:]) for bid in waiting]

    def process_element2(self, bid: tuple[Any, ...], ctx: Any) -> Iterable[tuple[Any, ...]]:
        auction = self.auction.value()
        if auction is not None:
            return ((*bid, *auction[1:]),)
        if self.other.value() is None:
            self.waiting.add(bid)
        return ()


def q20(events: DataStream) -> DataStream:
    """Expand bid with auction: every bid on an auction of category 10, with the auction's fields.

    SQL's unbounded inner join: whichever comes first, auction or bid, waits for the other in state.
    """
    opened = whole_auctions(events)
    made = whole_bids(events)
    return opened.key_by(lambda auction: auction[0]).connect(made.key_by(lambda bid: bid[0])).process(WithAuction())
