"""EditReward-Bench (TIGER Lab, arXiv 2509.26346): 484 instructions with two to four edited images.

A row has an image, an instruction, and edits of the image that people ranked. 186 rows have two
edits, which may be equally good, 150 have three and 148 have four. EditScore (arXiv 2509.23909) has
another benchmark of the same name.

Two editions are read. The hub's parquet files have a row for every two edits of an instruction; its
rows are put together here. The files EditReward_Bench_{2,3,4}pair.json, which the authors' scorer
reads, have a row for each instruction. The edits are listed in the order of their letters.

Two rules compute figures. Both are of github.com/TIGER-AI-Lab/EditReward at edb027e:

- `official` is `evaluate_edit_reward_bench` in EditReward/evaluate/eval_bench.py, for scores.
- `votes` is EditReward/evaluate/inference_{2,3,4}pair_hf.py, for judges that compare two edits.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.errors import PredictionsError, RecordError
from mmrm.data.preference import Response
from mmrm.data.storage.row_files import Row
from mmrm.eval.benchmarks.benchmark import (
    Benchmark,
    FileFormat,
    LoadedBenchmark,
    Location,
    PredictionRecords,
    PublishedEdition,
    Record,
    ScoringRule,
    group_figures,
    macro,
)
from mmrm.eval.benchmarks.prediction_records import (
    abbreviated,
    is_number,
    one_of,
    parse_records,
    text,
)
from mmrm.eval.benchmarks.ranked_predictions import (
    finite_scores,
    ranked_predictions_format,
    score_record_of_prediction,
)
from mmrm.eval.benchmarks.rows import (
    BenchmarkFiles,
    content_key,
    limited_indices,
    loaded_benchmark,
    read_json_lines,
    read_json_value,
    refuse_embedded,
    require_texts,
    row_image,
    user_turn,
)
from mmrm.eval.benchmarks.tie_calibration import (
    PairLabel,
    accuracy_without_ties,
    best_tie_threshold,
)
from mmrm.eval.candidates import RankedExample, Scores

NAME = "edit_reward_bench"
HUB = "TIGER-Lab/EditReward-Bench"
FILES = ("?pair/*.parquet", "EditReward_Bench_?pair.json", "*.parquet")
BENCHMARK_FILES = BenchmarkFiles(NAME, "EditReward-Bench", HUB, FILES)
NUM_EDITS = {"2pair": 2, "3pair": 3, "4pair": 4}
"""Number of edits in a row of each part of the benchmark."""
LETTERS = "ABCD"
"""The letters of edits in rankings."""
TIE = "A=B"
TIES = (TIE, "A=B=Good", "A=B=Bad")
"""Rankings of two equally good edits."""
KNOWN = (PublishedEdition("the released edition", 484, {"2pair": 186, "3pair": 150, "4pair": 148}),)


# Rows


@dataclass(frozen=True, slots=True)
class Item:
    """An instruction with an image, and edits of the image, as a file has them."""

    part: str
    """A key of NUM_EDITS."""
    row_id: str
    instruction: str
    source: object
    """The image before the edit: a path, or a mapping with `bytes` and `path`."""
    edits: tuple[object, ...]
    """The edited images in the order of their letters, in the same form as `source`."""
    ranking: str
    """The letters of the edits, the best first, such as B>A>C, or a value of TIES."""
    problem: str = ""
    """Reason why the item cannot be judged; empty for other items."""


def check_location(where: Location) -> None:
    """Raise UserError if a local location holds no file of the benchmark."""
    refuse_embedded("EditReward-Bench", where)
    BENCHMARK_FILES.check_location(where)


def load(where: Location) -> LoadedBenchmark:
    """Return the items as rows, after checking that every image can be decoded.

    An item whose images are missing is unavailable, and so is one whose comparisons are incomplete.

    Raises:
        UserError: If files are missing, images are broken, or no row can be shown.
        RecordError: If a row cannot be used.
    """
    rows, origin = _rows_and_origin(where)
    return loaded_benchmark(NAME, rows, where, origin, KNOWN)


def read(where: Location) -> list[RankedExample]:
    """Return the rows without decoding their images.

    Raises:
        UserError: If files are missing.
        RecordError: If a row cannot be used.
    """
    rows, _ = _rows_and_origin(where)
    return rows


def _rows_and_origin(where: Location) -> tuple[list[RankedExample], str]:
    """Return the rows, at most `where.limit`, and their origin: a path or a hub revision."""
    check_location(where)
    file_rows = BENCHMARK_FILES.read(where)
    items = items_of_rows(file_rows.rows)
    rows = []
    for index in limited_indices(len(items), where.limit):
        identity = f"{NAME}:{index} ({items[index].row_id})"
        rows.append(_example(items[index], file_rows.image_root, identity))
    return rows, file_rows.origin


def items_of_rows(rows: Sequence[Row]) -> list[Item]:
    """Return the items of both editions' rows, in file order, those with two edits first.

    Raises:
        RecordError: If a row lacks columns, or has a ranking of another form.
    """
    items: list[Item] = []
    rows_by_item: dict[tuple[str, str], list[Row]] = {}
    num_items = dict.fromkeys(NUM_EDITS, 0)
    for index, row in enumerate(rows):
        identity = f"{NAME}, row {index}"
        if "paths_generated" in row:
            item = _item_of_json(row, identity, num_items)
            num_items[item.part] += 1
            items.append(item)
            continue
        require_texts(row, ("dataset", "id", "instruction", "ranking", "comparison_type"), identity)
        if row["dataset"] not in NUM_EDITS:
            raise RecordError(
                f"{identity}: dataset is {row['dataset']!r}; required is one of "
                f"{', '.join(NUM_EDITS)}. Fetch the files again."
            )
        item_id = row["id"]
        if row["dataset"] != "2pair":
            item_id = item_id_of_pair(item_id)
        rows_by_item.setdefault((row["dataset"], item_id), []).append(row)
    for (_, item_id), rows_of_item in rows_by_item.items():
        items.append(_item_of_pairs(item_id, rows_of_item))
    return sorted(items, key=lambda item: NUM_EDITS[item.part])


def item_id_of_pair(pair_id: str) -> str:
    """Return the id of the item to which a comparison belongs, as inference_3pair_hf.py finds it.

    It is the part of the comparison's id before the first underscore, or else the first ten
    characters.
    """
    return pair_id.split("_")[0] if "_" in pair_id else pair_id[:10]


def _item_of_json(row: Row, identity: str, num_items: Mapping[str, int]) -> Item:
    """Return a row of EditReward_Bench_{2,3,4}pair.json as an item.

    Args:
        row: The row.
        identity: The benchmark and the row, for messages.
        num_items: The number of items of each part before this one. They number items without ids.

    Raises:
        RecordError: If the row lacks columns, or has a ranking of another form.
    """
    require_texts(row, ("prompt",), identity)
    edits = row["paths_generated"]
    part = f"{len(edits)}pair" if isinstance(edits, list) else ""
    if part not in NUM_EDITS:
        raise RecordError(
            f"{identity}: paths_generated is {abbreviated(edits)}; required is a list of two to "
            "four paths. Fetch the files again."
        )
    vote = row.get("human_vote")
    ranking = vote.get("ranking") if isinstance(vote, Mapping) else None
    try:
        order_of_ranking(ranking, len(edits))
    except ValueError as error:
        raise RecordError(f"{identity}: {error}. Correct the row, or remove it.") from error
    assert isinstance(ranking, str)
    row_id = str(row.get("id") or f"{part}_{num_items[part]}")
    return Item(part, row_id, row["prompt"], row.get("path_src"), tuple(edits), ranking)


def _item_of_pairs(item_id: str, rows: Sequence[Row]) -> Item:
    """Return the rows that compare two edits of one item each as an item.

    An item without all of its comparisons, and one whose comparisons contradict each other, has the
    reason as its problem.
    """
    first = rows[0]
    part = first["dataset"]
    names = comparison_names(NUM_EDITS[part])
    rows_by_name = {row["comparison_type"]: row for row in rows}
    if part == "2pair":
        # The authors' script takes the first candidate as A, whatever the row says.
        rows_by_name = {names[0]: first}
    problem = ""
    if len(rows) != len(names) or rows_by_name.keys() != set(names):
        problem = f"it has the comparisons {', '.join(rows_by_name)} instead of {', '.join(names)}"
        rows_by_name = {name: rows_by_name.get(name, first) for name in names}
    compared = [rows_by_name[name] for name in names]
    ranking = _ranking_of_pairs([row["ranking"] for row in compared], NUM_EDITS[part])
    if ranking is None:
        problem = problem or "its comparisons contradict each other, or one of them is a tie"
        ranking = ">".join(LETTERS[: NUM_EDITS[part]])
    edits = [compared[0].get("candidate_1")]
    for letter in LETTERS[1 : NUM_EDITS[part]]:
        edits.append(rows_by_name[f"Avs{letter}"].get("candidate_2"))
    return Item(
        part=part,
        row_id=item_id,
        instruction=first["instruction"],
        source=first.get("source_image"),
        edits=tuple(edits),
        ranking=ranking,
        problem=problem,
    )


def comparison_names(num_edits: int) -> list[str]:
    """Return the names of the comparisons of edits: AvsB, or AvsB, AvsC and BvsC, and so on."""
    return [f"{first}vs{second}" for first, second in combinations(LETTERS[:num_edits], 2)]


def _ranking_of_pairs(rankings: Sequence[str], num_edits: int) -> str | None:
    """Return the ranking of edits, such as B>A>C, of which `rankings` has that of every two.

    Returns None if there is no such ranking: three or four edits have no ties.
    """
    if num_edits == 2:
        return rankings[0]
    num_wins = dict.fromkeys(LETTERS[:num_edits], 0)
    for name, ranking in zip(comparison_names(num_edits), rankings, strict=True):
        first, second = name.split("vs")
        if ranking not in (f"{first}>{second}", f"{second}>{first}"):
            return None
        num_wins[ranking[0]] += 1
    best_first = sorted(num_wins, key=lambda letter: -num_wins[letter])
    if [num_wins[letter] for letter in best_first] != list(range(num_edits - 1, -1, -1)):
        return None
    return ">".join(best_first)


def order_of_ranking(ranking: object, num_edits: int) -> tuple[int, ...] | None:
    """Return the indices of the edits, the best first, of a ranking; None for a tie.

    Example: B>A>C gives (1, 0, 2). Only two edits may be tied.

    Raises:
        ValueError: If it is no ranking of that many edits.
    """
    if num_edits == 2 and ranking in TIES:
        return None
    if num_edits == 2 and ranking == "A<B":
        return (1, 0)
    letters = ranking.split(">") if isinstance(ranking, str) else []
    if sorted(letters) != list(LETTERS[:num_edits]):
        raise ValueError(
            f"the ranking is {abbreviated(ranking)}; required is an order of {num_edits} letters "
            f"such as {'>'.join(LETTERS[:num_edits])}, or for two edits one of {', '.join(TIES)}"
        )
    return tuple(LETTERS.index(letter) for letter in letters)


def _example(item: Item, root: Path, identity: str) -> RankedExample:
    """Return an item as a row. Its prompt is the image and the instruction.

    Args:
        item: The item.
        root: The folder that paths of images are relative to.
        identity: The benchmark and the row, for messages.

    Raises:
        RecordError: If an image is neither a path nor bytes, or the ranking has another form.
    """
    source = row_image(item.source, root, identity)
    edits = [row_image(edit, root, identity) for edit in item.edits]
    missing = [image.reference for image in (source, *edits) if image.content is None]
    unavailable = item.problem
    if missing:
        unavailable = unavailable or f"the images {', '.join(missing)} are missing"
    try:
        order = order_of_ranking(item.ranking, len(edits))
    except ValueError as error:
        raise RecordError(f"{identity}: {error}. Fetch the files again.") from error
    ranks = [0] * len(edits)
    for rank, index in enumerate(order or ()):
        ranks[index] = rank

    prompt = user_turn(item.instruction, num_images=1)
    references = [edit.reference for edit in edits]
    return RankedExample(
        key=content_key(prompt, references, [source.reference]),
        images=source.contents,
        prompt=prompt,
        responses=tuple(Response(edit.contents) for edit in edits),
        ranks=tuple(ranks),
        group=item.part,
        source=item.part,
        identity=identity,
        row={
            "id": item.row_id,
        },
        unavailable=unavailable,
    )


# Predictions files


def official_records(rows: Sequence[RankedExample], scores: Sequence[Scores]) -> list[Record]:
    """Return the scores of each row's edits in the order of their letters, with the ranking.

    A score that cannot be read is null. A judge that compares has the share of comparisons that
    each edit won as scores.
    """
    records = []
    for row, row_scores in zip(rows, scores, strict=True):
        records.append(
            _official_record(row.row["id"], row.group, row.ranks, finite_scores(row_scores.values))
        )
    return records


def _official_record(
    row_id: str, part: str, ranks: Sequence[int], scores: Sequence[float | None]
) -> Record:
    """Return a line of the format `official`."""
    return {"id": row_id, "dataset": part, "ranking": ranking_of(ranks), "scores": list(scores)}


def ranking_of(ranks: Sequence[int]) -> str:
    """Return the ranking of edits, such as B>A>C, from the rank of each of them."""
    if not any(ranks):
        return TIE
    best_first = sorted(range(len(ranks)), key=lambda index: ranks[index])
    return ">".join(LETTERS[index] for index in best_first)


def read_predictions(path: Path) -> PredictionRecords:
    """Return the lines of a predictions file: JSON lines, or the results of inference_Kpair_hf.py.

    The results of these scripts become lines of the format `votes`, one for each item.

    Raises:
        UserError: If the file is neither.
    """
    if path.suffix != ".json":
        return read_json_lines(path)
    content = read_json_value(path)
    results = content.get("results") if isinstance(content, dict) else None
    part = str(content.get("data_type")).removeprefix("huggingface_") if results else ""
    if not isinstance(results, list) or part not in NUM_EDITS:
        raise PredictionsError(
            f"{path} is no file of inference_2pair_hf.py, inference_3pair_hf.py or "
            "inference_4pair_hf.py. Required are results (a list) and data_type (huggingface_2pair "
            "and so on)."
        )
    # A comparison that failed is null.
    answered = [result for result in results if result is not None]
    pairs = parse_records(answered, partial(_pair_verdict, part), REQUIRED_RESULTS)
    records: dict[str, Record] = {}
    for index, pair in enumerate(pairs):
        # The script for two edits counts each result, even if several have one id.
        item = f"{pair.item_id}/{index}" if part == "2pair" else pair.item_id
        record = records.setdefault(
            item, {"id": pair.item_id, "dataset": part, "human_votes": {}, "votes": {}}
        )
        record["human_votes"][pair.name] = pair.human_vote
        record["votes"][pair.name] = pair.vote
    return list(records.values())


@dataclass(frozen=True, slots=True)
class PairVerdict:
    """A result of inference_{2,3,4}pair_hf.py: two verdicts on two edits, of people and a judge."""

    item_id: str
    name: str
    """The name of the comparison, such as AvsC."""
    human_vote: str
    vote: str


def _pair_verdict(part: str, result: Record) -> PairVerdict:
    """Return a result of inference_{2,3,4}pair_hf.py.

    Raises:
        ValueError: If a value is missing or has the wrong type.
    """
    item_id = text(result, "id")
    names = comparison_names(NUM_EDITS[part])
    name = names[0]
    if part != "2pair":
        item_id = item_id_of_pair(item_id)
        name = one_of(result["comparison_type"], names, "comparison_type")
    return PairVerdict(
        item_id=item_id,
        name=name,
        human_vote=text(result, "human_vote"),
        vote=text(result, "model_vote"),
    )


REQUIRED_RESULTS = "id, human_vote, model_vote and comparison_type (texts)"


def _official_record_of_prediction(record: Record) -> Record:
    """Return a line of `predictions.jsonl`, the project's own file, in the format `official`."""
    line = score_record_of_prediction(record)
    return _official_record(line["id"], line["group"], line["ranks"], line["scores"])


