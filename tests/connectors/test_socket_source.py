"""The socket source against a real TCP server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from connector_harness import SourceRun, attempts, eventually, flat, job_info
from hypothesis import given, settings
from hypothesis import strategies as st

from awaiting import until
from holdfast.connectors import write_ahead
from holdfast.connectors.job_files import JobFiles
from holdfast.connectors.socket import SocketTextSource
from holdfast.errors import ConfigurationError, InputLost, ServiceUnavailable


class Server:
    """Listens; the test accepts, sends and hangs up."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.settimeout(600)
        self.port: int = self.listening.getsockname()[1]
        self.connections: list[socket.socket] = []

    def accept(self) -> socket.socket:
        connection, _ = self.listening.accept()
        self.connections.append(connection)
        return connection

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.listening.close()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def runs() -> Iterator[list[SourceRun]]:
    runs: list[SourceRun] = []
    yield runs
    for run in runs:
        run.close()


def start(server: Server, runs: list[SourceRun], storage: Path | None, **options: object) -> SourceRun:
    source = SocketTextSource("127.0.0.1", server.port, **options)  # type: ignore[arg-type]
    run = SourceRun(source, storage.as_uri() if storage else None)
    runs.append(run)
    return run.start()


def segments(storage: Path) -> list[str]:
    return JobFiles(job_info(storage.as_uri()), "sources", "source").names()


def received(run: SourceRun, count: int) -> None:
    """Wait until so many records are written ahead."""
    eventually(
        lambda: run.enumerator._log.unread >= count,  # type: ignore[attr-defined]
        lambda: threading.Event().wait(0.005),
    )


@pytest.mark.parametrize("stored", [True, False])
def the_lines_are_read_once_and_the_end_of_the_connection_is_the_end(
    server: Server, runs: list[SourceRun], tmp_path: Path, stored: bool
) -> None:
    run = start(server, runs, tmp_path if stored else None)
    connection = server.accept()
    connection.sendall(b"one\r\ntwo\n\nthree\nfo")
    received(run, 4)
    assert flat(run.epoch(3)) == ["one", "two", ""]
    assert run.last_input.backlog == 1
    assert not run.finished
    connection.sendall(b"ur\nfive without an end")
    connection.close()
    assert flat(run.run(2)) == ["three", "four", "five without an end"]
    assert run.finished_splits <= {f"127.0.0.1:{server.port}"}
    if stored:
        assert segments(tmp_path) == []


@pytest.mark.parametrize("delimiter", ["|", "END", "aa"])
def test_any_delimiter_cuts_the_same_however_the_bytes_arrive(
    server: Server, runs: list[SourceRun], tmp_path: Path, delimiter: str
) -> None:
    run = start(server, runs, tmp_path, delimiter=delimiter)
    connection = server.accept()
    text = delimiter.join(["x", "y\n", "", "äö", "aEN", "b"]) + delimiter
    for i in range(len(text.encode())):
        connection.sendall(text.encode()[i : i + 1])
    connection.close()
    assert flat(run.run(2)) == text.split(delimiter)[:-1]


def a_restarted_driver_delivers_what_its_predecessor_had_written_ahead(
    server: Server, runs: list[SourceRun], tmp_path: Path
) -> None:
    run = start(server, runs, tmp_path)
    connection = server.accept()
    connection.sendall(b"".join(b"%d\n" % i for i in range(10)))
    received(run, 10)
    read = flat(run.epoch(4))
    run.plan(3)  # an epoch that never completes
    run.crash()
    connection = server.accept()
    connection.sendall(b"10\n11\n")
    connection.close()
    read += flat(run.run(3))
    assert read == [str(i) for i in range(12)]
    assert segments(tmp_path) == []


def a_job_that_takes_itself_over_keeps_its_connection_and_what_was_sent_there(
    server: Server, runs: list[SourceRun], tmp_path: Path
) -> None:
    run = start(server, runs, tmp_path)
    connection = server.accept()
    connection.sendall(b"".join(b"%d\n" % i for i in range(10)) + b"half a ")
    received(run, 10)
    read = flat(run.epoch(4))
    run.plan(3)  # an epoch that never completes
    assert run.enumerator.restart(job_info(tmp_path.as_uri(), 2), run.state)  # type: ignore[attr-defined]
    connection.sendall(b"line\n")
    connection.close()
    read += flat(run.run(3))
    assert read == [*map(str, range(10)), "half a line"]
    assert segments(tmp_path) == []


