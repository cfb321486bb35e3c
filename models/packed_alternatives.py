"""Log-probabilities of given alternatives after written texts, in packed rows.

A judge's text names its verdict or its score at one place. The model gives every alternative at
that place a probability, which says more than the one alternative that was written. The texts are
given, so one forward pass reads all places. A prompt with its images is computed once, whatever the
number of texts that follow it, and so is a text for all of its alternatives (if it is longer than a
few tokens, see `prefix_tree`).

`choice_in_text` and `choice_after_text` make the alternatives' tokens from a generated text.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mmrm.models.distributed import max_over_ranks
from mmrm.models.encoder import Encoder
from mmrm.models.packing.bins import pack_first_fit
from mmrm.models.packing.segments import (
    MIN_SAVED_TOKENS,
    SegmentTree,
    TokenisedConversation,
    prefix_tree,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """A place after a prompt at which one of several alternatives may stand."""

    written: tuple[int, ...]
    """Token ids of the text between the end of the prompt and the place; possibly none."""
    alternatives: tuple[tuple[int, ...], ...]
    """Token ids of each alternative. There is at least one alternative, and each has at least one
    token.

    The probability of an alternative is that of its own tokens, whatever follows them. If one
    alternative is the beginning of another one, such as "1" of "10", its probability contains that
    of the other one."""

    @property
    def tokens(self) -> int:
        """Number of tokens that are computed for the choice after the prompt."""
        return len(self.written) + sum(len(ids) for ids in self.alternatives)


@dataclass(frozen=True, slots=True)
class _ChoicesOfTree:
    """Some of the choices after one prompt, which are computed as one tree."""

    tree: SegmentTree
    """The prompt with an output for each alternative of each choice, in order."""
    prompt: int
    """Index of the prompt."""
    choices: tuple[int, ...]
    """Indices of the choices among all choices after the prompt."""


@torch.no_grad()
def log_probabilities_of_alternatives(
    model: Any,
    encoder: Encoder,
    prompts: Sequence[SegmentTree],
    choices: Sequence[Sequence[Choice]],
    budget: int,
) -> list[list[tuple[float, ...]]]:
    """Return the log-probability of every alternative of every choice, at temperature 1.

    It is the sum of the log-probabilities of the alternative's tokens, each over the whole
    vocabulary. Nothing is forbidden, and no repetition penalty is applied. All ranks must call
    together, each with its own prompts. They run equally many rows, as ZeRO-3 needs.

    Args:
        model: A `LabelModel` in eval mode; it may be wrapped.
        encoder: The encoder of the model's backbone.
        prompts: Prompts as trees. A tree may have several outputs, such as a packed row's trees
            from `unpack`, whose images have their patches.
        choices: For each tree, a choice after each of its outputs, in order.
        budget: Largest cost of a packed row, in tokens. The choices of a tree that does not fit are
            divided over several rows, and the prompt is then computed in each of them. A single
            choice may exceed the budget, and so may a row, by the texts that are too short to be
            shared.

    Returns:
        For each tree, for each of its outputs, the log-probability of each alternative.
    """
    device = next(model.parameters()).device
    parts: list[_ChoicesOfTree] = []
    for index, (prompt, choices_of_prompt) in enumerate(zip(prompts, choices, strict=True)):
        parts += _divided(index, prompt, choices_of_prompt, budget)
    rows = pack_first_fit([part.tree.cost for part in parts], budget)
    # All ranks must run equally many rows. An empty row is computed for a blank image alone.
    num_empty_rows = max_over_ranks(len(rows), device) - len(rows)
    results: list[list[tuple[float, ...]]] = [[()] * len(of_prompt) for of_prompt in choices]
    for row in rows + [[]] * num_empty_rows:
        batch = encoder.pack([parts[index].tree for index in row]).to(device)
        values: Tensor = model(**batch.label_inputs())  # (labels,), one alternative after another
        sums = values.new_zeros(sum(batch.output_counts)).index_add(0, batch.label_owners, values)
        remaining_sums = iter(sums.tolist())
        for index in row:
            part = parts[index]
            for number in part.choices:
                alternatives = choices[part.prompt][number].alternatives
                results[part.prompt][number] = tuple(next(remaining_sums) for _ in alternatives)
    return results


def _divided(
    index: int, prompt: SegmentTree, choices: Sequence[Choice], budget: int
) -> list[_ChoicesOfTree]:
    """Return the choices after a prompt as one tree, or as several if a row cannot hold one tree.

    Args:
        index: Index of the prompt.
        prompt: The prompt.
        choices: A choice after each of its outputs, in order.
        budget: Largest cost of a row, in tokens.
    """
    groups: list[list[int]] = []
    cost_of_group = 0
    for number, choice in enumerate(choices):
        if not groups or cost_of_group + choice.tokens > budget:
            groups.append([])
            cost_of_group = prompt.cost
        groups[-1].append(number)
        cost_of_group += choice.tokens
    divided: list[_ChoicesOfTree] = []
    for group in groups:
        conversations: list[TokenisedConversation] = []
        for number in group:
            beginning = prompt.conversation(prompt.outputs[number])
            conversations += _with_alternatives(beginning, choices[number])
        tree = prefix_tree(conversations, MIN_SAVED_TOKENS)
        divided.append(_ChoicesOfTree(tree, index, tuple(group)))
    return divided


def _with_alternatives(
    prompt: TokenisedConversation, choice: Choice
) -> list[TokenisedConversation]:
    """Return a conversation for each alternative of a choice, whose labels are its tokens."""
    conversations: list[TokenisedConversation] = []
    beginning = prompt.ids + choice.written
    for alternative in choice.alternatives:
        ids = beginning + alternative
        labels = tuple(range(len(beginning), len(ids)))
        conversations.append(TokenisedConversation(ids, prompt.images, labels=labels))
    return conversations


def choice_in_text(
    tokenizer: Any, ids: Sequence[int], start: int, end: int, alternatives: Sequence[str]
) -> Choice:
    """Return the choice between texts that may replace a part of a generated text.

    A token that holds the beginning of the part may also hold characters before it, such as the
    blank of " 1", and the last token may hold characters after it. These characters belong to every
    alternative then.

    Args:
        tokenizer: The tokenizer that decodes `ids`.
        ids: Token ids of the generated text.
        start: Index of the part's first character in the text.
        end: Index after its last character.
        alternatives: The texts that may stand there; none is the beginning of another one.
    """
    text = tokenizer.decode(ids)
    first_token, token_start = _boundary_before(tokenizer, ids, start)
    last_token_end = _boundary_after(tokenizer, ids, end)
    before = text[token_start:start]
    after = text[end:last_token_end]
    texts = [before + alternative + after for alternative in alternatives]
    return _choice_of_texts(tokenizer, ids[:first_token], texts)


def choice_after_text(
    tokenizer: Any, ids: Sequence[int], end: int, added: str, alternatives: Sequence[str]
) -> Choice:
    """Return the choice between texts that follow a generated text, or its beginning.

    Args:
        tokenizer: The tokenizer that decodes `ids`.
        ids: Token ids of the generated text; possibly none.
        end: Number of characters of the generated text that are kept.
        added: A text that is added to them, before the alternatives.
        alternatives: The texts that may follow; none is the beginning of another one.
    """
    first_token, token_start = _boundary_before(tokenizer, ids, end)
    before = tokenizer.decode(ids)[token_start:end] + added
    texts = [before + alternative for alternative in alternatives]
    return _choice_of_texts(tokenizer, ids[:first_token], texts)


def _choice_of_texts(tokenizer: Any, ids: Sequence[int], texts: Sequence[str]) -> Choice:
    """Return the choice between texts after some tokens.

    Tokens with which all texts begin are written before the choice.
    """
    encoded = [tuple(tokenizer.encode(text, add_special_tokens=False)) for text in texts]
    num_common = 0
    most_common = min(len(tokens) for tokens in encoded) - 1  # a token is left to each
    first = encoded[0]
    while num_common < most_common:
        if any(tokens[num_common] != first[num_common] for tokens in encoded):
            break
        num_common += 1
    return Choice(
        written=(*ids, *first[:num_common]),
        alternatives=tuple(tokens[num_common:] for tokens in encoded),
    )


def _boundary_before(tokenizer: Any, ids: Sequence[int], position: int) -> tuple[int, int]:
    """Return the last boundary between tokens that is not after a character of the decoded text.

    A boundary inside a character, whose bytes may be in several tokens, is none.

    Args:
        tokenizer: The tokenizer that decodes `ids`.
        ids: Token ids.
        position: Index of the character, or the length of the text.

    Returns:
        The number of tokens before the boundary, and the number of characters.
    """
    text = tokenizer.decode(ids)

    def length(num_tokens: int) -> int:
        return len(tokenizer.decode(ids[:num_tokens]))

    num_tokens = bisect_right(range(len(ids) + 1), position, key=length) - 1
    while not text.startswith(tokenizer.decode(ids[:num_tokens])):
        num_tokens -= 1
    return num_tokens, length(num_tokens)


def _boundary_after(tokenizer: Any, ids: Sequence[int], position: int) -> int:
    """Return the number of characters before the first boundary that is not before `position`.

    The arguments are those of `_boundary_before`.
    """
    text = tokenizer.decode(ids)
    num_tokens, num_characters = _boundary_before(tokenizer, ids, position)
    while num_characters < position:
        num_tokens += 1
        beginning = tokenizer.decode(ids[:num_tokens])
        if text.startswith(beginning):
            num_characters = len(beginning)
    return num_characters