def vote_records(rows: Sequence[RankedExample], scores: Sequence[Scores]) -> list[Record]:
    """Return the verdicts of people and of the judge on every two edits of each row.

    A judge that compares names the edit that more than half of its votes on the two edits name. A
    judge that scores names the edit with the higher score. Without such an edit the verdict is a
    tie, or null if a score cannot be read.
    """
    records = []
    for row, row_scores in zip(rows, scores, strict=True):
        human_votes = {}
        votes = {}
        num_edits = len(row.responses)
        for name, pair in zip(
            comparison_names(num_edits), combinations(range(num_edits), 2), strict=True
        ):
            human_votes[name] = _verdict_of_points(pair, *(-row.ranks[index] for index in pair))
            votes[name] = _verdict(row_scores, pair)
        records.append(
            {
                "id": row.row["id"],
                "dataset": row.group,
                "human_votes": human_votes,
                "votes": votes,
            }
        )
    return records


def _verdict(scores: Scores, pair: tuple[int, int]) -> str | None:
    """Return a judge's verdict on two edits, such as A>C; None if it cannot be read."""
    first, second = pair
    if not scores.votes:
        return _verdict_of_points(pair, scores.values[first], scores.values[second])
    named = [vote.named for vote in scores.votes if set(vote.shown) == {first, second}]
    if named.count(None) == len(named):
        return None
    # A vote that cannot be read is for neither edit, and a majority needs more than half of all.
    has_majority = [2 * named.count(index) > len(named) for index in pair]
    return _verdict_of_points(pair, *map(float, has_majority))


