"""Cases of Kafka Streams' own tests of joins: inputs, times and expected results, carried over as data.

Source: Apache Kafka, trunk at commit 1eb7644349cb (2024-10-25), streams/src/test/java/org/apache/kafka/streams:

    INPUT, IN_ORDER, SELF_INPUT     integration/AbstractJoinIntegrationTest
    TABLE_TABLE, TABLE_TABLE_TABLE  integration/TableTableJoinIntegrationTest: testInner, testLeft, testOuter; testInnerInner
                                    to testOuterOuter. At time 11 of testInnerInner Kafka misses a deletion, since both joins
                                    have the same right table, as a comment there says; the correct result is here. The
                                    same holds for time 8 of testOuterInner, without a comment there.
    STREAM_TABLE                    integration/StreamTableJoinIntegrationTest: testInner, testLeft
    STREAM_STREAM, SELF_JOIN        integration/StreamStreamJoinIntegrationTest: testInner, testLeft, testOuter,
                                    testMultiInner, testSelfJoin. The "Repartitioned" variants expect the same.
    INTERVALS                       kstream/internals/KStreamKStreamJoinTest: testWindowing, testAsymmetricWindowingAfter and
                                    -Before
    VERSIONED_TABLES                integration/TableTableJoinIntegrationTest: test...WithVersionedStores,
                                    ...WithLeftVersionedOnly and ...WithRightVersionedOnly
    STREAM_VERSIONED_TABLE          integration/StreamTableJoinIntegrationTest: test...WithVersionedStore
    STREAM_VERSIONED_TABLE_GRACE    integration/StreamTableJoinWithGraceIntegrationTest: test...WithVersionedStore. The grace
                                    period is 2 ms. Kafka's test ends before the pair E is joined, at the end of the data.

Not carried over:

    runs with a cache
        They expect the last result only; tables here emit every change.
    the time of a result
        Of a table: Kafka gives the later time of the two rows; here it is that of the change that caused it, which differs
        where records are out of order. Of a stream's record without a partner: Kafka gives its own; here it is the end of
        its interval, when it is certain that no partner comes.
    a stream's records without a key or without a value
        Kafka joins them with nothing. Here None is a key like any other, so each of them has a key of its own in the data,
        and the tests drop records without a value before the join.

An input is a side, a value and a time, all of one key unless a key is given; None is a tombstone. The results
``value@time`` are in order, separated by blanks; ``null`` is a deletion.
"""

from __future__ import annotations

LEFT, RIGHT = 0, 1

INPUT = [
    (LEFT, None, 1),
    (RIGHT, None, 2),
    (LEFT, "A", 3),
    (RIGHT, "a", 4),
    (LEFT, "B", 5),
    (RIGHT, "b", 6),
    (LEFT, None, 7),
    (RIGHT, None, 8),
    (LEFT, "C", 9),
    (RIGHT, "c", 10),
    (RIGHT, None, 11),
    (LEFT, None, 12),
    (RIGHT, None, 13),
    (RIGHT, "d", 7),
    (LEFT, "D", 6),
    (LEFT, None, 2),
    (RIGHT, None, 3),
    (RIGHT, "e", 14),
    (LEFT, "E", 15),
    (LEFT, None, 10),
    (RIGHT, None, 9),
    (LEFT, "F", 4),
    (RIGHT, "f", 3),
]
"""Records out of order, among them."""

IN_ORDER = [
    (LEFT, None, 1),
    (RIGHT, None, 2),
    (LEFT, "A", 3),
    (RIGHT, "a", 4),
    (LEFT, "B", 5),
    (RIGHT, "b", 6),
    (LEFT, None, 7),
    (RIGHT, None, 8),
    (LEFT, "C", 9),
    (RIGHT, "c", 10),
    (RIGHT, None, 11),
    (LEFT, None, 12),
    (RIGHT, None, 13),
    (RIGHT, "d", 14),
    (LEFT, "D", 15),
    (LEFT, "E", 16, "a key of its own"),
    (RIGHT, "e", 17, "another key of its own"),
]

SELF_INPUT = [
    (LEFT, None, 1),
    (LEFT, "A", 2),
    (LEFT, "B", 3),
    (LEFT, None, 4),
    (LEFT, "C", 5),
    (LEFT, None, 6),
    (LEFT, "D", 7),
]

