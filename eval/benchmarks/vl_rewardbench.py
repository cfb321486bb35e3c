"""VL-RewardBench (arXiv 2411.17451): 1,250 pairs, 1,247 since its label corrections of May 2025.

These files are read: the hub's current and older revisions; a folder or file in the hub's parquet
format (also the embedded edition); the official repository's `data/data.jsonl`; and R1-Reward's
`data.jsonl`, with 1,250 rows and the labels before the corrections. R1-Reward's file has the winner
under `chosen`, so its two responses get an order drawn from their content, and no judge can profit.

The scoring is in vl_rewardbench_scoring.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrm.data.errors import RecordError
from mmrm.data.preference import Message, text_pair
from mmrm.data.storage.row_files import Row
from mmrm.eval.benchmarks.benchmark import (
    Benchmark,
    PairwisePrompt,
    PublishedEdition,
    Record,
    in_drawn_order,
    preferred,
    rewards,
)
from mmrm.eval.benchmarks.rows import (
    PublishedBenchmark,
    content_key,
    image_of_row,
    require_texts,
    user_turn,
)
from mmrm.eval.benchmarks.vl_rewardbench_scoring import (
    FILES_SCORED,
    RULES,
    agreement,
    dataset,
    find_answer_number,
    named_answer,
    official_group,
)
from mmrm.eval.candidates import Example, Scores, Side, Vote
from mmrm.eval.verdict_form import VerdictForm

NAME = "vl_rewardbench"
HUB = "MMInstruction/VL-RewardBench"
FILES = ("data/test-*.parquet", "test-*.parquet", "data.jsonl", "data/data.jsonl")
KNOWN = (
    PublishedEdition(
        "the edition before May 2025",
        1250,
        {"general": 183, "hallucination": 749, "reasoning": 318},
        ids="vl_rewardbench.txt",
    ),
    PublishedEdition("the edition since May 2025", 1247),
)
KEPT = ("models", "judge", "rationale", "query_source")
"""Columns that the official predictions file repeats."""
QUESTION = """ You are a highly capable multimodal AI assistant tasked with evaluating answers to visual questions. \
Please analyze the following image and question, then determine which of the two provided answers is better.

Question: {query}

Answer 1: {first}

Answer 2: {second}

Please evaluate both answers based on the following criteria:
1. Accuracy: How well does the answer align with the visual information in the image?
2. Completeness: Does the answer fully address all aspects of the question?
3. Clarity: Is the answer easy to understand and well-articulated?
4. Relevance: Does the answer directly relate to the question and the image?

After your evaluation, please:
1. Explain your reasoning for each criterion.
2. Provide an overall judgment on which answer is better (Answer 1 or Answer 2). For example: Overall Judgment: \
Answer X is better.

Your response should be structured and detailed, demonstrating your understanding of both the visual and textual \
elements of the task."""
"""The text of the official prompt.py, with the space at its beginning."""


# Rows


@dataclass(frozen=True, slots=True)
class QueryPair:
    """A query with two responses, as a row of any file has them."""

    query: str
    responses: tuple[str, str]
    better: Side
    is_order_drawn: bool
    """True if the file lists the winner first, so that the order was drawn here."""


def _example(row: Row, root: Path, identity: str) -> Example:
    """Return a row of any of the files as an example.

    Args:
        row: The row, in the hub's, the official repository's or R1-Reward's format.
        root: The folder that the paths of images are relative to.
        identity: The benchmark and the row, for messages.
    """
    image = row["image"] if "image" in row else row.get("image_path")
    images, reference = image_of_row(image, root, identity)
    pair = _query_pair(row, identity)
    # The turn has a part of its own for the image, in place of the mark in the text.
    prompt = user_turn(pair.query.replace("<image>\n", ""), len(images))
    # The key must not depend on an order that the file does not have.
    responses = sorted(pair.responses) if pair.is_order_drawn else pair.responses
    columns = {"id": row["id"], "query": pair.query, "image": reference}
    for name in KEPT:
        columns[name] = row.get(name)
    return Example(
        key=content_key(prompt, responses, [reference]),
        images=images,
        prompt=prompt,
        responses=text_pair(*pair.responses),
        better=pair.better,
        group=official_group(row["id"]),
        source=dataset(row["id"]),
        identity=identity,
        row=columns,
    )


def _query_pair(row: Row, identity: str) -> QueryPair:
    """Return the query and the responses of a row in R1-Reward's or in the official format."""
    if "chosen" in row:
        require_texts(row, ("id", "prompt", "chosen", "rejected"), identity)
        responses, winner = in_drawn_order(row["prompt"], row["chosen"], row["rejected"])
        return QueryPair(row["prompt"], responses, winner, is_order_drawn=True)
    require_texts(row, ("id", "query"), identity)
    ranking = list(row.get("human_ranking") or [])
    texts = list(row.get("response") or [])
    has_two_texts = [type(text) for text in texts] == [str, str]
    has_ranking = ranking in ([0, 1], [1, 0])
    if not has_ranking or not has_two_texts:
        raise RecordError(
            f"{identity}: human_ranking is {ranking} of {len(texts)} responses; required is [0, 1] "
            f"or [1, 0] of two texts. The columns are {', '.join(sorted(row))}. Correct the row, "
            "or fetch the file again."
        )
    better: Side = 0 if ranking == [0, 1] else 1
    return QueryPair(row["query"], (texts[0], texts[1]), better, is_order_drawn=False)


