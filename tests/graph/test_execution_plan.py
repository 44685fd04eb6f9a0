"""The execution plan as JSON, in Flink's shape."""

from __future__ import annotations

import json

from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment


class Keep(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


def test_the_plan_has_a_node_for_each_operator_with_its_predecessors():
    env = StreamExecutionEnvironment().set_parallelism(3)
    left = env.from_collection([1]).name("left")
    right = env.from_collection([2]).name("right")
    counted = left.union(right).key_by(lambda x: x).process(Keep()).name("count").set_description("counts by value")
    counted.rebalance().print()
    nodes = json.loads(env.get_execution_plan())["nodes"]
    number = {node["type"]: node["id"] for node in nodes}
    assert nodes == [
        {
            "id": number["Source: left"],
            "type": "Source: left",
            "pact": "Data Source",
            "contents": "Source: left",
            "parallelism": 1,
        },
        {
            "id": number["Source: right"],
            "type": "Source: right",
            "pact": "Data Source",
            "contents": "Source: right",
            "parallelism": 1,
        },
        {
            "id": number["count"],
            "type": "count",
            "pact": "Operator",
            "contents": "counts by value",
            "parallelism": 3,
            "predecessors": [
                {"id": number["Source: left"], "ship_strategy": "HASH", "side": "first"},
                {"id": number["Source: right"], "ship_strategy": "HASH", "side": "second"},
            ],
        },
        {
            "id": number["Sink: Print to Std. Out"],
            "type": "Sink: Print to Std. Out",
            "pact": "Data Sink",
            "contents": "Sink: Print to Std. Out",
            "parallelism": 3,
            "predecessors": [{"id": number["count"], "ship_strategy": "REBALANCE", "side": "first"}],
        },
    ]


def test_looking_at_the_plan_runs_and_forgets_nothing():
    env = StreamExecutionEnvironment().set_parallelism(1)
    env.from_collection([1]).print()
    assert env.get_execution_plan() == env.get_execution_plan()
