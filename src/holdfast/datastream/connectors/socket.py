"""The source of text from a TCP server."""

from __future__ import annotations

from holdfast.connectors.socket import SocketTextSource

__all__ = ["SocketTextSource"]
