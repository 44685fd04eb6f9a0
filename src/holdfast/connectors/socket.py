"""The socket source: lines of text from a TCP server, with a write-ahead log of received input.

A socket cannot be read again. A thread in the driver therefore receives input and writes it to the job's storage before
an epoch may read it (`holdfast.connectors.write_ahead`), however far the job is behind. A killed driver loses only input
that was received and not yet written: a few milliseconds, and at most the receive buffer and one segment, 1 MB each.

As with Flink's socketTextStream, the source ends when the server closes the connection, unless ``max_retry`` sets a
number of seconds to reconnect. Input after the last delimiter then counts as a record.
"""

from __future__ import annotations

import functools
import logging
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

from holdfast.checkpoint.ids import CheckpointId
from holdfast.checkpoint.stores.storage import NotFound
from holdfast.connectors.base import Batch, EpochInput, JobInfo, ReaderContext, SplitRange, check_form
from holdfast.connectors.job_files import JobFiles
from holdfast.connectors.write_ahead import WriteAheadLog
from holdfast.errors import ConfigurationError, InputLost, ServiceUnavailable

__all__ = ["SocketTextSource"]

_CONNECT_TIMEOUT = 10.0
_RETRY_PAUSE = 0.5
_SEGMENT = 1 << 20
_LONGEST = 64 << 20
"""Bytes without a delimiter after which the source assumes a wrong delimiter."""
_LINGER = 0.005
"""Seconds to wait for more input before writing a segment; bounds the number of small files."""
_PLAN_BYTES = 16 << 20
_PLAN_BYTES_IN_MEMORY = 1 << 20
"""Without storage the records travel in the plan itself, which must stay small."""
_log = logging.getLogger(__name__)


class SocketTextSource:
    r"""A source of text from a TCP server, split at a delimiter; invalid UTF-8 becomes U+FFFD.

    Args:
        host: The server's host.
        port: The server's port.
        delimiter: The end of a record. With ``"\n"`` a carriage return before it is dropped, too.
        max_retry: Seconds to try to reconnect when the connection ends; 0: the source ends with the connection;
            negative: no limit.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    timestamped = False
    """Records have no timestamps of their own."""

    def __init__(self, host: str, port: int, delimiter: str = "\n", max_retry: int = 0) -> None:
        if not delimiter:
            raise ConfigurationError("the delimiter of a socket source must not be empty")
        if not 0 < port < 65536:
            raise ConfigurationError(f"{port} is no TCP port; ports are 1 to 65535")
        self.host = host
        self.port = port
        self.delimiter = delimiter
        self.max_retry = max_retry

    @property
    def bounded(self) -> bool:
        """Always False, although the server may end the stream."""
        return False

    @property
    def address(self) -> str:
        """Host and port: the name of the source's only split."""
        return f"{self.host}:{self.port}"

    def create_enumerator(self, job: JobInfo, uid: str) -> SocketEnumerator:
        """Create the enumerator, which holds the connection."""
        return SocketEnumerator(self, job, uid)

    def check_position(self, state: Any) -> None:
        """Check that a stored position is one in a write-ahead log."""
        check_form(state, ("line", "consumed", "ended", "partial"), "socket source")

    def create_reader(self, context: ReaderContext) -> SocketReader:
        """Create a reader of the write-ahead log."""
        return SocketReader(self, context)


class SocketEnumerator:
    """Plans ranges of the write-ahead log."""

    def __init__(self, source: SocketTextSource, job: JobInfo, uid: str) -> None:
        self._source = source
        self._uid = uid
        self._stored = job.storage_uri is not None
        self._log = WriteAheadLog(job, uid, source.delimiter.encode())
        self._receiver: _Receiver | None = None
        self._line = 0

    def start(self, state: Any | None) -> None:
        """Open the write-ahead log, then connect.

        Raises:
            ConfigurationError: nobody knows the name of the host.
            ServiceUnavailable: no server listens at the address.
            InputLost: input that the checkpoint has not consumed is gone.
        """
        if state is not None:
            self._line = state["line"]
        self._log.restore(state)
        if self._log.ended:
            return
        try:
            connection = _connect(self._source)
        except OSError as e:
            if self._log.unread and self._source.max_retry == 0:
                _log.warning("%s does not answer (%s): its last records are delivered", self._source.address, e)
                self._log.end()
                return
            unknown = isinstance(e, socket.gaierror) and e.errno == socket.EAI_NONAME
            raise (ConfigurationError if unknown else ServiceUnavailable)(
                f"cannot connect to {self._source.address} ({e}); start the server first, for a try with "
                f"`nc -lk {self._source.port}` [socket source, uid {self._uid!r}]"
            ) from e
        self._receiver = _Receiver(self._source, self._log, connection)

    def restart(self, job: JobInfo, state: Any | None) -> bool:
        """Go back in the log, and keep the connection: what it has sent and nobody has read would be lost with it.

        Raises:
            InputLost: input that the checkpoint has not consumed is gone.
        """
        if self._receiver is None or not self._log.rewind(job, state):
            return False
        self._line = 0 if state is None else state["line"]
        return True

    def plan(self, max_records: int) -> EpochInput:
        """Plan the next records of the log.

        Raises:
            StorageError: the receiver cannot write the log.
        """
        ended = self._log.ended  # read first: records appended before the end are taken with it or stay unread
        count, pieces = self._log.take(max(1, max_records), _PLAN_BYTES if self._stored else _PLAN_BYTES_IN_MEMORY)
        unread = self._log.unread
        finished = ended and unread == 0
        if not count:
            return EpochInput(finished=finished)
        start, self._line = self._line, self._line + count
        part = SplitRange(self._source.address, start, self._line, count, pieces, last=finished)
        return EpochInput((part,), unread, finished)

    def snapshot(self) -> Any:
        """Return the position up to which the log is planned."""
        return {"line": self._line, **self._log.snapshot()}

    def checkpoint_completed(self, checkpoint_id: CheckpointId, state: Any) -> None:
        """Delete consumed segments."""
        self._log.completed(state)

    def wait(self, timeout: float) -> None:
        """Wait until the log has new records."""
        self._log.wait(timeout)

    def close(self) -> None:
        """Close the connection; the log stays."""
        if self._receiver is not None:
            self._receiver.stop()


