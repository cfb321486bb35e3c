"""How judges are asked, where a checkpoint does not say it all; imports no torch, so that a recipe is checked in a moment."""

from __future__ import annotations

from typing import Literal

from mmrm.data.config.section import Seconds, Section, Url


class ServerConfig(Section):
    """A reward model behind eval/serve.py, whose scores are taken as they are; REWARD_API_KEY_FILE names the file of its key.

    type: server
    url: http://127.0.0.1:8000
    """

    type: Literal["server"]
    url: Url
    """The server's address, without a path."""
    timeout_seconds: Seconds = 300.0
    """How long an answer may take."""
