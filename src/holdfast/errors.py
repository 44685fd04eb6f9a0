"""The exceptions of Holdfast. Each says what happened, where, and what to do.

They are instructions to the code that catches them: a `Fenced` job must not be restarted, a `UserCodeError` names the
record that a fixed program will see again, a `CorruptFile` names the file.
"""

from __future__ import annotations

__all__ = [
    "CheckpointError",
    "ConfigurationError",
    "CorruptFile",
    "Fenced",
    "HoldfastError",
    "IncompatibleState",
    "InputLost",
    "JobFailed",
    "ServiceUnavailable",
    "SparkGone",
    "StaleRange",
    "StorageError",
    "UserCodeError",
]


class HoldfastError(Exception):
    """Base of all errors raised by Holdfast."""


class ConfigurationError(HoldfastError, ValueError):
    """A setting, a program or its surroundings cannot work; raised before any input is read."""


class StorageError(HoldfastError):
    """The checkpoint storage did not answer within the retry budget, or refuses the operation."""


class CorruptFile(StorageError):
    """A stored file is missing, truncated or altered. ``path`` names it."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason

    def __reduce__(self) -> tuple[type[CorruptFile], tuple[str, str]]:
        return (type(self), (self.path, self.reason))


class CheckpointError(HoldfastError):
    """A checkpoint could not be completed."""


class Fenced(HoldfastError):
    """Another driver (or a later attempt) has taken over; this one must stop and must not be restarted."""


class IncompatibleState(HoldfastError):
    """The program does not fit the checkpoint it would resume from; raised before any input is read."""


class SparkGone(HoldfastError):
    """Spark's JVM has died or was stopped under the job. The driver must be started again; it resumes by itself."""


class ServiceUnavailable(HoldfastError):
    """A service that a schema or a connector asks does not answer; the record at hand is not to blame."""


class StaleRange(ServiceUnavailable):
    """A range cannot be read as it was planned, but planned anew it can: the job goes back to its last checkpoint."""


class InputLost(HoldfastError):
    """A source no longer holds records that the job has not read yet."""


class UserCodeError(HoldfastError):
    """A user's function raised, or a record could not be parsed.

    The message begins with the user's own traceback and ends with the place: operator, uid, key, record.
    """

    def __init__(self, message: str, *, operator: str = "", uid: str = "", key: str = "", record: str = "") -> None:
        super().__init__(message)
        self.operator = operator
        self.uid = uid
        self.key = key
        self.record = record

    def __reduce__(self) -> tuple[object, ...]:
        return (_user_code_error, (self.args[0], self.operator, self.uid, self.key, self.record))


def _user_code_error(message: str, operator: str, uid: str, key: str, record: str) -> UserCodeError:
    return UserCodeError(message, operator=operator, uid=uid, key=key, record=record)


class JobFailed(HoldfastError):
    """The job ended with an error that its restart strategy does not cover; ``__cause__`` is the last failure."""
