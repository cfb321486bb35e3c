"""The limits on requests; each is an option `--max-NAME` of eval/serve.py."""

from typing import Annotated

from pydantic import Field

from mmrm.data.config.section import Section
from mmrm.data.limits import DEFAULTS

Limit = Annotated[int, Field(ge=1)]


class RequestLimits(Section):
    """The limits of a server. A request that exceeds one is refused before it is computed.

    `turns`, `parts`, `images`, `videos` and `characters` are the limits on training records in
    `mmrm.data.limits`. Some descriptions end with the HTTP status of the refusal in brackets.
    """

    body: Limit = Field(2**25, description="bytes of a request (413)")
    held: Limit = Field(
        2**28, description="bytes of all requests that are in memory at one time (429)"
    )
    values: Limit = Field(2**18, description="JSON values of a request, counted before it is read")
    queue: Limit = Field(1024, description="groups that wait or are computed, of all clients (429)")
    groups: Limit = Field(256, description="groups of a request, at most the queue")
    responses: Limit = Field(64, description="responses of a group")
    compared: Limit = Field(
        8, description="responses of a group where a judge compares: N take N (N - 1) judgements"
    )
    turns: Limit = Field(DEFAULTS.turns, description="turns of a prompt")
    parts: Limit = Field(
        DEFAULTS.parts,
        description="texts, images and videos of a prompt's turns and of responses that are lists",
    )
    images: Limit = Field(
        DEFAULTS.images, description="images of a group, those of its responses too"
    )
    videos: Limit = Field(
        DEFAULTS.videos, description="videos of a group, those of its responses too"
    )
    characters: Limit = Field(
        DEFAULTS.characters, description="characters of a prompt with its longest response"
    )
    pixels: Limit = Field(2**25, description="pixels of an image, counted before it is decoded")
    area: Limit = Field(
        2**27, description="pixels of all images of a group, counted before one is decoded"
    )
    footage: Limit = Field(
        2**32,
        description="pixels of all frames of a group's videos, counted before one is decoded",
    )
    tokens: Limit = Field(
        2**15,
        description="tokens + 0.4 x patches of a prompt with its longest response",
    )
    drain: Limit = Field(
        30, description="seconds after SIGTERM in which accepted requests are still answered"
    )
