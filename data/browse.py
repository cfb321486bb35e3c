"""Write an HTML page about the records of a recipe, or list its suspicious records.

python data/browse.py recipes/basereward.yaml --out page.html            # 6 samples of each source
python data/browse.py recipes/shapes/naive.yaml --out page.html --samples 20
python data/browse.py recipes/basereward.yaml --find                     # suspicious records

The page has samples and histograms of each source. Suspicious records are records that cannot be
used, pairs with equal responses, pairs with contradictory labels, and records that repeat another
one.
"""

import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.markup import escape
from rich.progress import track

if not __package__:  # started by its path: import the mmrm of its own clone
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mmrm.data.display.axis import Axis
from mmrm.data.display.chart import Bar, Chart, Series
from mmrm.data.display.command import exit_on_user_error
from mmrm.data.display.command_parser import CommandParser
from mmrm.data.display.console import plain_console
from mmrm.data.display.html import render
from mmrm.data.display.option_numbers import COUNT
from mmrm.data.encoded_video import video_size
from mmrm.data.errors import LeftOut, RecordError
from mmrm.data.film_strip import film_strip
from mmrm.data.images import decode, image_size
from mmrm.data.package import recipe_path
from mmrm.data.preference import UNANSWERED, Preference, validate
from mmrm.data.preparation.data_card import SHARING_HEADINGS
from mmrm.data.preparation.mixing import Mixture
from mmrm.data.preparation.recipe_section import (
    images_together_of,
    pairs_together_of,
    read_data_section,
)
from mmrm.data.preparation.row_index import ORDER, ROW, RowIndex, normalised_response
from mmrm.data.preparation.scan import BadRecordConfig
from mmrm.data.preparation.split import SourceSplit
from mmrm.data.shown_records import ShownImage, ShownResponse, shown_images, shown_responses
from mmrm.data.storage.files import write_whole

GENERATED_SAMPLE = 200
"""Number of items of a generated source from which its distributions are computed."""
BARS = 24
"""Number of bars of a histogram; fewer if it covers fewer whole numbers."""
BAR_STYLE = "right"
"""Style of the bars. On other pages it marks right answers; here it only gives the colour."""
SHOWN_CHARACTERS = 80
"""Number of characters of a response that the list of suspicious records shows."""
TEMPLATE = Path(__file__).parent / "browse.html"


class Suspicion(NamedTuple):
    """A record that is suspicious, and the reason."""

    kind: str
    """The kind of fault, such as "cannot be used". The command counts the suspicions of a kind."""
    identity: str
    """The name of the record in messages, such as `source:12`."""
    detail: str
    """The fault in words, or the text that shows it."""