def a_driver_that_starts_without_a_checkpoint_delivers_what_was_written_ahead(
    server: Server, runs: list[SourceRun], tmp_path: Path
) -> None:
    first = start(server, runs, tmp_path)
    server.accept().sendall(b"1\n2\n")
    received(first, 2)
    first.close()
    second = start(server, runs, tmp_path)
    server.accept().close()
    assert flat(second.run(10)) == ["1", "2"]


def test_many_crashes_lose_and_repeat_nothing(server: Server, runs: list[SourceRun], tmp_path: Path) -> None:
    run = start(server, runs, tmp_path)
    sent = 0
    read: list[str] = []
    for crash in range(8):
        connection = server.accept()
        connection.sendall(b"".join(b"%d\n" % i for i in range(sent, sent + 25)))
        sent += 25
        received(run, sent - len(read))
        read += flat(run.epoch(crash * 5 + 1))
        if crash % 2:
            run.plan(4)
        run.crash()
    server.accept().close()
    read += flat(run.run(30))
    assert read == [str(i) for i in range(sent)]


def a_driver_restarted_after_the_end_does_not_connect_again(server: Server, runs: list[SourceRun], tmp_path: Path) -> None:
    run = start(server, runs, tmp_path)
    connection = server.accept()
    connection.sendall(b"1\n2\n3\n")
    connection.close()
    until(lambda: run.enumerator._log.ended)  # type: ignore[attr-defined]
    read = flat(run.epoch(1))
    server.close()
    run.crash()
    assert read + flat(run.run(1)) == ["1", "2", "3"]


def a_server_that_is_gone_after_a_restart_does_not_hold_back_what_it_sent(
    server: Server, runs: list[SourceRun], tmp_path: Path
) -> None:
    run = start(server, runs, tmp_path)
    server.accept().sendall(b"1\n2\n3\n")
    received(run, 3)
    read = flat(run.epoch(1))
    run.enumerator.close()
    server.close()
    run.crash()
    assert read + flat(run.run(10)) == ["1", "2", "3"]


def a_dropped_connection_is_made_again_when_retries_are_asked_for(
    server: Server, runs: list[SourceRun], tmp_path: Path
) -> None:
    run = start(server, runs, tmp_path, max_retry=-1)
    read: list[str] = []
    for n in range(3):
        connection = server.accept()
        connection.sendall(b"%d\n" % n)
        eventually(lambda n=n: len(read) > n, lambda: run.enumerator.wait(1) or read.extend(flat(run.epoch())))
        connection.close()
    assert read == ["0", "1", "2"]
    assert not run.finished


def a_connection_that_cannot_be_made_again_in_time_is_the_end(server: Server, runs: list[SourceRun], tmp_path: Path) -> None:
    run = start(server, runs, tmp_path, max_retry=1)
    server.accept().sendall(b"1\n")
    server.close()
    assert flat(run.run(10)) == ["1"]


def a_refused_connection_names_the_address_and_a_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(ServiceUnavailable, match=rf"127\.0\.0\.1:{port} .*nc -lk {port}"):
        SourceRun(SocketTextSource("127.0.0.1", port), tmp_path.as_uri()).start()


def a_job_that_goes_on_tries_again_to_connect(server: Server, runs: list[SourceRun], tmp_path: Path) -> None:
    run = start(server, runs, tmp_path)
    server.accept().sendall(b"1\n")
    received(run, 1)
    run.epoch()
    server.listening.close()
    with pytest.raises(ServiceUnavailable, match=rf"127\.0\.0\.1:{server.port} .*uid 'source'") as raised:
        run.crash()
    assert attempts(raised.value) == 20


def a_host_that_no_one_knows_ends_the_job(tmp_path: Path) -> None:
    run = SourceRun(SocketTextSource("host.invalid", 1), tmp_path.as_uri())
    with pytest.raises(ConfigurationError, match=r"host\.invalid:1"):
        run.start()


