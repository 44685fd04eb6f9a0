"""Cases of Kafka Streams' own tests of sliding windows: pairs, and the values of each window one after the other.

Source: Apache Kafka, trunk at commit 1eb7644349cb (2024-10-25), streams/src/test/java/org/apache/kafka/streams:
kstream/internals/KStreamSlidingWindowAggregateTest, with results on each update. Of its results on closing, where
two of the tests have another grace period, FINAL has the values of the windows that are closed in the end.

A pair is a key (a capital letter), a value (one character) and a time. An aggregate is what the values are, one after the
other; it begins with a 0 where Kafka's does. A window is its key, its start, and its successive values.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    source: str
    difference: int
    grace: int
    pairs: str
    windows: str


def final(source: str, difference: int, grace: int, pairs: str, windows: str) -> Case:
    return Case(f"{source}, on closing", difference, grace, pairs, windows)


CASES = (
    Case(
        "testAggregateSmallInput",
        10,
        5,
        "A1@10 A2@10 A3@14 A4@15 A5@20 A6@22 A7@30",
        (
            "A0:01,012 A4:0123 A5:01234 A10:012345 A11:03,034,0345 A12:03456 A15:04,045,0456 A16:05,056 A20:0567 "
            "A21:06,067 A23:07"
        ),
    ),
    Case(
        "testReduceSmallInput",
        10,
        5,
        "A1@10 A2@14 A3@15 A4@22 A5@26 A6@30",
        "A0:1 A4:12 A5:123 A11:2,23 A12:234 A15:3,34 A16:4,45 A20:456 A23:5,56 A27:6",
    ),
    Case(
        "testAggregateLargeInput",
        10,
        50,
        (
            "A1@10 A2@20 A3@22 A4@15 B1@12 B2@13 B3@18 B4@19 B5@25 B6@14 C1@11 C2@15 C3@16 C4@21 C5@23 D4@11 "
            "D2@12 D3@29 D5@16"
        ),
        (
            "A0:01 A5:014 A10:012,0124 A11:02,024 A12:023,0234 A16:023 A21:03 B2:01 B3:012 B4:0126 B8:0123,01236 "
            "B9:01234,012346 B13:02,023,0234,02346 B14:03,034,0346 B15:0345 B19:04,045 B20:05 C1:01 C5:012 "
            "C6:0123 C11:01234 C12:02,023,0234 C13:02345 C16:03,034,0345 C17:04,045 C22:05 D1:04 D2:042 D6:0425 "
            "D12:02,025 D13:05 D19:03"
        ),
    ),
    Case(
        "testEarlyRecordsSmallInput",
        50,
        0,
        "A1@0 A2@5 A3@6 A4@3 A5@13 A6@10 A7@70",
        (
            "A0:01,012,0123,01234,012345,0123456 A1:02,023,0234,02345,023456 A4:023,0235,02356 A6:03,035,0356 "
            "A7:05,056 A11:05 A20:07"
        ),
    ),
    Case(
        "testEarlyRecordsRepeatedInput",
        5,
        0,
        "A1@0 A2@2 A3@4 A4@0 A5@2 A6@2 A7@0 A8@7",
        "A0:01,012,0123,01234,012345,0123456,01234567 A1:02,023,0235,02356 A2:023568 A3:03,038 A5:08",
    ),
    Case(
        "testEarlyRecordsLargeInput",
        10,
        50,
        "E1@0 E3@5 E4@6 E2@3 E6@13 E5@10 E7@4 E8@2 E9@15",
        (
            "E0:01,013,0134,01342,013425,0134257,01342578 E1:03,034,0342,03425,034257,0342578 "
            "E3:03426,034265,0342657 E4:034,0346,03465,034657 E5:03465,034659 E6:04,046,0465,04659 E7:06,065,0659 "
            "E11:06,069 E14:09"
        ),
    ),
    Case(
        "testEarlyNoGracePeriodSmallInput",
        50,
        0,
        "A1@0 A2@5 A3@6 A4@3 A5@13 A6@10 A6@70",
        (
            "A0:01,012,0123,01234,012345,0123456 A1:02,023,0234,02345,023456 A4:023,0235,02356 A6:03,035,0356 "
            "A7:05,056 A11:05 A20:06"
        ),
    ),
    Case(
        "testNoGracePeriodSmallInput",
        50,
        0,
        "A1@100 A2@105 A3@106 A4@103 A5@113 A6@110",
        (
            "A50:01 A55:012 A56:0123,01234 A63:012345,0123456 A101:02,023,0234,02345,023456 A104:023,0235,02356 "
            "A106:03,035,0356 A107:05,056 A111:05"
        ),
    ),
    Case(
        "testEarlyNoGracePeriodLargeInput",
        10,
        0,
        "E1@0 E3@5 E4@6 E2@3 E6@13 E5@10 E7@4 E8@2 E9@15",
        (
            "E0:01,013,0134,01342 E1:03,034,0342 E3:03426,034265,0342657 E4:034,0346,03465,034657 E5:03465,034659 "
            "E6:04,046,0465,04659 E7:06,065,0659 E11:06,069 E14:09"
        ),
    ),
    Case(
        "testNoGracePeriodLargeInput",
        10,
        0,
        "E1@100 E3@105 E4@106 E2@103 E6@113 E5@110 E7@104 E8@102 E9@115",
        (
            "E90:01 E95:013 E96:0134,01342 E101:03,034,0342 E103:03426,034265,0342657 E104:034,0346,03465,034657 "
            "E105:03465,034659 E106:04,046,0465,04659 E107:06,065,0659 E111:06,069 E114:09"
        ),
    ),
)

FINAL = (
    final(
        "testAggregateSmallInput",
        10,
        5,
        "A1@10 A2@10 A3@14 A4@15 A5@20 A6@22 A7@30",
        "A0:012 A4:0123 A5:01234 A10:012345 A11:0345 A12:03456",
    ),
    final(
        "testReduceSmallInput",
        10,
        5,
        "A1@10 A2@14 A3@15 A4@22 A5@26 A6@30",
        "A0:1 A4:12 A5:123 A11:23 A12:234",
    ),
    final(
        "testAggregateLargeInput",
        10,
        10,
        (
            "A1@10 A2@20 A3@22 A4@15 B1@12 B2@13 B3@18 B4@19 B5@25 B6@14 C1@11 C2@15 C3@16 C4@21 C5@23 D4@11 "
            "D2@12 D3@29 D5@16"
        ),
        "A0:01 A5:014 B2:01 B3:012 B8:01236 C5:02 C6:023",
    ),
    final(
        "testEarlyRecordsSmallInput",
        50,
        0,
        "A1@0 A2@5 A3@6 A4@3 A5@13 A6@10 A7@70",
        "A0:0123456 A1:023456 A4:02356 A6:0356 A7:056 A11:05",
    ),
    final(
        "testEarlyRecordsRepeatedInput",
        5,
        0,
        "A1@0 A2@2 A3@4 A4@0 A5@2 A6@2 A7@0 A8@7",
        "A0:01234567 A1:02356",
    ),
    final(
        "testEarlyRecordsLargeInput",
        10,
        1,
        "E1@0 E3@5 E4@6 E2@3 E6@13 E5@10 E7@4 E8@2 E9@15",
        "E0:01342 E1:0342 E3:0342657",
    ),
    final(
        "testEarlyNoGracePeriodSmallInput",
        50,
        0,
        "A1@0 A2@5 A3@6 A4@3 A5@13 A6@10 A6@70",
        "A0:0123456 A1:023456 A4:02356 A6:0356 A7:056 A11:05",
    ),
    final(
        "testNoGracePeriodSmallInput",
        50,
        0,
        "A1@100 A2@105 A3@106 A4@103 A5@113 A6@110",
        "A50:01 A55:012 A56:01234",
    ),
    final(
        "testEarlyNoGracePeriodLargeInput",
        10,
        0,
        "E1@0 E3@5 E4@6 E2@3 E6@13 E5@10 E7@4 E8@2 E9@15",
        "E0:01342 E1:0342 E3:0342657 E4:034657",
    ),
    final(
        "testNoGracePeriodLargeInput",
        10,
        0,
        "E1@100 E3@105 E4@106 E2@103 E6@113 E5@110 E7@104 E8@102 E9@115",
        "E90:01 E95:013 E96:01342 E101:0342 E103:0342657 E104:034657",
    ),
)

ANY_ORDER = (
    "AA@10 AB@15 AC@16 AD@18 AE@30 AF@40 AG@55 AH@56 AI@58 AJ@58 AK@62 AL@63 AM@63 AN@63 AO@76 AP@77 "
    "AQ@80 AR@2 AS@3 AT@5 AU@8"
)
"""testAggregateRandomInput: pairs in any order, with a time difference of 10 ms and a grace period of 100 ms."""

LAST = "AV@181"
"""The pair that comes last there."""

IN_ANY_ORDER = (
    "A0:ARSTU A3:ASTU A4:ATU A5:ABTU A6:ABCU A8:ABCDU A9:ABCD A11:BCD A16:CD A17:D A20:E A30:EF A31:F "
    "A45:G A46:GH A48:GHIJ A52:GHIJK A53:GHIJKLMN A56:HIJKLMN A57:IJKLMN A59:KLMN A63:LMN A66:O A67:OP "
    "A70:OPQ A77:PQ A78:Q A171:V"
)
"""The last values of the windows, with their characters in order."""
