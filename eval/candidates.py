"""Input and output of judges: prompts with responses, and scores.

`Candidates` is a prompt with any number of responses. `Example` is a benchmark's row of two
responses, whose better response is known. `RankedExample` is a benchmark's row of any number of
responses, whose ranking is known. A judge returns `Scores` for each of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Literal, TypeVar

from mmrm.data.encoded_video import Video
from mmrm.data.preference import EncodedImage, Message, Preference, Response

Side = Literal[0, 1]
"""An index into `Example.responses`."""
STD = "std"
"""The name in `Scores.attributes` of the standard deviation that a judge states for each score."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """A prompt with its images and videos, and the responses that a judge scores or compares."""

    key: str
    """The label that, together with the seed, decides every random draw about these responses. It
    is mostly a digest of prompt, responses and image reference. Rows of equal content get the
    suffixes -2, -3 … in file order. Results are never stored under it; see `journal_key`."""
    images: tuple[EncodedImage, ...]
    """The images of the prompt. A response holds its own."""
    prompt: tuple[Message, ...]
    """The question as a conversation; one image part for each of `images`."""
    responses: tuple[Response, ...]
    identity: str
    """The benchmark and row of the candidates, for messages. It is never a key, because ids
    repeat."""
    presentations: tuple[tuple[int, ...], ...] = field(default=(), kw_only=True)
    """The orders in which a judge that compares is shown the responses, one judgement for each:
    indices into `responses`. Empty: every two responses are shown in both orders."""
    videos: tuple[Video, ...] = field(default=(), kw_only=True)
    """The videos of the prompt, one for each of its video parts. A response holds its own."""
    criteria: tuple[str, ...] = field(default=(), kw_only=True)
    """The criteria by which a judge with a rubric checks the responses. Empty: it has other given
    ones, or writes its own."""

    @property
    def all_images(self) -> tuple[EncodedImage, ...]:
        """The images of the prompt, and after them those of the responses in their order."""
        return images_as_shown(self, range(len(self.responses)))

    @property
    def all_videos(self) -> tuple[Video, ...]:
        """The videos of the prompt, and after them those of the responses in their order."""
        return videos_as_shown(self, range(len(self.responses)))


@dataclass(frozen=True, slots=True)
class Example(Candidates):
    """A row of a benchmark: a prompt and two responses, one of which is known to be better."""

    responses: tuple[Response, Response]
    better: Side
    group: str
    """The benchmark's own category."""
    source: str
    """The data set the row was drawn from."""
    row: dict[str, Any]
    """The row's columns without its image, which the official predictions file needs."""
    official_first: Side | None = None
    """The response that the benchmark's own script shows first; None if that script draws it for
    each judgement."""
    unavailable: str = ""
    """Reason why the row cannot be judged; such a row is in no figure. Empty for other rows."""
    true_scores: tuple[float, float] | None = None
    """The known score of each response in the source's own unit, such as a rating; None if the row
    has none. NaN is unknown. Only the coverage of stated deviations is computed from it."""

    @property
    def ranks(self) -> tuple[int, int]:
        """The rank of each response: 0 for the better one, 1 for the other."""
        return (0, 1) if self.better == 0 else (1, 0)


@dataclass(frozen=True, slots=True)
class RankedExample(Candidates):
    """A row of a benchmark: a prompt and at least two responses, whose ranking is known.

    A judge is right on the row if it puts every best response above every other one. If all
    responses are equally good, it is right if it scores them equally.
    """

    ranks: tuple[int, ...]
    """The rank of each response. The best responses have rank 0, and equally good ones have equal
    ranks. All ranks are 0 in a tied row."""
    group: str
    """The benchmark's own category."""
    source: str
    """The data set the row was drawn from."""
    row: dict[str, Any]
    """The row's columns without its image, which the official predictions file needs."""
    unavailable: str = ""
    """Reason why the row cannot be judged; such a row is in no figure. Empty for other rows."""
    true_scores: tuple[float, ...] | None = None
    """As in `Example`."""


