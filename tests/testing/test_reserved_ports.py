"""A reserved port stays with the process that is started on it, whoever else opens sockets meanwhile."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator

import pytest

from holdfast.testing.ports import ReservedPort

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="ports are kept on Linux only")


@pytest.fixture
def ports() -> Iterator[list[int]]:
    reserved = [ReservedPort() for _ in range(500)]
    yield [port.number for port in reserved]
    for port in reserved:
        port.close()


def listener(port: int) -> socket.socket:
    return socket.create_server(("127.0.0.1", port))


def a_server_listens_on_the_port_that_was_reserved_for_it_and_again_after_its_death(ports: list[int]) -> None:
    for _ in range(2):
        with listener(ports[0]) as server, socket.create_connection(server.getsockname()) as client:
            client.sendall(b"?")
            connection, _ = server.accept()
            with connection:
                assert connection.recv(1) == b"?"


def a_reserved_port_is_given_neither_to_a_socket_that_asks_for_any_port_nor_to_a_connection(ports: list[int]) -> None:
    given = set()
    with listener(0) as server:
        for _ in range(500):
            with socket.create_connection(server.getsockname()) as client:
                given.add(client.getsockname()[1])
                server.accept()[0].close()
            for reuse in (0, 1):
                with socket.socket() as any_port:
                    any_port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, reuse)
                    any_port.bind(("127.0.0.1", 0))
                    given.add(any_port.getsockname()[1])
    assert given.isdisjoint(ports)
