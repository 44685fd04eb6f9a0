"""PostgreSQL: changes of tables as a source, by logical replication; tables as a sink.

The server decodes its log in one *replication slot* for each source. `enumerator` (in the driver) plans ranges of the log by
LSN, `reader` (in a task) streams exactly these transactions, and confirms to the server only what a completed checkpoint
covers. Decisions and formats are pure: `pgoutput` (messages), `values`, `row_changes` and `visibility`.

The sink (`sink`, `staging`) prepares rows in a table beside the target, and moves them when their checkpoint is complete.
"""