def images_as_shown(candidates: Candidates, shown: Sequence[int]) -> tuple[EncodedImage, ...]:
    """Return the images of a conversation that shows a judge some responses to a prompt.

    They are the images of the prompt, and after them those of the responses as they are shown.

    Args:
        candidates: The prompt and its responses.
        shown: Indices of the responses, in the order in which they are shown.
    """
    images = list(candidates.images)
    for index in shown:
        images += candidates.responses[index].images
    return tuple(images)


def videos_as_shown(candidates: Candidates, shown: Sequence[int]) -> tuple[Video, ...]:
    """Return the videos of a conversation that shows a judge some responses to a prompt.

    They are the videos of the prompt, and after them those of the responses as they are shown.

    Args:
        candidates: The prompt and its responses.
        shown: Indices of the responses, in the order in which they are shown.
    """
    videos = list(candidates.videos)
    for index in shown:
        videos += candidates.responses[index].videos
    return tuple(videos)


CandidatesT = TypeVar("CandidatesT", bound=Candidates)


def with_media(
    candidates: CandidatesT, images: Sequence[EncodedImage], videos: Sequence[Video]
) -> CandidatesT:
    """Return candidates with other images and videos in the places of their own.

    Args:
        candidates: The prompt and its responses.
        images: As many images as `all_images`, those of the prompt first.
        videos: As many videos as `all_videos`, those of the prompt first.
    """
    remaining_images = iter(images)
    remaining_videos = iter(videos)
    images_of_prompt = tuple(islice(remaining_images, len(candidates.images)))
    videos_of_prompt = tuple(islice(remaining_videos, len(candidates.videos)))
    responses: list[Response] = []
    for response in candidates.responses:
        images_of_response = list(islice(remaining_images, len(response.images)))
        videos_of_response = list(islice(remaining_videos, len(response.videos)))
        responses.append(response.with_media(images_of_response, videos_of_response))
    return replace(
        candidates,
        images=images_of_prompt,
        videos=videos_of_prompt,
        responses=tuple(responses),
    )


BenchmarkRow = Example | RankedExample
"""A row of a benchmark. The rows of one benchmark are all of the same class."""


def best_indices(row: BenchmarkRow) -> list[int]:
    """Return the indices of the row's best responses, those of rank 0."""
    return [index for index, rank in enumerate(row.ranks) if rank == 0]


def other_indices(row: BenchmarkRow) -> list[int]:
    """Return the indices of the row's other responses, those of a rank above 0.

    A tied row has none.
    """
    return [index for index, rank in enumerate(row.ranks) if rank > 0]


def is_tied(row: BenchmarkRow) -> bool:
    """Return True if all responses of a row are equally good."""
    return not any(row.ranks)


@dataclass(frozen=True, slots=True)
class SoftVerdict:
    """The probabilities that a judge gives to the two verdicts at the place where one stands."""

    first: float
    """The probability that the response shown first is better, if the judge has to write one of the
    two verdicts there: the probabilities of both are divided by their sum."""
    mass: float
    """The probability that the judge writes one of the two verdicts there: their sum. If it is
    small, `first` says little about the judge."""
    is_opened: bool = False
    """True if the judgement names no response. The place of the verdict was then added to it, as
    the judge's template writes it."""


@dataclass(frozen=True, slots=True)
class Vote:
    """A judge's verdict in one comparison of responses, with its text."""

    shown: tuple[int, ...]
    """Indices of the responses, in the order in which the judge saw them."""
    named: int | None
    """Index of the response that is named as the better one; None if the text names none."""
    text: str
    """The text of the judgement."""
    soft: SoftVerdict | None = None
    """The probabilities of both verdicts; None if verdicts are read from texts alone."""