# The judge prompt


def ask(example: Example, first: Side) -> tuple[Message, ...]:
    """Return the official judge prompt for an example, with the response `first` as Answer 1.

    It is one user turn, with the text before the image, as inference_hf.py sends it.
    """
    prompt = QUESTION.format(
        query=example.row["query"],
        first=example.responses[first].text,
        second=example.responses[1 - first].text,
    )
    return user_turn(prompt.replace("<image>\n", ""), len(example.images), images_last=True)


def read(judgement: str) -> Side | None:
    """Return the position, 0 or 1, of the answer that a judgement names by the official pattern.

    Returns None if the pattern does not match, or if the number is neither 1 nor 2. The official
    scorer counts any such number as right. The project's own figures do not.
    """
    number = named_answer(judgement)
    if number == 1:
        return 0
    if number == 2:
        return 1
    return None


FORM = VerdictForm(
    words=("1", "2"),
    find=find_answer_number,
    opening="Overall Judgment: Answer ",
    closing=" is better.",
    mark="Overall Judgment",
    separator="\n\n",
)
"""The verdict of the official prompt."""


# Predictions files


def official_records(examples: Sequence[Example], scores: Sequence[Scores]) -> list[Record]:
    """Return the predictions as inference_hf.py writes them, one record for each vote.

    The official scorer cal.py reads such records. A judge that only scores has written no text, so
    its record holds the sentence with which the official prompt ends a judgement. If its scores are
    equal, the record names no answer, and cal.py leaves the row out of its denominators.
    """
    records = []
    for example, row_scores in zip(examples, scores, strict=True):
        votes = row_scores.votes or (_vote_of_scores(row_scores),)
        for vote in votes:
            records.append(_record(example, vote))
    return records


def _vote_of_scores(scores: Scores) -> Vote:
    """Return the vote of a judge that only scores, as if it had seen the first response first."""
    first_score, second_score = scores.values
    # `_record` replaces an empty text by a sentence that names the preferred response.
    text = "The scores do not differ." if first_score == second_score else ""
    return Vote((0, 1), preferred(scores), text)


def _record(example: Example, vote: Vote) -> Record:
    """Return a vote as a line of the official file.

    The line has the judge's text if the official pattern reads the same answer from it as the
    judge's own reader did. Otherwise it has a sentence with the answer of the judge's own reader.
    For example, a judge may answer `<answer>2</answer>` and still write "Therefore … Answer 1 is
    better" in its reasoning. The line must not name another response than the verdict.
    """
    first_shown = vote.shown[0]
    position = None if vote.named is None else vote.shown.index(vote.named)
    text = vote.text
    if read(text) != position:
        text = "" if position is None else f"Overall Judgment: Answer {1 + position} is better."
    number = named_answer(text)
    # The number of the worse answer, as the judge saw the answers.
    rejected = 1 if first_shown != example.better else 2
    ranking = [0, 1] if example.better == 0 else [1, 0]
    columns = {name: example.row[name] for name in KEPT}
    return {
        "id": example.row["id"],
        "query": example.row["query"],
        "response": [response.text for response in example.responses],
        "ranking": ranking,
        **columns,
        "meta": {
            "filtering model": "",
            "filter_choice": text,
            "filter_prompt": "",
            "filter_number": -1 if number is None else number,  # -1 if no number was read
            "random_number": first_shown,
            "flag_status": agreement(number, rejected),
        },
    }


def reward_records(examples: Sequence[Example], scores: Sequence[Scores]) -> list[Record]:
    """Return the predictions as R1-Reward writes them for this benchmark.

    Each row has one record, in which the reward of the better response is the first one.
    """
    records = []
    for example, row_scores in zip(examples, scores, strict=True):
        records.append(
            {
                "id": example.row["id"],
                "prompt": example.row["query"],
                "chosen": example.responses[example.better].text,
                "rejected": example.responses[1 - example.better].text,
                "image": example.row["image"],
                "rewards": rewards(example, row_scores),
            }
        )
    return records


PUBLISHED = PublishedBenchmark(
    name=NAME,
    title="VL-RewardBench",
    hub=HUB,
    files=FILES,
    image="image",
    known=KNOWN,
    convert=_example,
)
VL_REWARDBENCH = Benchmark(
    name=NAME,
    load=PUBLISHED.load,
    check_location=PUBLISHED.check_location,
    read=PUBLISHED.read,
    files=FILES_SCORED,
    formats={"official": official_records, "rewards": reward_records},
    rules=RULES,
    known=KNOWN,
    prompt=PairwisePrompt(ask, read, FORM, temperature=0.2, top_p=0.2, max_new_tokens=2048),
)
