from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from holdfast.runtime.wire import FRAME, Wire, WireClosed, socket_address


@pytest.mark.parametrize("length", [1, 100, 200])
def a_socket_may_have_a_path_of_any_length(tmp_path: Path, length: int) -> None:
    directory = tmp_path / ("d" * length)
    directory.mkdir()
    path = str(directory / "slot-0.sock")
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as caller:
        with socket_address(path) as address:
            listener.bind(address)
        assert os.path.exists(path)
        listener.listen()
        with socket_address(path) as address:
            caller.connect(address)
        accepted, _ = listener.accept()
        ours, theirs = Wire(caller), Wire(accepted)
        ours.send(FRAME, b"payload", 7)
        ours.flush()
        assert theirs.receive() == (FRAME, 7, b"payload")
        ours.close()
        with pytest.raises(WireClosed):
            theirs.receive()
        theirs.close()


def a_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), socket_address(str(tmp_path / ("d" * 200) / "slot-0.sock")):
        pass
