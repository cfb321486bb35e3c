"""Decisions about labels: which records they name, what a flip is, and what is counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrm.data.errors import UserError
from mmrm.data.preference import Preference, Response, dense_ranks, validate
from mmrm.data.preparation.decisions import DECISIONS, flipped, read_decisions, written_key
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.text_shortcuts import SHORTCUTS, UNKNOWN
from tests.data.mixtures import everything, mixture, project, row

SHAPES = {"type": "shapes", "level": "demo", "rows": 12}
RATIONALE = "Response 1 is better than Response 2."


def decided(folder: Path, lines: list[dict[str, Any]], name: str = "decisions.jsonl") -> str:
    """Write a file of decisions, and return its path."""
    path = folder / name
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def keys_of(found: Mixture) -> list[str]:
    """Return the written key of each training record."""
    return [written_key(key) for key in found.decision_keys().tolist()]


def chosen_texts(found: Mixture) -> list[str]:
    """Return the text of the chosen response of each training record."""
    return [record.chosen.text for record in everything(found)]


@pytest.fixture
def sources(tmp_path: Path) -> list[dict[str, Any]]:
    """Give a file of six pairs, of which the first has critiques and a rationale."""
    rows = [row(f"q {number}") for number in range(6)]
    rows[0] |= {"chosen_critique": "yes", "rejected_critique": "no", "rationale": RATIONALE}
    return [project(tmp_path, "mine", rows)]


def test_every_decision_is_applied_to_the_record_that_it_names(
    tmp_path: Path, sources: list[dict[str, Any]]
) -> None:
    keys = keys_of(mixture(tmp_path, sources))
    assert len(set(keys)) == 6
    lines: list[dict[str, Any]] = [
        {"key": keys[0], "decision": "flip", "reason": "is not read", "row": 99},
        {"key": keys[1], "decision": "leave_out"},
        {"key": keys[2], "decision": "equal"},
        {"key": keys[3], "decision": "keep"},
        {"key": "0" * 16, "decision": "flip"},
    ]
    found = mixture(tmp_path, sources, decisions=[decided(tmp_path, lines)])
    assert chosen_texts(found) == ["bad q 0", "good q 3", "good q 4", "good q 5"]
    record = found[0]
    assert record.rejected.text == "good q 0"
    assert (record.chosen_critique, record.rejected_critique) == ("no", "yes")
    assert record.rationale is None
    card = found.card()
    assert card.sources[0].left_out == {"decision": 1, "decided_equal": 1}
    assert card.decisions == [
        "mine: decisions about labels: 1 keep, 1 flip, 1 equal, 1 leave_out",
        "data.decisions: 5 records are named (1 keep, 2 flip, 1 equal, 1 leave_out); "
        "1 of them are in no source",
    ]
    # The flipped record keeps the key of the record in the file, so that it can be decided again.
    assert keys_of(found) == [keys[0], *keys[3:]]


def test_the_row_index_is_that_of_the_flipped_record(
    tmp_path: Path, sources: list[dict[str, Any]]
) -> None:
    plain = mixture(tmp_path, sources)
    keys = keys_of(plain)
    lines = [{"key": keys[0], "decision": "flip"}]
    found = mixture(tmp_path, sources, decisions=[decided(tmp_path, lines)])
    before = plain.splits[0].row_index
    after = found.splits[0].row_index
    assert before is not None
    assert after is not None
    assert after.rows["chosen"].tolist() == [7, 8, 8, 8, 8, 8]  # characters
    assert after.rows["rejected"].tolist() == [8, 7, 7, 7, 7, 7]
    # Every good answer is longer than the bad one by a letter.
    length = list(SHORTCUTS).index("length")
    assert after.shortcuts[:, length].tolist() == [-1, 1, 1, 1, 1, 1]
    is_first = list(SHORTCUTS).index("first")
    assert after.shortcuts[:, is_first].tolist() == [UNKNOWN] * 6
    assert np.array_equal(after.shortcuts[:, -1], before.shortcuts[:, -1])
    # A rationale that can be shown in one order only belongs to the other preference.
    one_order = row("one order", rationale="As argued, the former wins: [Response 1]!")
    ranked = [project(tmp_path, "ordered", [one_order])]
    assert mixture(tmp_path, ranked).rationale_sides.tolist() == [0]
    key = keys_of(mixture(tmp_path, ranked))[0]
    lines = [{"key": key, "decision": "flip"}]
    flip = mixture(tmp_path, ranked, decisions=[decided(tmp_path, lines)])
    assert flip.rationale_sides.tolist() == [-1]
    # A length filter sees the flipped record.
    long = [project(tmp_path, "long", [row("x", chosen="a" * 10, rejected="b" * 100), row("y")])]
    key = keys_of(mixture(tmp_path, long))[0]
    settings = {"filters": {"length_gap": 3.0}}
    lines = [{"key": key, "decision": "flip"}]
    assert len(mixture(tmp_path, long, **settings)) == 2
    filtered = mixture(tmp_path, long, **settings, decisions=[decided(tmp_path, lines)])
    assert filtered.card().sources[0].left_out == {"length_gap": 1}


@pytest.mark.parametrize("is_generated", [False, True])
def test_shortcuts_are_balanced_in_the_flipped_records(
    tmp_path: Path, sources: list[dict[str, Any]], is_generated: bool
) -> None:
    config = sources
    if is_generated:  # all right answers have the longer ending
        config = [SHAPES | {"courteous_right": 1.0, "text_only": 1.0}]
    plain = mixture(tmp_path, config)
    with pytest.raises(UserError, match="would leave none of its"):
        mixture(tmp_path, config, balance=["length"])
    lines = [{"key": key, "decision": "flip"} for key in keys_of(plain)[: len(plain) // 2]]
    decisions = [decided(tmp_path, lines)]
    found = mixture(tmp_path, config, decisions=decisions, balance=["length"])
    assert chosen_texts(found) == chosen_texts(mixture(tmp_path, config, decisions=decisions))
    # One more flip leaves two records without a counterpart.
    lines.append({"key": keys_of(plain)[-1], "decision": "flip"})
    fewer = mixture(tmp_path, config, decisions=[decided(tmp_path, lines)], balance=["length"])
    assert len(fewer) == len(plain) - 2


def test_a_contradictory_record_has_another_key(tmp_path: Path) -> None:
    rows = [row("q", chosen="a", rejected="b"), row("q", chosen="b", rejected="a")]
    found = mixture(tmp_path, [project(tmp_path, "both", rows)])
    first, second = keys_of(found)
    assert first != second
    lines = [{"key": second, "decision": "flip"}]
    same = mixture(
        tmp_path, [project(tmp_path, "both", rows)], decisions=[decided(tmp_path, lines)]
    )
    assert chosen_texts(same) == ["a", "a"]


def test_the_last_line_of_the_last_file_counts(
    tmp_path: Path, sources: list[dict[str, Any]]
) -> None:
    keys = keys_of(mixture(tmp_path, sources))
    lines = [{"key": key, "decision": "leave_out"} for key in keys[:3]]
    lines.append({"key": keys[0], "decision": "flip"})
    first = decided(tmp_path, lines, "first.jsonl")
    second = decided(tmp_path, [{"key": keys[1], "decision": "keep"}], "second.jsonl")
    found = mixture(tmp_path, sources, decisions=[first, second])
    assert chosen_texts(found) == ["bad q 0", *(f"good q {number}" for number in (1, 3, 4, 5))]


def test_generated_records_are_named_too(tmp_path: Path) -> None:
    plain = mixture(tmp_path, [SHAPES])
    keys = keys_of(plain)
    lines = [{"key": keys[4], "decision": "flip"}, {"key": keys[7], "decision": "leave_out"}]
    found = mixture(tmp_path, [SHAPES], decisions=[decided(tmp_path, lines)])
    expected = chosen_texts(plain)
    expected[4] = plain[4].rejected.text
    del expected[7]
    assert chosen_texts(found) == expected
    assert found.splits[0].left_out == {"decision": 1}
    assert keys_of(found) == keys[:7] + keys[8:]


def test_the_content_of_a_source_tells_other_decisions_apart(
    tmp_path: Path, sources: list[dict[str, Any]]
) -> None:
    for config in (sources, [SHAPES]):
        plain = mixture(tmp_path, config)
        keys = keys_of(plain)
        contents = {plain.splits[0].content}
        for number, decision in ((0, "flip"), (1, "flip"), (0, "leave_out"), (0, "equal")):
            lines = [{"key": keys[number], "decision": decision}]
            found = mixture(tmp_path, config, decisions=[decided(tmp_path, lines)])
            contents.add(found.splits[0].content)
        assert len(contents) == 5
        # Decisions that change nothing leave the content as it is.
        lines = [{"key": keys[0], "decision": "keep"}, {"key": "f" * 16, "decision": "flip"}]
        same = mixture(tmp_path, config, decisions=[decided(tmp_path, lines)])
        assert same.splits[0].content == plain.splits[0].content


def test_a_recipe_without_decisions_has_the_digest_of_earlier_versions() -> None:
    config = MixtureConfig.model_validate({"sources": [SHAPES]})
    assert "decisions" not in config.model_dump_json()


@given(st.lists(st.integers(0, 3), min_size=2, max_size=6), st.booleans())
def test_a_flip_reverses_the_ranks_and_two_flips_change_nothing(
    numbers: list[int], has_attributes: bool
) -> None:
    ranks = tuple(sorted(dense_ranks(numbers)))
    texts = [f"answer {index}" for index in range(len(ranks))]
    attributes = {}
    if has_attributes:
        attributes["rating"] = tuple(float(-rank) for rank in ranks)
    record = Preference(
        identity="r",
        prompt=({"role": "user", "content": [{"type": "text", "text": "q"}]},),
        responses=tuple(map(Response.of_text, texts)),
        ranks=ranks,
        attributes=attributes,
        positions=tuple(range(len(ranks))),
        chosen_critique="of the first",
        rejected_critique="of the last",
    )
    turned = validate(flipped(record))
    rank_by_text = dict(
        zip([response.text for response in turned.responses], turned.ranks, strict=True)
    )
    for index, rank in enumerate(ranks):
        assert rank_by_text[texts[index]] == max(ranks) - rank
    if has_attributes:
        values = zip(turned.responses, turned.attributes["rating"], strict=True)
        for response, value in values:
            assert value == -ranks[texts.index(response.text)]
    assert turned.chosen_critique == "of the last"
    assert turned.positions == tuple(reversed(range(len(ranks))))
    assert flipped(turned) == record


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no json", "no JSON object"),
        ("[1]", "no JSON object"),
        ('{"decision": "flip"}', "the key is 'None'"),
        ('{"key": "12", "decision": "flip"}', "the key is '12'"),
        ('{"key": "00000000000000000", "decision": "flip"}', "the key is"),
        ('{"key": "0000000000000000", "decision": "swap"}', "the decision is 'swap'"),
        ('{"key": "0000000000000000"}', "the decision is 'None'"),
    ],
)
def test_a_line_that_is_no_decision_is_refused(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "decisions.jsonl"
    path.write_text(f'{{"key": "{"a" * 16}", "decision": "keep"}}\n\n{line}\n')
    with pytest.raises(UserError, match=r"line 3: .*keep, flip, equal, leave_out") as error:
        read_decisions([str(path)])
    assert message in str(error.value)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        with pytest.raises(UserError, match=r"data\.decisions: .* cannot be read"):
            read_decisions([str(path)])


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.sampled_from(DECISIONS)), max_size=20))
def test_written_decisions_are_read_again(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[int, str]]
) -> None:
    folder = tmp_path_factory.mktemp("decisions")
    lines = [{"key": written_key(key), "decision": decision} for key, decision in pairs]
    assert read_decisions([decided(folder, lines)]).by_key == dict(pairs)


def test_keys_are_arrays_of_their_decision() -> None:
    assert read_decisions([]).keys_of("flip").dtype == np.uint64
