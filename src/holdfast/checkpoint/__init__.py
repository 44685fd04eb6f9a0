"""How a checkpoint lasts: storage, the files of state, the log of checkpoints, retention.

| module | owns |
|---|---|
| `paths` | the name of every stored object |
| `storage` | retries, lost answers, the early check; `local_store` and `s3_store` do the I/O |
| `files` | the container of a stored file: version, compression, checksum |
| `metadata` | what a completed checkpoint consists of |
| `tail` | where the log ends, found without trusting a listing; which old entries may go |
| `log` | one conditional put per position: completions and takeovers in one total order |
| `retention` | which files may be deleted |
"""
