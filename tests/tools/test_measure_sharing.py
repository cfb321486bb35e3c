"""What sharing leaves to compute on comparisons that are counted by hand, on every kind of file, and in the documented table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mmrm.data.preference import text
from mmrm.data.preparation.recognition import FILE_SOURCES
from tests.data.preparation.test_recognition import samples
from tests.data.sources.fixtures import write_jsonl
from tools.measure_sharing import (
    BENCHMARKS,
    CASES,
    IMAGE_TOKENS,
    JUDGEMENT_TOKENS,
    Comparison,
    Tokeniser,
    measured,
    read_comparisons,
    table,
)

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
FILES = {
    "vl_rewardbench": "vl_rewardbench/data.jsonl",
    "multimodal_rewardbench": "multimodal_rewardbench/sample.json",
    "mm_rlhf_rewardbench": "mm_rlhf_rewardbench/mm_reward_bench.jsonl",
}
LONG = " ".join(["word"] * 300)


def comparison(question: str, images: tuple[str, ...], chosen: str, rejected: str) -> Comparison:
    return Comparison((text("user", question, len(images)),), images, (chosen, rejected))


def test_a_tokeniser_numbers_words_and_puts_images_where_they_stand() -> None:
    tokeniser = Tokeniser()
    conversation = tokeniser.conversation((text("user", "Two words, 42.", 1),), ["a.png"])
    pieces = {number: piece for piece, number in tokeniser.ids.items()}
    words = [pieces[number] for number in conversation.ids if number >= 0]
    assert "".join(words).endswith(
        "<|vision_end|>Two words, 42.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert words[words.index("Two") :][:6] == ["Two", " words", ",", " 4", "2", "."]
    (place,) = conversation.images
    assert conversation.ids[place.start : place.end] == (-1,) * IMAGE_TOKENS
    assert conversation.ids.count(-1) == IMAGE_TOKENS


def test_shares_are_those_that_are_counted_by_hand() -> None:
    """Two pairs of one prompt with an image, and a third about the same image."""
    pairs = [
        comparison("How many?", ("a.png",), "Two.", "Six."),
        comparison("How many?", ("a.png",), "Two.", "None at all."),
        comparison("Which colour?", ("a.png",), "Red.", "Blue."),
    ]
    by_name = dict(zip(CASES, measured(pairs), strict=True))
    patches = {name: shares[1] for name, shares in by_name.items()}
    assert patches == {
        "scalar, pairs of a prompt": pytest.approx(2 / 3),
        "scalar, prompts of an image": pytest.approx(1 / 3),
        "judge, both orders": pytest.approx(1 / 2),
        "judge, both orders, 5 judgements each": pytest.approx(1 / 2),
        "judge, all pairs of a prompt": pytest.approx(2 / 6),
        # Six ordered pairs of three responses, and two of two.
        "judge, tournament of a prompt": pytest.approx(2 / 8),
    }
    tokeniser = Tokeniser()
    conversations = []
    for pair in pairs:
        for response in pair.responses:
            messages = (*pair.prompt, text("assistant", response))
            conversations.append(tokeniser.conversation(messages, pair.images).ids)
    prompt = len(tokeniser.conversation(pairs[0].prompt, ["a.png"]).ids)
    ends = [len(ids) - prompt for ids in conversations]
    alone = 3 * prompt + sum(ends)
    shared = alone - prompt - ends[0]  # the first response of both pairs is the same
    assert by_name["scalar, pairs of a prompt"][0] == pytest.approx(shared / alone, abs=1e-3)
    assert by_name["scalar, prompts of an image"][0] < 0.45
    assert by_name["judge, both orders"][0] < 0.6
    # Judgements are shared by no other conversation.
    votes = 10 * JUDGEMENT_TOKENS
    assert by_name["judge, both orders, 5 judgements each"][0] > votes / (votes + 2.6 * prompt)


def test_without_anything_in_common_all_is_left() -> None:
    pairs = [
        comparison(f"{number} {LONG}", (), f"{number} a", f"{number} b") for number in range(3)
    ]
    shares = dict(zip(CASES, measured(pairs), strict=True))
    assert shares["scalar, pairs of a prompt"] == (1.0, None)
    assert shares["scalar, prompts of an image"] == (1.0, None)
    assert shares["judge, both orders"][0] < 0.6


@pytest.mark.parametrize("kind", sorted(set(FILE_SOURCES) - {"edit_reward", "hpdv3"}))
def test_the_files_of_every_source_are_read(kind: str, tmp_path: Path) -> None:
    rows = samples(kind)
    file = write_jsonl(tmp_path / "a.jsonl", [*rows, *rows])
    comparisons = read_comparisons(kind, file)
    assert comparisons
    # Every row is there twice, so that half of all pairs is left.
    tokens, patches = measured(comparisons)[0]
    assert tokens <= 0.5 + 1e-9
    assert patches is None or patches <= 0.5 + 1e-9


@pytest.mark.parametrize("kind", ["edit_reward", "hpdv3"])
def test_responses_with_images_are_not_measured(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", samples(kind))
    assert read_comparisons(kind, file) == []
    assert "left out: " in capsys.readouterr().err


@pytest.mark.parametrize("kind", BENCHMARKS)
def test_the_files_of_every_benchmark_are_read(kind: str, tmp_path: Path) -> None:
    row = {"prompt": "What?", "chosen": "A.", "rejected": "B.", "image": "a.png"}
    if kind == "multimodal_rewardbench":
        row = {"Text": "What?", "Output1": "A.", "Output2": "B.", "Image": "a.png"}
    for name, content in (("a.jsonl", json.dumps(row)), ("a.json", json.dumps([row]))):
        (tmp_path / name).write_text(content)
        (read,) = read_comparisons(kind, tmp_path / name)
        assert read == comparison("What?", ("a.png",), "A.", "B.")


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="../shared/data is not there")
def test_the_documented_table_is_what_the_command_prints() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    rows = [(name, read_comparisons(name, DATA / file)) for name, file in FILES.items()]
    printed = table(rows)
    assert re.sub(r"\s+", " ", printed) in re.sub(r"\s+", " ", page)
