"""Kafka Streams' cases of cogroup and of windows: what comes in, and what comes out.

Inputs are tuples of the stream's number, key, value and timestamp. The aggregates are texts: of `PLAIN` the values one
behind the other, else "0" with "+value" for each of the first stream, and "-value" for each of the second.
"""

from __future__ import annotations


def steps(text: str) -> list[tuple[int, str, str | None, int]]:
    """``number:key=value@time``, separated by blanks; a dash is no value."""
    found = []
    for step in text.split():
        number, pair = step.split(":")
        (key, value), time = pair.split("@")[0].split("="), pair.split("@")[1]
        found.append((int(number), key, None if value == "-" else value, int(time)))
    return found


PLAIN = {
    "one stream": ("0:k1=A@0 0:k2=B@0 0:k2=B@0 0:k1=A@0", "k1=A k2=B k2=BB k1=AA"),
    "no value": ("0:k1=A@0 0:k2=B@0 0:k2=-@0 0:k2=B@0 0:k1=A@0", "k1=A k2=B k2=BB k1=AA"),
    "distinct keys": (
        "0:k1=A@0 0:k1=A@1 0:k1=A@10 0:k1=A@100 1:k2=B@100 1:k2=B@200 1:k2=B@1 1:k2=B@500 1:k2=B@500 1:k2=B@100",
        "k1=A k1=AA k1=AAA k1=AAAA k2=B k2=BB k2=BBB k2=BBBB k2=BBBBB k2=BBBBBB",
    ),
    "shared keys": (
        "0:k1=A@0 0:k2=A@1 0:k1=A@10 0:k2=A@100 1:k2=B@100 1:k2=B@200 1:k1=B@1 1:k2=B@500 1:k1=B@500 1:k2=B@500 1:k3=B@500 "
        "1:k2=B@100",
        "k1=A k2=A k1=AA k2=AA k2=AAB k2=AABB k1=AAB k2=AABBB k1=AABB k2=AABBBB k3=B k2=AABBBBB",
    ),
    "three streams": (
        "0:k1=A@0 0:k2=A@1 0:k1=A@10 0:k2=A@100 1:k2=B@100 1:k2=B@200 1:k1=B@1 1:k2=B@500 2:k1=B@500 2:k2=B@500 2:k3=B@500 "
        "2:k2=B@100",
        "k1=A k2=A k1=AA k2=AA k2=AAB k2=AABB k1=AAB k2=AABBB k1=AABB k2=AABBBB k3=B k2=AABBBBB",
    ),
}

MIXED = {
    "": (
        "1:k1=1@0 1:k2=1@1 1:k1=1@10 1:k2=1@100 0:k1=2@500 0:k2=2@500 0:k1=2@500 0:k2=2@100",
        "k1=0-1 k2=0-1 k1=0-1-1 k2=0-1-1 k1=0-1-1+2 k2=0-1-1+2 k1=0-1-1+2+2 k2=0-1-1+2+2",
    ),
}

TIME_WINDOWS = {
    # size and advance in ms, input, rows of key, window and aggregate
    (500, 500, "one stream"): (
        "0:k1=A@0 0:k2=A@0 0:k2=A@1 0:k1=A@2 0:k1=B@3 0:k2=B@3 0:k2=B@4 0:k1=B@4",
        "k1=0+A k2=0+A k2=0+A+A k1=0+A+A k1=0+A+A+B k2=0+A+A+B k2=0+A+A+B+B k1=0+A+A+B+B",
    ),
    (500, 500, "two streams"): (
        "0:k1=A@0 0:k2=A@0 0:k2=A@1 0:k1=A@2 1:k1=B@3 1:k2=B@3 1:k2=B@4 1:k1=B@4",
        "k1=0+A k2=0+A k2=0+A+A k1=0+A+A k1=0+A+A-B k2=0+A+A-B k2=0+A+A-B-B k1=0+A+A-B-B",
    ),
    (500, 500, "many windows"): (
        "0:k1=A@0 0:k2=A@499 0:k2=A@500 0:k1=A@500",
        "k1=0+A k2=0+A k2=0+A k1=0+A",
    ),
    (500, 200, "overlapping windows"): (
        "0:k1=A@0 0:k2=A@0 0:k1=B@250 0:k2=B@250 0:k2=A@500 0:k1=A@500",
        "k1=0+A k2=0+A k1=0+A+B k1=0+B k2=0+A+B k2=0+B k2=0+B+A k2=0+A k1=0+B+A k1=0+A",
    ),
    (500, 500, "many windows of two streams"): (
        "0:k1=A@0 0:k2=A@0 0:k2=A@1 0:k1=A@2 1:k1=B@3 1:k2=B@3 1:k2=B@501 1:k1=B@501",
        "k1=0+A k2=0+A k2=0+A+A k1=0+A+A k1=0+A+A-B k2=0+A+A-B k2=0-B k1=0-B",
    ),
}

