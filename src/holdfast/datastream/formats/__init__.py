"""Formats of records in topics and files."""
