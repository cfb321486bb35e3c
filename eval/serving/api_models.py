"""The JSON that clients send and receive, as pydantic models.

The server reads requests and writes answers with these models, and `api_description.py` makes
`/openapi.json` of them.

Conversations and images are of the type Any here, because the server checks them in a later step: a
bad group of a request must not harm its other groups, and conversations are read by the code that
reads them in Python as well. Their annotations describe them to clients.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, WithJsonSchema

SCHEMAS = "#/components/schemas"
"""The place of the models' schemas in `/openapi.json`."""


def described_as(model: type[BaseModel]) -> WithJsonSchema:
    """Return an annotation that describes a value to clients as `model` and checks nothing."""
    return WithJsonSchema({"$ref": f"{SCHEMAS}/{model.__name__}"})


# Requests


class WrittenText(BaseModel):
    """A text of a turn."""

    type: Literal["text", "input_text"]
    text: str


class StoredImage(BaseModel):
    """An image or a video as the `datasets` library stores it. One of the keys is required."""

    bytes: str | None = Field(default=None, description="A data URI.")
    path: str | None = Field(default=None, description="A path below the server's --media-root.")


class WrittenImage(BaseModel):
    """An image of a turn or a response, in transformers' form.

    A part of a turn that has no image is the place of an image of the group's `images`. A part of a
    response must have one.
    """

    type: Literal["image"]
    image: str | StoredImage | None = Field(
        default=None, description="A data URI, or a path below the server's --media-root."
    )
    url: str | None = Field(default=None, description="The same as `image`.")
    path: str | None = Field(default=None, description="The same as `image`.")
    base64: str | None = Field(default=None, description="The same as `image`.")


class ImageAddress(BaseModel):
    """An image or a video in OpenAI's form."""

    url: str = Field(
        description="A data URI, or a path below the server's --media-root. Nothing is fetched."
    )


class WrittenImageAddress(BaseModel):
    """An image of a turn or a response, in OpenAI's form."""

    type: Literal["image_url", "input_image"]
    image_url: str | ImageAddress | None = None


class WrittenVideo(BaseModel):
    """A video of a turn or a response, in transformers' form.

    A part of a turn that has no video is the place of a video of the group's `videos`. A part of a
    response must have one.
    """

    type: Literal["video"]
    video: str | StoredImage | None = Field(
        default=None, description="A data URI, or a path below the server's --media-root."
    )
    url: str | None = Field(default=None, description="The same as `video`.")
    path: str | None = Field(default=None, description="The same as `video`.")
    base64: str | None = Field(default=None, description="The same as `video`.")


class WrittenVideoAddress(BaseModel):
    """A video of a turn or a response, in the form of vLLM's clients."""

    type: Literal["video_url", "input_video"]
    video_url: str | ImageAddress | None = None


WrittenPart = WrittenText | WrittenImage | WrittenImageAddress | WrittenVideo | WrittenVideoAddress
"""A part of a turn or of a response."""


class WrittenTurn(BaseModel):
    """A turn of a conversation."""

    role: Literal["system", "user", "assistant"] = Field(
        description="At most one system turn comes first. Then user and assistant alternate."
    )
    content: str | list[WrittenPart] = Field(
        description=(
            "A text, or a list of texts, images and videos. Of the assistant's turns, only the "
            "scored response of `/classify` may have images and videos."
        )
    )


class WrittenParts(BaseModel):
    """A query or a document of `/rerank` that is a list of texts, images and videos."""

    content: str | list[WrittenPart]


AnyTurn = Annotated[Any, described_as(WrittenTurn)]
AnyImage = Annotated[
    Any, WithJsonSchema({"anyOf": [{"type": "string"}, {"$ref": f"{SCHEMAS}/StoredImage"}]})
]


AnyPart = Annotated[
    Any,
    WithJsonSchema(
        {"anyOf": [{"$ref": f"{SCHEMAS}/{part.__name__}"} for part in get_args(WrittenPart)]}
    ),
]


class WrittenGroup(BaseModel):
    """A prompt with the responses to it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    messages: str | list[AnyTurn] = Field(
        description="The prompt: a question, or a conversation that ends with the user's turn."
    )
    responses: list[str | list[AnyPart]] = Field(
        min_length=1,
        description="The responses that are scored, each a text, or a list of texts, images and videos.",
    )
    images: list[AnyImage] = Field(
        default=[],
        description=(
            "Images that are not inside `messages`: data URIs, or paths below the server's "
            "--media-root. They take the places that `messages` have for them, in order. If there "
            "is no place, they come before the first text of the user."
        ),
    )
    videos: list[AnyImage] = Field(
        default=[],
        description="Videos that are not inside `messages`, in the same forms as `images`.",
    )


class Request(BaseModel):
    """A request's body, as far as all routes share it."""

    model_config = ConfigDict(strict=True)

    model: str | None = Field(
        default=None, description="The name of the served model. Any other name is refused."
    )


