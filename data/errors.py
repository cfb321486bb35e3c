"""Errors that a user can correct: `UserError` and its kinds.

Commands print them without a traceback; an error in this project's code ends with one. A message
names what was found, what is required, the reason, and what to do.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass


class UserError(ValueError):
    """An error that a user can correct; commands end with its message and without a traceback."""

    def __str__(self) -> str:
        """Return the message so that it can be printed, even with a file name that is no text."""
        return super().__str__().encode(errors="backslashreplace").decode()


class RecordError(UserError):
    """A record that cannot be used; it is counted and left out, unless the recipe is strict."""


class MarkerInTextError(RecordError):
    """A text with a marker such as `<image>` that belongs to no image; counted as `markers`."""


class ImageError(RecordError):
    """An image that cannot be used; the message names the image and the reason."""


class LeftOut(RecordError):
    """A row that its source leaves out by its own rule, such as a tie or too small a gap.

    It is counted in the data card, and not among the records that cannot be used. `reason` is one
    of `mmrm.data.preparation.row_index.REASONS`.
    """

    def __init__(self, reason: str, message: str) -> None:
        self.reason = reason
        super().__init__(message)


class CheckpointError(UserError):
    """A path that is no complete checkpoint, run folder or judge; a sweep continues after it."""


class SpecialFileError(UserError):
    """A path that is no regular file: a folder, FIFO, socket, device, or a link to nothing."""


class HubError(UserError):
    """A failed download from the hub: there is no network, or no such file."""


class InUseError(UserError):
    """An output that another process is writing; commands end with its message and status 2."""


class NonFiniteError(UserError):
    """A loss, gradient norm or weight that is not finite; the message is the same on all ranks."""


class EndpointError(UserError):
    """An endpoint that did not answer, or not in the requested form."""


class PredictionsError(UserError):
    """A predictions file that a scoring rule cannot read."""


SHOWN = 200
"""Number of characters of a value that are shown in an error."""
URL = re.compile(r"://(?:\S*@)?([^?\s]*)(?:\?\S*)?")
"""An address. Its user, password and query are not shown, because they may be secret."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a recipe."""

    where: str
    """`file:line` or `command line`."""
    key: str
    found: str
    """The value as it is written; empty if there is none."""
    message: str

    def __str__(self) -> str:
        """Return the error on two lines: its place, key and value, and below them the message."""
        value = URL.sub(r"://\1", self.found)
        if len(value) > SHOWN:
            value = f"{value[:SHOWN]}…"
        key_and_value = self.key[:SHOWN]
        if value:
            key_and_value = f"{key_and_value} = {value}"
        return f"{self.where}  {key_and_value}\n    {self.message}"


class RecipeError(UserError):
    """A recipe that cannot be run; `problems` holds all its errors, in the order of the file."""

    def __init__(self, recipe: str, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        noun = "error" if len(problems) == 1 else "errors"
        lines = [f"{recipe}: {len(problems)} {noun}"]
        for problem in problems:
            lines += str(problem).split("\n")
        super().__init__("\n  ".join(lines))
