"""Kafka Streams' cases of suppress.

An input is a list of changes, ``key:old>new@time``, where a dash is no value; the watermark follows them, as Kafka's stream
time. Results are written in the same way, in the steps in which they come, separated by bars; their times are left out.
The bounds in bytes are of our sizes.
"""

from __future__ import annotations

PROCESSOR = {
    # what is suppressed, changes, results
    "zero time limit": ("time 0", "hey:14>7@5", "hey:14>7"),
    "zero time limit of windows": ("time 0", "hey/0/100:14>7@5", "hey/0/100:14>7"),
    "intermediate changes": ("time 1", "hey:1>-@0 tick:->9@1", "| hey:1>-"),
    "grace period": ("close 1", "hey/99/100:->7@99 dummy/100/101:->7@100 dummy/101/102:->7@101", "| | hey/99/100:->7"),
    "no grace period": ("close 0", "hey/0/100:->7@5 dummy/100/200:->7@100", "| hey/0/100:->7"),
    "a change at the end of its window": ("close 0", "tick/0/200:->1@100 hey/0/100:->7@100", "| hey/0/100:->7"),
    "final results without deletions": ("close 0", "tick/0/200:->1@100 hey/0/100:5>-@100", "|"),
    "deletions of windows": ("time 0 records 0", "hey/0/100:5>-@100", "hey/0/100:5>-"),
    "deletions": ("time 0 records 0", "hey:5>-@100", "hey:5>-"),
    "more records than the bound": ("time 8640000000 records 1", "hey:5>-@100 dummy:5>-@101", "| hey:5>-"),
    "more bytes than the bound": ("time 8640000000 bytes 30", "hey:5>-@100 dummy:5>-@101", "| hey:5>-"),
}

FULL = {
    "records": ("time 8640000000 records 1 fail", "hey:5>-@100 dummy:5>-@100"),
    "bytes": ("time 8640000000 bytes 30 fail", "hey:5>-@100 dummy:5>-@100"),
}

SCENARIOS = {
    # how counts of the values of a table's rows are suppressed, rows ``key=value@time``, and counts, step by step
    "no limit": ("time 0", "k1=v1@0 k1=v2@1 k2=v1@2 x=x@3 x=y@4", "v1=1 | v1=0 v2=1 | v1=1 | x=1 | x=0 y=1"),
    # Kafka: the record that lets v1's limit pass is among the counts that it lets go (v1=1, not v1=0)
    "time limit": ("time 2", "k1=v1@0 k1=v2@1 k2=v1@2 tick=tick@3 tick=tock@4", "| | v1=0 | v2=1 | v1=1"),
    "record limit": ("time 8640000000 records 1", "k1=v1@0 k1=v2@1 k2=v1@2 x=x@3", "| v1=0 | v2=1 | v1=1"),
}