TABLE_TABLE = {
    "join": "A-a@4 B-a@5 B-b@6 null@7 C-c@10 null@11 D-d@7 null@7 E-e@15 null@14 F-f@4",
    "left_join": (
        "A-null@3 A-a@4 B-a@5 B-b@6 null@7 C-null@9 C-c@10 C-null@11 null@12 D-d@7 null@7 E-e@15 null@14 F-null@4 F-f@4"
    ),
    "outer_join": (
        "A-null@3 A-a@4 B-a@5 B-b@6 null-b@7 null@8 C-null@9 C-c@10 C-null@11 null@12 null-d@7 D-d@7 null-d@7 "
        "null@3 null-e@14 E-e@15 null-e@14 null@9 F-null@4 F-f@4"
    ),
}

TABLE_TABLE_TABLE = {
    "join join": "A-a-a@4 A-a-a@4 B-a-a@5 B-b-b@6 B-b-b@6 null@7 C-c-c@10 C-c-c@10 null@11 D-d-d@15",
    "join left_join": "A-a-a@4 A-a-a@4 B-a-a@5 B-b-b@6 B-b-b@6 null@7 C-c-c@10 C-c-c@10 null@11 D-d-d@15",
    "join outer_join": (
        "A-a-a@4 A-a-a@4 B-a-a@5 B-b-b@6 B-b-b@6 null-b@7 null@8 C-c-c@10 C-c-c@10 null@11 null@11 null-d@14 D-d-d@15"
    ),
    "left_join join": "A-a-a@4 A-a-a@4 B-a-a@5 B-b-b@6 B-b-b@6 null@7 C-c-c@10 C-c-c@10 null@11 D-d-d@15",
    "left_join left_join": (
        "A-null-null@3 A-a-a@4 A-a-a@4 B-a-a@5 B-b-b@6 B-b-b@6 null@7 C-null-null@9 C-c-c@10 C-c-c@10 "
        "C-null-null@11 C-null-null@11 null@12 D-d-d@15"
    ),
    "left_join outer_join": (
        "A-null-null@3 A-a-a@4 A-a-a@4 B-a-a@5 B-b-b@6 B-b-b@6 null-b@7 null@8 C-null-null@9 C-c-c@10 C-c-c@10 "
        "C-null-null@11 C-null-null@11 null@12 null-d@14 D-d-d@15"
    ),
    "outer_join join": (
        "A-a-a@4 A-a-a@4 B-a-a@5 B-b-b@6 B-b-b@6 null-b-b@7 null@8 C-c-c@10 C-c-c@10 null@11 null-d-d@14 "
        "null-d-d@14 D-d-d@15"
    ),
    "outer_join left_join": (
        "A-null-null@3 A-a-a@4 A-a-a@4 B-a-a@5 B-b-b@6 B-b-b@6 null-b-b@7 null@8 C-null-null@9 C-c-c@10 C-c-c@10 "
        "C-null-null@11 C-null-null@11 null@12 null-d-d@14 null-d-d@14 D-d-d@15"
    ),
    "outer_join outer_join": (
        "A-null-null@3 A-a-a@4 A-a-a@4 B-a-a@5 B-b-b@6 B-b-b@6 null-b-b@7 null@8 null@8 C-null-null@9 C-c-c@10 "
        "C-c-c@10 C-null-null@11 C-null-null@11 null@12 null-d-d@14 null-d-d@14 D-d-d@15"
    ),
}

STREAM_TABLE = {
    "join": "B-a@5 D-d@6 E-e@15",
    "left_join": "A-null@3 B-a@5 C-null@9 D-d@6 E-e@15 F-null@4",
}

