"""Where commands wait in Redis for their checkpoint: keys of chunks, and a set with the names of those keys.

A chunk is stored by one command and carried out by one script, so both may be repeated: one that was carried out is gone.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from holdfast.connectors.base import JobInfo
from holdfast.connectors.redis.commands import Command, packed
from holdfast.connectors.redis.server import RIGHTS, RedisServer, forbids, lasts
from holdfast.errors import ConfigurationError, InputLost, ServiceUnavailable

__all__ = ["Attempt", "Staging"]

_log = logging.getLogger(__name__)

_APPLY = """
local data = redis.call('GET', KEYS[1])
if not data then
  if ARGV[1] == '' then return {redis.call('SISMEMBER', KEYS[2], KEYS[1]), ''} end
  local written, wanted = redis.call('GET', KEYS[3]) or '0-0--1', ARGV[1]
  local a, b, c = string.match(written, '(%d+)-(%d+)-(-?%d+)')
  local x, y, z = string.match(wanted, '(%d+)-(%d+)-(-?%d+)')
  a, b, c, x, y, z = tonumber(a), tonumber(b), tonumber(c), tonumber(x), tonumber(y), tonumber(z)
  if a > x or (a == x and (b > y or (b == y and c >= z))) then return {0, ''} end
  return {1, ''}
end
local commands = cmsgpack.unpack(data)
for i = 1, #commands do
  local answer = redis.pcall(unpack(commands[i]))
  if type(answer) == 'table' and answer.err then
    local rest = {}
    for j = i, #commands do rest[#rest + 1] = commands[j] end
    if i > 1 then redis.call('SET', KEYS[1], cmsgpack.pack(rest)) end
    return {2, answer.err, commands[i][1], commands[i][2]}
  end
end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], KEYS[1])
if ARGV[1] == '' then return {0, ''} end
local before = redis.call('GET', KEYS[3]) or 'none'
redis.call('SET', KEYS[3], ARGV[1])
return {0, before}
"""
"""Carries a chunk out, as a whole or up to the first command that fails, which then begins the chunk.

A key for each subtask tells up to which chunk its rows were written. A chunk that is gone and was not written is lost.
"""
_CLEAN = 500
"""Keys that one command deletes."""


class Attempt(NamedTuple):
    """An attempt at an epoch by one writer: whose chunks they are."""

    generation: int
    subtask: int
    epoch: int
    name: str

    def __str__(self) -> str:
        return f"{self.generation}-{self.subtask}-{self.epoch}-{self.name}"

    @classmethod
    def parse(cls, text: str) -> Attempt:
        """The attempt of its text.

        >>> str(Attempt.parse("2-0-17-a-1")), Attempt.parse("2-0-17-a-1").epoch
        ('2-0-17-a-1', 17)
        """
        generation, subtask, epoch, name = text.split("-", 3)
        return cls(int(generation), int(subtask), int(epoch), name)


class Staging:
    """The chunks of a job's sink."""

    def __init__(self, server: RedisServer, job: JobInfo, uid: str) -> None:
        self._server = server
        names = f"{job.identity or job.storage_uri or job.job_id}\0{job.job_name}\0{uid}"
        self.prefix = f"holdfast:{hashlib.sha256(names.encode()).hexdigest()[:16]}"
        """The name of the set, with which those of chunks begin; the same in every driver of the job."""
        self._told: set[str] = set()
        """The keys in which the server was told up to where rows are written."""

    def put(self, attempt: Attempt, chunk: int, commands: Sequence[Command]) -> None:
        """Store a chunk.

        Raises:
            ConfigurationError: the server refuses it for good.
            ServiceUnavailable: it does not answer, or has no room.
        """
        name, data = _name(self.prefix, attempt, chunk), packed(commands)

        def store(client: Any) -> None:
            client.sadd(self.prefix, name)
            client.set(name, data)

        self._server.call("cannot write", store)

    def apply(self, prefix: str, attempt: Attempt, chunks: int, *, told: bool) -> None:
        """Carry chunks out, those that are not yet; of a job with this prefix, which had another name perhaps.

        Args:
            prefix: The prefix.
            attempt: Whose chunks they are.
            chunks: How many there are.
            told: Whether Redis is told up to where rows are written. Version 1 did not.

        Raises:
            ConfigurationError: a command fails until somebody changes something; the rows wait.
            ServiceUnavailable: the server does not answer, or refuses for now; the rows wait.
            InputLost: the server has removed rows that waited.
        """
        for chunk in range(chunks):
            until = f"{attempt.generation}-{attempt.epoch}-{chunk}" if told else ""
            names = _name(prefix, attempt, chunk), prefix, f"{prefix}:written:{attempt.subtask}"
            self._server.call("cannot write", partial(self._apply, names, until))

    def clean(
        self, before: int, generation: int = -1, epoch: int = -1, *, keep: Mapping[Attempt, int] = MappingProxyType({})
    ) -> None:
        """Delete the chunks of generations before one, and those of a generation's attempts at epochs before one.

        Args:
            before: The generation.
            generation: The generation of the attempts.
            epoch: Their epoch.
            keep: Attempts whose chunks stay, with the numbers of these.
        """
        kept = {_name(self.prefix, attempt, chunk) for attempt, chunks in keep.items() for chunk in range(chunks)}

        def delete(client: Any) -> None:
            gone = []
            for member in client.smembers(self.prefix):
                name = member.decode()
                attempt = Attempt.parse(name[len(self.prefix) + 1 :].rpartition(":")[0])
                old = attempt.generation < before or (attempt.generation == generation and attempt.epoch < epoch)
                if old and name not in kept:
                    gone.append(name)
            for i in range(0, len(gone), _CLEAN):
                some = gone[i : i + _CLEAN]
                client.delete(*some)
                client.srem(self.prefix, *some)

        self._server.call("cannot delete what failed attempts left", delete)

    def _apply(self, names: tuple[str, str, str], until: str, client: Any) -> None:
        name, prefix, written = names
        way_out = f"SET {written} {until}" if until else f"SREM {prefix} {name}"
        outcome, *told = client.eval(_APPLY, len(names), *names, until)
        if outcome == 0:
            if told[0] == b"none" and written in self._told:
                _log.warning(
                    "%s has forgotten what it wrote: it was emptied, or restarted without its log. Rows written before are "
                    "gone; the sink goes on. To write them again, start the job from an earlier checkpoint [%s]",
                    self._server.url, self._server.user,
                )  # fmt: skip
            self._told.add(written)
            return
        where = f"{self._server.url} [{self._server.user}]"
        if outcome == 1:
            raise InputLost(
                f"{where}: rows of a complete checkpoint are gone before they were written: the server has removed them "
                f"(key {name}), or lost them at a restart or failover. Set its maxmemory-policy to noeviction or volatile-* "
                "and appendonly to yes. To go on without these rows, tell it that they are written (redis-cli "
                f"{way_out}), and start the job again, from an earlier checkpoint to write them anew"
            )
        answer, command, key = (part.decode(errors="replace") for part in told)
        text = f"{where}: {command} of the key {key!r} fails: {answer}"
        if lasts(answer):
            remedy = RIGHTS if forbids(answer) else "delete or rename the key, or give the sink another one"
            raise ConfigurationError(f"{text}; its rows wait in {name}: {remedy}, and start the job again")
        raise ServiceUnavailable(f"{text}; its rows wait, and are written when the server takes them")


def _name(prefix: str, attempt: Attempt, chunk: int) -> str:
    return f"{prefix}:{attempt}:{chunk}"
