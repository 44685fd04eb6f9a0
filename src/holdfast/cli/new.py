"""The command new: a program with a test and a README to start from."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.app import FAILED, USAGE, AsJson, CommandFailed, command
from holdfast.cli.output import note, print_json

__all__: list[str] = []

_FILES = ("program.py", "test_program.py", "README.md")


@command()
def new(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory; its name is the job's.")],
    json: AsJson = False,
) -> None:
    """Make a program with a test and a README to start from."""
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise CommandFailed(f"{directory} is not empty. Name a new directory.", USAGE)
    name = re.sub(r"[^\w-]+", "-", directory.resolve().name).strip("-") or "job"
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        said = f"{directory} cannot be made: {error.strerror}. Name a directory where you may write."
        raise CommandFailed(said, FAILED) from None
    for file in _FILES:
        text = (files("holdfast.cli") / "template" / f"{file}.template").read_text(encoding="utf-8")
        (directory / file).write_text(text.replace("JOB_NAME", name), encoding="utf-8")
    if json:
        print_json({"directory": str(directory), "name": name, "files": sorted(_FILES)})
        return
    note(f"Made {directory} with {', '.join(_FILES)}. Next:\n\n  cd {directory}\n  holdfast run program.py\n  pytest")
