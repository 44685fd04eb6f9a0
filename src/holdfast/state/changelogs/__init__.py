"""Changelogs: copies of keyed state in a compacted log, and local copies of those on the hosts."""
