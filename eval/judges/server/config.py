"""The settings of a judge behind eval/serve.py. Imports no torch."""

from __future__ import annotations

from typing import ClassVar, Literal

from mmrm.data.config.section import Seconds, Url
from mmrm.eval.judges.judging_config import JudgeConfig


class ServerConfig(JudgeConfig):
    """A reward model behind eval/serve.py. Its scores are used unchanged.

    The environment variable REWARD_API_KEY_FILE names the file of its key.

    type: server
    url: http://127.0.0.1:8000
    """

    implementation: ClassVar[str] = "mmrm.eval.judges.server.judge:load_server_judge"

    type: Literal["server"]
    url: Url
    """The server's address, without a path."""
    timeout_seconds: Seconds = 300.0
    """Largest number of seconds that an answer may take."""

    def deciding_settings(self, is_file: bool) -> list[str]:
        """Return the server's address, the only setting that decides the scores before it answers.

        The server reports its checkpoint when it answers.
        """
        return [self.model_dump_json(include={"type", "url"})]
