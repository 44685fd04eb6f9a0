"""Titles and introductions of the report's sections, by scenario."""

from __future__ import annotations

TITLES = {
    "stateful": "Stateful jobs beside other engines",
    "operators": "Operators beside Flink in Java",
    "nexmark": "Nexmark beside Flink in Java",
    "processors": "transformWithState beside PySpark's",
    "sliding": "Sliding windows",
    "async_io": "Async I/O",
    "cdc": "Change data of PostgreSQL",
    "kafka": "Kafka to Kafka, exactly once",
    "latency": "Latency",
    "far": "Checkpoints in an object store",
    "start": "From the start to the first result",
    "lone": "A lone epoch",
    "costs": "Where a microsecond goes",
    "checkpointing": "What checkpoints cost",
    "memory": "State of ten times the memory bound",
    "zipf": "Skewed keys",
    "rough": "Late and skewed input",
    "flat": "Many epochs",
    "growth": "Growing state",
    "tuning": "What settings do",
    "restart": "Restart after kill -9",
    "metadata": "Metadata of a large job",
    "clipped": "Restoring some of the key groups",
    "large": "Large maps and lists",
    "timers": "Twenty million timers",
    "micro": "Small parts",
}
TEXTS = {
    "stateful": "Events per second from the first element to the last result, without start-up. The checksums of all runs "
    "were correct, or the run is listed below. In brackets: on RocksDB the ratio to Flink in Java, on the "
    "heap the ratio to Bytewax. Holdfast completes a checkpoint in every epoch (every two seconds or more "
    "often), the others one every 10 s. Bytewax has no event-time timers and keeps its state in memory. "
    "PyFlink got 50,000 events, Bytewax 100,000 in windows with a million users; the others 2,000,000.",
    "operators": "Jobs around one operator each (`benchmarks/operators.py`, `benchmarks/peers/FlinkOperators.java`), both "
    "on RocksDB. Events per second of processor time: of all processes together, from half of the input on, when both are "
    "warm. So these are rates per core. Async I/O waits instead of computing (10 ms per answer, capacity 100, so at most "
    "10,000 events/s per subtask); there, events per second of each subtask. Checkpoints are at most 10 s apart. CEP "
    "gets 50,000 events of 1,000 users, because Flink does not finish more within minutes.",
    "nexmark": "The queries of [Nexmark](nexmark.md), both on RocksDB, as rates per core: events per second of "
    "processor time, of all processes together, from half of the input on. All digests were those of the models.",
    "processors": "The same `StatefulProcessor`s (`benchmarks/processors.py`) in a query of Structured Streaming and in a "
    'job with `call_mode="epoch"`, both on RocksDB with two partitions, from the same ten Parquet files, one a batch or an '
    "epoch. Processor time of all processes, JVM and Python workers included: medians, and the least and the greatest; then "
    "without the start, from the first batch or epoch on. The number and sum of all results were correct.",
    "sliding": "Windows of an hour that slide by a minute beside windows of a minute, with as many results per key and "
    "minute; one subtask.",
    "async_io": "One subtask, answers after 10 ms, capacity 100, beside plain asyncio without Holdfast; and the memory of "
    "the full operator, in capacities of elements of 100 kB.",
    "cdc": "Rows of five columns, one subtask without Spark, the server on the same cores; the processor time of a million "
    "rows here and in the server. An update of the log is one row in the table and two elements.",
    "kafka": "Six million records from the first to the last, including the cold first epoch. JSON in and out, four "
    "partitions, the broker on the same cores. The output is read back with `read_committed` and compared "
    "with the input.",
    "latency": "From the input record's Kafka timestamp to a `read_committed` reader of the output. A lone epoch carries "
    "a single record through both stages, with its checkpoint and its transaction. One stage: one subtask, in which the "
    "source's records meet their counts without a shuffle. The plain loop: one process without an engine or a checkpoint, "
    "the limit of machine and broker. Spark's micro-batch: "
    "transformWithState in Python with the same counts, from files, at least once, until the driver holds the results. "
    "Users come at random, in the micro-batch's job in a cycle.",
    "far": "Latency as above, two subtasks, with the checkpoints in a directory and in an emulator of S3 that lets each "
    "request wait. Ranges are those of the rounds. Requests are counted at the emulator, dollars are Amazon's prices. "
    "Checkpoints follow at once, except with 20 dollars a month: there the budget sets the pace, and the sink writes at "
    "least once. The log in Kafka: each epoch's entry is a record of a topic. Refused: answered by 503, so that they are "
    "repeated.",
    "start": "Seconds from the start of the process to the first line of a small stateful job (two stages, parallelism "
    "2); medians of starts in turn. Warm: with the AOT cache; cold: without. PySpark runs two stages without "
    "state, with Spark's default settings; Flink runs the same job in Java, in a local cluster of one JVM.",
    "lone": "Milliseconds of an epoch of twenty records with state and its checkpoint, compared with a job of as many "
    "stages on plain PySpark with Spark's default settings; medians of runs in turn.",
    "costs": "CPU time per event of each kind of process, and by activity of the slots, which run the user's code "
    "(stacks sampled with py-spy).",
    "checkpointing": "The same job with a checkpoint every two seconds or more often, and with the whole input in two "
    "epochs. The difference is mostly the fixed cost of an epoch's Spark job; the cost of writing is given above.",
    "memory": "The same job with all its state in memory, and with a bound (`state.backend.cache.size`) of about a "
    "tenth of the state; the rest is in RocksDB.",
    "zipf": "A million users with a Zipf distribution (exponent 1.2), compared with as many equally likely users.",
    "rough": "Kafka to Kafka, exactly once, for a minute. Users have a Zipf distribution with exponent 1.2 (one user "
    "has a fifth of all records); a tenth of the records are between 5 s and two minutes late. In addition to "
    "the counts with timers, the job has windows of a minute that late records fire again, and a side output "
    "for later records. The backlog is the largest left by an epoch.",
    "flat": "Small epochs of the fraud job, by tenths of the run.",
    "growth": "RocksDB, an incompressible kilobyte per key. Half of the events add a new key, the others rewrite a "
    "random old one. In addition to the state, the local disk holds the checkpoints' files here. Holdfast completes a "
    "checkpoint in every epoch; Flink, the same program in Java with a gigabyte of managed memory, one every 10 s.",
    "tuning": "The fraud job with one setting changed at a time, first with 10,000 keys, then with a million and a row "
    "cache of a tenth of the state. The ratio is to the first run of each table.",
    "restart": "Every key has an incompressible kilobyte. Seconds from the start of the new driver process to its first "
    "results, including the start of Python, the JVM and Spark; medians.",
    "metadata": "Metadata written per epoch, with ten keyed operators of a hundred subtasks each, which hold 64 deltas "
    "each: 64,000 files. The mean includes roll-ups. CPU is that of completing the checkpoint and of "
    "retention.",
    "clipped": "A subtask restores one eighth of the key groups of a state with a base and deltas, of keys (one slice) or "
    "of windows (a slice each); the maximum of eight such subtasks. Bytes and requests are those read from the storage.",
    "large": "One key has a map of a million entries and a list of a hundred thousand elements. An epoch changes a hundred "
    "entries, in turn with a map of only a hundred; another epoch adds one element. Bytes written: those of the epoch's "
    "delta, counted at the storage, in comparison with the changed entries themselves (most of all epochs). Time: CPU of "
    "the change, the barrier and the store, median. Bases are written in the background, after 64 deltas.",
    "timers": "Every payment sets an event-time timer a day ahead, each for a key of its own; two subtasks on RocksDB, with "
    "the settings for little memory in [Tuning](tuning.md#memory). Then everything is killed with `kill -9` and started "
    "again, and a million timers fire, in four epochs. Plain: the same job without timers. Memory is the proportional set "
    "size of all processes of the job (driver, JVM, Spark's Python workers, task slots), the most of samples five times a "
    "second.",
    "micro": "Nanoseconds per operation of one thread, and the ratio to `benchmarks/baseline.json`, scaled by the "
    "speed of plain Python on this machine.",
}
