"""The settings of a judge behind an OpenAI-compatible endpoint. Imports no torch."""

from __future__ import annotations

import json
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from mmrm.data.config.section import Processes, Seconds, Url
from mmrm.eval.judges.judging_config import ComparisonsConfig, JudgeConfig

NotNegative = Field(default=None, ge=0.0, allow_inf_nan=False)


class EndpointConfig(JudgeConfig, ComparisonsConfig):
    """A judge behind an OpenAI-compatible endpoint: its address, model, requests and price.

    type: endpoint
    url: http://127.0.0.1:8000/v1              # a vLLM server, or a provider
    model: Qwen/Qwen2.5-VL-72B-Instruct
    key_variable: OPENAI_API_KEY               # where the key is; it is never written anywhere
    """

    implementation: ClassVar[str] = "mmrm.eval.judges.endpoint.judge:load_endpoint_judge"

    type: Literal["endpoint"]
    url: Url
    """The base of the interface; `/chat/completions` is added."""
    model: str
    """Name of the model at the server or provider."""
    key_variable: str | None = None
    """The environment variable that holds the API key; null sends none."""
    request: dict[str, Any] = Field(default={})
    """Keys that replace or extend those of every request, for providers with other key names:
    `{max_tokens: null, max_completion_tokens: 4096}`. Null removes a key."""
    concurrency: Processes = 8
    """Largest number of requests in progress at one time, over all ranks."""
    timeout_seconds: Seconds = 300.0
    """Largest number of seconds that an answer may take."""
    retries: int = Field(default=6, ge=0, le=100)
    """Number of retries after a time-out, a broken connection, an unreadable answer, or HTTP 408,
    425, 429 and 5xx."""
    first_delay_seconds: Seconds = 1.0
    """Seconds before the first retry. They are doubled before each further one, up to a minute, and
    multiplied by a random factor from 0.5 to 1."""
    cache: str | None = None
    """Folder that caches the answers by a digest of the request; null takes `endpoint` in the cache
    folder, which is `$MMRM_CACHE` or `mmrm` in the user's cache folder. A cached request is not
    sent again."""
    dollars_per_million_input: float | None = NotNegative
    """Price of a million tokens sent, for the cost that is printed."""
    dollars_per_million_output: float | None = NotNegative
    """Price of a million tokens written."""

    @field_validator("request")
    @classmethod
    def _require_json(cls, request: dict[str, Any]) -> dict[str, Any]:
        """Return the keys unchanged; raise ValueError if JSON cannot hold one of their values."""
        try:
            json.dumps(request, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(
                f"a request is sent as JSON, which cannot hold this: {error}"
            ) from error
        return request

    @property
    def compares(self) -> bool:
        """True, because the judge names the better of two responses."""
        return True

    def deciding_settings(self, is_file: bool) -> list[str]:
        """Return the settings that decide the scores.

        They are the endpoint, the model, the request and the comparisons.
        """
        names = {"type", "url", "model", "request", "comparisons", "rounds"}
        return [self.model_dump_json(include=names)]
