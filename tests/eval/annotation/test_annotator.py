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
from mmrm.data.synthetic.source import ShapesConfig
from mmrm.eval.annotation.annotator import (
    Annotator,
    annotate,
    append_json_line,
    journal_file_of,
    read_journal,
)
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


def read(path: Path) -> list[Preference]:
    source = ProjectConfig(type="project", path=str(path)).open(path.parent / "cache")
    return [source.record(index) for index in range(len(source))]


def test_records_are_written_with_a_rationale_that_names_the_chosen_response(
    tmp_path: Path,
) -> None:
    pairs, path = records(), tmp_path / "out.jsonl"
    model = Model(pairs, needed=2)
    assert annotate(pairs, range(6), Annotator(model, "m"), path, "drop") == 6
    assert model.temperatures == [0.0, 0.5] * 6
    written = read(path)
    assert [one.chosen for one in written] == [pairs[index].chosen for index in range(6)]
    assert [len(one.images) for one in written] == [len(pairs[index].images) for index in range(6)]
    assert [question(one.prompt) for one in written] == [
        question(pairs[index].prompt) for index in range(6)
    ]
    assert all(one.rationale is not None and conclusion(one.rationale) == 1 for one in written)
    lines = read_journal(journal_file_of(path), pairs)
    assert [(line["index"], line["tries"], line["right"]) for line in lines] == [
        (index, 2, True) for index in range(6)
    ]


@pytest.mark.parametrize(("failures", "kept"), [("drop", 0), ("keep", 6)])
def test_what_is_never_right_is_dropped_or_kept_without_a_rationale(
    tmp_path: Path, failures: Any, kept: int
) -> None:
    pairs, path = records(), tmp_path / "out.jsonl"
    annotate(pairs, range(6), Annotator(Model(pairs, needed=9), "m"), path, failures)
    assert len(path.read_text().splitlines() if path.exists() else []) == kept
    assert all(
        "rationale" not in json.loads(line)
        for line in (path.read_text().splitlines() if kept else [])
    )
    lines = read_journal(journal_file_of(path), pairs)
    assert [(line["index"], line["tries"], line["right"]) for line in lines] == [
        (index, 3, False) for index in range(6)
    ]


@pytest.mark.parametrize("lasts", range(0, 12, 3))
def test_a_run_that_was_cut_off_goes_on_where_it_stood(tmp_path: Path, lasts: int) -> None:
    pairs, path, whole = records(), tmp_path / "out.jsonl", tmp_path / "whole.jsonl"
    annotate(pairs, range(6), Annotator(Model(pairs, needed=2), "m"), whole, "drop")
    with pytest.raises(EndpointError):
        annotate(pairs, range(6), Annotator(Model(pairs, needed=2, lasts=lasts), "m"), path, "drop")
    # A kill may also come between a record and its line in the journal, or in the middle of that line.
    with path.open("a") as file:
        file.write('{"prompt": "not in the jou')
    with journal_file_of(path).open("a") as file:
        file.write('{"index": 5, "ident')
    annotate(pairs, range(6), Annotator(Model(pairs, needed=2), "m"), path, "drop")
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
        annotate(pairs, range(6), Annotator(Model(pairs, needed=1), "m"), path, "drop")


def test_a_journal_of_other_records_of_the_same_names_is_refused(tmp_path: Path) -> None:
    """Also if they differ in the middle alone: the first and the last line say nothing of the others."""
    rows = [{"prompt": f"What, {n}?", "chosen": "this", "rejected": "that"} for n in range(3)]
    source, path = tmp_path / "in.jsonl", tmp_path / "out.jsonl"

    def mixture() -> Mixture:
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = ProjectConfig(type="project", path=str(source))
        return Mixture(MixtureConfig(sources=[config], cache=str(tmp_path / "cache"), workers=1))

    annotate(mixture(), range(3), Annotator(Model(mixture(), needed=1), "m"), path, "drop")
    rows[1]["chosen"] = "what"
    other = mixture()
    assert other[1].identity == "project:1"
    for read_again in (
        lambda: read_journal(journal_file_of(path), other),
        lambda: annotate(other, range(3), Annotator(Model(other, needed=1), "m"), path, "drop"),
    ):
        with pytest.raises(UserError, match=r"record 1 is project:1, which is not that record"):
            read_again()


def test_rationales_of_other_settings_are_not_mixed(tmp_path: Path) -> None:
    pairs, path = records(), tmp_path / "out.jsonl"
    ask = Annotator(Model(pairs, needed=1), "m")
    annotate(pairs, range(3), ask, path, "drop", {"model": "m"})
    with pytest.raises(UserError, match="was written with other settings than model n"):
        annotate(pairs, range(6), ask, path, "drop", {"model": "n"})
    with pytest.raises(UserError, match="failures keep"):
        annotate(pairs, range(6), ask, path, "keep", {"model": "m"})
    assert annotate(pairs, range(6), ask, path, "drop", {"model": "m"}) == 3


def test_a_journal_without_its_records_is_refused(tmp_path: Path) -> None:
    pairs, path = records(), tmp_path / "out.jsonl"
    ask = Annotator(Model(pairs, needed=1), "m")
    annotate(pairs, range(3), ask, path, "drop")
    path.unlink()
    with pytest.raises(UserError, match=r"holds 0 records, and its journal .* knows of 3"):
        annotate(pairs, range(6), ask, path, "drop")


def test_reading_a_journal_changes_nothing_in_it(tmp_path: Path) -> None:
    """eval/select_pairs.py reads it while eval/annotate.py may be in the middle of a line."""
    pairs, path = records(), tmp_path / "out.jsonl"
    annotate(pairs, range(3), Annotator(Model(pairs, needed=1), "m"), path, "drop")
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

    annotate(pairs, range(12), Annotator(complete, "m"), tmp_path / "out.jsonl", "drop")
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

    annotate(pairs, range(2), Annotator(complete, "m"), tmp_path / "out.jsonl", "drop")
    lines = read_journal(journal_file_of(tmp_path / "out.jsonl"), pairs)
    assert [line["right"] for line in lines] == [False, False]
