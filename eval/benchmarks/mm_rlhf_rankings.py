"""The rankings of MM-RLHF-RewardBench (arXiv 2502.10391): 46 questions with three to five responses.

The benchmark publishes rankings as pairs: the rows of an item are pairs of its responses. Here an
item is one row, whose responses are judged together and ranked. The files and images are those of
`mm_rlhf_rewardbench`, whose figures over pairs (Acc, Acc+) are the published ones. No script scores
the rankings.

In the released file an item has a pair for every two responses of different quality, and no pair
for equally good ones. The rank of a response is the length of the longest chain of better
responses, so pairs of neighbours in the ranking alone would give the same ranks.
"""

from collections.abc import Sequence

from mmrm.data.errors import RecordError
from mmrm.data.preference import text_responses
from mmrm.eval.benchmarks.benchmark import (
    Benchmark,
    FileFormat,
    LoadedBenchmark,
    Location,
    PublishedEdition,
    ScoringRule,
    drawn_order,
)
from mmrm.eval.benchmarks.mm_rlhf_rewardbench import FRAMES, published
from mmrm.eval.benchmarks.prediction_records import text
from mmrm.eval.benchmarks.ranked_predictions import (
    best_of_n_score,
    ranked_predictions_format,
    score_record_of_prediction,
    score_records,
)
from mmrm.eval.benchmarks.rows import content_key, limited_indices, loaded_benchmark
from mmrm.eval.benchmarks.video_frames import with_note_on_videos
from mmrm.eval.candidates import Example, RankedExample

NAME = "mm_rlhf_rankings"
KNOWN = (
    PublishedEdition(
        "the released edition",
        46,
        {"mcq": 10, "long": 10, "short": 10, "safety": 6, "video": 10},
        ids="mm_rlhf_rankings.txt",
    ),
)


# Rows


def load(where: Location) -> LoadedBenchmark:
    """Return the items of MM-RLHF-RewardBench as rows, after checking that images can be decoded.

    Raises:
        UserError: If files are missing, or the images of rows are missing or broken.
        RecordError: If a row cannot be used, or the pairs of an item contradict each other.
    """
    rows, origin = _rows_and_origin(where)
    loaded = loaded_benchmark(NAME, rows, where, origin, KNOWN)
    return with_note_on_videos(loaded, where, f"{FRAMES} frames")


def read(where: Location) -> list[RankedExample]:
    """Return the rows without checking their images.

    Raises:
        UserError: If files are missing.
        RecordError: If a row cannot be used, or the pairs of an item contradict each other.
    """
    rows, _ = _rows_and_origin(where)
    return rows


def _rows_and_origin(where: Location) -> tuple[list[RankedExample], str]:
    """Return the rows, at most `where.limit`, and their origin: a path or a hub revision."""
    all_pairs, origin = published(where).read_with_origin(where.model_copy(update={"limit": None}))
    pairs_by_item: dict[str, list[Example]] = {}
    for pair in all_pairs:
        assert isinstance(pair, Example)
        pairs_by_item.setdefault(pair.row["id"], []).append(pair)
    items = list(pairs_by_item.values())
    rows = []
    for index in limited_indices(len(items), where.limit):
        identity = f"{NAME}:{index} ({items[index][0].row['id']})"
        rows.append(_ranked_row(items[index], identity))
    return rows, origin


def _ranked_row(pairs: Sequence[Example], identity: str) -> RankedExample:
    """Return an item as a row. Its responses are in an order drawn from their content.

    Args:
        pairs: The pairs of the item, which show the same images and ask the same question.
        identity: The benchmark and the row, for messages.

    Raises:
        RecordError: If the pairs contradict each other.
    """
    better_than: dict[str, set[str]] = {}
    for pair in pairs:
        better = pair.responses[pair.better].text
        other = pair.responses[1 - pair.better].text
        better_than.setdefault(better, set())
        better_than.setdefault(other, set()).add(better)
    rank_by_response = ranks_of(better_than, identity)

    first = pairs[0]
    in_file = list(rank_by_response)
    question = first.row["prompt"]
    responses = tuple(in_file[index] for index in drawn_order(question, in_file))
    references = [str(first.row.get("video") or first.row.get("image") or "")]
    reasons = [pair.unavailable for pair in pairs if pair.unavailable]
    return RankedExample(
        key=content_key(first.prompt, sorted(responses), references),
        images=first.images,
        videos=first.videos,
        prompt=first.prompt,
        responses=text_responses(*responses),
        ranks=tuple(rank_by_response[response] for response in responses),
        group=first.group,
        source=first.source,
        identity=identity,
        row={"id": first.row["id"]},
        unavailable=reasons[0] if reasons else "",
    )


def ranks_of(better_than: dict[str, set[str]], identity: str) -> dict[str, int]:
    """Return the rank of each response: the length of the longest chain of better responses.

    Example: for the pairs a > b, b > c and d > c, the ranks are a 0, b 1, c 2 and d 0.

    Args:
        better_than: For each response, the responses that a pair prefers to it.
        identity: The benchmark and the row, for messages.

    Raises:
        RecordError: If the pairs contradict each other, as in a > b, b > a.
    """
    ranks: dict[str, int] = {}
    while len(ranks) < len(better_than):
        ranked_before = len(ranks)
        for response, better_responses in better_than.items():
            if response not in ranks and better_responses <= ranks.keys():
                better_ranks = [ranks[better] for better in better_responses]
                ranks[response] = max(better_ranks, default=-1) + 1
        if len(ranks) == ranked_before:
            raise RecordError(
                f"{identity}: its pairs contradict each other, so that its responses have no "
                "ranking. Correct or remove the rows of this id."
            )
    return {response: ranks[response] for response in better_than}


MM_RLHF_RANKINGS = Benchmark(
    name=NAME,
    load=load,
    check_location=lambda where: published(where).check_location(where),
    read=read,
    files={
        "predictions": ranked_predictions_format("best_of_n", "scores", score_record_of_prediction),
        "scores": FileFormat(
            about="id, group, ranks (0 for the best responses) and scores, one for each response",
            marks=("id", "ranks", "scores"),
            rules="best_of_n",
            group=lambda record: text(record, "group"),
        ),
    },
    formats={"scores": score_records},
    rules={
        "best_of_n": ScoringRule(
            about="no official scorer: the share of rows in which a best response has the highest "
            "score, ties wrong",
            reads="scores",
            score=best_of_n_score,
            differs="no script",
        )
    },
    known=KNOWN,
    ranked=True,
)
