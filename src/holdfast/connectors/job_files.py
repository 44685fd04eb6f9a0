"""What a connector itself keeps in the job's storage, beside the checkpoints."""

from __future__ import annotations

from holdfast.checkpoint.paths import JobPaths, safe_name
from holdfast.checkpoint.storage import Storage
from holdfast.connectors.base import JobInfo

__all__ = ["JobFiles"]


class JobFiles:
    """The files of one source or sink: ``<storage>/<job>/<kind>/<uid>/<name>``. Durable once `put` returns.

    Args:
        job: The job; it must have a storage.
        kind: ``sources`` or ``sinks``.
        uid: The operator's uid.
    """

    def __init__(self, job: JobInfo, kind: str, uid: str) -> None:
        if job.storage_uri is None:
            raise ValueError(f"job {job.job_name} keeps no checkpoints, so it has no place for files")
        self._storage = Storage.open(job.storage_uri, job.storage_config)
        self._prefix = f"{JobPaths.of(job.job_name).directory}/{kind}/{safe_name(uid)}/"

    def put(self, name: str, data: bytes) -> None:
        """Write a file, all of it or nothing, in place of one with this name."""
        self._storage.put(self._prefix + name, data)

    def get(self, name: str) -> bytes:
        """The content of a file.

        Raises:
            NotFound: there is none.
        """
        return self._storage.get(self._prefix + name)

    def names(self) -> list[str]:
        """The names of all files, those of unfinished writes included, sorted."""
        return sorted(path.removeprefix(self._prefix) for path in self._storage.list(self._prefix))

    def delete(self, names: list[str]) -> None:
        """Delete files; those that do not exist are no error."""
        self._storage.delete([self._prefix + name for name in names])

    def locate(self, name: str) -> str:
        """The full name of a file, for messages."""
        return self._storage.locate(self._prefix + name)