class _Receiver:
    """The thread that reads from the socket and writes the log."""

    def __init__(self, source: SocketTextSource, log: WriteAheadLog, connection: socket.socket) -> None:
        self._source = source
        self._log = log
        self._delimiter = source.delimiter.encode()
        self._connection = connection
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"receive from {source.address}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        try:
            self._connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the server closed first
        self._log.end()
        self._thread.join()

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while True:
                with self._connection as connection:
                    self._receive(connection)
                if self._stopped.is_set() or not self._reconnect():
                    break
        except BaseException as e:  # any error must reach the job, which waits for this thread
            failure = e
        if not self._stopped.is_set():
            self._log.end(failure)

    def _receive(self, connection: socket.socket) -> None:
        """Write input to the log until the connection ends."""
        rest = b""
        while True:
            data, more = _gather(connection)
            whole = rest + data
            # Split as the reader will: from the left (delimiters such as "aa" may overlap).
            rest = whole.split(self._delimiter)[-1] if self._delimiter in whole else whole
            if len(rest) < len(whole):
                self._log.append(whole[: len(whole) - len(rest)])
            if len(rest) > _LONGEST:
                raise ConfigurationError(
                    f"{self._source.address}: no {self._source.delimiter!r} in {len(rest)} bytes; "
                    "is it the delimiter that the server sends?"
                )
            if not more:
                break
        # A stop does not end the input: the server has to send the unfinished record again.
        if rest and not self._stopped.is_set():
            self._log.append(rest + self._delimiter)

    def _reconnect(self) -> bool:
        """Reconnect; return False after the retry time."""
        retry = self._source.max_retry
        deadline = time.monotonic() + retry if retry >= 0 else float("inf")
        if retry:
            _log.warning("the connection to %s has ended, connecting again", self._source.address)
        while time.monotonic() < deadline and not self._stopped.is_set():
            try:
                self._connection = _connect(self._source)
            except OSError:
                self._stopped.wait(min(_RETRY_PAUSE, max(0.0, deadline - time.monotonic())))
                continue
            if self._stopped.is_set():
                self._connection.close()
                return False
            return True
        return False


def _connect(source: SocketTextSource) -> socket.socket:
    connection = socket.create_connection((source.host, source.port), _CONNECT_TIMEOUT)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SEGMENT)  # its content is lost with the process
    return connection


def _gather(connection: socket.socket) -> tuple[bytes, bool]:
    """Receive input that arrives within a moment; also return whether the connection is open."""
    pieces: list[bytes] = []
    size = 0
    connection.settimeout(None)
    try:
        while size < _SEGMENT:
            piece = connection.recv(_SEGMENT - size)
            if not piece:
                return b"".join(pieces), False
            pieces.append(piece)
            size += len(piece)
            connection.settimeout(_LINGER)
    except TimeoutError:
        pass  # no more input for now
    except OSError as e:
        _log.warning("the connection was lost: %s", e)
        return b"".join(pieces), False
    return b"".join(pieces), True


class SocketReader:
    """Reads the write-ahead log."""

    def __init__(self, source: SocketTextSource, context: ReaderContext) -> None:
        self._source = source
        self._delimiter = source.delimiter.encode()
        self._context = context
        self._files: JobFiles | None = None
        self._cached = ("", b"")

    def read(self, part: SplitRange, max_batch: int) -> Iterator[Batch[str]]:
        """Read the records of the range.

        Raises:
            InputLost: the segment that holds them is gone.
        """
        line = part.start
        for piece in part.payload:
            data = piece if isinstance(piece, bytes) else self._segment(piece[0])[piece[1] : piece[2]]
            if self._source.delimiter == "\n":
                data = data.replace(b"\r\n", b"\n")
            values = data.decode("utf-8", "replace").split(self._source.delimiter)
            values.pop()  # the empty rest after the last delimiter
            for i in range(0, len(values), max_batch):
                yield Batch(values[i : i + max_batch], locate=functools.partial(_place, part.split, line + i + 1))
            line += len(values)

    def close(self) -> None:
        """Drop the cached segment."""
        self._cached = ("", b"")

    def _segment(self, name: str) -> bytes:
        if self._cached[0] != name:
            if self._files is None:
                self._files = JobFiles(self._context.job, "sources", self._context.uid)
            try:
                self._cached = (name, self._files.get(name))
            except NotFound as e:
                raise InputLost(f"{self._files.locate(name)}: the segment of received records is gone") from e
        return self._cached[1]


def _place(address: str, first: int, i: int) -> str:
    return f"{address}, line {first + i} of those received"
