"""Durable checkpoints: storage, state files, the checkpoint log, and retention.

Private: stored state is read by ``holdfast.state_api``.

| module | owns |
|---|---|
| `paths` | the names of all stored objects |
| `object_store` | the interface of plain I/O; `directory_store` and `s3_store` implement it |
| `storage` | retries, lost answers, and the check before a job starts |
| `handles`, `files` | references to stored files; the container of a file: version, compression, checksum |
| `ids` | the types of epochs, checkpoint ids and log positions |
| `metadata`, `layers`, `manifests` | the content of a checkpoint, and its storage in layers |
| `entries` | the stored form of log entries |
| `milestones` | finds the log's end without trusting a listing, and decides which old entries may be deleted |
| `log`, `takeover` | one conditional put per position: completions and take-overs in one total order |
| `retention`, `references` | which files may be deleted |
"""
