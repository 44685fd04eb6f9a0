"""Fixtures for all tests."""

from __future__ import annotations

import signal

pytest_plugins = ["kafka_fixtures"]

# A shell's background jobs ignore Ctrl-C, and so would the programs that tests start and stop with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