def a_server_that_never_sends_the_delimiter_ends_the_job(
    server: Server, runs: list[SourceRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.connectors.socket._LONGEST", 1000)
    run = start(server, runs, tmp_path, delimiter="|")
    server.accept().sendall(b"1\n" * 1000)
    until(lambda: run.enumerator._log.ended)  # type: ignore[attr-defined]
    with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{server.port}: no '\|' in \d+ bytes") as raised:
        run.epoch()
    assert attempts(raised.value) == 1


def a_receiver_without_storage_waits_while_too_much_is_unread(
    server: Server, runs: list[SourceRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead, "CAPACITY", 1000)
    run = start(server, runs, None)
    connection = server.accept()
    for i in range(50):
        connection.sendall(b"%099d\n" % i)
    received(run, 1)
    connection.close()
    assert list(map(int, flat(run.run(10)))) == list(range(50))


def a_receiver_writes_ahead_however_far_the_job_is_behind(
    server: Server, runs: list[SourceRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead, "CAPACITY", 1000)
    run = start(server, runs, tmp_path)
    connection = server.accept()
    lines, sent = 5000, 0
    while sent < lines:  # in several segments, of which few fit in memory
        connection.sendall(b"".join(b"%099d\n" % i for i in range(sent, sent + 500)))
        sent += 500
        received(run, sent)
    log = run.enumerator._log  # type: ignore[attr-defined]
    assert sum(len(segment.data or b"") for segment in log._unread) < lines * 100 / 2
    run.crash()  # what the killed driver had not planned is in the storage, not in its socket
    server.accept().close()
    read = flat(run.epoch(17))
    while not run.finished:
        read += flat(run.epoch(777))
    assert list(map(int, read)) == list(range(lines))


def a_storage_that_fails_fails_the_job(
    server: Server, runs: list[SourceRun], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = start(server, runs, tmp_path)

    def full(self: JobFiles, name: str, data: bytes) -> None:
        raise OSError("no space")

    monkeypatch.setattr(JobFiles, "put", full)
    server.accept().sendall(b"1\n")
    until(lambda: run.enumerator._log.ended)  # type: ignore[attr-defined]
    with pytest.raises(OSError, match="no space"):
        run.epoch()


def an_older_checkpoint_than_the_consumed_lines_is_input_lost(server: Server, runs: list[SourceRun], tmp_path: Path) -> None:
    run = start(server, runs, tmp_path)
    connection = server.accept()
    for n in range(3):
        connection.sendall(b"%d\n" % n)
        received(run, 1)
        run.epoch()
        if n == 0:
            old = run.state
    connection.sendall(b"3\n")
    received(run, 1)
    run.state = old
    with pytest.raises(InputLost, match="a later checkpoint"):
        run.crash()


def the_place_of_a_line_is_its_number(server: Server, runs: list[SourceRun], tmp_path: Path) -> None:
    run = start(server, runs, tmp_path)
    server.accept().sendall(b"".join(b"%d\n" % i for i in range(30)))
    received(run, 30)
    run.epoch(10)
    batches = run.read(run.enumerator.plan(20).ranges[0])
    assert batches[1].values[1] == "18"
    assert batches[1].locate(1) == f"127.0.0.1:{server.port}, line 19 of those received"


def a_port_or_delimiter_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no TCP port"):
        SocketTextSource("localhost", 0)
    with pytest.raises(ConfigurationError, match="delimiter"):
        SocketTextSource("localhost", 9000, "")


step = st.tuples(st.integers(0, 400), st.integers(1, 300), st.sampled_from(["nothing", "crash", "crash amid an epoch"]))
"""So many lines are sent, an epoch reads at most so many, and then the driver goes on or dies."""


def test_a_driver_that_dies_far_behind_its_socket_loses_and_repeats_nothing(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_ahead, "CAPACITY", 2000)

    @given(steps=st.lists(step, min_size=1, max_size=6))
    @settings(max_examples=15, deadline=None)
    def check(steps: list[tuple[int, int, str]]) -> None:
        server = Server()
        run = SourceRun(SocketTextSource("127.0.0.1", server.port), tmp_path_factory.mktemp("log").as_uri())
        try:
            run.start()
            connection = server.accept()
            sent, read = 0, list[str]()
            for more, per_epoch, then in steps:
                connection.sendall(b"".join(b"%049d\n" % i for i in range(sent, sent + more)))
                sent += more
                received(run, sent - len(read))
                read += flat(run.epoch(per_epoch))
                if then != "nothing":
                    if then != "crash":
                        run.plan(per_epoch)
                    run.crash()
                    connection = server.accept()
            connection.close()
            while not run.finished:
                read += flat(run.epoch(100))
                run.enumerator.wait(0.05)
            assert list(map(int, read)) == list(range(sent))
        finally:
            run.close()
            server.close()

    check()