def _verdict_of_points(pair: tuple[int, int], first: float, second: float) -> str | None:
    """Return the verdict on two edits with these points, such as A>C; None if one is NaN."""
    letters = [LETTERS[index] for index in pair]
    if first > second:
        return ">".join(letters)
    if second > first:
        return ">".join(reversed(letters))
    return "=".join(letters) if first == second else None


# Official score


@dataclass(frozen=True, slots=True)
class ScoredItem:
    """A line of the format `official`: the scores of an item's edits, and their ranking."""

    part: str
    order: tuple[int, ...] | None
    """Indices of the edits, the best first; None for a tie."""
    scores: tuple[float, ...]
    """NaN for a score that cannot be read."""

    def pairs(self) -> Iterable[tuple[PairLabel, float]]:
        """Yield the label and the difference of the scores of every two edits."""
        for first, second in combinations(range(len(self.scores)), 2):
            label: PairLabel = 0
            if self.order is not None:
                label = 1 if self.order.index(first) < self.order.index(second) else -1
            yield label, self.scores[first] - self.scores[second]

    def is_right(self, threshold: float | None) -> bool:
        """Return True if the scores give the ranking.

        A tie is right if the scores differ by at most `threshold`; None is below all differences.
        The script sorts the scores of other items by numpy's argsort and reverses the order, so
        that NaN comes first. It sorts equal scores differently on different processors. Here the
        later edit comes first.
        """
        if self.order is None:
            difference = abs(self.scores[0] - self.scores[1])
            return threshold is not None and difference <= threshold
        best_first = np.argsort(self.scores, kind="stable")[::-1]
        return tuple(best_first.tolist()) == self.order


