"""Tests unpaid_orders.py in this process, without Kafka and Spark: ``pytest examples/test_unpaid_orders.py``."""

from unpaid_orders import settled

from holdfast.common import WatermarkStrategy
from holdfast.testing import InProcessEnvironment, TestSource

MINUTE = 60_000


def events(env, name, *given):
    """A stream of events (order id, minute, amount); an instruction of TestSource may stand between them."""
    made = [
        {"order_id": each[0], "ts_ms": each[1] * MINUTE, "amount": each[2]} if isinstance(each, tuple) else each
        for each in given
    ]
    times = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda event, _: event["ts_ms"])
    return env.from_source(TestSource(made), times, name)


def results_of(orders, payments):
    env = InProcessEnvironment().set_parallelism(2)
    with settled(events(env, "orders", *orders), events(env, "payments", *payments)).execute_and_collect() as results:
        return sorted((result["order_id"], result["status"]) for result in results)


def test_an_order_is_paid_within_fifteen_minutes_or_unpaid():
    orders = [("a", 0, 10), ("b", 1, 20), ("c", 2, 30)]
    payments = [("a", 15, 10), ("b", 17, 20), ("z", 18, 5)]
    assert results_of(orders, payments) == [("a", "paid"), ("b", "unpaid"), ("c", "unpaid")]


def test_an_order_that_is_sent_twice_counts_once_also_after_a_failure():
    orders = [("a", 0, 10), ("b", 0, 20), TestSource.ABORT(), ("a", 1, 10), ("b", 1, 20)]
    assert results_of(orders, [("a", 2, 10)]) == [("a", "paid"), ("b", "unpaid")]