SESSIONS = {
    # gap and grace in ms, input, rows
    (500, 0, "one stream"): ("0:k1=A@0 0:k2=A@0 0:k1=B@599 0:k2=B@607", "k1=0+A k2=0+A k1=0+B k2=0+B"),
    (500, 0, "equal times"): ("0:k1=A@0 0:k1=A@0 0:k2=B@599 0:k1=B@607", "k1=0+A k1=0+0+A+A k2=0+B k1=0+B"),
    (100, 86_400_000, "sessions that grow"): (
        "0:k1=A@0 0:k1=A@84 0:k1=A@113 0:k1=A@199 0:k1=B@300 0:k2=B@301 0:k2=B@400 0:k1=B@400",
        "k1=0+A k1=- k1=0+0+A+A k1=- k1=0+0+0+A+A+A k1=- k1=0+0+0+0+A+A+A+A k1=0+B k2=0+B k2=- k2=0+0+B+B k1=- k1=0+0+B+B",
    ),
    (100, 86_400_000, "two streams"): (
        "0:k1=A@0 0:k2=A@0 0:k2=A@1 0:k1=A@2 1:k1=B@3 1:k2=B@3 1:k2=B@444 1:k1=B@444",
        "k1=0+A k2=0+A k2=- k2=0+0+A+A k1=- k1=0+0+A+A k1=- k1=0+0+0+A+A-B k2=- k2=0+0+0+A+A-B k2=0-B k1=0-B",
    ),
    (100, 86_400_000, "many sessions of two streams"): (
        "0:k1=A@0 0:k2=A@0 0:k2=A@1 0:k1=A@2 1:k1=B@3 1:k2=B@500 1:k2=B@501 1:k1=B@501",
        "k1=0+A k2=0+A k2=- k2=0+0+A+A k1=- k1=0+0+A+A k1=- k1=0+0+0+A+A-B k2=0-B k2=- k2=0+0-B-B k1=0-B",
    ),
}

COUNTS = {
    # windows, input and rows of key, beginning, end and count; late elements give none
    "time 2 1": (
        "0:k1=v@0 0:k1=v@1 0:k1=v@2 0:k1=v@1 0:k1=v@0 0:k1=v@5 0:k1=v@0",
        "k1@0/2=1 k1@0/2=2 k1@2/4=1 k1@0/2=3 k1@0/2=4 k1@4/6=1",
        "k1@0/2=4 k1@2/4=1",
    ),
    "time 2 2": (
        "0:k1=v@0 0:k1=v@1 0:k1=v@2 0:k1=v@0 0:k1=v@3 0:k1=v@0 0:k1=v@4 0:k1=v@0 0:k1=v@30",
        "k1@0/2=1 k1@0/2=2 k1@2/4=1 k1@0/2=3 k1@2/4=2 k1@0/2=4 k1@4/6=1 k1@30/32=1",
        "k1@0/2=4 k1@2/4=2 k1@4/6=1",
    ),
    "session 5 0": (
        "0:k1=v@0 0:k1=v@5 0:k1=v@1 0:k2=v@11 0:k1=v@5 0:k1=v@30",
        "k1@0/0=1 k1@0/0=- k1@0/5=2 k1@0/5=- k1@0/5=3 k2@11/11=1 k1@30/30=1",
        "k1@0/5=3 k2@11/11=1",
    ),
}
"""The rows, and those that are final before the end of the input."""
