"""What a request may ask for; each limit is an option of the command."""

from typing import Annotated

from pydantic import Field

from data.config.section import Section

Limit = Annotated[int, Field(ge=1)]


class RequestLimits(Section):
    """RequestLimits of a server; what exceeds one is refused before it is computed."""

    body: Limit = Field(2**25, description="bytes of a request (413)")
    queue: Limit = Field(1024, description="groups that wait or are computed, of all clients (429)")
    groups: Limit = Field(256, description="groups of a request, at most the queue")
    responses: Limit = Field(64, description="responses of a group")
    compared: Limit = Field(
        8, description="responses of a group where a judge compares: N take N (N - 1) judgements"
    )
    images: Limit = Field(16, description="images of a group")
    pixels: Limit = Field(2**25, description="pixels of an image, counted before it is decoded")
    tokens: Limit = Field(
        2**15,
        description="what a prompt with as many of its responses as fit into a row takes of a row: tokens + 0.4 x patches",
    )
