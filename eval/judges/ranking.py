"""Any number of responses to one prompt, scored or compared in pairs, and brought into an order.

A reward model and a critic score each response. A judge that compares holds a tournament: every two responses meet twice, each
shown first once, which is N (N - 1) judgements; a response's score is the share of its judgements that name it, one that cannot
be read counting half for both.
"""

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, islice
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar, cast

import torch
from PIL import Image

from data.decoding import upright_rgb
from data.errors import NonFiniteError, RecordError
from data.preference import EncodedImage, Message, control_token, texts
from eval.journal import SILENT, Journal
from eval.judges.critic import CriticJudge, Judged
from eval.judges.generative import GenerativeJudge, Judgements, ShownEncoder, ShownPair, showings
from eval.judges.packed_inference import Cost, Packed, ScalarJudge, run_packed
from eval.protocol import Candidates, Example, Judge, Ranking, Verdict, Vote, journal_key
from models.packing.groups import Group, PackedBatch
from models.portable.conversations import ConversationError, Picture, read_conversation

Item = TypeVar("Item")
Found = TypeVar("Found")

BYTES_A_TOKEN = 3
"""Of a response, to estimate before it is tokenised how many fit into a row; rather too few than too many."""


class Ranker(Protocol):
    """Anything that ranks responses."""

    def rank(self, candidates: Sequence[Candidates], journal: Journal = SILENT) -> list[Ranking]:
        """Return a ranking for each, in order; all ranks must call together."""
        ...


def candidates_of(
    messages: Any, responses: Sequence[str], images: Iterable[Any] = (), identity: str = "messages"
) -> Candidates:
    """Return responses to a conversation in one of the forms that `models.portable.conversations` describes.

    Raises: RecordError, which names `identity`.
    """
    wrong = [type(one).__name__ for one in responses if not isinstance(one, str)]
    if isinstance(responses, str) or wrong or not responses:
        found = (
            "one text"
            if isinstance(responses, str)
            else f"a {wrong[0]} among them"
            if wrong
            else "none"
        )
        raise RecordError(
            f"{identity}: responses: {found}; required is a list of at least one text"
        )
    try:
        turns, pictures = read_conversation(messages, images)
        encoded = tuple(map(_encoded, pictures))
    except ConversationError as error:
        raise RecordError(f"{identity}: {error}") from error
    content = hashlib.sha256(json.dumps([turns, list(responses)]).encode())
    for image in encoded:
        content.update(
            image if isinstance(image, bytes) else str(image).encode(errors="surrogateescape")
        )
    prompt = cast(tuple[Message, ...], tuple(turns))
    return Candidates(content.hexdigest(), encoded, prompt, tuple(responses), identity)


