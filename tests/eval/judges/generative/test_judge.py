"""The generative judge: what it is shown, how votes are placed, and that sharing a prompt changes no vote."""

from __future__ import annotations

import dataclasses
import io
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrm.data.preference import Message, text_pair, text_responses
from mmrm.data.prompts import question, write_judgement
from mmrm.eval.candidates import Candidates, Example, Vote
from mmrm.eval.journal import Journal
from mmrm.eval.judges import writing
from mmrm.eval.judges.generative.judge import (
    GenerativeJudge,
    PairLayout,
    by_template,
)
from mmrm.eval.judges.judging_config import ComparisonsConfig
from mmrm.eval.judges.packed_inference import Packed
from mmrm.eval.judges.packed_judge import Unit, UnitEncoder, UnitResult
from mmrm.eval.protocol import ProtocolConfig, presentations
from mmrm.eval.results.result import outcomes
from mmrm.models import generation
from mmrm.models.backbone import load_language_model, set_attention
from mmrm.models.config import BackboneConfig, SamplingConfig
from mmrm.models.generation import Generation
from mmrm.models.packing.packed_batch import PackedBatch
from tests.eval.doubles import JudgeOfBenchmark
from tests.models import tiny
from tests.trees import image_inputs


def example(number: int, images: int = 1) -> Example:
    content: Any = [{"type": "image"}] * images + [
        {"type": "text", "text": f"What is in picture {number}?"}
    ]
    prompt: Message = {"role": "user", "content": content}
    pictures = tuple(png(60 + 30 * number + i) for i in range(images))
    responses = ("a red square", f"{number} blue circles")
    return Example(
        f"key-{number}",
        pictures,
        (prompt,),
        text_pair(*responses),
        f"row {number}",
        1,
        "group",
        "source",
        {},
    )


def png(width: int) -> bytes:
    buffer = io.BytesIO()
    tiny.picture(width, 60, width).save(buffer, "PNG")
    return buffer.getvalue()


EXAMPLES = [example(0), example(1, images=0), example(2, images=2), example(3)]


@cache
def model(folder: str) -> Any:
    return load_language_model(BackboneConfig(path=folder, dtype="float32")).eval()


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.checkpoint(tmp_path_factory.mktemp("tiny")))


def judge(
    checkpoint: str, *, temperature: float = 0.0, budget: int = 4096, **protocol: Any
) -> JudgeOfBenchmark:
    judging = GenerativeJudge(
        model=model(checkpoint),
        ask=by_template("short"),
        packed=Packed(tiny.encoder(), torch.device("cpu"), budget),
        sampling=SamplingConfig(temperature=temperature, max_new_tokens=6),
    )
    return JudgeOfBenchmark(judging, ProtocolConfig(**protocol))


@pytest.mark.parametrize("order", ["both", "official", "winner_first"])
@pytest.mark.parametrize("votes", [1, 3])
def test_votes_stand_where_the_protocol_places_them(
    checkpoint: str, order: Any, votes: int
) -> None:
    found = judge(checkpoint, temperature=1.0, order=order, votes=votes)
    verdicts = found.judge(EXAMPLES)
    for one, verdict in zip(EXAMPLES, verdicts, strict=True):
        assert tuple(vote.shown for vote in verdict.votes) == presentations(one, found.protocol)
    outcomes(EXAMPLES, verdicts, found.protocol)
    assert found.spent.judgements == sum(
        len(presentations(one, found.protocol)) for one in EXAMPLES
    )
    assert found.spent.truncated <= found.spent.judgements


def test_votes_differ_by_turn_and_order_but_not_by_company(checkpoint: str) -> None:
    together = judge(checkpoint, temperature=1.0, votes=3).judge(EXAMPLES)
    alone = [judge(checkpoint, temperature=1.0, votes=3).judge([one])[0] for one in EXAMPLES]
    narrow = judge(checkpoint, temperature=1.0, votes=3, budget=1).judge(EXAMPLES)
    assert together == alone == narrow
    assert len({vote.text for vote in together[0].votes}) > 1


