"""Prints the words of each burst typed into ``nc -lk 9000``: a burst ends when nothing has come for five seconds."""

import os

from holdfast.common import Time
from holdfast.datastream import ProcessingTimeSessionWindows, ProcessWindowFunction, StreamExecutionEnvironment

HOST, PORT = os.environ.get("SOCKET", "localhost:9000").rsplit(":", 1)
CHECKPOINTS = os.environ.get("CHECKPOINTS", os.path.expanduser("~/holdfast-checkpoints"))


class Burst(ProcessWindowFunction):
    """Tells how long a burst took, and its words."""

    def process(self, key, context, words):
        window = context.window()
        yield f"{len(words)} words in {(window.end - window.start) / 1000 - 5:.1f} s: {' '.join(words)}"


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1_000)
env.get_checkpoint_config().set_checkpoint_storage_dir(CHECKPOINTS)

words = env.socket_text_stream(HOST, int(PORT)).flat_map(str.split)
bursts = words.key_by(lambda word: "all").window(ProcessingTimeSessionWindows.with_gap(Time.seconds(5)))
bursts.process(Burst()).print()

env.execute("sessions")
