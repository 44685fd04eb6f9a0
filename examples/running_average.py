"""Prints the running average of numbers typed into ``nc -lk 9000``."""

import os

from holdfast.datastream import KeyedProcessFunction, StreamExecutionEnvironment, ValueState

HOST, PORT = os.environ.get("SOCKET", "localhost:9000").rsplit(":", 1)
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/holdfast-checkpoints"))


class RunningAverage(KeyedProcessFunction):
    """Keeps the count and the sum of the numbers; emits the average after each."""

    count = ValueState("count", int)
    sum = ValueState("sum", float)

    def process_element(self, line, ctx):
        count = (self.count.value() or 0) + 1
        total = (self.sum.value() or 0.0) + float(line)
        self.count.update(count)
        self.sum.update(total)
        yield f"{total / count:g} is the average of {count} numbers"


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1_000)
env.get_checkpoint_config().set_checkpoint_storage_dir(CHECKPOINTS)

numbers = env.socket_text_stream(HOST, int(PORT))
numbers.key_by(lambda line: "all").process(RunningAverage()).print()

env.execute("running-average")
