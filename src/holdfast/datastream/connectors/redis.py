"""Redis: rows as strings, hashes and entries of streams."""

from __future__ import annotations

from holdfast.connectors.redis.sink import RedisSink

__all__ = ["RedisSink"]
