"""The command query: a key's committed state, while its job runs."""

from __future__ import annotations

from json import loads
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import orjson
import typer

from holdfast.cli.app import AsJson, command
from holdfast.cli.drivers import Address, JobName, find_job
from holdfast.cli.output import console, note, print_json

__all__: list[str] = []


@command(context_settings={"ignore_unknown_options": True})  # a key may be a negative number
def query(
    uid: Annotated[str, typer.Argument(metavar="UID", help="The operator's uid.")],
    state: Annotated[str, typer.Argument(metavar="STATE", help="The state's name.")],
    key: Annotated[
        str,
        typer.Argument(
            metavar="KEY",
            help="The key as JSON (-7, '\"7\"', '[\"anna\", 3]' for a tuple, an object for a Row), or as plain text.",
        ),
    ],
    job: JobName = None,
    window: Annotated[
        int | None, typer.Option("--window", metavar="MS", help="The start of the window whose content is wanted.")
    ] = None,
    address: Address = None,
    json: AsJson = False,
) -> None:
    """Show the state of a key in the newest checkpoint of a running job. The job does not notice."""
    wanted = {"key": _as_json(key)} | ({} if window is None else {"window": str(window)})
    found = find_job(job, address)
    answer: dict[str, Any] = found.get(f"/state/{quote(uid, safe='')}/{quote(state, safe='')}?{urlencode(wanted)}")
    if json:
        print_json(answer)
        return
    if answer["value"] is None:
        note(f"In checkpoint {answer['checkpoint-id']} the key {key} has no state {state}.")
        return
    console.print(orjson.dumps(answer["value"], option=orjson.OPT_INDENT_2).decode(), markup=False)


def _as_json(key: str) -> str:
    """A key as the REST API takes it.

    >>> _as_json("7"), _as_json("book-nook"), _as_json('["anna", 3]')
    ('7', '"book-nook"', '["anna", 3]')
    >>> _as_json("-5"), _as_json("NaN"), _as_json("123456789012345678901")
    ('-5', '"NaN"', '123456789012345678901')
    """
    try:
        loads(key, parse_constant=_refuse)
    except ValueError:
        return orjson.dumps(key).decode()
    return key


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
