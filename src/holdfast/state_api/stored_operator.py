"""StoredOperator: an operator in a savepoint or checkpoint, as readers see it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.metadata import OperatorCheckpoint
from holdfast.checkpoint.stores.storage import Storage
from holdfast.common.typeinfo import TypeInformation
from holdfast.errors import ConfigurationError
from holdfast.state.backends.backend import StateBackendSettings
from holdfast.state.backends.canonical import Part, opened_part, parts_of
from holdfast.state.rows.keyed_state import KeyedState
from holdfast.state.stored.schema import OperatorSchema
from holdfast.state_api.snapshots.catalog import Snapshot
from holdfast.state_api.snapshots.contents import schema_of
from holdfast.state_api.state_rows import Field, StateRows

__all__ = ["StoredOperator"]

Extract = Callable[[KeyedState], Iterator[Sequence[Any]]]
Declare = Callable[[KeyedState], None]
Open = Callable[[KeyedState], Callable[[], Iterator[Sequence[Any]]]]


@dataclass(frozen=True)
class StoredOperator:
    """The keyed state of an operator."""

    snapshot: Snapshot
    options: Mapping[str, str]
    uid: str
    operator: OperatorCheckpoint
    schema: OperatorSchema

    @staticmethod
    def of(snapshot: Snapshot, options: Mapping[str, str], uid: str) -> StoredOperator:
        """The operator with this uid.

        Raises:
            ConfigurationError: there is none with keyed state; the message lists those that there are.
        """
        operators = snapshot.checkpoint.operators
        schema = schema_of(uid, operators[uid]) if uid in operators else None
        if schema is None:
            keyed = sorted(each for each, stored in operators.items() if stored.schemas)
            raise ConfigurationError(
                f"{snapshot.path} has no keyed state of an operator with uid {uid!r}; it has state of "
                f"{', '.join(keyed) or 'none'}"
            )
        return StoredOperator(snapshot, options, uid, operators[uid], schema)

    @property
    def where(self) -> str:
        """The operator, for messages."""
        return f"operator {self.operator.name!r} (uid {self.uid!r})"

    def key_type(self, given: TypeInformation[Any] | None) -> TypeInformation[Any]:
        """The type of the keys.

        Raises:
            ConfigurationError: it is neither given nor declared by the job.
        """
        if given is not None:
            return given
        if self.schema.key.type is None:
            raise ConfigurationError(
                f"the job has not declared the type of the keys of uid {self.uid!r}: pass it, as key_type=Types.STRING()"
            )
        return TypeInformation.from_dict(self.schema.key.type)

    def rows(self, fields: Sequence[Field], extract: Extract, declare: Declare = lambda state: None) -> StateRows:
        """The rows that ``extract`` finds in the opened state of each part, after ``declare``."""

        def open(state: KeyedState) -> Callable[[], Iterator[Sequence[Any]]]:
            declare(state)
            return lambda: extract(state)

        return self.rows_by(fields, open)

    def rows_by(self, fields: Sequence[Field], open: Open) -> StateRows:
        """The rows of each part, by what ``open`` returns after it has declared states."""

        def read(storage: Storage, part: Part) -> Iterator[Sequence[Any]]:
            settings, reading = StateBackendSettings.of({}), []
            with opened_part(part, storage, settings, tempfile.gettempdir(), lambda state: reading.append(open(state))):
                yield from reading[0]()

        parts = list(parts_of(self.uid, self.operator))
        return StateRows(self.snapshot.storage.uri, self.options, self.snapshot.path, fields, parts, read)
