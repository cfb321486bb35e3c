"""The end of a command: a message without a traceback for errors that a user can correct."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError
from ruamel.yaml.error import YAMLError
from safetensors import SafetensorError

from mmrm.data.errors import InUseError, UserError

PORTABLE_MODEL = "mmrm.models.portable.reward"
"""The module that defines IncompleteCheckpointError. It travels with checkpoints, so that its error
cannot be a UserError."""

IN_USE = 2
"""Exit status for an output that another process is writing."""


@contextmanager
def exit_on_user_error(*, user_error_status: int = 1) -> Iterator[None]:
    """Run the block; if it raises an error that a user can correct, print it and end the process.

    The message has no traceback, and names the rank if there are several. Other errors are faults
    of this project and keep their traceback.

    Args:
        user_error_status: The exit status for a `UserError`. `InUseError` always ends with status
            2: another process is writing the output, so that nothing is wrong with it. All other
            errors end with status 1.
    """
    try:
        yield
    except user_errors() as error:
        message = f"error: {rank_prefix()}{error}"
        status = 1
        if isinstance(error, InUseError):
            status = IN_USE
        elif isinstance(error, UserError):
            status = user_error_status
        if status == 1:
            sys.exit(message)
        print(message, file=sys.stderr, flush=True)
        sys.exit(status)


def rank_prefix() -> str:
    """Return "rank 3: " if a launcher started several ranks, else an empty text."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return ""
    return f"rank {os.environ['RANK']}: "


def user_errors() -> tuple[type[Exception], ...]:
    """Return the errors that a user can correct.

    The class of a checkpoint with missing tensors is in a module that imports torch, which takes 5
    to 13 seconds. The error can only have been raised if that module was imported before.
    """
    errors = (UserError, ValidationError, YAMLError, OSError, SafetensorError)
    portable_model = sys.modules.get(PORTABLE_MODEL)
    if portable_model is None:
        return errors
    return (*errors, portable_model.IncompleteCheckpointError)
