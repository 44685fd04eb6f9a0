"""OwnedKeys: checks that the keys of an unshuffled stream belong to their subtask."""

from __future__ import annotations

from typing import Any

from holdfast.runtime.records.user_code import OperatorName, user_error
from holdfast.state.keys.key_groups import group_assigner

__all__ = ["OwnedKeys"]

_PLAIN = frozenset((str, int, bytes))


class OwnedKeys:
    """The keys of one subtask."""

    def __init__(self, max_parallelism: int, parallelism: int, subtask: int, sender: OperatorName) -> None:
        """``sender``: the emitting operator, for messages."""
        self._assign = group_assigner(max_parallelism, parallelism)
        self._alone = parallelism == 1
        self._subtask = subtask
        self._sender = sender

    def check(self, keys: list[Any], values: list[Any]) -> None:
        """Check that the subtask owns the keys of these values.

        Raises:
            UserCodeError: a key belongs to another subtask or is not a valid key; the message names the value.
        """
        if self._alone and set(map(type, keys)) <= _PLAIN:
            return
        try:
            owners = self._assign(keys)
        except Exception as error:  # raised by a key's own hash or pickling
            raise user_error(error, *self._sender, values[0]) from error
        for value, key, owner in zip(values, keys, owners):
            if owner != self._subtask:
                refusal = ValueError(
                    f"the key {key!r:.80} belongs to subtask {owner}, but its element is in subtask {self._subtask}: the "
                    "stream is not partitioned by this key. Use key_by() in place of reinterpret_as_keyed_stream()"
                )
                raise user_error(refusal, *self._sender, value, key)
