"""Consoles for the output of commands, which print the names and texts of users unchanged."""

from __future__ import annotations

import os
import sys

from rich.console import Console


def plain_console(
    *,
    width: int | None = None,
    highlight: bool = True,
    soft_wrap: bool = False,
    stderr: bool = False,
) -> Console:
    """Return a console that prints texts as they are, without rich's markup and emoji codes.

    Users choose names, categories and paths. With markup, rich would raise an exception for a
    benchmark's group `[/red]`, and print nothing for `[red]`. The arguments are those of rich's
    `Console`.
    """
    return Console(
        width=width,
        highlight=highlight,
        soft_wrap=soft_wrap,
        stderr=stderr,
        markup=False,
        emoji=False,
    )


def wide_console(file_width: int, *, highlight: bool = True) -> Console:
    """Return a console that is as wide as the terminal.

    If the output goes to a file or pipe, the console is `file_width` characters wide.
    """
    width = None if sys.stdout.isatty() else file_width
    return plain_console(width=width, highlight=highlight)


def is_first_rank() -> bool:
    """Return True on the first rank, and in a process that no launcher started."""
    return os.environ.get("RANK", "0") == "0"


def first_rank_console(*, highlight: bool = True, soft_wrap: bool = False) -> Console:
    """Return a console that prints on the first rank, and is silent on all others."""
    console = plain_console(highlight=highlight, soft_wrap=soft_wrap)
    console.quiet = not is_first_rank()
    return console


def say_on_first_rank(text: str) -> None:
    """Print a line to the standard error output, only on the first rank."""
    if is_first_rank():
        print(text, file=sys.stderr, flush=True)
