"""The queries over windows: q5, q7, q8, q11, q12."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from benchmarks.jobs import Count
from benchmarks.nexmark.streams import auctions, bids, persons
from holdfast.common import Time, Types
from holdfast.common.time import MAX_TIMESTAMP
from holdfast.datastream import (
    AggregateFunction,
    AllWindowFunction,
    CoGroupFunction,
    DataStream,
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
    WindowFunction,
)
from holdfast.datastream.window import TimeWindow, Trigger, TriggerResult

SECOND = 1000


class Largest(AggregateFunction):
    """Keeps the elements whose second field is the largest: one, or several with the same value."""

    def create_accumulator(self) -> tuple[Any, ...]:
        return ()

    def add(self, value: Any, accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        if not accumulator or value[1] > accumulator[0][1]:
            return (value,)
        return (*accumulator, value) if value[1] == accumulator[0][1] else accumulator

    def get_result(self, accumulator: tuple[Any, ...]) -> tuple[Any, ...]:
        return accumulator

    def merge(self, a: tuple[Any, ...], b: tuple[Any, ...]) -> tuple[Any, ...]:
        if not a or not b or a[0][1] == b[0][1]:
            return a + b
        return a if a[0][1] > b[0][1] else b


class Each(WindowFunction, AllWindowFunction):
    """Emits each of the elements that `Largest` has kept."""

    def apply(self, *inputs: Any) -> Iterable[Any]:
        (kept,) = inputs[-1]
        return kept


class CountedUntil(WindowFunction):
    """Emits key, count and the window's end."""

    def apply(self, key: Any, window: TimeWindow, inputs: Iterable[int]) -> Iterator[tuple[Any, int, int]]:
        for count in inputs:
            yield key, count, window.end


class CountedWithin(WindowFunction):
    """Emits key, count, and the window's start and end."""

    def apply(self, key: Any, window: TimeWindow, inputs: Iterable[int]) -> Iterator[tuple[Any, int, int, int]]:
        for count in inputs:
            yield key, count, window.start, window.end


def q5(events: DataStream) -> DataStream:
    """Hot items: in the last 10 s, every 2 s, the auctions with the most bids (all of them, if several have as many).

    A result is ``(auction, number of bids, end of the window)``; it comes when the window is complete.
    """
    by_auction = bids(events, lambda bid: bid.auction).key_by(lambda auction: auction)
    windows = by_auction.window(SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(2)))
    counts = windows.aggregate(Count(), CountedUntil(), Types.LONG())
    # A count has the last millisecond of its window as timestamp: the 2 s around it hold the counts of that window alone.
    by_window = counts.key_by(lambda count: count[2]).window(TumblingEventTimeWindows.of(Time.seconds(2)))
    return by_window.aggregate(Largest(), Each())


def q7(events: DataStream) -> DataStream:
    """Highest bid: the bids with the highest price of each 10 s (all of them, if several have it).

    A bid belongs to the window of its own time. (The SQL text joins by ``BETWEEN``, with both ends: a bid in the first
    millisecond of the next window may also match.) The highest bid of each auction is found first, in parallel.
    """
    rows = bids(events, lambda bid: (bid.auction, bid.price, bid.bidder, bid.date_time, bid.extra))
    ten_seconds = TumblingEventTimeWindows.of(Time.seconds(10))
    of_auctions = rows.key_by(lambda row: row[0]).window(ten_seconds).aggregate(Largest(), Each())
    return of_auctions.window_all(ten_seconds).aggregate(Largest(), Each())


class Sells(CoGroupFunction):
    """Emits a person who has an auction in the same window, with the window's start."""

    def co_group(self, first: Iterable[tuple[int, str, int]], second: Iterable[int]) -> Iterator[tuple[int, str, int]]:
        if list(second):
            for person, name, time in first:
                yield person, name, time - time % (10 * SECOND)


def q8(events: DataStream) -> DataStream:
    """Monitor new users: persons who register and open an auction within the same 10 s; each once."""
    registered = persons(events, lambda person: (person.id, person.name, person.date_time))
    sellers = auctions(events, lambda auction: auction.seller)
    both = registered.co_group(sellers).where(lambda person: person[0]).equal_to(lambda seller: seller)
    return both.window(TumblingEventTimeWindows.of(Time.seconds(10))).apply(Sells())


def q11(events: DataStream) -> DataStream:
    """User sessions: how many bids each bidder has made in each session, which ends after 10 s without a bid.

    A result is ``(bidder, number of bids, start, end)``; it comes when the session is complete.
    """
    by_bidder = bids(events, lambda bid: bid.bidder).key_by(lambda bidder: bidder)
    sessions = by_bidder.window(EventTimeSessionWindows.with_gap(Time.seconds(10)))
    return sessions.aggregate(Count(), CountedWithin(), Types.LONG())


class ProcessingTimeOrEnd(Trigger):
    """Fires at the window's end in processing time, or at the end of bounded input, where open windows would be dropped."""

    def on_element(self, element: Any, timestamp: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        ctx.register_event_time_timer(MAX_TIMESTAMP)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def on_event_time(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        return TriggerResult.FIRE

    def on_merge(self, window: TimeWindow, ctx: Trigger.OnMergeContext) -> None:
        raise NotImplementedError("these windows do not merge")

    def clear(self, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())
        ctx.delete_event_time_timer(MAX_TIMESTAMP)


def q12(events: DataStream) -> DataStream:
    """Processing-time windows: how many bids each bidder has made in each 10 s of processing time.

    The division into windows depends on when the job runs; the sum of a bidder's counts does not. The trigger also fires at
    the end of the input, so that no bid is missing.
    """
    by_bidder = bids(events, lambda bid: bid.bidder).key_by(lambda bidder: bidder)
    windows = by_bidder.window(TumblingProcessingTimeWindows.of(Time.seconds(10))).trigger(ProcessingTimeOrEnd())
    return windows.aggregate(Count(), CountedWithin(), Types.LONG())
