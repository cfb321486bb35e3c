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
from mmrm.models.packed_alternatives import (
    Choice,
    choice_after_text,
    choice_in_text,
    log_probabilities_of_alternatives,
)
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


class WordTokenizer:
    """A tokenizer whose tokens are the entries of a list; it takes the longest that fits."""

    def __init__(self, *tokens: bytes) -> None:
        self.tokens = tokens

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of some tokens."""
        return b"".join(self.tokens[index] for index in ids).decode(errors="replace")

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Return the tokens of a text."""
        assert not add_special_tokens
        ids: list[int] = []
        rest = text.encode()
        while rest:
            fitting = [token for token in self.tokens if rest.startswith(token)]
            longest = max(fitting, key=len)
            ids.append(self.tokens.index(longest))
            rest = rest[len(longest) :]
        return ids


WORDS = WordTokenizer(
    b"Answer", b" 1", b" 2", b" ", b"1", b"2", b"<answer>", b" is", b"1]", b"2", b"]"
)
"""Blanks belong to the digits after them, and one digit has a token with the bracket after it."""


def test_the_alternatives_are_tokenised_with_what_their_token_holds() -> None:
    def words(*texts: str) -> list[int]:
        return [WORDS.tokens.index(text.encode()) for text in texts]

    ids = words("Answer", " 1", " is")
    found = choice_in_text(WORDS, ids, 7, 8, ("1", "2"))
    assert found == Choice(tuple(words("Answer")), (tuple(words(" 1")), tuple(words(" 2"))))
    # The token of the written verdict holds the bracket too, and the other verdict needs two tokens.
    ids = words("<answer>", "1]", " is")
    found = choice_in_text(WORDS, ids, 8, 9, ("1", "2"))
    assert found == Choice(tuple(words("<answer>")), (tuple(words("1]")), tuple(words("2", "]"))))
    found = choice_after_text(WORDS, words(" is"), 3, "<answer>Answer ", ("1", "2"))
    before = words(" is", "<answer>", "Answer")
    assert found == Choice(tuple(before), (tuple(words(" 1")), tuple(words(" 2"))))
    assert choice_after_text(WORDS, [], 0, "<answer>", ("1", "2")).written == tuple(
        words("<answer>")
    )
    # A text is cut inside a token.
    cut = choice_after_text(WORDS, words(" is", "1]", " is"), 4, "<answer>", ("1", "2"))
    assert cut.written == tuple(words(" is", "1", "<answer>"))


def test_a_character_of_several_tokens_is_not_divided() -> None:
    tokenizer = WordTokenizer(b"a", "é".encode()[:1], "é".encode()[1:], "é".encode(), b"1", b"2")
    ids = [0, 1, 2, 4, 1, 2]
    assert tokenizer.decode(ids) == "aé1é"
    assert choice_in_text(tokenizer, ids, 2, 3, ("1", "2")) == Choice((0, 1, 2), ((4,), (5,)))
    # The character is not written again: it is the end of the text that is kept.
    assert choice_after_text(tokenizer, ids, 2, "", ("1", "2")).written == (0, 1, 2)
    # What replaces the character is tokenised from its first token on.
    assert choice_in_text(tokenizer, ids, 1, 2, ("1", "2")) == Choice((0,), ((4,), (5,)))


def test_tokens_with_which_all_alternatives_begin_are_written_once() -> None:
    tokenizer = WordTokenizer(b"x", b"y", b"z")
    assert choice_after_text(tokenizer, [], 0, "x", ("yx", "yz")) == Choice((0, 1), ((0,), (2,)))
    # One alternative is the beginning of the other one: each keeps a token.
    assert choice_after_text(tokenizer, [], 0, "x", ("y", "yz")) == Choice((0,), ((1,), (1, 2)))
