"""Content with a valid checksum that Holdfast did not write, and the check that a reader says so."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from effort import examples
from holdfast.errors import CorruptFile, IncompatibleState

__all__ = ["HOSTILE", "Read", "check_read_or_refused"]

Read = Callable[[bytes], object]
HOSTILE = [
    b"\x91" * 100_000 + b"\xc0",  # deeper than Python's stack
    b"\xdd\xff\xff\xff\xff",  # four billion elements
    b"\xdf\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xa2\xff\xfe",  # text that is none
    b"\xd3\x80" + bytes(7),
    b"\xff" * 9,
    b"\x81\x90\x01",
    b"\xd4\x01.",  # an extension: a pickle of nothing
    b"",
]


def check_read_or_refused(
    form: str,
    original: bytes,
    read: Read,
    count: int = 400,
    more: Sequence[bytes] = (),
    offsets: Sequence[int] = (0, 1, 5, 20),
) -> None:
    """Read content like this one with something else in it: that succeeds, or it is refused as damaged.

    Args:
        form: What it is, for messages.
        original: The content as Holdfast writes it.
        read: Reads it.
        count: The number of random changes.
        more: More cases.
        offsets: Where hostile values are put in place of the rest.
    """
    seed = random.SystemRandom().getrandbits(32)
    chance = random.Random(seed)
    cases = [*more, *HOSTILE, *(original[:at] + each for at in offsets for each in HOSTILE)]
    cases += [_changed(original, chance) for _ in range(examples(count))]
    for case in cases:
        try:
            read(case)
        except (CorruptFile, IncompatibleState):
            continue
        except BaseException as error:
            raise AssertionError(f"{form}, seed {seed}: {case[:200]!r} raises {error!r}") from error


def _changed(data: bytes, chance: random.Random) -> bytes:
    """Some bytes replaced, removed or repeated, or a hostile value in the middle."""
    out = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(out))
        to = min(len(out), at + chance.choice([0, 1, 1, 2, 8, 60]))
        match chance.randrange(4):
            case 0:
                out[at:to] = chance.randbytes(to - at)
            case 1:
                out[at:to] = b""
            case 2:
                out[at:at] = out[at:to]
            case _:
                out[at:to] = chance.choice(HOSTILE)
    return bytes(out)
