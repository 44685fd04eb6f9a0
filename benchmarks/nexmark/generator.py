"""Generates the events of Nexmark. Pure: an event depends on its number and on the settings, on nothing else.

So any range of events can be made anywhere, at any time. The shares of persons, auctions and bids, the hot ratios, the ids
in flight and the distributions are those of the benchmark's specification; the random numbers of an event come from a
generator that starts anew with the event's number.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from benchmarks.nexmark.events import Auction, Bid, Event, Person

FIRST_ID = 1000
"""The first id of persons and of auctions."""
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT = 100
"""One of so many ids is hot."""
LEAD = 10
"""Auctions and bids also name ids up to so far ahead, of persons and auctions that are still to come."""
CHANNELS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
PERSON_BYTES, AUCTION_BYTES, BID_BYTES = 200, 500, 100
"""Average sizes, reached by the field ``extra``."""
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]
CITIES = ["Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond", "Seattle", "Kent", "Cheyenne"]
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class Settings:
    """The specification's settings, with its defaults."""

    seed: int = 0
    persons: int = 1
    auctions: int = 3
    bids: int = 46
    hot_sellers: int = 4
    """All but one of so many auctions belong to a hot seller."""
    hot_auctions: int = 2
    hot_bidders: int = 4
    active_persons: int = 1000
    auctions_in_flight: int = 100
    events_per_second: int = 10_000
    """The rate in event time."""
    out_of_order: int = 1
    """Events come out of order within groups of so many; 1: in order."""
    start_ms: int = 1_436_918_400_000
    """The time of the first event."""

    @property
    def total(self) -> int:
        """The length of the cycle of persons, auctions and bids."""
        return self.persons + self.auctions + self.bids

    def time_of(self, number: int) -> int:
        """The time of an event."""
        return self.start_ms + number * 1000 // self.events_per_second

    def persons_before(self, number: int) -> int:
        """The number of persons up to an event, itself included."""
        cycle, place = divmod(number, self.total)
        return cycle * self.persons + min(place + 1, self.persons)

    def auctions_before(self, number: int) -> int:
        """The number of auctions up to an event, itself included."""
        cycle, place = divmod(number, self.total)
        return cycle * self.auctions + min(max(place + 1 - self.persons, 0), self.auctions)


class Random:
    """SplitMix64: as good as it must be, and quick to start."""

    __slots__ = ("_state",)

    def __init__(self, seed: int, number: int) -> None:
        self._state = (seed * 0xD1342543DE82EF95 + number * 0xA0761D6478BD642F) & _MASK

    def fraction(self) -> float:
        """A number in ``[0, 1)``."""
        self._state = mixed = (self._state + _GOLDEN) & _MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return float((mixed ^ (mixed >> 31)) >> 11) * 2.0**-53

    def below(self, bound: int) -> int:
        """An integer in ``[0, bound)``."""
        return int(self.fraction() * bound)

    def price(self) -> int:
        """A price in cents, from 1 to a million dollars, uniform in its logarithm."""
        return round(10.0 ** (self.fraction() * 6.0) * 100.0)

    def text(self, longest: int, special: str = " ") -> str:
        """A text of at least three letters, some of them special."""
        size = 3 + self.below(longest - 3)
        drawn = [special if self.below(13) == 0 else _LETTERS[self.below(26)] for _ in range(size)]
        return "".join(drawn).strip()

    def extra(self, size: int, average: int) -> str:
        """Letters that bring an event from one size to another on average, give or take a fifth."""
        missing = average - size
        if missing < 0:
            return ""
        spread = round(missing * 0.2)
        length = missing - spread + (self.below(2 * spread) if spread else 0)
        start = self.below(len(_much_text()) - length)
        return _much_text()[start : start + length]


@cache
def _much_text() -> str:
    random = Random(0, -1)
    return "".join(_LETTERS[random.below(26)] for _ in range(1 << 16))