class RewardsRequest(Request):
    """A request to `/v1/rewards`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    groups: list[Annotated[Any, described_as(WrittenGroup)]] = Field(
        min_length=1, description="Prompts, each with the responses to it."
    )
    texts: bool = Field(
        default=False, description="True if the answer shall hold the texts that the model wrote."
    )


class ClassifyRequest(Request):
    """A request to `/classify`. It has either `messages` or `input`."""

    messages: list[AnyTurn] | None = Field(
        default=None,
        description="A conversation. Its last turn is the assistant's, and is the scored response.",
    )
    input: str | list[str] | None = Field(
        default=None,
        description="One or several such conversations, each as a text of the chat template.",
    )
    use_activation: bool | None = Field(
        default=None, description="Must be false or null, because scores are raw."
    )
    add_generation_prompt: bool = Field(default=False, description="Must be false.")


class RerankRequest(Request):
    """A request to `/rerank` or `/v1/rerank`."""

    query: str | Annotated[dict[str, Any], described_as(WrittenParts)] = Field(
        description="The prompt."
    )
    documents: list[str | Annotated[dict[str, Any], described_as(WrittenParts)]] = Field(
        min_length=1, description="The responses that are scored."
    )
    top_n: int = Field(
        default=0, ge=0, description="The number of documents in the answer. 0 returns all."
    )


class GetRewardRequest(Request):
    """A request to `/get_reward`. Its lists are equally long."""

    query: list[str] = Field(
        min_length=1, description="Prompts, each with a response as one text with it."
    )
    prompts: list[str] | None = Field(
        default=None,
        description="The prompts alone. Without them, each query has to be in ChatML.",
    )
    labels: list[Any] | None = Field(
        default=None,
        description=(
            'A label that is the text of a JSON object may hold the "images" of its prompt, in the '
            "form of `/v1/rewards`. Other labels are ignored."
        ),
    )


class HistoryTurn(BaseModel):
    """A prompt, and an image or a video that belongs to it. One of the two is required."""

    model_config = ConfigDict(strict=True)

    text: str
    image_b64: str | None = Field(default=None, description="The bytes of an image in base64.")
    video_b64: str | None = Field(default=None, description="The bytes of a video in base64.")
    video_path: str | None = Field(default=None, description="Must be null. Send `video_b64`.")


class ScoredHistory(BaseModel):
    """A generated image or video with its prompt.

    `history` is [generated image], or, for an edited image, [source image, edited image]. The turns
    of an edited image have equal texts. Each image may also be a video.
    """

    model_config = ConfigDict(strict=True)

    history: list[HistoryTurn]
    required_rewards: list[str] = Field(description='Must be ["reward_model"].')
    metadata: dict[str, Any] | None = Field(default=None, description="Is not used.")


class ScoreImagesRequest(Request):
    """A request to `/score`."""

    requests: list[ScoredHistory] = Field(min_length=1)


# Answers


class Error(BaseModel):
    """The reason why there are no scores."""

    message: str
    type: str = Field(description="The kind of error, such as `invalid_request`.")


class ErrorAnswer(BaseModel):
    """The answer to a request that is refused."""

    error: Error


class WrittenVote(BaseModel):
    """A comparison of two responses by a model that compares."""

    shown: list[int] = Field(
        description="The indices of the responses, in the order in which the model read them."
    )
    named: int | None = Field(
        description="The index of the response that is named as better. null if none is named."
    )
    text: str


class GroupScores(BaseModel):
    """The scores of the responses to a prompt. Lists have one entry for each response."""

    scores: list[float] = Field(
        description=(
            "Raw scores; higher is better. Those of a model that compares are shares of votes won, "
            "or strengths if it does not compare every two responses."
        )
    )
    normalised: list[float] | None = Field(
        description="Scores less the mean of the model's own scores, divided by their spread."
    )
    attributes: dict[str, list[float]] = Field(
        default={},
        description=(
            "Further numbers by name. Present if the model computes several: its named attributes, "
            "of which the score is a weighted sum, or `std`, the standard deviation of the score. "
            "Strengths also have `low` and `high`, the ends of their 95 % intervals."
        ),
    )
    order: list[int] = Field(description="The indices of the responses, best first.")
    margin: float | None = Field(
        description="The best score less the second best. null for one response."
    )
    tokens: int = Field(
        description="Tokens that the model computed. Those that groups share count at the first."
    )
    tokens_unshared: int = Field(
        description="Tokens that it had to compute if each response came with its own prompt."
    )
    judgements: int = Field(
        description="Texts written to compare responses, or to score one. Critiques do not count."
    )
    unread: int = Field(description="Judgements that name no response, or no score.")
    critiques: list[str] = Field(
        default=[],
        description="With `texts`: the text that the model wrote about each response, if it does.",
    )
    votes: list[WrittenVote] = Field(
        default=[], description="With `texts`: the comparisons of a model that compares."
    )
    verdicts: Literal["hard", "soft"] = Field(
        default="hard",
        description=(
            "Present if the model compares: how its verdicts were read. `hard` is the response that "
            "its text names, and `soft` the probability of each verdict."
        ),
    )


class GroupFailure(BaseModel):
    """A group without scores."""

    error: Error


class RewardsAnswer(BaseModel):
    """The answer of `/v1/rewards`. It has one entry for each group, in their order."""

    model: str
    fingerprint: str = Field(description="A digest of the model's weights and settings.")
    groups: list[GroupScores | GroupFailure]
    error: Error | None = Field(default=None, description="Present if all groups failed.")


class Classification(BaseModel):
    """The score of one conversation."""

    index: int
    label: None = None
    probs: list[float] = Field(description="One number: the raw score, without a sigmoid.")
    num_classes: Literal[1] = 1
    attributes: dict[str, float] = Field(
        default={},
        exclude_if=lambda attributes: not attributes,
        description=(
            "Further numbers by name, as in `/v1/rewards`. Absent if the model computes none."
        ),
    )


class ClassifyUsage(BaseModel):
    """The number of tokens of the conversations."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: Literal[0] = 0
    prompt_tokens_details: None = None


