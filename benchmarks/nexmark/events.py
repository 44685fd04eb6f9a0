"""The events of Nexmark: persons who register, auctions that they open, and bids. Times are in ms since 1970."""

from __future__ import annotations

import msgspec


class Person(msgspec.Struct, frozen=True, gc=False, rename="camel", tag_field="event", tag="person"):
    """A person registers."""

    id: int
    name: str
    email_address: str
    credit_card: str
    city: str
    state: str
    date_time: int
    extra: str


class Auction(msgspec.Struct, frozen=True, gc=False, rename="camel", tag_field="event", tag="auction"):
    """A person opens an auction. Prices are in cents."""

    id: int
    item_name: str
    description: str
    initial_bid: int
    reserve: int
    date_time: int
    expires: int
    seller: int
    category: int
    extra: str


class Bid(msgspec.Struct, frozen=True, gc=False, rename="camel", tag_field="event", tag="bid"):
    """A person bids on an auction. The price is in cents."""

    auction: int
    bidder: int
    price: int
    channel: str
    url: str
    date_time: int
    extra: str


Event = Person | Auction | Bid
"""An event; its stored form is one object of JSON, whose first field, ``event``, names the class."""
