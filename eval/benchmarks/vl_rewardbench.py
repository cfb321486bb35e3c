"""VL-RewardBench (arXiv 2411.17451): 1,250 pairs, 1,247 since its label corrections of May 2025.

Read: the hub's current and older revisions; a folder or file in the hub's parquet format (also the embedded edition); the
official repository's `data/data.jsonl`; R1-Reward's `data.jsonl` (1,250 rows with the labels before the corrections, the
winner always under `chosen`: here the two responses get an order drawn from their content, so that nothing can profit).

Its scoring is in vl_rewardbench_scoring.py.
"""

from collections.abc import Sequence
from pathlib import Path

from mmrm.data.errors import RecordError
from mmrm.data.preference import Message
from mmrm.data.storage.row_files import Row
from mmrm.eval.benchmarks.benchmark import (
    Benchmark,
    Known,
    PairwisePrompt,
    Record,
    in_drawn_order,
    preferred,
    rewards,
)
from mmrm.eval.benchmarks.rows import Published, content_key, encoded, require_texts, user_turn
from mmrm.eval.benchmarks.vl_rewardbench_scoring import (
    FILES_SCORED,
    RULES,
    agreement,
    dataset,
    named_answer,
    official_group,
)
from mmrm.eval.candidates import Example, Scores, Side, Vote

NAME = "vl_rewardbench"
HUB = "MMInstruction/VL-RewardBench"
FILES = ("data/test-*.parquet", "test-*.parquet", "data.jsonl", "data/data.jsonl")
KNOWN = (
    Known(
        "the edition before May 2025",
        1250,
        {"general": 183, "hallucination": 749, "reasoning": 318},
        ids="vl_rewardbench.txt",
    ),
    Known("the edition since May 2025", 1247),
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
"""The text of the official prompt.py, its leading space included."""


def _example(row: Row, root: Path, identity: str) -> Example:
    images, reference = encoded(
        row["image"] if "image" in row else row.get("image_path"), root, identity
    )
    query, responses, better, drawn = _pair(row, identity)
    prompt = user_turn(query.replace("<image>\n", ""), len(images))
    return Example(
        key=content_key(prompt, sorted(responses) if drawn else responses, [reference]),
        images=images,
        prompt=prompt,
        responses=responses,
        better=better,
        group=official_group(row["id"]),
        source=dataset(row["id"]),
        identity=identity,
        row={
            "id": row["id"],
            "query": query,
            "image": reference,
            **{name: row.get(name) for name in KEPT},
        },
    )


def _pair(row: Row, identity: str) -> tuple[str, tuple[str, str], Side, bool]:
    """Return the question, the responses, the index of the better one, and whether their order was drawn here."""
    if "chosen" in row:
        require_texts(row, ("id", "prompt", "chosen", "rejected"), identity)
        pair, better = in_drawn_order(row["prompt"], row["chosen"], row["rejected"])
        return row["prompt"], pair, better, True
    require_texts(row, ("id", "query"), identity)
    ranking, responses = (list(row.get(name) or []) for name in ("human_ranking", "response"))
    if ranking not in ([0, 1], [1, 0]) or [type(response) for response in responses] != [str, str]:
        raise RecordError(
            f"{identity}: human_ranking is {ranking} of {len(responses)} responses; required is [0, 1] or [1, 0] of two texts. "
            f"(Columns: {', '.join(sorted(row))}.)"
        )
    return row["query"], (responses[0], responses[1]), 0 if ranking == [0, 1] else 1, False


def ask(example: Example, first: Side) -> tuple[Message, ...]:
    """Return the official judge prompt: one user turn, the text before the image, as inference_hf.py sends it."""
    shown = QUESTION.format(
        query=example.row["query"],
        first=example.responses[first],
        second=example.responses[1 - first],
    )
    return user_turn(shown.replace("<image>\n", ""), len(example.images), images_last=True)


def read(text: str) -> Side | None:
    """Return the position that a judgement names, by the official pattern; an answer other than 1 and 2 is unreadable.

    (The official scorer counts Answer 3 as right. The official figures do; ours do not.)
    """
    number = named_answer(text)
    return 0 if number == 1 else 1 if number == 2 else None


def official_records(examples: Sequence[Example], scores: Sequence[Scores]) -> list[Record]:
    """Return the predictions as inference_hf.py writes them, one record a vote: cal.py can be run on them.

    Scores have no text, so that a scalar judge's record holds the sentence that the official prompt asks for; equal
    scores name no answer, and cal.py then leaves the row out of its denominators.
    """
    records: list[Record] = []
    for example, row_scores in zip(examples, scores, strict=True):
        votes = row_scores.votes
        if not votes:
            first, second = row_scores.values
            text = "The scores do not differ." if first == second else ""
            votes = (Vote((0, 1), preferred(row_scores), text),)
        records += [_record(example, vote) for vote in votes]
    return records


def _record(example: Example, vote: Vote) -> Record:
    """Return a vote with the judge's text where the official pattern reads from it what the judge's own reader did.

    Else with a sentence: a judge may answer in another form (`<answer>2</answer>`) and still hold "Therefore … Answer 1 is
    better" in its reasoning; its file must not say the opposite of its verdict.
    """
    first = vote.shown[0]
    position = None if vote.named is None else vote.shown.index(vote.named)
    text = vote.text
    if read(text) != position:
        text = "" if position is None else f"Overall Judgment: Answer {1 + position} is better."
    number = named_answer(text)
    return {
        "id": example.row["id"],
        "query": example.row["query"],
        "response": list(example.responses),
        "ranking": [0, 1] if example.better == 0 else [1, 0],
        **{name: example.row[name] for name in KEPT},
        "meta": {
            "filtering model": "",
            "filter_choice": text,
            "filter_prompt": "",
            "filter_number": -1 if number is None else number,
            "random_number": first,
            "flag_status": agreement(number, rejected=1 if first != example.better else 2),
        },
    }


def reward_records(examples: Sequence[Example], scores: Sequence[Scores]) -> list[Record]:
    """Return the predictions as R1-Reward writes them for this benchmark: one record a row, rewards of the winner first."""
    return [
        {
            "id": example.row["id"],
            "prompt": example.row["query"],
            "chosen": example.responses[example.better],
            "rejected": example.responses[1 - example.better],
            "image": example.row["image"],
            "rewards": rewards(example, row_scores),
        }
        for example, row_scores in zip(examples, scores, strict=True)
    ]


PUBLISHED = Published(NAME, "VL-RewardBench", HUB, FILES, "image", KNOWN, _example)
VL_REWARDBENCH = Benchmark(
    name=NAME,
    load=PUBLISHED.load,
    look=PUBLISHED.look,
    read=PUBLISHED.read,
    files=FILES_SCORED,
    formats={"official": official_records, "rewards": reward_records},
    rules=RULES,
    known=KNOWN,
    prompt=PairwisePrompt(ask, read, temperature=0.2, top_p=0.2, max_new_tokens=2048),
)
