"""Keyed state: key groups, rows and their encodings, timers, and the local stores."""
