"""The log of a slot, by PostgreSQL's streaming replication protocol over libpq.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import select
import struct
import time
from typing import Any

from holdfast.connectors.postgres import libraries
from holdfast.connectors.postgres.pgoutput import format_lsn
from holdfast.connectors.postgres.sql import quoted

__all__ = ["LogStream"]

_DATA = struct.Struct(">cqqq")
"""Before the data of a message with log: its kind, where its data begins, how far the server is, the time."""
_KEEPALIVE = struct.Struct(">cqqB")
"""Its kind, how far the server is, the time, whether it wants an answer."""
_LOG = ord("w")
"""The kind of a message with log; the other kind is a keepalive."""
_STATUS = struct.Struct(">cqqqqB")
"""Of the reader's status: its kind, what is written, flushed and applied, the time, whether the server answers at once."""
_START = 946_684_800
"""The server's times are counted from 2000 on; in seconds since 1970."""


class LogStream:
    """Messages of a slot's log.

    What is confirmed to the server is what `confirm` was told and nothing else: the checkpoint says how far the slot may be.

    Args:
        connection: A connection for replication; it serves the stream only from now on.
        slot: The slot.
        start: The position to begin at.
        publication: What is published.

    Raises:
        psycopg.Error: the server refuses it.
    """

    def __init__(self, connection: Any, slot: str, start: int, publication: str) -> None:
        self._connection = connection
        self._libpq = connection.pgconn
        self._confirmed = 0
        self.wal_end = 0
        """How far the server has read its log: all messages before have been received."""
        command = (
            f"START_REPLICATION SLOT {quoted(slot)} LOGICAL {format_lsn(start)} "
            f"(proto_version '1', publication_names '{quoted(publication).replace(chr(39), chr(39) * 2)}')"
        )
        result = self._libpq.exec_(command.encode())
        if result.status != libraries.psycopg().pq.ExecStatus.COPY_BOTH:
            raise libraries.psycopg().errors.error_from_result(result)

    def read(self) -> bytes | None:
        """The next message of the plugin; None: there is none yet.

        Raises:
            psycopg.Error: the stream has ended.
        """
        asked = False
        while True:
            size, data = self._libpq.get_copy_data(1)
            if size < 0:
                raise self._end()
            if size == 0:
                if asked:
                    return None
                self._libpq.consume_input()
                asked = True
                continue
            if data[0] == _LOG:
                _, _, end, _ = _DATA.unpack_from(data)
                self.wal_end = max(self.wal_end, end)
                return bytes(data[_DATA.size :])
            _, end, _, answer = _KEEPALIVE.unpack_from(data)
            self.wal_end = max(self.wal_end, end)
            if answer:
                self.confirm(self._confirmed)

    def confirm(self, position: int, *, answer: bool = False) -> None:
        """Tell the server that it need not keep the log before a position; ``answer``: it tells at once how far it is."""
        self._confirmed = max(self._confirmed, position)
        now = int((time.time() - _START) * 1_000_000)
        lsn = self._confirmed
        self._libpq.put_copy_data(_STATUS.pack(b"r", lsn, lsn, lsn, now, answer))
        while self._libpq.flush():
            select.select([], [self._connection], [])

    def _end(self) -> Exception:
        errors = libraries.psycopg().errors
        result = self._libpq.get_result()
        if result is not None and result.error_message:
            return errors.error_from_result(result)  # type: ignore[no-any-return]
        return errors.OperationalError("the server has ended the stream")  # type: ignore[no-any-return]