def test_what_it_may_write_counts_when_rows_are_filled(
    checkpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A budget that holds all prompts holds the votes on one order when many tokens may be generated."""
    sizes: list[int] = []

    def watched(model: Any, batch: PackedBatch, **settings: Any) -> list[Generation]:
        sizes.append(sum(batch.output_counts))
        return generation.generate(model, batch, **settings)

    monkeypatch.setattr(writing, "generate", watched)
    found = judge(checkpoint, temperature=1.0, votes=3)
    found.judge(EXAMPLES)
    assert sizes == [3 * 2 * len(EXAMPLES)]  # three votes in both orders
    sizes.clear()
    short = found.judging.sampling
    monkeypatch.setattr(
        writing,
        "generate",
        lambda *args, **settings: watched(*args, **settings | {"sampling": short}),
    )
    longer = SamplingConfig(temperature=1.0, max_new_tokens=10_000)
    found.judging = dataclasses.replace(found.judging, sampling=longer)
    found.judge(EXAMPLES)
    assert sizes == [3] * (2 * len(EXAMPLES))


def test_a_judge_goes_on_from_its_journal(checkpoint: str, tmp_path: Path) -> None:
    journal, whole = (
        Journal(file=tmp_path / "journal.jsonl", fingerprint="m"),
        judge(checkpoint, temperature=1.0, votes=3),
    )
    verdicts = whole.judge(EXAMPLES)
    judge(checkpoint, temperature=1.0, votes=3).judge(EXAMPLES[:2], journal)
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert len(lines) == 5  # the mark, and two orders of two rows
    (tmp_path / "journal.jsonl").write_text("\n".join(lines[:4]) + "\n")
    resumed = judge(checkpoint, temperature=1.0, votes=3)
    assert resumed.judge(EXAMPLES, journal) == verdicts
    assert resumed.notes() == whole.notes()
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1 + 2 * len(EXAMPLES)


def test_a_benchmark_asks_what_its_protocol_says_whatever_ranks_other_responses(
    checkpoint: str,
) -> None:
    plain = judge(checkpoint)
    sparse = dataclasses.replace(
        plain.judging, protocol=None, comparisons=ComparisonsConfig(comparisons="sorted")
    )
    assert not sparse.info.compares_all
    assert JudgeOfBenchmark(sparse).judge(EXAMPLES) == plain.judge(EXAMPLES)


def test_a_ranking_goes_on_from_its_journal(checkpoint: str, tmp_path: Path) -> None:
    """A killed ranking asks no comparison again, in whichever round it was asked."""
    responses = text_responses("one", "two", "three", "four", "five")
    group = Candidates("key", (png(60),), EXAMPLES[0].prompt, responses, "row")
    sparse: Any = dataclasses.replace(
        judge(checkpoint).judging,
        protocol=None,
        comparisons=ComparisonsConfig(comparisons="swiss", rounds=2),
    )
    file = tmp_path / "journal.jsonl"
    journal = Journal("ranking", None, file, "mark")
    [scores] = sparse.score_batch([group], journal)
    assert len(scores.votes) == scores.usage.judgements == 8
    lines = file.read_text().splitlines()
    assert len(lines) == 1 + 8
    file.write_text("\n".join(lines[:7]) + "\n")
    assert sparse.score_batch([group], journal) == [scores]
    assert sorted(file.read_text().splitlines()) == sorted(lines)


def test_greedy_judgements_are_those_of_plain_generation(checkpoint: str) -> None:
    encoder, found = tiny.encoder(), judge(checkpoint, order="winner_first").judge(EXAMPLES[:1])[0]
    unit = Unit("1-0", EXAMPLES[0], (1, 0), ("seed",))
    tree = UnitEncoder(encoder, PairLayout(by_template("short")))(unit)
    [conversation] = tree.conversations()
    ids = torch.tensor([conversation.ids])
    plain = tiny.language_model()
    plain.load_state_dict(model(checkpoint).state_dict())
    set_attention(plain, "sdpa")
    kinds = (ids == plain.config.image_token_id).int()
    written = plain.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=kinds,
        **image_inputs(tree),
        max_new_tokens=6,
        do_sample=False,
        eos_token_id=encoder.tokenizer.convert_tokens_to_ids("<|im_end|>"),
        suppress_tokens=[plain.config.image_token_id],
    )[0, ids.shape[1] :].tolist()
    end = encoder.tokenizer.convert_tokens_to_ids("<|im_end|>")
    wanted = encoder.tokenizer.decode(written[: written.index(end)] if end in written else written)
    assert found.votes[0].text == wanted


@pytest.mark.parametrize(
    ("judgement", "shown", "named"),
    [
        (write_judgement("r", 1), (0, 1), 0),
        (write_judgement("r", 1), (1, 0), 1),
        (write_judgement("r", 2), (1, 0), 0),
        (write_judgement("r", 2), (0, 1), 1),
        ("no tags", (1, 0), None),
    ],
)
def test_a_named_position_becomes_the_response_that_stood_there(
    checkpoint: str, judgement: str, shown: tuple[int, int], named: int | None
) -> None:
    judging = judge(checkpoint).judging
    pair = dataclasses.replace(EXAMPLES[0], presentations=(shown,))
    scores = judging.merge(pair, judging.units(pair), [UnitResult(texts=(judgement,))])
    assert scores.votes == (Vote(shown, named, judgement),)


def test_the_first_response_is_shown_as_response_1() -> None:
    ask = by_template("short")
    assert "Response 1: 0 blue circles\nResponse 2: a red square" in question(ask(EXAMPLES[0], 1))
    swapped = dataclasses.replace(EXAMPLES[0], responses=text_pair("{second}", "b"))
    assert "Response 1: {second}\nResponse 2: b" in question(ask(swapped, 0))
