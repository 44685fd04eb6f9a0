"""Keyed state: key groups, rows and their encodings, timers, and the local stores.

Private: programs import descriptors and states from ``holdfast.datastream``.
"""
