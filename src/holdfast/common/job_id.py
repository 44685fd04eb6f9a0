"""JobID, the id of a running job."""

from __future__ import annotations

import uuid

__all__ = ["JobID"]


class JobID:
    """The id of a job: 32 hexadecimal digits.

    Args:
        job_id: the digits; None makes a new id.
    """

    __slots__ = ("_hex",)

    def __init__(self, job_id: str | None = None) -> None:
        self._hex = uuid.uuid4().hex if job_id is None else job_id

    def __str__(self) -> str:
        return self._hex

    def __repr__(self) -> str:
        return f"JobID({self._hex!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, JobID):
            return NotImplemented
        return self._hex == other._hex

    def __hash__(self) -> int:
        return hash(self._hex)
