"""The parser of a command line, whose help names the command as the user started it."""

from __future__ import annotations

import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from typing import Any

from mmrm.commands import commands_by_script

INSTALLED = "mmrm "
"""The beginning of `sys.argv[0]` for a command that was started as `mmrm NAME`."""
STARTED_BY = re.compile(r"(deepspeed |python )?\b((?:data|eval|train)/\w+\.py)\b")
"""A command of a clone in a help text, with or without the program that starts it."""


class CommandParser(ArgumentParser):
    """The parser of one command of this project.

    A command has two names: `eval/run.py` in a clone, and `mmrm eval` once the package is installed.
    The help is written with the first one, and printed with the one that was used.
    """

    def __init__(self, script: str, description: str | None, **settings: Any) -> None:
        """Make the parser.

        Args:
            script: The path of the command in a clone, such as `eval/run.py`.
            description: The docstring of its module, with an example of each use.
            settings: Further arguments of ArgumentParser.
        """
        program = sys.argv[0] if sys.argv[0].startswith(INSTALLED) else script
        settings.setdefault("formatter_class", RawDescriptionHelpFormatter)
        super().__init__(program, description=description, **settings)

    def add_subparsers(self, **settings: Any) -> Any:
        """Add subcommands, whose parsers are plain ones."""
        return super().add_subparsers(parser_class=ArgumentParser, **settings)

    def format_help(self) -> str:
        """Return the help, in which all commands are written as this one was started."""
        text = super().format_help()
        if sys.argv[0].startswith(INSTALLED):
            return STARTED_BY.sub(_installed_form, text)
        return text


def _installed_form(match: re.Match[str]) -> str:
    """Return the form `mmrm NAME` of a command that is written as a script of a clone."""
    launcher, script = match.groups()
    name = commands_by_script().get(script)
    if name is None:
        return match[0]
    if launcher == "deepspeed ":
        return f"deepspeed --module mmrm {name}"
    return f"{INSTALLED}{name}"
