"""Records with several responses: their order and their ranks follow from ranks or ratings."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import fsum, isnan

from mmrm.data.errors import LeftOut
from mmrm.data.preference import Preference, Response, dense_ranks

MIN_RESPONSES = 2
"""The smallest number of responses in a record."""


def with_ranked_responses(
    record: Preference,
    responses: Sequence[Response],
    ranks: Sequence[float],
    attributes: Mapping[str, Sequence[float]],
) -> Preference:
    """Return `record` with the given responses, the best one first.

    Responses of equal rank are tied, and keep their order.

    Example: the responses a, b and c with the ranks 5, 2 and 5 become b, a, c with the ranks 0, 1
    and 1.

    Args:
        record: The prompt and its images; its own responses are not used.
        responses: The responses, in the order of the source.
        ranks: A number for each response. The smallest number is the best rank.
        attributes: By the name of an attribute, one number for each response. NaN is unknown.
    """
    best_first = sorted(range(len(responses)), key=lambda index: ranks[index])
    ordered_attributes = {}
    for name, values in attributes.items():
        ordered_attributes[name] = tuple(float(values[index]) for index in best_first)
    return replace(
        record,
        responses=tuple(responses[index] for index in best_first),
        ranks=tuple(dense_ranks([ranks[index] for index in best_first])),
        attributes=ordered_attributes,
        positions=tuple(best_first),
    )


def with_rated_responses(
    record: Preference, responses: Sequence[Response], ratings: Mapping[str, Sequence[float]]
) -> Preference:
    """Return `record` with responses that are ranked by their mean rating.

    The mean is taken over the aspects that are rated for all responses, so that no response gains
    from an aspect that is missing for it. The ratings become the attributes of the record. A
    response without any rating is left out. The margin is the difference of the means if there are
    two responses, and else None.

    Example: the responses a and b have the helpfulness 3 and 5 and the honesty 4 and NaN. The
    record has the responses b, a with the attributes helpfulness 5, 3 and honesty NaN, 4.

    Args:
        record: The prompt and its images; its own responses are not used.
        responses: The responses, in the order of the source.
        ratings: By the name of an aspect, one number for each response. A higher number is better,
            and NaN is unknown.

    Raises:
        LeftOut: If fewer than two responses have a rating, or no aspect is rated for all of them.
    """
    rated = []
    for index in range(len(responses)):
        if not all(isnan(values[index]) for values in ratings.values()):
            rated.append(index)
    if len(rated) < MIN_RESPONSES:
        raise LeftOut("no_pair", f"{len(rated)} of {len(responses)} responses have a rating.")

    known_ratings = {}
    for name, values in ratings.items():
        known_ratings[name] = [values[index] for index in rated]
    common_names = [name for name, values in known_ratings.items() if not any(map(isnan, values))]
    if not common_names:
        raise LeftOut("no_pair", "no aspect is rated for all responses.")
    means = []
    for position in range(len(rated)):
        ratings_of_response = [known_ratings[name][position] for name in common_names]
        means.append(fsum(ratings_of_response) / len(common_names))

    rated_responses = [responses[index] for index in rated]
    ranks = [-mean for mean in means]
    ranked = with_ranked_responses(record, rated_responses, ranks, known_ratings)
    margin = abs(means[0] - means[1]) if len(means) == 2 else None
    return replace(ranked, margin=margin)


def best_and_worst(record: Preference) -> Preference:
    """Return `record` with its best and its worst response alone, and without a margin.

    If all responses are tied, these are the first and the last one, which are still tied. A record
    of two responses is returned unchanged.
    """
    if len(record.responses) == MIN_RESPONSES:
        return record
    is_tie = record.ranks[-1] == 0
    attributes = {}
    for name, values in record.attributes.items():
        attributes[name] = (values[0], values[-1])
    return replace(
        record,
        responses=(record.chosen, record.rejected),
        ranks=(0, 0) if is_tie else (0, 1),
        attributes=attributes,
        positions=record.positions[:1] + record.positions[-1:],
        margin=None,
    )
