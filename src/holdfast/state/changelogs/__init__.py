"""Changelogs: copies of keyed state in a compacted log, and the hosts' copies of these."""
