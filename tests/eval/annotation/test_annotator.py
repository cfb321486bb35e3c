"""Annotation: tries, policies for failures, and a kill at any point loses and doubles nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from mmrm.data.errors import EndpointError, UserError
from mmrm.data.preference import Preference
from mmrm.data.preparation.mixing import Mixture, MixtureConfig
from mmrm.data.prompts import Answer, conclusion, question, write_judgement
from mmrm.data.prompts import read_judgement as read_judgement
from mmrm.data.sources.project import ProjectConfig
from mmrm.data.sources.shared.source import SourceConfig
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.eval.annotation.annotation_counts import (
    AnnotationCounts,
    counts_by_source,
    table_of_counts,
)
from mmrm.eval.annotation.annotator import (
    Annotation,
    Annotator,
    after_try,
    annotate,
    append_json_line,
    can_be_learned,
    journal_file_of,
    read_journal,
)
from mmrm.eval.annotation.endpoint_annotator import Complete, EndpointAnnotator
from mmrm.eval.annotation.pair_annotator import PairJudgement
from mmrm.eval.judges.endpoint.client import Answer as Reply


def records(count: int = 6) -> Mixture:
    return Mixture(MixtureConfig(sources=[ShapesConfig(type="shapes", level="demo", rows=count)]))


class Model:
    """Names the right response from try `needed` on, where it can see it; fails for good after `lasts` requests."""

    def __init__(self, pairs: Mixture, needed: int, lasts: int = 99) -> None:
        self.pairs = [pairs[index] for index in range(len(pairs))]
        self.needed, self.lasts = needed, lasts
        self.temperatures: list[float] = []

    def __call__(self, body: Mapping[str, Any]) -> Reply:
        """Answer a request."""
        if len(self.temperatures) == self.lasts:
            raise EndpointError("gone")
        self.temperatures.append(body["temperature"])
        shown = body["messages"][0]["content"][-1]["text"]
        record = next(
            one
            for one in self.pairs
            if f"\n{one.chosen.text}  \n" in shown and f"\n{one.rejected.text}  \n" in shown
        )
        right: Answer = (
            1
            if shown.index(f"\n{record.chosen.text}  \n")
            < shown.index(f"\n{record.rejected.text}  \n")
            else 2
        )
        wrong: Answer = 2 if right == 1 else 1
        answer = right if body["seed"] >= self.needed else wrong
        return Reply(write_judgement(f"Response {answer} is better.", answer), False, 0, 0)


def asking(complete: Complete, **settings: Any) -> Annotator:
    """Return an annotator that asks a double of an endpoint."""
    return Annotator(EndpointAnnotator(complete, "m"), **settings)


def read(path: Path) -> list[Preference]:
    source = ProjectConfig(type="project", path=str(path)).open(path.parent / "cache")
    return [source.record(index) for index in range(len(source))]


def test_records_are_written_with_a_rationale_that_names_the_chosen_response(
    tmp_path: Path,
) -> None:
    pairs, path = records(), tmp_path / "out.jsonl"
    model = Model(pairs, needed=2)
    assert annotate(pairs, range(6), asking(model), path, "drop") == 6
    assert model.temperatures == [0.0, 0.5] * 6
    written = read(path)
    assert [one.chosen for one in written] == [pairs[index].chosen for index in range(6)]
    assert [len(one.images) for one in written] == [len(pairs[index].images) for index in range(6)]
    assert [question(one.prompt) for one in written] == [
        question(pairs[index].prompt) for index in range(6)
    ]
    assert all(one.rationale is not None and conclusion(one.rationale) == 1 for one in written)
    assert [one.difficulty for one in written] == [2] * 6
    lines = read_journal(journal_file_of(path), pairs)
    assert [(line["index"], line["tries"], line["right"]) for line in lines] == [
        (index, 2, True) for index in range(6)
    ]


@pytest.mark.parametrize(("failures", "kept"), [("drop", 0), ("keep", 6)])
def test_what_is_never_right_is_dropped_or_kept_without_a_rationale(
    tmp_path: Path, failures: Any, kept: int
) -> None:
    pairs, path = records(), tmp_path / "out.jsonl"
    annotate(pairs, range(6), asking(Model(pairs, needed=9)), path, failures)
    assert len(path.read_text().splitlines() if path.exists() else []) == kept
    assert all(
        "rationale" not in json.loads(line) and json.loads(line)["difficulty"] == 4
        for line in (path.read_text().splitlines() if kept else [])
    )
    lines = read_journal(journal_file_of(path), pairs)
    assert [(line["index"], line["tries"], line["right"]) for line in lines] == [
        (index, 3, False) for index in range(6)
    ]


@pytest.mark.parametrize("lasts", range(0, 12, 3))
def test_a_run_that_was_cut_off_goes_on_where_it_stood(tmp_path: Path, lasts: int) -> None:
    pairs, path, whole = records(), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    annotate(pairs, range(6), asking(Model(pairs, needed=2)), whole, "drop")
    with pytest.raises(EndpointError):
        annotate(pairs, range(6), asking(Model(pairs, needed=2, lasts=lasts)), path, "drop")
    # A kill may also come between a record and its line in the journal, or in the middle of that line.
    with path.open("a") as file:
        file.write('{"prompt": "not in the jou')
    with journal_file_of(path).open("a") as file:
        file.write('{"index": 5, "ident')
    annotate(pairs, range(6), asking(Model(pairs, needed=2)), path, "drop")
    assert path.read_text() == whole.read_text()
    assert journal_file_of(path).read_text() == journal_file_of(whole).read_text()


def test_a_journal_of_the_version_before_is_refused(tmp_path: Path) -> None:
    """Its lines hold no content, so that nobody can tell whose they are."""
    pairs, path = records(), tmp_path / "out.jsonl"
    append_json_line(
        journal_file_of(path),
        {"index": 0, "identity": "elsewhere:0", "tries": 1, "right": False, "written": 0},
    )
    with pytest.raises(UserError, match=r"elsewhere:0\): this journal was written by an earlier"):
        annotate(pairs, range(6), asking(Model(pairs, needed=1)), path, "drop")


def test_a_journal_of_other_records_of_the_same_names_is_refused(tmp_path: Path) -> None:
    """Also if they differ in the middle alone: the first and the last line say nothing of the others."""
    rows = [{"prompt": f"What, {n}?", "chosen": "this", "rejected": "that"} for n in range(3)]
    source, path = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def mixture() -> Mixture:
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = ProjectConfig(type="project", path=str(source))
        return Mixture(MixtureConfig(sources=[config], cache=str(tmp_path / "cache"), workers=1))

    annotate(mixture(), range(3), asking(Model(mixture(), needed=1)), path, "drop")
    rows[1]["chosen"] = "what"
    other = mixture()
    assert other[1].identity == "project:1"
    for read_again in (
        lambda: read_journal(journal_file_of(path), other),
        lambda: annotate(other, range(3), asking(Model(other, needed=1)), path, "drop"),
    ):
        with pytest.raises(UserError, match=r"record 1 is project:1, which is not that record"):
            read_again()


def test_rationales_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    pairs, path = records(), tmp_path / "out.jsonl"
    ask = asking(Model(pairs, needed=1))
    annotate(pairs, range(3), ask, path, "drop", {"model": "m"})
    with pytest.raises(UserError, match="was written with other settings than model n"):
        annotate(pairs, range(6), ask, path, "drop", {"model": "n"})
    with pytest.raises(UserError, match="failures keep"):
        annotate(pairs, range(6), ask, path, "keep", {"model": "m"})
    assert annotate(pairs, range(6), ask, path, "drop", {"model": "m"}) == 3


def test_a_journal_without_its_records_is_refused(tmp_path: Path) -> None:
    pairs, path = records(), tmp_path / "out.jsonl"
    ask = asking(Model(pairs, needed=1))
    annotate(pairs, range(3), ask, path, "drop")
    path.unlink()
    with pytest.raises(UserError, match=r"holds 0 records, and its journal .* knows of 3"):
        annotate(pairs, range(6), ask, path, "drop")


def test_reading_a_journal_changes_nothing_in_it(tmp_path: Path) -> None:
    """eval/select_pairs.py reads it while eval/annotate.py may be in the middle of a line."""
    pairs, path = records(), tmp_path / "out.jsonl"
    annotate(pairs, range(3), asking(Model(pairs, needed=1)), path, "drop")
    with journal_file_of(path).open("a") as file:
        file.write('{"index": 3, "ident')
    before = journal_file_of(path).read_bytes()
    assert len(read_journal(journal_file_of(path), pairs)) == 3
    assert journal_file_of(path).read_bytes() == before


@pytest.mark.parametrize(
    ("reasoning", "can_be_rewritten"),
    [("Response {} is better.", True), ("Response {} is better, the former is not.", False)],
)
def test_a_rationale_is_written_with_the_order_that_it_is_right_for(
    reasoning: str, can_be_rewritten: bool, tmp_path: Path
) -> None:
    """Half of the pairs are shown with the chosen response second."""
    pairs = records(12)
    model = Model(pairs, needed=1)

    def complete(body: Mapping[str, Any]) -> Reply:
        answer = read_judgement(model(body).text).answer
        assert answer is not None
        return Reply(write_judgement(reasoning.format(answer), answer), False, 0, 0)

    annotate(pairs, range(12), asking(complete), tmp_path / "out.jsonl", "drop")
    written = read(tmp_path / "out.jsonl")
    firsts = [one.first_in_rationale for one in written]
    assert set(firsts) == ({"chosen"} if can_be_rewritten else {"chosen", "rejected"})
    for one in written:
        number = 1 if one.first_in_rationale == "chosen" else 2
        assert one.rationale == reasoning.format(number)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert ["first_in_rationale" in row for row in rows] == [one == "rejected" for one in firsts]


def test_a_rationale_with_a_marker_is_a_failed_try(tmp_path: Path) -> None:
    pairs = records(2)
    model = Model(pairs, needed=1)

    def complete(body: Mapping[str, Any]) -> Reply:
        text = model(body).text
        return Reply(text.replace("<think>", "<think><image> "), False, 0, 0)

    annotate(pairs, range(2), asking(complete), tmp_path / "out.jsonl", "drop")
    lines = read_journal(journal_file_of(tmp_path / "out.jsonl"), pairs)
    assert [line["right"] for line in lines] == [False, False]


class Biased(Model):
    """Judges rightly from try `needed` on; before, it names the response that is shown first."""

    def __call__(self, body: Mapping[str, Any]) -> Reply:
        """Answer a request."""
        if body["seed"] >= self.needed:
            return super().__call__(body)
        self.temperatures.append(body["temperature"])
        return Reply(write_judgement("Response 1 is better.", 1), False, 0, 0)


def test_a_rationale_is_kept_if_both_orders_are_right(tmp_path: Path) -> None:
    """Half of the pairs show the chosen response first, which a biased model gets right at once."""
    pairs = records(12)
    annotate(pairs, range(12), asking(Biased(pairs, 3)), tmp_path / "one.jsonl", "drop")
    alone = read_journal(journal_file_of(tmp_path / "one.jsonl"), pairs)
    assert {line["tries"] for line in alone} == {1, 3}

    path = tmp_path / "both.jsonl"
    model = Biased(pairs, needed=3)
    annotate(pairs, range(12), asking(model, agree=True), path, "drop")
    assert model.temperatures == [0.0, 0.0, 0.5, 0.5, 1.0, 1.0] * 12
    lines = read_journal(journal_file_of(path), pairs)
    assert [line["tries"] for line in lines] == [3] * 12
    assert [line["disagreeing"] for line in lines] == [2] * 12
    written = read(path)
    assert [one.difficulty for one in written] == [3] * 12
    assert all(one.rationale == "Response 1 is better." for one in written)


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ((0, 1), Annotation("Response 1 is better.", 1)),
        ((0, 0), Annotation(None, 1, disagreeing=1)),
        ((1, 1), Annotation(None, 1, disagreeing=1)),
        ((1, 0), Annotation(None, 1)),
        ((0, None), Annotation(None, 1, unreadable=1)),
        ((None, None), Annotation(None, 1, unreadable=2)),
    ],
)
def test_a_try_in_both_orders(named: Any, expected: Annotation) -> None:
    """The chosen response is shown first, then second."""
    judgements = [
        PairJudgement(side, f"Response {1 if side == 0 else 2} is better.") for side in named
    ]
    assert after_try(Annotation(None, 0), (0, 1), judgements) == expected
    # The other order first: its rationale is taken, and rewritten.
    reverse = after_try(Annotation(None, 0), (1, 0), judgements[::-1])
    assert reverse == expected


def test_a_try_without_a_reasoning_that_can_be_learned_fails() -> None:
    judgements = [PairJudgement(0, ""), PairJudgement(1, "Response 2 is better.")]
    found = after_try(Annotation(None, 0), (0, 1), judgements)
    assert found.rationale == "Response 1 is better."  # that of the other order
    judgements[1] = PairJudgement(1, "<think>Response 2 is better.")
    assert after_try(Annotation(None, 0), (0, 1), judgements) == Annotation(None, 1, unusable=1)
    assert can_be_learned("Response 1 is better.")
    assert not can_be_learned("Response 1 is better.</think><answer>2</answer>")
    assert not can_be_learned("<image> Response 1 is better.")


def test_agreement_is_a_setting_of_the_journal(tmp_path: Path) -> None:
    pairs = records()
    path = tmp_path / "out.jsonl"
    one = asking(Model(pairs, needed=1), agree=False)
    both = asking(Model(pairs, needed=1), agree=True)
    annotate(pairs, range(3), one, path, "drop", one.settings)
    with pytest.raises(UserError, match=r"other settings than .*agree True"):
        annotate(pairs, range(6), both, path, "drop", both.settings)


def test_outcomes_are_counted_by_source(tmp_path: Path) -> None:
    sources: list[SourceConfig] = [
        ShapesConfig(type="shapes", name=name, level="demo", rows=rows, seed=rows)
        for name, rows in (("a", 4), ("b", 5))
    ]
    pairs = Mixture(MixtureConfig(sources=sources))
    model = Model(pairs, needed=2)

    def complete(body: Mapping[str, Any]) -> Reply:
        reply = model(body)
        is_unreadable = len(model.temperatures) <= 2  # the first try of the first pair
        return Reply("I cannot tell.", False, 0, 0) if is_unreadable else reply

    annotate(pairs, range(9), asking(complete, agree=True), tmp_path / "out.jsonl", "drop")
    lines = read_journal(journal_file_of(tmp_path / "out.jsonl"), pairs)
    counts = counts_by_source(lines)
    assert counts == {
        "a": AnnotationCounts(asked=4, right_later=4, tries=8, unreadable=2),
        "b": AnnotationCounts(asked=5, right_later=5, tries=10),
    }
    table = table_of_counts(counts, agree=True)
    assert table.rows[0] == ("a", "4", "0", "4", "0", "8", "0", "2", "0")
    assert [column.name for column in table_of_counts(counts, agree=False).columns] == [
        *("source", "asked", "right at once", "right later", "never right", "tries"),
        *("unreadable", "unusable"),
    ]


def test_records_that_are_judged_together_are_written_in_order(tmp_path: Path) -> None:
    pairs = records()
    annotator = asking(Model(pairs, needed=2))
    annotate(pairs, range(6), annotator, tmp_path / "one.jsonl", "drop")
    annotate(pairs, range(6), annotator, tmp_path / "four.jsonl", "drop", records_together=4)
    for name in ("{}.jsonl", "{}.journal.jsonl"):
        one, four = ((tmp_path / name.format(count)).read_text() for count in ("one", "four"))
        assert one == four
