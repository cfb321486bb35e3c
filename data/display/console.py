"""A console that prints what it is given."""

from __future__ import annotations

from rich.console import Console


def plain_console(
    *,
    width: int | None = None,
    highlight: bool = True,
    soft_wrap: bool = False,
    stderr: bool = False,
) -> Console:
    """Return a console that reads no markup and no emoji codes, also in tables.

    Names, categories and paths are a user's: of a benchmark's group `[/red]` a console of rich's makes an exception, and of
    `[red]` nothing.
    """
    return Console(
        width=width,
        highlight=highlight,
        soft_wrap=soft_wrap,
        stderr=stderr,
        markup=False,
        emoji=False,
    )
