"""Task slots: processes that live for months, and what they must not keep or wait for."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from holdfast.connectors.base import JobInfo
from holdfast.errors import ConfigurationError
from holdfast.runtime.host import slot, slot_starter
from holdfast.runtime.host.dependencies import Dependencies
from holdfast.runtime.host.local_directory import LocalDirectory
from holdfast.runtime.host.process_end import await_end
from holdfast.runtime.host.slot import SlotClient
from holdfast.runtime.host.slot_starter import start_slots
from holdfast.runtime.host.wire import DONE, END, NEED_SETUP, WORKING, WireClosed, connect
from holdfast.runtime.plan.task_messages import EpochAssignment, JobSetup
from holdfast.runtime.slots import slot_server, task_host
from holdfast.runtime.slots.slot_server import SlotServer
from holdfast.runtime.slots.task_host import TaskHost
from holdfast.runtime.spark import spark

from .inprocess import Lab
from .programs import records, sessions


@pytest.fixture
def as_in_a_slot():
    """Python's cycle collector as slots have it: between calls, and only over what is new."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def a_subtask_that_begins_anew_leaves_nothing_of_its_state_in_memory(tmp_path: Path, as_in_a_slot):
    plan = Lab(sessions(records(5, 100, keys=30)), tmp_path).plan()
    plan = replace(plan, settings=replace(plan.settings, temporary_directory=str(tmp_path / "local")))
    job = JobInfo("j", "job", 1, str(tmp_path / "checkpoints"))
    setup = pickle.dumps(([], [], Dependencies(), cloudpickle.dumps(JobSetup(plan, job, "started")), None))
    host = TaskHost(setup, str(tmp_path))
    keyed = next(vertex for vertex in plan.vertices if vertex.inputs)

    def fail() -> None:
        order = EpochAssignment(2, 0, 0, 0, 1, 0, 0, {})
        report = pickle.loads(host.run(cloudpickle.dumps((order, keyed.id, 0)), iter(()), lambda number, frame: None))
        assert "no barrier of epoch 2" in str(report.error)

    fail()
    subtask = host._subtasks[(keyed.id, 0)]
    opened = subtask._open(EpochAssignment(2, 0, 0, 0, 1, 0, 0, {}))
    (kept,) = opened._keyed._kept.values()
    state = weakref.ref(kept.state)
    del kept, opened
    gc.collect(1)  # as between calls: it is old from now on
    fail()
    fail()
    assert state() is None
    host.close()


class Cycle:
    def __init__(self) -> None:
        self.me = self


class Program:
    """What a slot runs."""

    can_start_early = False

    def give_up_early(self) -> None:
        pass

    def close(self) -> None:
        pass


class ProgramWithOldCycles(Program):
    """What a user's function may do: it keeps something for long, which refers to itself, and then something else."""

    def __init__(self) -> None:
        self.kept: list[weakref.ref[Cycle]] = []
        self.current = Cycle()

    def run(self, call: bytes, frames: Iterator[bytes], send: Any) -> bytes:
        assert list(frames) == []
        if len(self.kept) % 3 == 0:
            gc.collect(1)  # it is old from now on
        self.current = Cycle()
        self.kept.append(weakref.ref(self.current))
        return b""


@contextlib.contextmanager
def serving(directory: Path, program: Program) -> Iterator[SlotClient]:
    """A slot of this process, as long as the block runs."""
    server = SlotServer(str(directory / "slot-0.sock"), os.getpid())
    server._host, server._started = program, "s"  # type: ignore[assignment]
    thread = threading.Thread(target=server.serve)
    thread.start()
    client = SlotClient(LocalDirectory(str(directory), str(directory)), 0)
    while (connection := connect(client._path)) is None:
        time.sleep(0.001)
    connection.close()
    try:
        yield client
    finally:
        client.retire()
        thread.join()


class EarlyProgram(Program):
    """Starts the next task early with a call of a function that takes long."""

    def __init__(self) -> None:
        self.calls = 0
        self.began, self.goes_on = threading.Event(), threading.Event()
        self.interrupted = False

    @property
    def can_start_early(self) -> bool:  # type: ignore[override]
        return self.calls == 1

    def start_early(self, stop: Callable[[], bool]) -> None:
        self.began.set()
        assert self.goes_on.wait(60)
        self.interrupted = stop()

    def run(self, call: bytes, frames: Iterator[bytes], send: Any) -> bytes:
        assert list(frames) == []
        self.calls += 1
        return b"report"


