"""The Kafka committable stored in checkpoint metadata, and transactional ids."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.ids import Epoch
from holdfast.connectors.base import Committable, check_form
from holdfast.connectors.kafka.sink.transactions import Prepared

__all__ = [
    "SLOTS",
    "KafkaCommittable",
    "TransactionalId",
    "check_prepared",
    "id_prefix",
    "rewriter_id",
    "rewriting_job",
]

_VERSIONS = (1, 2)
"""Version 2 has the copy of the records in it; releases that know version 1 only would miss it."""
SLOTS = 4
"""A writer's epoch n uses slot n mod SLOTS. An open transaction in the slot of an epoch just committed belongs to a dead
attempt, unless it is one of the committed transactions."""


def id_prefix(prefix: str, uid: str) -> str:
    """Return the prefix of a sink's transactional ids.

    The uid's dashes are escaped, so that an id says where its prefix ends, and no two sinks share an id.

    >>> id_prefix("payments", "out-of-town")
    'payments-out%2Dof%2Dtown-'
    """
    return f"{prefix}-{uid.replace('%', '%25').replace('-', '%2D')}-"


def rewriter_id(prefix: str, uid: str, subtask: int, job: str) -> str:
    """Return the transactional id for rewriting a subtask's lost output in recovery."""
    return f"{id_prefix(prefix, uid)}rewrite-{subtask}{f'-j{job}' if job else ''}"


def rewriting_job(text: str, prefix: str, uid: str) -> str | None:
    """Return the job of a `rewriter_id` of this sink; None if the transactional id is not one."""
    match = re.fullmatch(re.escape(id_prefix(prefix, uid)) + r"rewrite-\d+(?:-j([0-9a-f]+))?", text)
    return None if match is None else match.group(1) or ""


@dataclass(frozen=True)
class TransactionalId:
    """The parts of a writer's transactional id."""

    prefix: str
    uid: str
    subtask: int
    generation: int
    writer: str
    """Unique per writer, so that two attempts of a subtask never fence each other."""
    slot: int
    lane: int
    job: str = ""
    """The job's identity (`JobInfo.identity`); empty: without one, or of a release that did not write it."""

    def __str__(self) -> str:
        job = f"j{self.job}-" if self.job else ""
        return (
            f"{id_prefix(self.prefix, self.uid)}{self.subtask}-{job}g{self.generation}-{self.writer}-{self.slot}.{self.lane}"
        )

    @classmethod
    def parse(cls, text: str, prefix: str, uid: str) -> TransactionalId | None:
        """Parse a transactional id; return None if the id belongs to another sink.

        >>> str(TransactionalId.parse("job-sink-3-j1f-g12-0a1b2c3d-2.0", "job", "sink"))
        'job-sink-3-j1f-g12-0a1b2c3d-2.0'
        """
        parsed = cls.of_sink(text, uid)
        return parsed if parsed is not None and parsed.prefix == prefix else None

    @classmethod
    def of_sink(cls, text: str, uid: str) -> TransactionalId | None:
        """Parse a transactional id of a sink with any prefix; return None if the id belongs to another sink."""
        match = re.fullmatch(
            r"(.*)" + re.escape(id_prefix("", uid)) + r"(\d+)-(?:j([0-9a-f]+)-)?g(\d+)-([0-9a-f]+)-(\d+)\.(\d+)",
            text,
            re.DOTALL,
        )
        if match is None:
            return None
        prefix, subtask, job, generation, writer, slot, lane = match.groups()
        return cls(prefix, uid, int(subtask), int(generation), writer, int(slot), int(lane), job or "")


@dataclass(frozen=True)
class KafkaCommittable:
    """One prepared transaction."""

    transaction: Prepared
    generation: int
    epoch: Epoch
    subtask: int
    token: str
    """Name of the output. It is part of the transaction, so the log itself shows whether the transaction was committed."""
    outbox: str | None
    """The name of the copy of the records; None without checkpoint storage."""
    copy: bytes | None = None
    """The copy, if it is in no file: the content of one."""

    def encode(self) -> dict[str, Any]:
        """Convert to plain data."""
        t = self.transaction
        data = {
            "version": _VERSIONS[0] if self.copy is None else _VERSIONS[1],
            "transaction": [t.transactional_id, t.producer_id, t.producer_epoch],
            "generation": self.generation,
            "epoch": self.epoch,
            "token": self.token,
            "outbox": self.outbox,
        }
        return data if self.copy is None else {**data, "copy": self.copy}

    @classmethod
    def decode(cls, committable: Committable) -> KafkaCommittable:
        """Decode plain data; the inverse of `encode`.

        Raises:
            IncompatibleState: as `check_prepared`.
        """
        data = committable.data
        check_prepared(data)
        return cls(
            Prepared(*data["transaction"]),
            data["generation"],
            data["epoch"],
            committable.subtask,
            data["token"],
            data["outbox"],
            data.get("copy"),
        )


def check_prepared(data: Any) -> None:
    """Check that the data of a committable is a prepared transaction.

    Raises:
        IncompatibleState: another sink, or a release of another form, has stored it.
    """
    check_form(data, ("version", "transaction", "outbox"), "KafkaSink", _VERSIONS)
