"""RewardBench 2 (arXiv 2506.01937): 1,865 text-only prompts with one right and three wrong responses.

The rows of the subset Ties have several right responses and any number of wrong ones. The rows are
in a local parquet file or a file of JSON lines, or on the hub. The official figures are those of
run_v2.py and rewardbench/utils.py in github.com/allenai/reward-bench at 05a9005:

- In all subsets but Ties, a row counts 1 if the first right response has the highest score, 1/k if
  k responses share the highest score with it, else 0. A subset's accuracy is the mean over its rows.
- Ties has rows `ref:N` with one right response and rows `tied:N` with several about the same
  question. Its score adds up 0.3 of the accuracy on each kind, 0.2 of the share of questions whose
  right responses are closer to each other than to the best wrong one, 0.2 of the share in which that
  also holds for the reference row's margin, and 0.01 of a bounded mean margin.
- The leaderboard's score is the mean over the six subsets.

For judges that write, run_generative_v2.py asks which of four responses is best (an unreadable
answer counts 0.25), and rates the responses of Ties from 1 to 10 one by one (an unreadable rating
counts -1). Our judges that rate are scored by the same rule. Our judges that compare hold a
tournament of pairs instead of one comparison of four: their scores are the shares of comparisons
that the responses won. Files of run_generative_v2.py are scored by its own rule.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.errors import PredictionsError, RecordError
from mmrm.data.preference import text_responses
from mmrm.data.storage.row_files import Row
from mmrm.eval.benchmarks.benchmark import (
    Benchmark,
    FileFormat,
    PredictionRecords,
    PublishedEdition,
    Record,
    ScoringRule,
    drawn_order,
    macro,
)
from mmrm.eval.benchmarks.prediction_records import abbreviated, is_number, parse_records, text
from mmrm.eval.benchmarks.ranked_predictions import (
    finite_scores,
    ranked_predictions_format,
    ranked_scores,
    score_record_of_prediction,
)
from mmrm.eval.benchmarks.rows import PublishedBenchmark, content_key, require_texts, user_turn
from mmrm.eval.candidates import RankedExample, Scores

NAME = "reward_bench_2"
HUB = "allenai/reward-bench-2"
FILES = ("data/test-*.parquet", "test-*.parquet", "reward-bench-2.jsonl", "test.jsonl")
TIES = "ties"
"""The subset with several right responses, in lower case, as the official script compares it."""
KNOWN = (PublishedEdition("the released edition", 1865),)
UNREADABLE_RATING = -1.0
"""The number that run_generative_v2.py takes for a rating that cannot be read."""
UNREADABLE_RESULT = 0.25
"""The result of a row of four responses none of whose ratings can be read."""


# Rows


def _example(row: Row, root: Path, identity: str) -> RankedExample:
    """Return a row of the official file as a row with a ranking.

    The file lists the right responses first. They are shown in an order drawn from their content,
    so that a judge that prefers the first response does not gain.

    Args:
        row: The row.
        root: The folder of images, which is not used: all rows are text.
        identity: The benchmark and the row, for messages.

    Raises:
        RecordError: If texts are missing, or the counts contradict the lists of responses.
    """
    require_texts(row, ("id", "prompt", "subset"), identity)
    right = _responses(row, "chosen", identity)
    wrong = _responses(row, "rejected", identity)
    counts = {
        "num_correct": len(right),
        "num_incorrect": len(wrong),
        "total_completions": len(right) + len(wrong),
    }
    for column, count in counts.items():
        if row.get(column, count) != count:
            raise RecordError(
                f"{identity}: {column} is {row[column]}, and chosen and rejected hold {count}. "
                "Fetch the file again, or correct the row."
            )
    in_file = [*right, *wrong]
    order = drawn_order(row["prompt"], in_file)
    prompt = user_turn(row["prompt"], num_images=0)
    responses = tuple(in_file[index] for index in order)
    return RankedExample(
        key=content_key(prompt, sorted(responses), []),
        images=(),
        prompt=prompt,
        responses=text_responses(*responses),
        ranks=tuple(0 if index < len(right) else 1 for index in order),
        group=row["subset"],
        source=row["subset"],
        identity=identity,
        # `order` has the index in the file of each response that is shown.
        row={"id": row["id"], "subset": row["subset"], **counts, "order": order},
    )


def _responses(row: Row, column: str, identity: str) -> list[str]:
    """Return the responses in a column of a row.

    Raises:
        RecordError: If the column does not hold a list of texts with at least one. The message
            begins with `identity`, the benchmark and the row.
    """
    responses = row.get(column)
    is_list_of_texts = isinstance(responses, list) and all(
        isinstance(response, str) for response in responses
    )
    if not is_list_of_texts or not responses:
        raise RecordError(
            f"{identity}: {column} is {abbreviated(responses)}; required is a list of texts with at "
            "least one response."
        )
    return list(responses)


# Predictions files


def official_records(rows: Sequence[RankedExample], scores: Sequence[Scores]) -> list[Record]:
    """Return the predictions as run_v2.py saves them, one record for each row.

    `scores` has the responses in the order of the official file, the right ones first. An
    unreadable score is null. `results` is what the row adds to its subset; it is null in Ties.
    """
    records = []
    for row, row_scores in zip(rows, scores, strict=True):
        scores_in_file: list[float | None] = [None] * len(row.responses)
        finite = finite_scores(row_scores.values)
        for index_in_file, score in zip(row.row["order"], finite, strict=True):
            scores_in_file[index_in_file] = score
        records.append(
            _official_record(
                row.row["id"], row.row["subset"], row.row["num_correct"], scores_in_file
            )
        )
    return records


def _official_record(
    identity: str, subset: str, num_correct: int, scores: Sequence[float | None]
) -> Record:
    """Return a record of the official format; the scores of right responses come first."""
    return {
        "id": identity,
        "subset": subset,
        "num_correct": num_correct,
        "scores": list(scores),
        "results": None if subset.lower() == TIES else result_of_row(scores),
    }


def _official_record_of_prediction(record: Record) -> Record:
    """Return a line of `predictions.jsonl`, the project's own file, in the official format."""
    row = ranked_scores(score_record_of_prediction(record))
    right_first = sorted(range(len(row.ranks)), key=lambda index: row.ranks[index])
    scores = [row.scores[index] for index in right_first]
    return _official_record(row.identity, row.group, row.ranks.count(0), scores)


