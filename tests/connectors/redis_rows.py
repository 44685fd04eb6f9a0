"""Rows that tests write to Redis, and what is there of them."""

from __future__ import annotations

from typing import Any

from redis_server import RedisServer

from holdfast.common import Row, RowKind, Types
from holdfast.datastream.connectors.redis import RedisSink

TOTALS = Types.ROW_NAMED(["name", "total"], [Types.STRING(), Types.LONG()])
BEFORE, AFTER, DELETE = RowKind.UPDATE_BEFORE, RowKind.UPDATE_AFTER, RowKind.DELETE


def key(row: Row) -> str:
    return f"total:{row.name}"


def sink(server: RedisServer, structure: Any = "hash", **more: Any) -> RedisSink:
    of = more.pop("key", "totals" if structure == "stream" else key)
    return RedisSink(more.pop("url", server.url), more.pop("rows", TOTALS), of, structure, **more)


def row(name: str, total: int | None, kind: RowKind = RowKind.INSERT) -> Row:
    return Row.of_kind(kind, name=name, total=total)


def hashes(server: RedisServer) -> dict[str, Any]:
    with server.client() as client:
        return {name.removeprefix("total:"): client.hgetall(name).get("total") for name in client.scan_iter("total:*")}


def entries(server: RedisServer, name: str = "totals") -> list[Any]:
    with server.client() as client:
        return [tuple(fields.values()) for _, fields in client.xrange(name)]


def waiting(server: RedisServer) -> list[str]:
    with server.client() as client:
        return sorted(name for name in client.scan_iter("holdfast:*") if ":written:" not in name)
