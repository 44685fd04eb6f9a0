"""Rows in memory by key: tables, state spaces, time-to-live, and rows whose values have not been loaded yet.

Invariant: a row in memory is the newest version; the store behind it has the row as of an earlier barrier, or none.
"""