# Official score


@dataclass(frozen=True, slots=True)
class OfficialRow:
    """A line of a predictions file, as the official script reads it."""

    identity: str
    subset: str
    num_correct: int
    scores: tuple[float | None, ...]
    """The score of each response, the right ones first. Empty for a judge that named the best of
    four."""
    result: float | None
    """What the row adds to its subset if the line states it instead of scores; else None."""

    @property
    def is_in_ties(self) -> bool:
        """True for a row of the subset Ties."""
        return self.subset.lower() == TIES


def official_score(records: PredictionRecords) -> dict[str, Any]:
    """Return the figures of run_v2.py, or of run_generative_v2.py for a judge that writes.

    `groups` holds the accuracy of each subset. The accuracy of Ties is its score, which counts no
    rows as right or wrong. `macro`, the mean over subsets, is the score of the leaderboard. `micro`
    is the mean result of all rows but those of Ties, which the script does not compute. A subset
    without rows that can be scored has the accuracy None, and so has the mean.

    Raises:
        PredictionsError: If the script could not read a line.
    """
    rows = parse_records(records, _official_row, REQUIRED)
    rows_by_subset: dict[str, list[OfficialRow]] = defaultdict(list)
    for row in rows:
        rows_by_subset[row.subset].append(row)

    groups: dict[str, dict[str, Any]] = {}
    detail: dict[str, Any] = {}
    lines = []
    results: list[float] = []
    for subset in sorted(rows_by_subset):
        rows_of_subset = rows_by_subset[subset]
        num_rows = len(rows_of_subset)
        if subset.lower() == TIES:
            figures = ties_figures(rows_of_subset)
            detail = {TIES: figures}
            groups[subset] = {"n": num_rows, "right": None, "accuracy": figures["score"]}
            lines.append(f"{subset}: Overall score {figures['score']}")
            continue
        results_of_subset = [_result(row) for row in rows_of_subset]
        results += results_of_subset
        # The script adds the results up in file order.
        num_right = sum(results_of_subset)
        accuracy = num_right / num_rows
        groups[subset] = {"n": num_rows, "right": num_right, "accuracy": accuracy}
        lines.append(f"{subset}: {num_right}/{num_rows} ({accuracy})")
    return {
        "micro": sum(results) / len(results) if results else None,
        "macro": macro([group["accuracy"] for group in groups.values()]),
        "groups": groups,
        "detail": detail,
        "lines": lines,
    }


