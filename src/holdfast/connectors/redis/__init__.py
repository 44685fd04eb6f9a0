"""Redis: rows in its keys.

`server` has the connection and its errors, `commands` the rows as commands, `staging` where they wait for their checkpoint,
`sink` the sink.
"""
