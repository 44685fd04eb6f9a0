"""Joins by time: interval joins, and temporal joins with the versions of a table."""