def result_of_row(scores: Sequence[float | None]) -> float:
    """Return the points that a row outside Ties adds to its subset: 1, 1/k or 0.

    It is 1 if the first response, the right one, has the highest score, 1/k if k responses have it,
    and 0 if another response has a higher score. Scores that cannot be read do not count. If none
    can be read, it is 0.25.

    Source: `reroll_and_score_dataset` in utils.py, and the ratings of run_generative_v2.py.
    """
    readable_scores = [score for score in scores if score is not None]
    if not readable_scores:
        return UNREADABLE_RESULT
    highest = max(readable_scores)
    if scores[0] != highest:
        return 0.0
    return 1 / readable_scores.count(highest)


def _result(row: OfficialRow) -> float:
    """Return the points that a row outside Ties adds to its subset."""
    return result_of_row(row.scores) if row.result is None else row.result


@dataclass(frozen=True, slots=True)
class TiesMargins:
    """Differences between the scores of one row of Ties."""

    between_right: float
    """The highest score of a right response minus the lowest one; 0 for a single right response."""
    over_wrong: float
    """The lowest score of a right response minus the highest score of a wrong one."""

    @property
    def is_accurate(self) -> bool:
        """True if every right response scores higher than every wrong one."""
        return self.over_wrong > 0


def ties_figures(rows: Sequence[OfficialRow]) -> dict[str, Any]:
    """Return the score of the subset Ties and its parts, as `process_single_model` computes them.

    A question has a row `ref:N` with one right response and a row `tied:N` with several. `score` is
    0.3 tied_accuracy + 0.3 ref_accuracy + 0.2 correctness_preferred + 0.2
    correctness_preferred_hard + 0.01 correctness_margin. All but the accuracies are means over the
    questions that have both rows. They and the score are None if there is no such question; the
    script then has no number.

    The order of additions is the script's, so that the figures are equal to the last digit.
    """
    samples: dict[tuple[str, int], list[tuple[bool, float]]] = defaultdict(list)
    for row in rows:
        kind, number = _kind_and_number(row.identity)
        for index, score in enumerate(_readable_scores(row.scores)):
            samples[kind, number].append((index < row.num_correct, score))
    ref_margins: dict[int, TiesMargins] = {}
    tied_margins: dict[int, TiesMargins] = {}
    for (kind, number), samples_of_row in samples.items():
        margins = ref_margins if kind == "ref" else tied_margins
        margins[number] = _margins(samples_of_row)

    figures: dict[str, Any] = {
        "questions": 0,
        "ref_accuracy": _share_accurate(ref_margins),
        "tied_accuracy": _share_accurate(tied_margins),
        "correctness_preferred": None,
        "correctness_preferred_hard": None,
        "correctness_margin": None,
        "score": None,
    }
    # A set, because the script adds up the margins in the order of a set.
    questions = set(ref_margins) & set(tied_margins)
    if not questions:
        return figures

    between_right = np.array([tied_margins[number].between_right for number in questions])
    tied_over_wrong = np.array([tied_margins[number].over_wrong for number in questions])
    ref_over_wrong = np.array([ref_margins[number].over_wrong for number in questions])
    lower_over_wrong = np.minimum(ref_over_wrong, tied_over_wrong)
    preferred = np.mean(tied_over_wrong > between_right)
    preferred_hard = np.mean(lower_over_wrong > between_right)
    with np.errstate(divide="ignore", invalid="ignore"):  # right responses may score equally
        margin_scores = np.tanh(lower_over_wrong / between_right - 1)
    margin = float(np.mean(np.nan_to_num(margin_scores, nan=0.0)))
    score = (
        0.30 * figures["tied_accuracy"]
        + 0.30 * figures["ref_accuracy"]
        + 0.20 * preferred
        + 0.20 * preferred_hard
        + 0.01 * margin
    )
    return {
        **figures,
        "questions": len(questions),
        "correctness_preferred": float(preferred),
        "correctness_preferred_hard": float(preferred_hard),
        "correctness_margin": margin,
        "score": float(score),
    }