def official_score(records: PredictionRecords) -> dict[str, Any]:
    """Return the figures of `evaluate_edit_reward_bench`.

    `groups` has the strict accuracy of each part, the share of items whose ranking is right, and
    `micro` is that of all items. `detail` has the accuracies over pairs of edits: with ties for two
    edits and for all items together, without ties for three and four. The threshold of ties for two
    edits, `threshold`, is the one at which most of these very pairs are right.

    Raises:
        PredictionsError: If a line has another form.
    """
    items = parse_records(records, _scored_item, REQUIRED)
    right: dict[str, int] = {}
    total: dict[str, int] = {}
    pairwise: dict[str, float | None] = {}
    lines = []
    two_edits_threshold: float | None = None
    for part in NUM_EDITS:
        items_of_part = [item for item in items if item.part == part]
        if not items_of_part:
            continue
        labels, differences = _labels_and_differences(items_of_part)
        if part == "2pair":
            best = best_tie_threshold(labels, differences)
            pairwise[part] = best.accuracy
            two_edits_threshold = best.threshold
        else:
            pairwise[part] = accuracy_without_ties(labels, differences)
        total[part] = len(items_of_part)
        # Items of three and four edits have no ties, and the threshold does not matter for them.
        right[part] = sum(item.is_right(two_edits_threshold) for item in items_of_part)
        lines.append(f"{part}: pairwise {pairwise[part]}, strict {right[part]}/{total[part]}")

    all_labels, all_differences = _labels_and_differences(items)
    pairwise["overall"] = best_tie_threshold(all_labels, all_differences).accuracy
    groups = group_figures(right, total)
    micro = sum(right.values()) / len(items)
    lines.append(f"overall: pairwise {pairwise['overall']}, strict {micro}")
    return {
        "micro": micro,
        "macro": macro([group["accuracy"] for group in groups.values()]),
        "groups": groups,
        "detail": {
            "pairwise": pairwise,
            "pairs": len(all_labels),
            "threshold": two_edits_threshold,
        },
        "lines": lines,
    }


