"""Cases of Kafka Streams' documentation: the joins of streams and tables, step by step.

Source: Apache Kafka, Streams DSL developer guide, "Joining", the tables of the semantics of KTable-KTable joins and of
KStream-KTable joins. Both sides get the records in turn, all with one key; None is a tombstone. A step is the side, the
value, and what comes out of the inner, left and outer join: the joined text, None for a deletion, and "-" for nothing.
"""

from __future__ import annotations

LEFT, RIGHT = 0, 1

TABLE_TABLE = [
    (LEFT, None, "-", "-", "-"),
    (RIGHT, None, "-", "-", "-"),
    (LEFT, "A", "-", "A,null", "A,null"),
    (RIGHT, "a", "A,a", "A,a", "A,a"),
    (LEFT, "B", "B,a", "B,a", "B,a"),
    (RIGHT, "b", "B,b", "B,b", "B,b"),
    (LEFT, None, None, None, "null,b"),
    (RIGHT, None, "-", "-", None),
    (LEFT, "C", "-", "C,null", "C,null"),
    (RIGHT, "c", "C,c", "C,c", "C,c"),
    (RIGHT, None, None, "C,null", "C,null"),
    (LEFT, None, "-", None, None),
    (RIGHT, None, "-", "-", "-"),
    (RIGHT, "d", "-", "-", "null,d"),
    (LEFT, "D", "D,d", "D,d", "D,d"),
]

STREAM_TABLE = [
    (LEFT, None, "-", "-"),
    (RIGHT, None, "-", "-"),
    (LEFT, "A", "-", "A,null"),
    (RIGHT, "a", "-", "-"),
    (LEFT, "B", "B,a", "B,a"),
    (RIGHT, "b", "-", "-"),
    (LEFT, None, "-", "-"),
    (RIGHT, None, "-", "-"),
    (LEFT, "C", "-", "C,null"),
    (RIGHT, "c", "-", "-"),
    (RIGHT, None, "-", "-"),
    (LEFT, None, "-", "-"),
    (RIGHT, None, "-", "-"),
    (RIGHT, "d", "-", "-"),
    (LEFT, "D", "D,d", "D,d"),
]
