"""Rows in memory by key: tables, state spaces, their time-to-live, and rows whose values are still elsewhere.

Invariant: a row in memory is the newest one; the store behind it has the row as of the last barrier, or none.
"""
