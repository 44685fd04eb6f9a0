from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from holdfast.runtime.host.wire import FRAME, Wire, WireClosed, connect, listen


@pytest.mark.parametrize("length", [1, 100, 200])
def a_socket_may_have_a_path_of_any_length(tmp_path: Path, length: int) -> None:
    directory = tmp_path / ("d" * length)
    directory.mkdir()
    path = str(directory / "slot-0.sock")
    assert connect(path) is None
    with listen(path) as listener:
        assert os.path.exists(path)
        caller = connect(path)
        assert caller is not None
        accepted, _ = listener.accept()
        ours, theirs = Wire(caller), Wire(accepted)
        ours.send(FRAME, b"payload", 7)
        ours.flush()
        assert theirs.receive() == (FRAME, 7, b"payload")
        ours.close()
        with pytest.raises(WireClosed):
            theirs.receive()
        theirs.close()
        caller.close()
        accepted.close()
    assert connect(path) is None


def a_listener_takes_the_place_of_one_that_was_killed_at_any_moment(tmp_path: Path) -> None:
    path = str(tmp_path / "slot-0.sock")
    for left in (path, f"{path}.new"):
        with socket.socket(socket.AF_UNIX) as killed:
            killed.bind(left)
    with listen(path):
        caller = connect(path)
        assert caller is not None
        caller.close()


def a_directory_that_is_not_there_has_no_listener(tmp_path: Path) -> None:
    assert connect(str(tmp_path / ("d" * 200) / "slot-0.sock")) is None