def _labels_and_differences(items: Iterable[ScoredItem]) -> tuple[list[PairLabel], list[float]]:
    """Return the label and the difference of scores of every two edits of all items."""
    labels: list[PairLabel] = []
    differences: list[float] = []
    for item in items:
        for label, difference in item.pairs():
            labels.append(label)
            differences.append(difference)
    return labels, differences


REQUIRED = (
    "id, dataset (2pair, 3pair or 4pair), ranking (such as B>A>C; A=B for a tie) and scores (a "
    "list of numbers, one for each edit in the order of the letters; null for a score that cannot be "
    "read)"
)


def _scored_item(record: Record) -> ScoredItem:
    """Return the content of a line of the format `official`.

    Raises:
        ValueError: If a value is missing or has the wrong type.
    """
    part = one_of(record["dataset"], tuple(NUM_EDITS), "dataset")
    scores = record["scores"]
    num_edits = NUM_EDITS[part]
    if not isinstance(scores, list) or len(scores) != num_edits:
        raise ValueError(f"scores are {abbreviated(scores)}, for {num_edits} edits")
    if not all(score is None or is_number(score) for score in scores):
        raise ValueError(f"scores are {abbreviated(scores)}")
    numbers = tuple(float("nan") if score is None else float(score) for score in scores)
    return ScoredItem(part, order_of_ranking(record["ranking"], num_edits), numbers)