class ClassifyAnswer(BaseModel):
    """The answer of `/classify`, in vLLM's form."""

    id: str
    object: Literal["list"] = "list"
    created: int = Field(description="The time in seconds since 1970.")
    model: str
    data: list[Classification]
    usage: ClassifyUsage


class Document(BaseModel):
    """A response, as it was sent: its text, or its parts."""

    text: str | None = None
    multi_modal: list[AnyPart] | None = None


class RankedDocument(BaseModel):
    """A response with its score."""

    index: int = Field(description="The index of the response in the request.")
    document: Document
    relevance_score: float = Field(description="The raw score; higher is better.")


class RerankUsage(BaseModel):
    """The number of tokens of the prompt with each response."""

    prompt_tokens: int
    total_tokens: int


class RerankAnswer(BaseModel):
    """The answer of `/rerank`, in the form of vLLM, Jina and Cohere."""

    id: str
    model: str
    usage: RerankUsage
    results: list[RankedDocument] = Field(description="The best responses, best first.")


class GetRewardAnswer(BaseModel):
    """The answer of `/get_reward`, in OpenRLHF's form."""

    rewards: list[float] = Field(description="The raw score of each query.")
    scores: list[float] = Field(description="The same numbers.")
    extra_logs: dict[str, Any] = Field(
        default={},
        description=(
            "The further numbers of each query by name, if the model computes several. Otherwise "
            "empty."
        ),
    )


class ScoreImagesAnswer(BaseModel):
    """The answer of `/score`, in the form of UniRL's reward service."""

    results: list[dict[str, dict[str, float]]] = Field(
        description='The raw score of each image: {"reward_model": {"score": SCORE}}.'
    )
    errors: list[dict[str, str]] = Field(
        description="An empty object for each image. If an image has no score, the request fails."
    )


class RewardNamesAnswer(BaseModel):
    """The answer of `/rewards`, in the form of UniRL's reward service."""

    rewards: list[str] = Field(description='["reward_model"].')


class ModelEntry(BaseModel):
    """The served model."""

    id: str
    object: Literal["model"] = "model"
    owned_by: Literal["multimodal-reward-models"] = "multimodal-reward-models"
    kind: str = Field(
        description="`scalar`, `joint`, `critic`, `generative`, or a released model's."
    )
    fingerprint: str = Field(description="A digest of the model's weights and settings.")
    reference_scores: Mapping[str, Any] | None = Field(
        description="The mean and the spread of the model's own scores."
    )
    limits: dict[str, int] = Field(description="The limits on requests.")


class ModelsAnswer(BaseModel):
    """The answer of `/v1/models`, in OpenAI's form."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class HealthAnswer(BaseModel):
    """The answer of `/health`."""

    status: Literal["alive"]
    rewards: dict[str, list[str]] = Field(
        description='{"reward_model": [the status of /ready]}, for the client of UniRL.'
    )


class ReadyAnswer(BaseModel):
    """The answer of `/ready`."""

    status: Literal["ready", "loading", "draining"]