def a_slot_that_starts_a_task_early_is_not_taken_for_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(SlotServer, "_watch_executor", lambda self: None)
    program = EarlyProgram()
    with serving(tmp_path, program) as client:
        assert list(client.run("s", None, b"", iter(()))) == [(-1, b"report")]
        assert program.began.wait(60)
        wire, kind, _ = client._call(pickle.dumps(("s", b""), 5))
        assert kind == WORKING
        program.goes_on.set()
        assert wire.receive()[0] == END
        wire.send(END)
        wire.flush()
        assert wire.receive()[0] == DONE
        wire.close()
        assert program.interrupted
        assert list(client.run("s", None, b"", iter(()))) == [(-1, b"report")]


def the_cycles_that_a_program_drops_late_are_freed(tmp_path: Path, as_in_a_slot, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slot_server, "_COLLECT_ALL_EVERY", 8)
    monkeypatch.setattr(SlotServer, "_watch_executor", lambda self: None)
    program = ProgramWithOldCycles()
    with serving(tmp_path, program) as client:
        for _ in range(40):
            assert list(client.run("s", None, b"", iter(()))) == [(-1, b"")]
    assert sum(cycle() is not None for cycle in program.kept) <= 8


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")
def the_end_of_a_job_does_not_wait_for_a_slot_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    client = SlotClient(LocalDirectory(str(tmp_path), str(tmp_path)), 0)
    wire = client._connect()
    process = wire.peer()
    wire.close()
    os.kill(process, signal.SIGSTOP)
    monkeypatch.setattr(slot, "_RETIRE_TIMEOUT", 0.2)
    client.retire()
    await_end(process)


class Closed(Program):
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


def a_parked_slot_closes_the_tasks_refuses_others_of_their_start_and_serves_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(SlotServer, "_watch_executor", lambda self: None)
    monkeypatch.setattr(task_host, "TaskHost", lambda *_: ProgramWithOldCycles())
    program = Closed()
    with serving(tmp_path, program) as client:
        client.park("s")
        assert program.closed
        with pytest.raises(WireClosed):  # of a Spark task that nobody waits for any more
            list(client.run("s", lambda: b"", b"", iter(())))
        assert list(client.run("t", lambda: b"", b"", iter(()))) == [(-1, b"")]
    client.park("t")  # there is no slot any more: nothing to do


