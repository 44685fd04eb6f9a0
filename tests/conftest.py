"""Fixtures for all tests."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

pytest_plugins = ["kafka_fixtures"]

# A busy machine is no failure of what is tested.
settings.register_profile("holdfast", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("holdfast")

# A shell's background jobs ignore Ctrl-C, and so would the programs that tests start and stop with it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
