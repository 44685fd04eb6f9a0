"""Faults of a PostgreSQL server and of the network to it."""

from __future__ import annotations

from holdfast.testing.chaos.faults.drivers import kill_driver
from holdfast.testing.chaos.stage import Stage

__all__ = ["cut", "disconnect", "end_sessions", "kill_server", "kill_server_again_and_again", "kill_server_and_driver"]


def _kill(stage: Stage) -> int:
    killed = stage.database.kill()
    stage.report.kills["server"] += 1
    return killed


def kill_server(stage: Stage) -> str:
    """``kill -9`` for all processes of the server; it starts again after some time, and recovers from its log."""
    killed = _kill(stage)
    stage.pause(0.0, 3.0)
    stage.database.start()
    return f"server killed, {killed} processes"


def kill_server_again_and_again(stage: Stage) -> str:
    """Kill the server again while the job takes up its work."""
    times = stage.random.randint(2, 4)
    for _ in range(times):
        _kill(stage)
        stage.database.start()
        stage.pause(0.0, 4.0)
    return f"server killed {times} times in a row"


def kill_server_and_driver(stage: Stage) -> str:
    """Kill both; the next driver starts while there is no server."""
    _kill(stage)
    told = kill_driver(stage)
    stage.pause(0.0, 2.0 * stage.start_s)
    stage.database.start()
    return f"server killed, {told}"


def end_sessions(stage: Stage) -> str:
    """The administrator ends the job's sessions on the server."""
    ended = stage.database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'holdfast%'"
    )
    return f"{len(ended)} sessions ended"


def cut(stage: Stage) -> str:
    """Nothing passes between the job and the server for some seconds."""
    stage.database_proxy.cut()
    stage.pause(1.0, 8.0)
    stage.database_proxy.restore()
    return "network cut"


def disconnect(stage: Stage) -> str:
    """Close all connections of the job."""
    stage.database_proxy.disconnect()
    return "connections closed"
