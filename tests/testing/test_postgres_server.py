"""`PostgresServer`, a real server for tests and the demo."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from holdfast.testing.postgres import PostgresServer, binaries


@pytest.mark.skipif(binaries() is None, reason="PostgreSQL is not installed (apt-get install postgresql)")
def a_server_starts_in_a_directory_below_the_present_one(monkeypatch):
    pytest.importorskip("psycopg", reason="pip install 'holdfast[postgres]'")
    above = Path(tempfile.mkdtemp(prefix="holdfast-postgres-", dir="/tmp"))  # which the server's user can enter
    above.chmod(0o755)
    (above / "server").mkdir()
    monkeypatch.chdir(above)
    try:
        server = PostgresServer(Path("server")).start()
        try:
            with server.connect() as connection:
                assert connection.execute("SELECT 1").fetchone() == (1,)
        finally:
            server.stop()
            server.release()
    finally:
        shutil.rmtree(above)