@cache
def _channel(seed: int, number: int) -> tuple[str, str]:
    """The name and URL of a channel; negative numbers are the hot ones."""
    random = Random(seed ^ _GOLDEN, number)
    directories = "/".join(random.text(5, "_") for _ in range(3))
    url = f"https://www.nexmark.com/{directories}/item.htm?query=1"
    if number < 0:
        return HOT_CHANNELS[-number - 1], url
    if random.below(10) > 0:
        reversed_bits = int(f"{number:032b}"[::-1], 2)
        url += f"&channel_id={min(reversed_bits, (1 << 32) - reversed_bits)}"  # the absolute value of 32 bits with a sign
    return f"channel-{number}", url


def event(position: int, settings: Settings) -> Event:
    """The event that comes at a position of the stream, from 0."""
    group = settings.out_of_order
    number = position // group * group + position * 953 % group
    random = Random(settings.seed, number)
    place = number % settings.total
    if place < settings.persons:
        return _person(number, settings, random)
    if place < settings.persons + settings.auctions:
        return _auction(number, settings, random)
    return _bid(number, settings, random)


def events(settings: Settings, start: int, end: int) -> Iterator[Event]:
    """The events at some positions of the stream."""
    return (event(position, settings) for position in range(start, end))


def _person(number: int, settings: Settings, random: Random) -> Person:
    name = f"{FIRST_NAMES[random.below(len(FIRST_NAMES))]} {LAST_NAMES[random.below(len(LAST_NAMES))]}"
    email = f"{random.text(7)}@{random.text(5)}.com"
    card = " ".join(f"{random.below(10_000):04d}" for _ in range(4))
    city, state = CITIES[random.below(len(CITIES))], STATES[random.below(len(STATES))]
    size = 8 + len(name) + len(email) + len(card) + len(city) + len(state)
    person = FIRST_ID + settings.persons_before(number) - 1
    return Person(person, name, email, card, city, state, settings.time_of(number), random.extra(size, PERSON_BYTES))


def _some_person(number: int, settings: Settings, random: Random) -> int:
    """One of the persons who are active, or are about to be."""
    persons = settings.persons_before(number)
    active = min(persons, settings.active_persons)
    return persons - active + random.below(active + LEAD)


def _auction(number: int, settings: Settings, random: Random) -> Auction:
    if random.below(settings.hot_sellers) > 0:
        seller = (settings.persons_before(number) - 1) // HOT * HOT
    else:
        seller = _some_person(number, settings, random)
    category = FIRST_CATEGORY + random.below(CATEGORIES)
    initial = random.price()
    time = settings.time_of(number)
    in_flight = settings.auctions_in_flight * settings.total // settings.auctions
    expires = time + 1 + random.below(max(2 * (settings.time_of(number + in_flight) - time), 1))
    name, description = random.text(20), random.text(100)
    reserve = initial + random.price()
    extra = random.extra(48 + len(name) + len(description), AUCTION_BYTES)
    auction = FIRST_ID + settings.auctions_before(number) - 1
    return Auction(auction, name, description, initial, reserve, time, expires, FIRST_ID + seller, category, extra)


def _bid(number: int, settings: Settings, random: Random) -> Bid:
    auctions = settings.auctions_before(number)
    if random.below(settings.hot_auctions) > 0:
        auction = (auctions - 1) // HOT * HOT
    else:
        oldest = max(auctions - 1 - settings.auctions_in_flight, 0)
        auction = oldest + random.below(auctions - oldest + LEAD)
    if random.below(settings.hot_bidders) > 0:
        bidder = (settings.persons_before(number) - 1) // HOT * HOT + 1
    else:
        bidder = _some_person(number, settings, random)
    price = random.price()
    hot = random.below(2) > 0
    channel, url = _channel(settings.seed, -1 - random.below(len(HOT_CHANNELS)) if hot else random.below(CHANNELS))
    extra = random.extra(32, BID_BYTES)
    return Bid(FIRST_ID + auction, FIRST_ID + bidder, price, channel, url, settings.time_of(number), extra)


def part_of(event: Event, parts: int) -> int:
    """The file or partition of an event: an auction and all its bids are in the same one, in the order of the stream."""
    ids = event.auction if isinstance(event, Bid) else event.id
    return ids // HOT % parts