@dataclass(frozen=True, slots=True)
class Usage:
    """The cost of judging one prompt or several: counts of texts and tokens, and the time."""

    judgements: int = 0
    """Comparisons, or written scores. Scores that a head read from the model are not counted."""
    unread: int = 0
    """The number of `judgements` that name no response, or no score."""
    critiques: int = 0
    """Critiques that were written before a response was scored."""
    tokens: int = 0
    """Tokens of judgements, critiques and shared rubrics, the end of each among them."""
    truncated: int = 0
    """Judgements, critiques and shared rubrics that the limit of tokens cut off."""
    rubrics: int = 0
    """Rubrics that were written once for a prompt, before its responses were judged."""
    unread_rubrics: int = 0
    """The number of `rubrics` whose text holds no criteria in their form."""
    seconds: float = field(default=0.0, compare=False)

    def __add__(self, other: Usage) -> Usage:
        """Return the sums of all counts, and of the seconds."""
        return Usage(
            judgements=self.judgements + other.judgements,
            unread=self.unread + other.unread,
            critiques=self.critiques + other.critiques,
            tokens=self.tokens + other.tokens,
            truncated=self.truncated + other.truncated,
            rubrics=self.rubrics + other.rubrics,
            unread_rubrics=self.unread_rubrics + other.unread_rubrics,
            seconds=self.seconds + other.seconds,
        )


NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Scores:
    """A judge's result for the responses to one prompt, with the texts that the judge wrote."""

    values: tuple[float, ...] = ()
    """One number for each response; higher is better. If there are votes, the share of its
    comparisons that a response won, and with soft verdicts the mean probability to win one. NaN if
    a judge writes its score and the text holds none."""
    attributes: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    """Further numbers by name, one for each response, such as the scores of several heads or a
    standard deviation."""
    votes: tuple[Vote, ...] = ()
    """Votes of a judge that compares. They are in the order of `presentations`, or if that is
    empty, pair by pair in both orders."""
    texts: tuple[str, ...] = ()
    """The judge's text of each vote, or about each response. Empty for a judge that does not
    write."""
    usage: Usage = NO_USAGE
    members: tuple[Scores, ...] = ()
    """The scores of each member of an ensemble; empty for other judges."""

    @property
    def is_soft(self) -> bool:
        """True if the scores are probabilities of verdicts."""
        return any(vote.soft is not None for vote in self.votes)

    @property
    def order(self) -> list[int]:
        """Indices of the responses, best first; equal scores keep the order of the responses."""
        return sorted(range(len(self.values)), key=lambda index: -self.values[index])

    @property
    def margin(self) -> float | None:
        """The best score minus the second best; None if there is only one response. 0 is a tie."""
        if len(self.values) < 2:
            return None
        best, second_best = self.order[:2]
        return self.values[best] - self.values[second_best]


def won_shares(num_responses: int, votes: Sequence[Vote]) -> tuple[float, ...]:
    """Return the share of its comparisons that each response won.

    A vote that cannot be read names no response, so both responses get half a point. A soft vote
    gives each response its probability, so that the result is the mean of the probabilities over
    all votes: both orders, and the rationales of all rounds.

    Args:
        num_responses: The number of responses.
        votes: The votes. Every response must be in equally many of them.
    """
    points = [0.0] * num_responses
    for vote in votes:
        if vote.soft is not None:
            first, second = vote.shown
            points[first] += vote.soft.first
            points[second] += 1 - vote.soft.first
        elif vote.named is None:
            for index in vote.shown:
                points[index] += 0.5
        else:
            points[vote.named] += 1.0
    comparisons_per_response = 2 * len(votes) // num_responses
    return tuple(point / comparisons_per_response for point in points)


def total_usage(results: Iterable[Scores]) -> Usage:
    """Return the cost of several results of a judge together."""
    total = Usage()
    for scores in results:
        total += scores.usage
    return total


def candidates_from_record(record: Preference) -> Candidates:
    """Return the prompt and the two responses of a preference record, the chosen response first.

    The key, which decides random draws, is the record's identity. Other records may have the same
    identity, so results are never stored under it.
    """
    return Candidates(
        key=record.identity,
        images=record.images,
        videos=record.videos,
        prompt=record.prompt,
        responses=(record.chosen, record.rejected),
        identity=record.identity,
    )