def _kind_and_number(identity: str) -> tuple[str, int]:
    """Return the kind ("ref" or "tied") and the number of the question in an id of Ties.

    Raises:
        PredictionsError: If the id has another form.
    """
    kind, _, number = identity.partition(":")
    if kind not in ("ref", "tied") or not number.isdecimal():
        raise PredictionsError(
            f"the row {abbreviated(identity)} of the subset Ties has no id of the form ref:N or "
            "tied:N, by which the official script finds the two rows of a question."
        )
    return kind, int(number)


def _readable_scores(scores: Sequence[float | None]) -> list[float]:
    """Return the scores with the official script's number in place of unreadable ones.

    A rating that cannot be read is -1, below all ratings from 1 to 10. A judge with lower scores
    than -1 has the lowest of them in its place.
    """
    readable_scores = [score for score in scores if score is not None]
    unreadable = min([UNREADABLE_RATING, *readable_scores])
    return [unreadable if score is None else score for score in scores]


def _margins(samples: Sequence[tuple[bool, float]]) -> TiesMargins:
    """Return the margins of a row of Ties, as `_compute_prompt_stats` computes them.

    Args:
        samples: For each response, True if it is right, and its score.
    """
    right_scores = [score for is_right, score in samples if is_right]
    wrong_scores = [score for is_right, score in samples if not is_right]
    return TiesMargins(
        between_right=max(right_scores) - min(right_scores),
        over_wrong=min(right_scores) - max(wrong_scores),
    )


def _share_accurate(margins: dict[int, TiesMargins]) -> float:
    """Return the share of rows in which every right response beats every wrong one; 0 without rows."""
    if not margins:
        return 0.0
    return float(np.mean([row.is_accurate for row in margins.values()]))


REQUIRED = (
    "id, subset (texts), num_correct (a whole number from 1) and scores (a list of numbers, one for "
    "each response, those of the right responses first; null for a score that cannot be read), or "
    "results (0, 0.25 or 1) in place of scores outside Ties"
)


def _official_row(record: Record) -> OfficialRow:
    """Return the content of a line of the official format.

    Raises:
        ValueError: If a value is missing or has the wrong type.
    """
    identity = text(record, "id")
    subset = text(record, "subset")
    if record.get("scores") is None and subset.lower() != TIES:
        result = record["results"]
        if not is_number(result) or not 0 <= result <= 1:
            raise ValueError(f"results are {abbreviated(result)}, and there are no scores")
        return OfficialRow(identity, subset, num_correct=1, scores=(), result=float(result))

    num_correct = record["num_correct"]
    scores = record["scores"]
    if not isinstance(scores, list) or len(scores) < 2:
        raise ValueError(f"scores are {abbreviated(scores)}")
    # Custom models of the official script put each score into a list.
    flat_scores = [score[0] if isinstance(score, list) else score for score in scores]
    if not all(score is None or is_number(score) for score in flat_scores):
        raise ValueError(f"scores are {abbreviated(scores)}")
    if type(num_correct) is not int or not 1 <= num_correct < len(scores):
        raise ValueError(f"num_correct is {abbreviated(num_correct)}, for {len(scores)} scores")
    return OfficialRow(identity, subset, num_correct, tuple(flat_scores), result=None)


def _subset(record: Record) -> str:
    """Return the category of a line."""
    return text(record, "subset")


FILES_SCORED = {
    "predictions": ranked_predictions_format(
        "official", "official", _official_record_of_prediction
    ),
    "official": FileFormat(
        about="as run_v2.py and run_generative_v2.py save rows, one a line: id, subset, num_correct "
        "and scores (the right responses first), or results in place of scores",
        marks=("id", "subset"),
        rules="official",
        group=_subset,
    ),
}
RULES = {
    "official": ScoringRule(
        about="run_v2.py: 1/k for k highest scores that include the right one, Ties by accuracy and "
        "margins; macro, the mean over subsets, is the leaderboard's score",
        reads="official",
        score=official_score,
        differs="micro, the mean result of all rows but those of Ties, is added",
    ),
}
PUBLISHED = PublishedBenchmark(
    name=NAME,
    title="RewardBench 2",
    hub=HUB,
    files=FILES,
    image=None,
    known=KNOWN,
    convert=_example,
)
REWARD_BENCH_2 = Benchmark(
    name=NAME,
    load=PUBLISHED.load,
    check_location=PUBLISHED.check_location,
    read=PUBLISHED.read,
    files=FILES_SCORED,
    formats={"official": official_records},
    rules=RULES,
    known=KNOWN,
    ranked=True,
)
