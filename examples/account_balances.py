"""Keeps the number and the balance of each city's accounts in a compacted topic, from a compacted topic of accounts.

A record of the accounts' topic has the account as its key and JSON like ``{"city": "Pune", "balance": 10}`` as its value;
a record without a value deletes the account. When a city's last account goes, its record is deleted, too.
"""

import json
import os

from holdfast.datastream import StreamExecutionEnvironment
from holdfast.table import StreamsBuilder

KAFKA = os.environ.get("KAFKA", "localhost:9092")
ACCOUNTS_TOPIC = os.environ.get("ACCOUNTS_TOPIC", "accounts")
BALANCES_TOPIC = os.environ.get("BALANCES_TOPIC", "balances")
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/holdfast-checkpoints"))


def with_account(city, balance, total):
    return total[0] + 1, total[1] + balance


def without_account(city, balance, total):
    return (total[0] - 1, total[1] - balance) if total[0] > 1 else None


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1_000)
env.get_checkpoint_config().set_checkpoint_storage_dir(CHECKPOINTS)

builder = StreamsBuilder(env, {"bootstrap.servers": KAFKA, "application.id": "account-balances"})
accounts = builder.table(ACCOUNTS_TOPIC, value_deserializer=json.loads)
by_city = accounts.group_by(lambda account, row: (row["city"], row["balance"]))
balances = by_city.aggregate(lambda: (0, 0), with_account, without_account)
balances.to_stream().to(BALANCES_TOPIC, value_serializer=json.dumps)

env.execute("account-balances")
