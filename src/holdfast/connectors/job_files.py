"""JobFiles, a connector's own files in the job's storage, beside the checkpoints."""

from __future__ import annotations

from holdfast.checkpoint.paths import JobPaths, safe_name
from holdfast.checkpoint.stores.storage import Storage
from holdfast.connectors.base import JobInfo

__all__ = ["JobFiles"]


class JobFiles:
    """The files of one source or sink: ``<storage>/<job>/<kind>/<uid>/<name>``. Durable once `put` returns.

    Args:
        job: The job, which must have a storage.
        kind: ``sources`` or ``sinks``.
        uid: The operator's uid.
    """

    def __init__(self, job: JobInfo, kind: str, uid: str) -> None:
        if job.storage_uri is None:
            raise ValueError(f"job {job.job_name} keeps no checkpoints, so it has no place for files")
        self._storage = Storage.open(job.storage_uri, job.storage_config)
        self._prefix = f"{JobPaths.of(job.job_name).directory}/{kind}/{safe_name(uid)}/"

    def put(self, name: str, data: bytes) -> None:
        """Write a file atomically, replacing one with this name."""
        self._storage.put(self._prefix + name, data)

    def get(self, name: str) -> bytes:
        """Return the content of a file.

        Raises:
            NotFound: the file does not exist.
        """
        return self._storage.get(self._prefix + name)

    def names(self) -> list[str]:
        """Return the sorted names of all files, including unfinished writes."""
        return sorted(path.removeprefix(self._prefix) for path in self._storage.list(self._prefix))

    def delete(self, names: list[str]) -> None:
        """Delete files; missing ones are ignored."""
        self._storage.delete([self._prefix + name for name in names])

    def locate(self, name: str) -> str:
        """Return the full name of a file, for messages."""
        return self._storage.locate(self._prefix + name)
