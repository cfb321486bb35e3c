"""Errors that a user can put right: one family, printed without a traceback; a bug of ours ends with one.

A message says what was found, what is required, why, and what to do.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass


class UserError(ValueError):
    """Something that a user can put right; commands end with its message and without a traceback."""

    def __str__(self) -> str:
        """Return the message in a form that can be printed: it may name a file whose name is no text."""
        return super().__str__().encode(errors="backslashreplace").decode()


class RecordError(UserError):
    """One record that cannot be used: counted, shown and left out, unless the recipe is strict."""


class MarkerInTextError(RecordError):
    """A text with a marker such as `<image>` that stands for no image; counted as `markers`."""


class ImageError(RecordError):
    """An image that cannot be used; the message says which and why."""


class LeftOut(RecordError):
    """A row that its source leaves out by its own rule (a tie, too small a gap): counted in the data card, not skipped.

    `reason` is one of `mmrm.data.preparation.row_index.REASONS`.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class CheckpointError(UserError):
    """A path that is not a complete checkpoint, run folder or judge; a sweep goes on with the next one."""


class SpecialFileError(UserError):
    """A path that is no regular file: a folder, FIFO, socket or device, or a link that leads nowhere."""


class HubError(UserError):
    """Something that the hub did not give: there is no network, or no such thing."""


class InUseError(UserError):
    """An output that another process is writing; commands end with its message and status 2."""


class NonFiniteError(UserError):
    """A loss, gradient norm or weight that is not finite; the message is the same on all ranks."""


class EndpointError(UserError):
    """An endpoint that did not answer, or not in the form asked for."""


class PredictionsError(UserError):
    """A predictions file that a scoring rule cannot read."""


SHOWN = 200
"""Characters of a value that are shown in an error."""
URL = re.compile(r"://(?:\S*@)?([^?\s]*)(?:\?\S*)?")
"""An address; user, password and query, which may be secret, are not shown."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a recipe; `found` is the value as written, empty where there is none."""

    where: str
    """`file:line` or `command line`."""
    key: str
    found: str
    message: str

    def __str__(self) -> str:
        """Return the two lines that a person reads."""
        shown = URL.sub(r"://\1", self.found)
        shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
        value = f" = {shown}" if shown else ""
        return f"{self.where}  {self.key[:SHOWN]}{value}\n    {self.message}"


class RecipeError(UserError):
    """A recipe that cannot be run; `problems` holds everything that is wrong with it, in the order of the file."""

    def __init__(self, recipe: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} error" + "s" * (len(problems) != 1)
        super().__init__(
            "\n  ".join(
                [f"{recipe}: {count}", *("\n  ".join(str(p).split("\n")) for p in problems)]
            )
        )
