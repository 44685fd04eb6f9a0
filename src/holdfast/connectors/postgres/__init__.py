"""PostgreSQL: changes of tables as a source, by logical replication.

The server decodes its log in one *replication slot* for each source. `enumerator` (in the driver) plans ranges of the log by
LSN, `reader` (in a task) streams exactly these transactions, and confirms to the server only what a completed checkpoint
covers. Decisions and formats are pure: `pgoutput` (messages), `values`, `row_changes` and `visibility`.
"""
