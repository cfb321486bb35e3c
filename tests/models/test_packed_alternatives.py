"""Probabilities of alternatives after written texts: the packed pass gives the padded stock model's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrm.data.preference import Message
from mmrm.models import packed_alternatives
from mmrm.models.backbone import load_language_model
from mmrm.models.config import BackboneConfig
from mmrm.models.encoder import Encoder
from mmrm.models.packed_alternatives import Choice, log_probabilities_of_alternatives
from mmrm.models.packing.packed_batch import PackedBatch, unpack
from mmrm.models.packing.segments import SegmentTree, merge
from tests.models import tiny
from tests.models.exactness import assert_exact
from tests.trees import image_inputs

BUDGET = 4096
LONG = tuple(range(20, 60))
"""A text that is long enough to be shared by its alternatives."""


def prompt(question: str, pictures: int = 1) -> SegmentTree:
    """Return a prompt with pictures, a tree with one output."""
    content: Any = [{"type": "image"}] * pictures + [{"type": "text", "text": question}]
    message: Message = {"role": "user", "content": content}
    encoder = tiny.encoder()
    images = [tiny.picture(60 + 30 * number, 60, number) for number in range(pictures)]
    return encoder.encode(images, [encoder.render([message])], None)


def model(folder: Path) -> Any:
    checkpoint = str(tiny.checkpoint(folder))
    return load_language_model(BackboneConfig(path=checkpoint, dtype="float32")).eval()


def stock_log_probability(
    stock: Any, prompt: SegmentTree, written: Sequence[int], alternative: Sequence[int]
) -> Tensor:
    """Return the log-probability of an alternative by the stock model on the whole text alone."""
    [conversation] = prompt.conversations()
    ids = torch.tensor([[*conversation.ids, *written, *alternative]])
    logits = stock(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == stock.config.image_token_id).int(),
        **image_inputs(prompt),
    ).logits[0]
    total = torch.zeros(())
    for index, token in enumerate(alternative):
        # The logits at a position predict the next token.
        position = ids.shape[1] - len(alternative) + index - 1
        total = total + logits[position].log_softmax(-1)[token]
    return total


CASES = [
    (prompt("What is it?"), Choice(LONG, ((40,), (41,)))),
    # Alternatives of several tokens, one of which begins like another one.
    (prompt("What is it?"), Choice((30, 31), ((40, 44), (40,), (41, 42, 43)))),
    # Nothing was written, and there is no image.
    (prompt("Which one?", pictures=0), Choice((), ((40,), (41,), (42,)))),
    (prompt("Which of both?", pictures=2), Choice((33,), ((44, 45),))),
]


@pytest.mark.numerics
@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("budget", [BUDGET, 1])
def test_the_log_probabilities_are_the_stock_models(tmp_path: Path, budget: int) -> None:
    ours = model(tmp_path)
    stock = tiny.language_model()
    prompts = [tree for tree, _ in CASES]
    choices = [[choice] for _, choice in CASES]
    found = log_probabilities_of_alternatives(ours, tiny.encoder(), prompts, choices, budget)
    for (tree, choice), of_tree in zip(CASES, found, strict=True):
        [of_choice] = of_tree
        with torch.no_grad():
            wanted = [
                stock_log_probability(stock, tree, choice.written, alternative)
                for alternative in choice.alternatives
            ]
        assert_exact(of_choice, torch.stack(wanted))


@pytest.mark.usefixtures("float64")
def test_choices_after_outputs_of_one_tree_are_those_of_the_prompts_alone(tmp_path: Path) -> None:
    """The trees of a packed row, with several outputs and several roots, can be asked again."""
    ours = model(tmp_path)
    prompts = [tree for tree, _ in CASES]
    choices = [choice for _, choice in CASES]
    alone = log_probabilities_of_alternatives(
        ours, tiny.encoder(), prompts, [[choice] for choice in choices], BUDGET
    )
    merged = merge(prompts)
    twice = merged.with_outputs([*merged.outputs, *merged.outputs])
    [tree] = unpack(tiny.encoder().pack([twice]))
    [together] = log_probabilities_of_alternatives(
        ours, tiny.encoder(), [tree], [[*choices, *choices]], BUDGET
    )
    wanted = [numbers for [numbers] in alone]
    for found, expected in zip(together, wanted * 2, strict=True):
        assert_exact(found, expected)


def test_a_prompt_and_a_long_text_are_computed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[PackedBatch] = []
    pack = Encoder.pack

    def watched(encoder: Encoder, trees: Sequence[SegmentTree]) -> PackedBatch:
        rows.append(pack(encoder, trees))
        return rows[-1]

    monkeypatch.setattr(Encoder, "pack", watched)
    tree = prompt("What is it?")
    of_three_texts = tree.with_outputs(tree.outputs * 3)
    other = tuple(token + 1 for token in LONG)
    choices = [Choice(text, ((40,), (41,))) for text in (LONG, other, LONG[::-1])]
    arguments = (model(tmp_path), tiny.encoder(), [of_three_texts], [choices])
    log_probabilities_of_alternatives(*arguments, BUDGET)
    [row] = rows
    assert row.tokens == tree.tokens + 3 * (len(LONG) + 2)
    rows.clear()
    # A row that holds the prompt with one text, but not with two.
    budget = tree.cost + len(LONG) + 2
    log_probabilities_of_alternatives(*arguments, budget)
    assert [row.tokens for row in rows] == [tree.tokens + len(LONG) + 2] * 3
    assert all(row.cost <= budget for row in rows)


def test_a_rank_without_prompts_runs_as_many_rows_as_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_alternatives, "max_over_ranks", lambda count, device: 2)
    ours = model(tmp_path)
    forward = ours.forward
    num_labels: list[int] = []

    def counted(**inputs: Any) -> Tensor:
        num_labels.append(len(inputs["labels"]))
        return forward(**inputs)  # type: ignore[no-any-return]

    monkeypatch.setattr(ours, "forward", counted)
    assert log_probabilities_of_alternatives(ours, tiny.encoder(), [], [], BUDGET) == []
    tree, choice = CASES[0]
    log_probabilities_of_alternatives(ours, tiny.encoder(), [tree], [[choice]], BUDGET)
    assert num_labels == [0, 0, 2, 0]