VERSIONED_TABLES = {
    "join": {
        "both": "A-a@4 B-a@5 B-b@6 null@7 C-c@10 null@11 E-e@15",
        "left": "A-a@4 B-a@5 B-b@6 null@7 C-c@10 null@11 E-e@15 null@15 E-f@15",
        "right": "A-a@4 B-a@5 B-b@6 null@7 C-c@10 null@11 E-e@15 null@14 F-e@14",
    },
    "left_join": {
        "both": "A-null@3 A-a@4 B-a@5 B-b@6 null@7 C-null@9 C-c@10 C-null@11 null@12 E-e@15",
        "left": "A-null@3 A-a@4 B-a@5 B-b@6 null@7 C-null@9 C-c@10 C-null@11 null@12 E-e@15 E-null@15 E-f@15",
        "right": (
            "A-null@3 A-a@4 B-a@5 B-b@6 null@7 C-null@9 C-c@10 C-null@11 null@12 D-null@6 null@2 E-e@15 null@14 F-e@14"
        ),
    },
    "outer_join": {
        "both": "A-null@3 A-a@4 B-a@5 B-b@6 null-b@7 null@8 C-null@9 C-c@10 C-null@11 null@12 null-e@14 E-e@15",
        "left": (
            "A-null@3 A-a@4 B-a@5 B-b@6 null-b@7 null@8 C-null@9 C-c@10 C-null@11 null@12 null-d@7 null@3 null-e@14 "
            "E-e@15 E-null@15 E-f@15"
        ),
        "right": (
            "A-null@3 A-a@4 B-a@5 B-b@6 null-b@7 null@8 C-null@9 C-c@10 C-null@11 null@12 D-null@6 null@2 null-e@14 "
            "E-e@15 null-e@14 F-e@14"
        ),
    },
}
"""By the tables that are versioned; their history retention is five minutes."""

STREAM_VERSIONED_TABLE = {
    "join": "B-a@5 D-b@6 E-e@15 F-a@4",
    "left_join": "A-null@3 B-a@5 C-null@9 D-b@6 E-e@15 F-a@4",
}

STREAM_VERSIONED_TABLE_GRACE = {
    "join": "B-a@5 D-b@6 F-a@4",
    "left_join": "A-null@3 B-a@5 D-b@6 C-null@9 F-a@4",
}

STREAM_STREAM = {
    "inner": "A-a@4 B-a@5 A-b@6 B-b@6 C-a@9 C-b@9 A-c@10 B-c@10 C-c@10 A-d@14 B-d@14 C-d@14 D-a@15 D-b@15 D-c@15 D-d@15",
    "left": (
        "A-a@4 B-a@5 A-b@6 B-b@6 C-a@9 C-b@9 A-c@10 B-c@10 C-c@10 A-d@14 B-d@14 C-d@14 D-a@15 D-b@15 D-c@15 D-d@15 E-null@16"
    ),
    "full": (
        "A-a@4 B-a@5 A-b@6 B-b@6 C-a@9 C-b@9 A-c@10 B-c@10 C-c@10 A-d@14 B-d@14 C-d@14 D-a@15 D-b@15 D-c@15 D-d@15 "
        "E-null@16 null-e@17"
    ),
    "inner inner": (
        "A-a-a@4 B-a-a@5 A-b-a@6 B-b-a@6 A-a-b@6 B-a-b@6 A-b-b@6 B-b-b@6 C-a-a@9 C-a-b@9 C-b-a@9 C-b-b@9 A-c-a@10 "
        "A-c-b@10 B-c-a@10 B-c-b@10 C-c-a@10 C-c-b@10 A-a-c@10 B-a-c@10 A-b-c@10 B-b-c@10 C-a-c@10 C-b-c@10 "
        "A-c-c@10 B-c-c@10 C-c-c@10 A-d-a@14 A-d-b@14 A-d-c@14 B-d-a@14 B-d-b@14 B-d-c@14 C-d-a@14 C-d-b@14 "
        "C-d-c@14 A-a-d@14 B-a-d@14 A-b-d@14 B-b-d@14 C-a-d@14 C-b-d@14 A-c-d@14 B-c-d@14 C-c-d@14 A-d-d@14 "
        "B-d-d@14 C-d-d@14 D-a-a@15 D-a-b@15 D-a-c@15 D-a-d@15 D-b-a@15 D-b-b@15 D-b-c@15 D-b-d@15 D-c-a@15 "
        "D-c-b@15 D-c-c@15 D-c-d@15 D-d-a@15 D-d-b@15 D-d-c@15 D-d-d@15"
    ),
}

SELF_JOIN = {
    "inner": "A-A@2 B-A@3 A-B@3 B-B@3 C-A@5 C-B@5 A-C@5 B-C@5 C-C@5 D-A@7 D-B@7 D-C@7 A-D@7 B-D@7 C-D@7 D-D@7",
}