def parent(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text()
    return int(re.findall(r"^PPid:\s+(\d+)$", status, re.MULTILINE)[0])


def started(client: SlotClient) -> int:
    """The process of the client's slot, which is started if it is not there."""
    wire = client._connect()
    try:
        return wire.peer()
    finally:
        wire.close()


@pytest.fixture
def clients(tmp_path: Path) -> Iterator[list[SlotClient]]:
    """Clients of three slots that do not run yet."""
    ours = [SlotClient(LocalDirectory(str(tmp_path), str(tmp_path)), n, os.getpid(), ["holdfast.cep"]) for n in range(3)]
    yield ours
    for client in ours:
        client.retire()


def a_slot_that_is_killed_before_it_answers_is_replaced_within_the_call(clients):
    killed = started(clients[0])
    os.kill(killed, signal.SIGSTOP)  # it takes connections, but does not answer, as while it dies
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(clients[0]._call, pickle.dumps(("s", b""), 5))
        assert not await_end(killed, 0.2)
        os.kill(killed, signal.SIGKILL)
        wire, kind, _ = call.result()
    assert kind == NEED_SETUP
    assert wire.peer() != killed
    wire.close()


def a_call_that_ends_each_slot_fails(clients):
    first = started(clients[0])
    with pytest.raises(WireClosed):
        clients[0]._call(b"not a call")
    assert await_end(first, 60)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def the_slots_that_are_started_at_the_same_time_are_forks_of_one_process_which_ends_after_them(clients, tmp_path: Path):
    with ThreadPoolExecutor(3) as pool:
        processes = list(pool.map(started, clients))
    (starter,) = set(map(parent, processes))
    assert len(set(processes)) == 3
    for n, process in enumerate(processes):
        command = Path(f"/proc/{process}/cmdline").read_bytes()
        assert f"holdfast.runtime.slots.slot_main\0{tmp_path}/slot-{n}.sock\0".encode() in command, (
            "ps tells the slots apart"
        )
    assert len(os.listdir(f"/proc/{starter}/task")) == 1, "its imports start no threads, which a fork would lose"
    os.kill(processes[1], signal.SIGKILL)
    await_end(processes[1])
    assert parent(started(clients[1])) == starter
    for client in clients:
        client.retire()
    await_end(starter)
    assert not list(tmp_path.glob("starter-*.sock"))
    assert started(clients[0]) not in processes, "there is another starter when one is needed"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("said", ["", "a warning"])
def the_slots_of_a_job_leave_nothing_behind_but_logs_that_say_something(tmp_path: Path, said: str):
    directory = LocalDirectory(str(tmp_path), str(tmp_path / "0123456789abcdef" / "host"))
    clients = [SlotClient(directory, number, os.getpid(), []) for number in range(2)]
    starter = parent(started(clients[0]))
    started(clients[1])
    (Path(directory.path) / "slot-1.sock.log").write_text(said)
    for client in clients:
        client.retire()
    await_end(starter)
    assert os.listdir(tmp_path) == (["0123456789abcdef"] if said else [])


def a_starter_that_was_killed_is_replaced_and_its_slots_serve_on(clients):
    first = started(clients[0])
    os.kill(parent(first), signal.SIGKILL)
    await_end(parent(first))
    second = started(clients[1])
    assert started(clients[0]) == first
    assert parent(second) != parent(first)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def a_starter_that_hangs_is_replaced_and_forks_nothing_later(clients, tmp_path: Path, monkeypatch):
    first = started(clients[0])
    hanging = parent(first)
    os.kill(hanging, signal.SIGSTOP)
    monkeypatch.setattr(slot_starter, "_TIMEOUT", 0.2)
    with pytest.raises(WireClosed, match="the starter of task slots does not start"):
        clients[1]._connect()  # the first attempt waits for the one that hangs, the second not long enough for another one
    monkeypatch.undo()
    second = started(clients[1])
    assert parent(second) != hanging
    clients[0].retire()
    os.kill(hanging, signal.SIGCONT)
    await_end(hanging)
    assert started(clients[1]) == second
    assert parent(started(clients[2])) == parent(second)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def a_slot_works_in_the_directory_and_with_the_path_of_the_task_that_starts_it(clients, tmp_path: Path, monkeypatch):
    started(clients[0])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "only_there.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path / "elsewhere"))
    monkeypatch.setenv("ONLY_THERE", "here")
    assert os.readlink(f"/proc/{started(clients[1])}/cwd") == str(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="only_there, here"):
        list(clients[1].run("s", lambda: cloudpickle.dumps(Told()), b"", iter(())))


class Told:
    """Fails where it is unpickled, with what it finds there."""

    def __reduce__(self):
        def tell():
            import only_there

            raise RuntimeError(f"{only_there.__name__}, {os.environ['ONLY_THERE']}")

        return tell, ()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def a_request_that_is_cut_off_is_none(clients, tmp_path: Path):
    first = started(clients[0])
    for sent in (b"", pickle.dumps(("path", {}, [], "/"), 5)[:-7]):
        connection = connect(str(tmp_path / f"starter-{os.getpid()}.sock"))
        assert connection is not None
        connection.sendall(sent)
        connection.close()
    assert parent(started(clients[1])) == parent(first)


def a_starter_that_does_not_start_says_why(clients, tmp_path: Path, monkeypatch):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho no memory left >&2\nexit 7\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(WireClosed, match=r"exit code 7\): no memory left"):
        clients[0]._connect()


@pytest.mark.parametrize("key", ["python.requirements", "python.files"])
def the_libraries_that_a_program_may_bring_along_are_not_imported_before_it(tmp_path: Path, key: str):
    import holdfast.datastream.connectors.kafka

    plan = Lab(sessions(records(5, 10)), tmp_path).plan()
    kafka = holdfast.datastream.connectors.kafka.__name__
    assert {kafka, "holdfast.datastream"} <= set(spark._imported_early(plan))
    bringing = replace(plan, config={**plan.config, key: "brought.whl"})
    assert set(spark._imported_early(plan)) - set(spark._imported_early(bringing)) == {kafka}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def a_slot_that_was_started_early_is_waited_for_and_not_started_twice(tmp_path: Path):
    start_slots(LocalDirectory(str(tmp_path), str(tmp_path)), 2, os.getpid(), os.environ, spark.IMPORTED_EARLY)
    clients = [SlotClient(LocalDirectory(str(tmp_path), str(tmp_path)), number) for number in range(2)]
    processes = []
    for number, client in enumerate(clients):
        processes.append(started(client))  # as by a task that comes before the slot listens
        command = Path(f"/proc/{processes[-1]}/cmdline").read_bytes()
        assert f"holdfast.runtime.slots.slot_main\0{tmp_path}/slot-{number}.sock\0".encode() in command
    assert len(set(processes)) == 2
    assert len(set(map(parent, processes))) == 1, "both are forks of one process"
    for client in clients:
        client.retire()
