"""Log-probabilities of given alternatives after written texts, in packed rows.

A judge's text names its verdict or its score at one place. The model gives every alternative at
that place a probability, which says more than the one alternative that was written. The texts are
given, so one forward pass reads all places. A prompt with its images is computed once, whatever the
number of texts that follow it, and so is a text for all of its alternatives (if it is longer than a
few tokens, see `prefix_tree`).
"""

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
