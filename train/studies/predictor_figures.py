"""Figures of reward models as values of rows, and the halves of the questions they come from.

A figure that predicts a gain has to come from other questions than the gain. Questions of all
benchmarks, of the answers that are scored, and of the policies are therefore split together, by
their content: no question, and no image, is in both halves.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mmrm.data.arrays import Ints
from mmrm.data.preference import Preference, texts
from mmrm.data.preparation.row_index import normalised
from mmrm.data.storage.files import content_digest, digest
from mmrm.eval.candidates import BenchmarkRow
from mmrm.eval.results.intervals import cluster_codes
from mmrm.eval.results.split_correlation import RowValues
from mmrm.eval.results.uncertainty import probability_of_higher_score
from mmrm.models.portable.conversations import read_conversation

Names = tuple[str, ...]
"""The contents by which a question depends on others: digests of its images and videos, or of its
text if it has none."""
BINS = 10
"""Number of bins of a calibration error, equally wide over confidences from 0.5 to 1."""


def names_of_question(question: Preference | BenchmarkRow) -> Names:
    """Return the names of a question: a record, or a row of a benchmark."""
    names = [content_digest(image) for image in question.all_images]
    names += [content_digest(video.content) for video in question.all_videos]
    return tuple(names) or (_name_of_text(texts(question.prompt)),)


def names_of_row(row: Mapping[str, Any]) -> Names:
    """Return the names of the question in a row of eval/sample.py, whose images are data URIs."""
    turns, images, videos = read_conversation(
        row["prompt"], row.get("images") or [], row.get("videos") or []
    )
    media = [file for file in (*images, *videos) if isinstance(file, bytes | Path)]
    names = tuple(content_digest(file) for file in media)
    prompt: Any = tuple(turns)
    return names or (_name_of_text(texts(prompt)),)


def _name_of_text(prompt_texts: Iterable[str]) -> str:
    """Return the name of a question without an image: case and white space do not matter."""
    return digest(normalised(" ".join(prompt_texts)))


@dataclass(frozen=True, slots=True)
class QuestionClusters:
    """The clusters of dependent questions, and the half that each cluster belongs to.

    Questions that share an image or a video, or the text if they have neither, are in one cluster.
    """

    cluster_by_name: Mapping[str, int]
    halves: Ints
    """The half of each cluster, 0 or 1, shape (clusters,)."""

    @classmethod
    def of_questions(cls, names_by_question: Iterable[Names]) -> "QuestionClusters":
        """Return the clusters of all questions of a study.

        In the order of their smallest names, every second cluster is in the second half. The names
        are digests, so that the halves depend on the content of the questions alone.
        """
        distinct = list(dict.fromkeys(names_by_question))
        cluster_by_name: dict[str, int] = {}
        for names, cluster in zip(distinct, cluster_codes(distinct).tolist(), strict=True):
            cluster_by_name |= dict.fromkeys(names, cluster)
        names_by_cluster: dict[int, list[str]] = {}
        for name, cluster in cluster_by_name.items():
            names_by_cluster.setdefault(cluster, []).append(name)
        smallest_names = {cluster: min(names) for cluster, names in names_by_cluster.items()}
        order = sorted(smallest_names, key=smallest_names.__getitem__)
        halves = np.zeros(len(order), dtype=np.int64)
        halves[order[1::2]] = 1
        return cls(cluster_by_name, halves)

    def clusters_of(self, names_by_row: Iterable[Names]) -> Ints:
        """Return the cluster of each row, shape (rows,)."""
        clusters = [self.cluster_by_name[names[0]] for names in names_by_row]
        return np.array(clusters, dtype=np.int64)

    def has_both_halves(self, values: RowValues) -> bool:
        """Return True if a figure has rows in both halves."""
        return all(values.covers(np.flatnonzero(self.halves == half)) for half in (0, 1))


def items_of_rows(rows: Sequence[Mapping[str, Any]]) -> Ints:
    """Return the number of the item to which each question belongs, shape (rows,).

    Questions of one item are not independent. Questions about one image are of one item. Questions
    without an image are of one item if they have the same prompt.

    Args:
        rows: Rows of eval/sample.py, one for each question.
    """
    return cluster_codes([names_of_row(row) for row in rows])


def values_of_benchmark(
    records: Sequence[Mapping[str, Any]], cluster_by_key: Mapping[str, int]
) -> dict[str, RowValues]:
    """Return a judge's figures on a benchmark, by name.

    They are the accuracy, which counts half a point for a tie, the calibration error (ECE), and the
    order consistency of a judge that compares. A figure that does not apply to the judge is
    missing.

    Args:
        records: The lines of its predictions.jsonl.
        cluster_by_key: The cluster of each row of the benchmark, by the row's key.
    """
    values_by_figure: dict[str, list[float]] = {}
    clusters_by_figure: dict[str, list[int]] = {}
    bins: list[int] = []
    for record in records:
        values = {"accuracy": half_credit(record)}
        confidence = confidence_of(record)
        if confidence is not None:
            values["ECE"] = float(np.heaviside(record["margin"], 0.5)) - confidence
            bins.append(min(int((confidence - 0.5) * 2 * BINS), BINS - 1))
        consistency = order_consistency(record)
        if consistency is not None:
            values["order consistency"] = consistency
        for figure, value in values.items():
            values_by_figure.setdefault(figure, []).append(value)
            clusters_by_figure.setdefault(figure, []).append(cluster_by_key[record["key"]])
    figures: dict[str, RowValues] = {}
    for figure, values_of_rows in values_by_figure.items():
        figures[figure] = RowValues(
            np.array(values_of_rows),
            np.array(clusters_by_figure[figure], dtype=np.int64),
            np.array(bins, dtype=np.int64) if figure == "ECE" else None,
        )
    return figures


def half_credit(record: Mapping[str, Any]) -> float:
    """Return the credit of a line of predictions.jsonl, in which a tie counts half a point."""
    if record["tie"]:
        return 0.5
    return float(record["correct"])


def confidence_of(record: Mapping[str, Any]) -> float | None:
    """Return the probability with which a judge expects to be right in a row of two responses.

    It is None for hard verdicts, for scores that are no finite numbers, and for rankings.
    """
    margin = record["margin"]
    if margin is None or "better" not in record:
        return None
    size = abs(margin)
    if "probabilities" in record:
        probability_of_preferred: float = (1 + size) / 2  # the margin is p - (1 - p)
        return probability_of_preferred
    if "std" in record:
        means = np.array([size, 0.0])
        stds = np.array(record["std"], dtype=np.float64)
        probability = probability_of_higher_score(means[:1], stds[:1], means[1:], stds[1:])
        return float(probability[0])
    return 1 / (1 + math.exp(-size))


def order_consistency(record: Mapping[str, Any]) -> float | None:
    """Return the share of a row's rounds in which both orders prefer the same response.

    An order that prefers neither response is not consistent. The result is None for a judge that
    scores, for rankings, and if the votes of a round are not in both orders.
    """
    votes = record["votes"]
    if not votes or "better" not in record:
        return None
    consistent: list[bool] = []
    for vote, other in zip(votes[::2], votes[1::2], strict=False):
        if vote["first"] == other["first"]:
            return None
        preferred = _preferred(vote)
        consistent.append(preferred is not None and preferred == _preferred(other))
    return float(np.mean(consistent)) if consistent else None


def _preferred(vote: Mapping[str, Any]) -> int | None:
    """Return the response that a vote prefers, 0 or 1; None if it prefers neither."""
    if "probability_first" not in vote:
        named: int | None = vote["names"]
        return named
    probability = vote["probability_first"]
    if probability is None or probability == 0.5:
        return None
    first: int = vote["first"]
    return first if probability > 0.5 else 1 - first
