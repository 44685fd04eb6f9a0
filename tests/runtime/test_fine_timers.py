"""Event loops with fine timers: they notice what asyncio's own do."""

from __future__ import annotations

import asyncio
import select
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.runtime.async_io import fine_timers
from holdfast.runtime.async_io.fine_timers import new_loop


@pytest.fixture
def loop() -> Any:
    made = new_loop()
    yield made
    made.close()


@pytest.mark.parametrize("largest", [1024, 0], ids=["select", "many open files"])
def a_socket_ends_the_wait_for_a_timer(loop: Any, largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fine_timers, "_FD_SETSIZE", largest)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)

    async def read() -> bytes:
        asyncio.get_running_loop().call_later(0.0001, theirs.send, b"answer")
        return await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ours, 100), 600)

    with ours, theirs:
        assert loop.run_until_complete(read()) == b"answer"


def a_thread_ends_the_wait_for_a_timer(loop: Any) -> None:
    async def work() -> str:
        return await asyncio.wait_for(asyncio.to_thread(lambda: "done"), 600)

    assert loop.run_until_complete(work()) == "done"


@pytest.mark.skipif(not hasattr(select, "epoll"), reason="only epoll rounds to milliseconds")
def a_timer_waits_for_its_own_time_not_for_whole_milliseconds(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    def recorded(*arguments: Any) -> Any:
        waits.append(arguments[-1])
        return select.select(*arguments)

    monkeypatch.setattr(fine_timers, "select", SimpleNamespace(select=recorded))
    loop.run_until_complete(asyncio.sleep(0.01))
    assert waits
    assert max(waits) <= 0.01


def test_the_policy_of_the_program_chooses_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(asyncio.SelectorEventLoop):
        pass

    monkeypatch.setattr(asyncio, "new_event_loop", Own)
    own = new_loop()
    own.close()
    assert type(own) is Own