INTERVALS = {
    (-100, 100): [
        (LEFT, "A", 2, 0, 0, ""),
        (RIGHT, "a", 2, 0, 0, "A0-a0@0 A1-a1@0"),
        (LEFT, "B", 4, 1000, 1, ""),
        (RIGHT, "b", 4, 1100, 0, "B0-b0@1100 B1-b1@1100 B2-b2@1100 B3-b3@1100"),
        (RIGHT, "c", 4, 1101, 0, "B1-c1@1101 B2-c2@1101 B3-c3@1101"),
        (RIGHT, "d", 4, 1102, 0, "B2-d2@1102 B3-d3@1102"),
        (RIGHT, "e", 4, 1103, 0, "B3-e3@1103"),
        (RIGHT, "f", 4, 1104, 0, ""),
        (RIGHT, "g", 4, 899, 0, ""),
        (RIGHT, "h", 4, 900, 0, "B0-h0@1000"),
        (RIGHT, "i", 4, 901, 0, "B0-i0@1000 B1-i1@1001"),
        (RIGHT, "j", 4, 902, 0, "B0-j0@1000 B1-j1@1001 B2-j2@1002"),
        (RIGHT, "k", 4, 903, 0, "B0-k0@1000 B1-k1@1001 B2-k2@1002 B3-k3@1003"),
        (RIGHT, "l", 4, 2000, 1, ""),
        (LEFT, "C", 4, 2100, 0, "C0-l0@2100 C1-l1@2100 C2-l2@2100 C3-l3@2100"),
        (LEFT, "D", 4, 2101, 0, "D1-l1@2101 D2-l2@2101 D3-l3@2101"),
        (LEFT, "E", 4, 2102, 0, "E2-l2@2102 E3-l3@2102"),
        (LEFT, "F", 4, 2103, 0, "F3-l3@2103"),
        (LEFT, "G", 4, 2104, 0, ""),
        (LEFT, "H", 4, 1899, 0, ""),
        (LEFT, "I", 4, 1900, 0, "I0-l0@2000"),
        (LEFT, "J", 4, 1901, 0, "J0-l0@2000 J1-l1@2001"),
        (LEFT, "K", 4, 1902, 0, "K0-l0@2000 K1-l1@2001 K2-l2@2002"),
        (LEFT, "L", 4, 1903, 0, "L0-l0@2000 L1-l1@2001 L2-l2@2002 L3-l3@2003"),
    ],
    (0, 100): [
        (LEFT, "A", 4, 1000, 1, ""),
        (RIGHT, "a", 4, 999, 0, ""),
        (RIGHT, "b", 4, 1000, 0, "A0-b0@1000"),
        (RIGHT, "c", 4, 1001, 0, "A0-c0@1001 A1-c1@1001"),
        (RIGHT, "d", 4, 1002, 0, "A0-d0@1002 A1-d1@1002 A2-d2@1002"),
        (RIGHT, "e", 4, 1003, 0, "A0-e0@1003 A1-e1@1003 A2-e2@1003 A3-e3@1003"),
        (RIGHT, "f", 4, 1100, 0, "A0-f0@1100 A1-f1@1100 A2-f2@1100 A3-f3@1100"),
        (RIGHT, "g", 4, 1101, 0, "A1-g1@1101 A2-g2@1101 A3-g3@1101"),
        (RIGHT, "h", 4, 1102, 0, "A2-h2@1102 A3-h3@1102"),
        (RIGHT, "i", 4, 1103, 0, "A3-i3@1103"),
        (RIGHT, "j", 4, 1104, 0, ""),
    ],
    (-100, 0): [
        (LEFT, "A", 4, 1000, 1, ""),
        (RIGHT, "a", 4, 899, 0, ""),
        (RIGHT, "b", 4, 900, 0, "A0-b0@1000"),
        (RIGHT, "c", 4, 901, 0, "A0-c0@1000 A1-c1@1001"),
        (RIGHT, "d", 4, 902, 0, "A0-d0@1000 A1-d1@1001 A2-d2@1002"),
        (RIGHT, "e", 4, 903, 0, "A0-e0@1000 A1-e1@1001 A2-e2@1002 A3-e3@1003"),
        (RIGHT, "f", 4, 1000, 0, "A0-f0@1000 A1-f1@1001 A2-f2@1002 A3-f3@1003"),
        (RIGHT, "g", 4, 1001, 0, "A1-g1@1001 A2-g2@1002 A3-g3@1003"),
        (RIGHT, "h", 4, 1002, 0, "A2-h2@1002 A3-h3@1003"),
        (RIGHT, "i", 4, 1003, 0, "A3-i3@1003"),
        (RIGHT, "j", 4, 1004, 0, ""),
    ],
}
"""By the bounds of the interval in ms: side, letter, number of keys, time of the first key's record, time between those of
two keys, and the results. The value of key 3 is the letter and 3."""