# Score of judges that compare


def votes_score(records: PredictionRecords) -> dict[str, Any]:
    """Return the figures of inference_{2,3,4}pair_hf.py.

    An item is right if the verdict on every two of its edits is that of people; for two edits this
    includes ties. An item without all of its verdicts is wrong. `groups` has the share of right
    items of each part. `detail` has the share of right verdicts. `micro`, the share of all items,
    is in no script.

    Raises:
        PredictionsError: If a line has another form.
    """
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    right_verdicts: Counter[str] = Counter()
    num_verdicts: Counter[str] = Counter()
    for item in parse_records(records, _verdicts_of_record, REQUIRED_VOTES):
        total[item.part] += 1
        right[item.part] += item.is_complete and all(item.are_right)
        num_verdicts[item.part] += len(item.are_right)
        right_verdicts[item.part] += sum(item.are_right)
    groups = group_figures(right, total)
    return {
        "micro": right.total() / total.total(),
        "macro": macro([group["accuracy"] for group in groups.values()]),
        "groups": groups,
        "detail": {"individual": group_figures(right_verdicts, num_verdicts)},
    }


REQUIRED_VOTES = (
    "id, dataset (2pair, 3pair or 4pair), human_votes and votes (the verdict on every two edits, "
    "such as AvsB: A>B; a vote that cannot be read is null)"
)