def suspicious(splits: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield the suspicious records of all sources, except those whose records are generated.

    A record is suspicious if it cannot be used, if its responses are equal, if it repeats another
    record, or if another record with the same responses prefers another one.

    This reads every record and decodes every image. It takes longer than preparing the data, which
    does not decode images.

    Args:
        splits: The sources, each with the numbers of its training rows and its held-out rows.
    """
    yield from contradictions(splits)
    yield from repetitions(splits)
    for split in splits:
        if split.row_index is None:
            continue  # a generated source
        rows = track(
            range(len(split.source)),
            description=escape(f"looking through {split.source.name}"),
            console=plain_console(stderr=True),
            transient=True,
        )
        for row in rows:
            suspicion = _suspicion_about(split, row)
            if suspicion is not None:
                yield suspicion


def _suspicion_about(split: SourceSplit, row: int) -> Suspicion | None:
    """Return a suspicion if the record in row `row` cannot be used or has equal responses.

    The result is None for any other record, and for a row that the source leaves out by its own
    rule.
    """
    identity = f"{split.source.name}:{row}"
    try:
        record = validate(split.source.record(row))
        for image in record.all_images:
            # Both are called for the errors that they raise: on the header, and on the pixels.
            image_size(image, record.identity)
            decode(image, record.identity)
        for video in record.all_videos:
            video_size(video, record.identity)
    except LeftOut:
        return None
    except RecordError as error:
        return Suspicion("cannot be used", identity, str(error).removeprefix(f"{identity}: "))
    first_response = normalised_response(record.chosen)
    if all(normalised_response(response) == first_response for response in record.responses[1:]):
        return Suspicion(
            "chosen equals rejected", record.identity, record.chosen.text[:SHOWN_CHARACTERS]
        )
    return None


def contradictions(splits: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield a suspicion for each group of records that contradict one another.

    Two records contradict one another if they have the same prompt, images and responses, and one
    of them prefers a response to another that the second record prefers to the first. A tie
    contradicts nothing. The records may be of different sources. Generated sources are left out.

    Args:
        splits: The sources, each with the numbers of its training rows and its held-out rows.
    """
    yield from _contradictory_pairs(splits)
    yield from _contradictory_lists(splits)


def _contradictory_pairs(splits: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield a suspicion for each group of contradictory records with two responses."""
    identities, entries = _identified_entries(splits)
    is_pair = (entries["responses"] == 2) & (entries["ranks"] == 2)
    entries = entries[is_pair]
    identities = [identities[index] for index in np.flatnonzero(is_pair)]
    # The key of a pair does not depend on which response is chosen. The flag ORDER does: it is set
    # if the chosen response is the first one in alphabetical order.
    keys = entries["pair_key"]
    is_first_chosen = (entries["flags"] & ORDER) > 0
    contradictory_keys = np.intersect1d(keys[is_first_chosen], keys[~is_first_chosen])
    for identities_of_pair in _groups(identities, keys, contradictory_keys):
        detail = f"the same pair in {', '.join(identities_of_pair)}"
        yield Suspicion("contradictory labels", identities_of_pair[0], detail)


def _contradictory_lists(splits: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield a suspicion for each group of contradictory records with more than two responses.

    The row index does not have the order of their responses, so records with the same prompt and
    responses are read.
    """
    identities, entries = _identified_entries(splits)
    is_list = (entries["responses"] > 2) & (entries["ranks"] > 1)
    keys, counts = np.unique(entries["pair_key"][is_list], return_counts=True)
    repeated_keys = keys[counts > 1]
    splits_by_name = {split.source.name: split for split in splits}
    for identities_of_list in _groups(identities, entries["pair_key"], repeated_keys):
        preferences: set[tuple[str, str]] = set()
        for identity in identities_of_list:
            name, _, row = identity.rpartition(":")
            preferences |= preferred_responses(splits_by_name[name].source.record(int(row)))
        if any((worse, better) in preferences for better, worse in preferences):
            detail = f"the same responses in {', '.join(identities_of_list)}"
            yield Suspicion("contradictory labels", identities_of_list[0], detail)


def preferred_responses(record: Preference) -> set[tuple[str, str]]:
    """Return every two normalised responses of different rank, the better one first.

    Pairs of equal responses are left out.
    """
    normalised_responses = map(normalised_response, record.responses)
    ranked = list(zip(record.ranks, normalised_responses, strict=True))
    preferences = set()
    for better_rank, better in ranked:
        for worse_rank, worse in ranked:
            if better_rank < worse_rank and better != worse:
                preferences.add((better, worse))
    return preferences


def repetitions(splits: Sequence[SourceSplit]) -> Iterator[Suspicion]:
    """Yield a suspicion for each group of records that are the same.

    Two records are the same if all their columns that are read are equal, and their images too.
    They may be of different sources. Generated sources are left out.

    Args:
        splits: The sources, each with the numbers of its training rows and its held-out rows.
    """
    identities, entries = _identified_entries(splits)
    keys = entries["record_key"]
    distinct_keys, counts = np.unique(keys, return_counts=True)
    for identities_of_record in _groups(identities, keys, distinct_keys[counts > 1]):
        detail = f"the same record in {', '.join(identities_of_record)}"
        yield Suspicion("repeated record", identities_of_record[0], detail)


def _identified_entries(
    splits: Sequence[SourceSplit],
) -> tuple[list[str], npt.NDArray[np.void]]:
    """Return the names of all used records in messages, and their entries in the row indices.

    The entries are an array of dtype ROW and shape (records,). Generated sources are left out.
    """
    identities: list[str] = []
    entries_of_sources = [np.empty(0, ROW)]  # so that there is an array to join without sources
    for split in splits:
        if split.row_index is not None:
            rows = np.concatenate([split.rows, split.held_out])
            identities += [f"{split.source.name}:{row}" for row in rows]
            entries_of_sources.append(split.row_index.rows[rows])
    return identities, np.concatenate(entries_of_sources)


def _groups(
    identities: list[str],
    keys: npt.NDArray[np.uint64],
    wanted_keys: npt.NDArray[np.uint64],
) -> list[list[str]]:
    """Return the identities of the records with each of the wanted keys, in the order of the keys.

    Args:
        identities: The names of the records in messages.
        keys: The key of each record, of shape (records,).
        wanted_keys: The keys of the groups to return.
    """
    identities_by_key: dict[int, list[str]] = {}
    for index in np.flatnonzero(np.isin(keys, wanted_keys)):
        identities_by_key.setdefault(int(keys[index]), []).append(identities[index])
    return [identities for _, identities in sorted(identities_by_key.items())]


def histogram(title: str, unit: str, owners: str, values: npt.NDArray[np.integer]) -> Chart | str:
    """Return a histogram of positive values on a logarithmic axis.

    If all values are equal, or none is positive, the result is a sentence instead.

    Args:
        title: The title of the histogram.
        unit: The unit of the values in the plural, such as "characters".
        owners: A plural noun for the things that have the values, such as "records". The vertical
            axis counts them.
        values: The values, integers of shape (values,). Zeros are left out.
    """
    values = values[values > 0]
    if not len(values):
        return f"{title}: there are no {owners}."
    low = int(values.min())
    high = int(values.max())
    if low == high:
        return f"{title}: {low:,} {unit} in all {len(values):,} {owners}."
    # Edges of bars are whole numbers: most bars that are narrower than 1 would be empty.
    edges = np.unique(np.geomspace(low, high + 1, BARS + 1).round().astype(np.int64))
    counts, _ = np.histogram(values, edges)
    # The numbers along the axis are 1, 2 and 5 times powers of ten, if two of them are on the axis.
    powers_of_ten = [10**exponent for exponent in range(10)]
    round_numbers = [factor * power for power in powers_of_ten for factor in (1, 2, 5)]
    numbers = [number for number in round_numbers if edges[0] <= number <= edges[-1]]
    if len(numbers) < 2:
        numbers = [low, high]
    ticks = [(math.log10(number), f"{number:,}") for number in numbers]
    x = Axis(math.log10(edges[0]), math.log10(edges[-1]), f"{unit}, logarithmic", ticks)
    bars = []
    starts = edges[:-1].tolist()
    ends = edges[1:].tolist()
    for start, end, count in zip(starts, ends, counts.tolist(), strict=True):
        value_range = f"{start:,}"
        if end > start + 1:
            value_range = f"{start:,} to {end - 1:,}"
        tooltip = f"{value_range}: {count:,}" if count else ""
        bars.append(Bar(math.log10(start), math.log10(end), count, tooltip))
    y = Axis.counts(int(counts.max()), owners)
    series = Series(BAR_STYLE, bars=tuple(bars))
    return Chart(title, x, y, (series,), value=f"median {np.median(values):,.0f}")


def count_duplicates(index: RowIndex, rows: npt.NDArray[np.int32]) -> int:
    """Return the number of rows that repeat an earlier row.

    A row repeats another one if prompt, images and responses are the same. It may prefer another
    response.

    Args:
        index: The row index of a source: an array with an entry for each row.
        rows: Positions of rows in the index, shape (rows,).
    """
    return len(rows) - len(np.unique(index.rows["pair_key"][rows]))


def page(
    mixture: Mixture,
    samples_per_source: int,
    title: str,
    pairs_together: int = 1,
    images_together: int = 1,
) -> str:
    """Return a page with samples and histograms of every source, as HTML that needs no other file.

    The page also has the data card of the mixture: the number of records that each source gives to
    training, and of those that were dropped.

    Args:
        mixture: The sources.
        samples_per_source: The largest number of records of each source that are shown.
        title: The title of the page.
        pairs_together: The largest number of pairs with one prompt that training puts into one
            step, as the recipe's key `method.pairs_together` sets it.
        images_together: The same for pairs that begin with the same image, and the key
            `method.images_together`.
    """
    data_card = mixture.card(pairs_together, images_together)
    sections = []
    for split, source_card in zip(mixture.splits, data_card.sources, strict=True):
        # A row index has the lengths of all records. A generated source has none: some records are
        # generated and indexed in place of all.
        index, positions = split.indexed_rows(split.rows[:GENERATED_SAMPLE])
        rows = index.rows[positions]
        longer_sides = index.sizes.max(axis=1, initial=0)
        histograms = [
            histogram("Chosen response", "characters", "records", rows["chosen"]),
            histogram("Rejected response", "characters", "records", rows["rejected"]),
            histogram("Text, estimated", "tokens", "records", rows["text_tokens"]),
            histogram("Longer side of an image", "pixels", "images", longer_sides),
        ]
        sections.append(
            {
                "card": source_card,
                "charts": [chart for chart in histograms if isinstance(chart, Chart)],
                # Sentences in place of histograms, for values that are all equal.
                "constants": [chart for chart in histograms if isinstance(chart, str)],
                "duplicates": count_duplicates(index, positions),
                "looked_at": len(positions),
                "samples": list(samples(split, samples_per_source, mixture.config.seed)),
            }
        )
    return render(
        TEMPLATE,
        title=title,
        card=data_card,
        sections=sections,
        sharing_headings=SHARING_HEADINGS,
    )


def samples(split: SourceSplit, count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Draw up to `count` training records of a source by `seed`, and yield them for the page.

    Each record is a mapping with five keys. `record` is the Preference. `responses` has a
    `ShownResponse` for each of its responses. `images` has a `ShownImage` for each image of the
    prompt, and `videos` a film strip of each video, as a data URI. `problem` is a sentence if the
    record cannot be shown, else an empty text.
    """
    generator = np.random.default_rng(seed)
    for row in generator.choice(split.rows, min(count, len(split.rows)), replace=False):
        # An empty record is shown in place of one that cannot be read.
        record = Preference(f"{split.source.name}:{row}", prompt=(), responses=UNANSWERED)
        images: list[ShownImage] = []
        videos: list[str] = []
        responses: list[ShownResponse] = []
        problem = ""
        try:
            record = validate(split.source.record(int(row)))
            images = shown_images(record.images, record.identity)
            videos = [film_strip(video, record.identity) for video in record.videos]
            responses = shown_responses(record)
        except RecordError as error:
            problem = f"It cannot be shown: {error}"
        yield {
            "record": record,
            "responses": responses,
            "images": images,
            "videos": videos,
            "problem": problem,
        }


def main() -> None:
    """Write the page of a recipe with --out, and print its suspicious records with --find."""
    parser = CommandParser("data/browse.py", __doc__)
    parser.add_argument("recipe", type=recipe_path, help="The YAML file of a recipe.")
    parser.add_argument("--out", type=Path, help="Write the page to this HTML file.")
    parser.add_argument(
        "--samples", type=COUNT, default=6, help="The number of records of each source on the page."
    )
    parser.add_argument(
        "--find",
        action="store_true",
        help="Read every record and image, and print the suspicious records.",
    )
    options = parser.parse_args()
    if options.out is None and not options.find:
        parser.error("nothing to do: give --out FILE.html, --find or both")
    with exit_on_user_error():
        data_section = read_data_section(options.recipe)
        if options.find:
            # Many records that cannot be used are a reason to list them, not to stop.
            no_limit = BadRecordConfig(limit=1.0)
            data_section = data_section.model_copy(update={"bad_records": no_limit})
        mixture = Mixture(data_section)
        if options.out is not None:
            html = page(
                mixture,
                samples_per_source=options.samples,
                title=options.recipe.stem,
                pairs_together=pairs_together_of(options.recipe),
                images_together=images_together_of(options.recipe),
            )
            write_whole(options.out, html)
            print(f"wrote {options.out}")
        if options.find:
            print_suspicious(mixture)


def print_suspicious(mixture: Mixture) -> None:
    """Print every suspicious record of a mixture, and the number of records with each fault."""
    counts: Counter[str] = Counter()
    for suspicion in suspicious(mixture.splits):
        counts[suspicion.kind] += 1
        print(*suspicion, sep=": ")
    totals = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    print(f"in all: {totals or 'nothing suspicious'}")


if __name__ == "__main__":
    main()
