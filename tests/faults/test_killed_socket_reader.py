"""The running average over a socket: no number that was read is lost when the driver is killed."""

from __future__ import annotations

import functools
import random
import re
import socket

import pytest
from seed_programs import Program, new_seed

pytestmark = [pytest.mark.fault, pytest.mark.spark]

LINE = re.compile(r"^(?:\d+> )?(\S+) is the average of (\d+) numbers$", re.MULTILINE)
KILLS = 2


def test_the_running_average_counts_every_number_that_was_read_although_it_is_killed() -> None:
    draw = random.Random(new_seed())
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(600)
        address = f"127.0.0.1:{server.getsockname()[1]}"
        sent: list[int] = []
        with Program("running_average.py", "running-average", {"SOCKET": address}) as program:
            for turn in range(KILLS + 1):
                driver = program.start(without_spark=turn == 1)  # the second driver runs its tasks itself
                connection, _ = server.accept()
                for batch in range(draw.randint(2, 4)):
                    numbers = [draw.randrange(1000) for _ in range(draw.randint(20, 200))]
                    numbers[-1] = 1000 + len(sent)  # to be found in the storage
                    sent += numbers
                    connection.sendall("".join(f"{number}\n" for number in numbers).encode())
                    program.wait(functools.partial(was_read, program, sent), "the numbers read", driver)
                    if batch == turn % 2 == 0:  # every other driver is killed before its first results
                        program.wait(functools.partial(was_counted, program, len(sent)), "the numbers counted", driver)
                    program.let_pass(draw.uniform(0, 0.3))
                if turn < KILLS:
                    program.kill()
                connection.close()
            assert program.wait_for_end(program.driver) == 0  # the server has closed the connection

            printed = [(int(count), average) for d in program.drivers for average, count in LINE.findall(d.log())]
            expected = {n: f"{sum(sent[:n]) / n:g}" for n in range(1, len(sent) + 1)}
            wrong = [(n, average, expected.get(n)) for n, average in printed if expected.get(n) != average]
            assert not wrong, f"number, what was printed, what is right: {wrong[:5]}"
            missing = sorted(set(expected) - {n for n, _ in printed})
            assert not missing, f"of {len(sent)} averages these were never printed: {missing[:5]}"


def was_read(program: Program, sent: list[int]) -> bool:
    """Whether the last number is written ahead, or counted already."""
    last = f"\n{sent[-1]}\n".encode()
    for segment in (program.checkpoints / "sources").rglob("*"):
        try:
            if segment.is_file() and segment.read_bytes().endswith(last):
                return True
        except FileNotFoundError:
            continue  # consumed meanwhile
    return was_counted(program, len(sent))


def was_counted(program: Program, number: int) -> bool:
    return f"average of {number} numbers" in program.driver.log()