@dataclass(frozen=True, slots=True)
class VerdictsOfItem:
    """A line of the format `votes`."""

    part: str
    are_right: tuple[bool, ...]
    """For every two edits, True if the judge's verdict is that of people."""
    is_complete: bool
    """True if there is a verdict on every two edits of the item."""


def _verdicts_of_record(record: Record) -> VerdictsOfItem:
    """Return the verdicts of a line of the format `votes`.

    Raises:
        ValueError: If a value is missing or has the wrong type.
    """
    part = one_of(record["dataset"], tuple(NUM_EDITS), "dataset")
    names = comparison_names(NUM_EDITS[part])
    human_votes = record["human_votes"]
    votes = record["votes"]
    if not isinstance(human_votes, dict) or not set(human_votes) <= set(names):
        raise ValueError(
            f"human_votes are {abbreviated(human_votes)}; required are {', '.join(names)}"
        )
    if not isinstance(votes, dict) or votes.keys() != human_votes.keys():
        raise ValueError(f"votes are {abbreviated(votes)}; required are {', '.join(human_votes)}")
    are_right = tuple(votes[name] == text(human_votes, name) for name in human_votes)
    return VerdictsOfItem(part, are_right, is_complete=len(human_votes) == len(names))


def _part(record: Record) -> str:
    """Return the category of a line."""
    return text(record, "dataset")


FILES_SCORED = {
    "predictions": ranked_predictions_format(
        "official", "official", _official_record_of_prediction
    ),
    "official": FileFormat(
        about="id, dataset, ranking and scores, one for each edit in the order of the letters",
        marks=("dataset", "ranking", "scores"),
        rules="official",
        group=_part,
    ),
    "votes": FileFormat(
        about="id, dataset, human_votes and votes, the verdicts on every two edits; or a file of "
        "inference_{2,3,4}pair_hf.py, which ends in .json",
        marks=("dataset", "human_votes", "votes"),
        rules="votes",
        group=_part,
    ),
}
RULES = {
    "official": ScoringRule(
        about="eval_bench.py: the share of rows whose ranking is right, ties by the threshold that "
        "is best for these rows; over pairs with and without ties under detail",
        reads="official",
        score=official_score,
        differs="equal scores of three or four edits are sorted by a stable sort, and A=B is a tie",
    ),
    "votes": ScoringRule(
        about="inference_{2,3,4}pair_hf.py: the share of rows in which the verdict on every two "
        "edits is right, no threshold",
        reads="votes",
        score=votes_score,
        differs="micro, the share of all rows, is added",
    ),
}


EDIT_REWARD_BENCH = Benchmark(
    name=NAME,
    load=load,
    check_location=check_location,
    read=read,
    read_predictions=read_predictions,
    files=FILES_SCORED,
    formats={"official": official_records, "votes": vote_records},
    rules=RULES,
    known=KNOWN,
    ranked=True,
)