def _encoded(image: Picture) -> EncodedImage:
    if not isinstance(image, Image.Image):
        return image
    buffer = io.BytesIO()
    upright_rgb(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


@dataclass(frozen=True, slots=True)
class PackedRanker(Generic[Item, Found]):
    """A model on packed rows, in the steps of ranking: a server takes them apart, `rank` runs them all."""

    packed: Packed
    encode: Callable[[Item], Group]
    cost: Cost
    run: Callable[[PackedBatch, Sequence[Item]], Sequence[Found]]
    kind: Any
    """Type of what `run` finds of an item, for a journal."""
    cut: Callable[[Candidates], Iterator[tuple[str, Item]]]
    """What is encoded as a group each, with a key."""
    join: Callable[[Candidates, Sequence[Found]], Ranking]
    share: Callable[[Found, slice], Found] | None
    """Returns what `run` found of some of the responses, where responses to equal prompts may be judged as one group."""

    def split(self, candidates: Candidates) -> list[tuple[str, Item]]:
        """Return what is encoded as a group each, with a key; raises RecordError for a control token in a text."""
        for content in (
            *("".join(texts([turn])) for turn in candidates.prompt),
            *candidates.responses,
        ):
            if token := control_token(content, self.packed.encoder.control_tokens):
                raise RecordError(
                    f"{candidates.identity}: a text contains {token!r}, which the tokenizer reads as a control token, not as "
                    "text. Remove it."
                )
        return list(self.cut(candidates))

    @torch.no_grad()
    def rank(self, candidates: Sequence[Candidates], journal: Journal = SILENT) -> list[Ranking]:
        """Return a ranking for each, in order; all ranks must call together.

        Raises: RecordError for what cannot be encoded; NonFiniteError for a score that is no finite number.
        """
        parts = [self.split(one) for one in candidates]
        items = [item for part in parts for _, item in part]
        keys = [
            f"{content}/{key}"
            for content, part in zip(map(journal_key, candidates), parts, strict=True)
            for key, _ in part
        ]
        with journal.judging(keys, self.kind, len(candidates)) as judging:
            found = iter(run_packed(self.packed, items, self.encode, self.run, self.cost, judging))
        return [
            self.join(one, list(islice(found, len(part))))
            for one, part in zip(candidates, parts, strict=True)
        ]


def scalar_ranker(judge: ScalarJudge) -> PackedRanker[Candidates, Verdict]:
    """Return what ranks by a scalar reward model."""
    cut = partial(_cut, judge.packed.token_budget)
    return PackedRanker(
        judge.packed,
        judge.encode,
        attrgetter("cost"),
        judge.verdicts,
        Verdict,
        cut,
        _scored,
        _share,
    )


def critic_ranker(judge: CriticJudge) -> PackedRanker[Candidates, Judged]:
    """Return what ranks by a critic's scores; draws of a critique depend on all responses that are judged together."""
    run, cost = judge.way
    cut = partial(_cut, judge.packed.token_budget)
    drawn = judge.encode.critiques == "own" and judge.sampling.temperature > 0

    def join(candidates: Candidates, found: Sequence[Judged]) -> Ranking:
        return _scored(candidates, [verdict for verdict, _, _ in found])

    def share(found: Judged, places: slice) -> Judged:
        return _share(found[0], places), 0, 0

    return PackedRanker(
        judge.packed, judge.encode, cost, run, Judged, cut, join, None if drawn else share
    )


def _cut(budget: int, candidates: Candidates) -> Iterator[tuple[str, Candidates]]:
    """Cut candidates into groups whose responses fit into a row by their estimated tokens, one response at least."""
    responses, start, used = candidates.responses, 0, 0
    for place, response in enumerate(responses):
        tokens = len(response.encode(errors="surrogatepass")) // BYTES_A_TOKEN + 1
        if place > start and used + tokens > budget:
            yield _part(candidates, start, place)
            start, used = place, 0
        used += tokens
    yield _part(candidates, start, len(responses))


def _part(candidates: Candidates, start: int, end: int) -> tuple[str, Candidates]:
    """Return some of the responses as candidates, with their key in a journal.

    Which responses are judged together depends on the token budget, so that the key names them.
    """
    if end - start == len(candidates.responses):
        return candidates.key, candidates
    label = f"{candidates.key}/{start}"
    part = replace(candidates, key=label, responses=candidates.responses[start:end])
    return f"{label}-{end}", part


def _share(verdict: Verdict, places: slice) -> Verdict:
    critiques = verdict.critiques and verdict.critiques[places]
    return replace(verdict, scores=verdict.scores and verdict.scores[places], critiques=critiques)


def _scored(candidates: Candidates, found: Sequence[Verdict]) -> Ranking:
    scores = tuple(score for verdict in found for score in verdict.scores or ())
    wrong = [place for place, score in enumerate(scores) if not math.isfinite(score)]
    if wrong:
        raise NonFiniteError(
            f"{candidates.identity}: the scores of the responses {wrong[:9]} are no finite numbers (the first is "
            f"{scores[wrong[0]]}). The checkpoint is broken, or computes in a dtype that overflows: take another one."
        )
    return Ranking(scores, tuple(text for verdict in found for text in verdict.critiques or ()))


def tournament_ranker(judge: GenerativeJudge) -> PackedRanker[ShownPair, Judgements]:
    """Return what ranks by a tournament of a judge, who is asked in both orders.

    At temperature 0 a judge writes of the same two texts what it wrote before: where responses are equal, as often a policy's,
    every two texts are shown once in each order.
    """
    drawn = judge.sampling.temperature > 0

    def shown(candidates: Candidates) -> Iterator[tuple[tuple[str, ...], str, ShownPair]]:
        for pair in pairs(candidates):
            for one in showings(pair, judge.protocol):
                key = f"{pair.key}/{one.first}"
                yield (key,) if drawn else pair.responses[:: -1 if one.first else 1], key, one

    def cut(candidates: Candidates) -> Iterator[tuple[str, ShownPair]]:
        once: dict[tuple[str, ...], tuple[str, ShownPair]] = {}
        for content, key, one in shown(candidates):
            once.setdefault(content, (key, one))
        yield from once.values()

    def join(candidates: Candidates, found: Sequence[Judgements]) -> Ranking:
        every = list(shown(candidates))
        known = dict(zip(dict.fromkeys(content for content, _, _ in every), found, strict=True))
        texts = (
            (vote.text, one.first) for content, _, one in every for vote, _, _ in known[content]
        )
        return won(candidates, [Vote.at(text, first, judge.read(text)) for text, first in texts])

    encode = ShownEncoder(judge.packed.encoder, judge.ask)
    return PackedRanker(
        judge.packed, encode, judge.cost, judge.judgements, Judgements, cut, join, None
    )


@dataclass(frozen=True, slots=True)
class Tournament:
    """Ranks by a judge that gives votes and is nowhere in this process: an endpoint."""

    judge: Judge

    def rank(self, candidates: Sequence[Candidates], journal: Journal = SILENT) -> list[Ranking]:
        """Return a ranking for each, in order; raises as the judge does."""
        meetings = [pairs(one) for one in candidates]
        verdicts = iter(self.judge.judge([pair for part in meetings for pair in part], journal))
        return [
            won(one, [vote for verdict in islice(verdicts, len(part)) for vote in verdict.votes])
            for one, part in zip(candidates, meetings, strict=True)
        ]


def pairs(candidates: Candidates) -> list[Example]:
    """Return every two responses as something to judge; which one is called the better means nothing.

    Raises: RecordError for a single response.
    """
    if len(candidates.responses) < 2:
        raise RecordError(
            f"{candidates.identity}: one response; a judge compares, which takes two at least"
        )
    prompt, images, identity = candidates.prompt, candidates.images, candidates.identity
    return [
        Example(
            f"{candidates.key}/{one}-{two}",
            images,
            prompt,
            (first, second),
            identity,
            0,
            "",
            "",
            {},
        )
        for (one, first), (two, second) in combinations(enumerate(candidates.responses), 2)
    ]


def won(candidates: Candidates, votes: Sequence[Vote]) -> Ranking:
    """Return the outcome of a tournament from its votes, pair by pair, equally many for each."""
    number = len(candidates.responses)
    each = len(votes) // math.comb(number, 2)
    points = [0.0] * number
    rest = iter(votes)
    for pair in combinations(range(number), 2):
        for vote in islice(rest, each):
            for side, place in enumerate(pair):
                points[place] += 0.5 if vote.names is None else vote.names == side
    scores = tuple(point / (each * (number - 1)) for point in points)
    return Ranking(
        scores,
        tuple(vote.text for vote in votes),
        len(votes),
        sum(vote.names is None for vote in votes),
    )
