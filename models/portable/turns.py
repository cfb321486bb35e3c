"""How conversations are given to a chat template, and where an assistant's turn ends.

This file is saved with every checkpoint that has a reward head.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from .conversations import joined_text  # relative, because these files are saved together


class TurnRules(NamedTuple):
    """The rules of a family's chat template that differ from those of other families."""

    added_end: str = ""
    """Text of the token that ends an assistant's turn, for a template that does not write one.

    The models of such a family end an answer by generating the token that begins the user's next
    turn. The template writes it if a turn of the user follows. After any other answer, it is added.
    Empty for a template that ends turns itself.
    """
    text_roles: tuple[str, ...] = ()
    """Roles whose content the template takes as one text. It would write out a list of parts as
    program code."""

    @classmethod
    def of(cls, config: Any) -> TurnRules:
        """Return the rules that a saved reward model was trained with.

        Args:
            config: The model's configuration, with `assistant_turn`.
        """
        saved: Mapping[str, Any] = config.assistant_turn
        return cls(saved.get("added_end", ""), tuple(saved.get("text_roles", ())))


ENDED_BY_TEMPLATE = TurnRules()
"""The rules of a template that writes a token after every answer, and that takes the content of
every turn as a list of parts."""


def apply_template(
    tokenizer: Any, turns: Sequence[Mapping[str, Any]], rules: TurnRules, *, open_turn: bool
) -> str:
    """Return turns as the chat template renders them, with an end after every answer.

    Some templates write a block of thoughts at the beginning of an answer. With `enable_thinking`
    false, the block is empty and the same before an answer that is given and before one that is
    still to be written. Templates without such a block ignore the variable.

    Args:
        tokenizer: The tokenizer, with its chat template.
        turns: The turns, whose content is a list of parts. Turns of the assistant have no images.
        rules: The rules of the template.
        open_turn: Add the text that the template writes before an answer at the end.
    """
    next_roles = [turn["role"] for turn in turns[1:]] + [""]
    template_turns = [
        _for_template(turn, next_role, rules)
        for turn, next_role in zip(turns, next_roles, strict=True)
    ]
    rendered: str = tokenizer.apply_chat_template(
        template_turns, tokenize=False, add_generation_prompt=open_turn, enable_thinking=False
    )
    return rendered


class TrimmedSides(NamedTuple):
    """The sides of an answer at which the chat template removes white space."""

    beginning: bool
    end: bool

    def trim(self, answer: str) -> str:
        """Return an answer as the template writes it."""
        if self.beginning:
            answer = answer.lstrip()
        if self.end:
            answer = answer.rstrip()
        return answer


def trimmed_sides(tokenizer: Any, rules: TurnRules) -> TrimmedSides:
    """Return the sides at which the chat template removes white space around an answer.

    A template that joins an answer to a block of thoughts before it trims the text may remove white
    space at the end alone.

    Args:
        tokenizer: The tokenizer, with its chat template.
        rules: The rules of the template.
    """
    turns = []
    for role, text in (("user", "-"), ("assistant", "  answer  ")):
        turns.append({"role": role, "content": [{"type": "text", "text": text}]})
    rendered = apply_template(tokenizer, turns, rules, open_turn=False)
    return TrimmedSides(beginning="  answer" not in rendered, end="answer  " not in rendered)


def _for_template(turn: Mapping[str, Any], next_role: str, rules: TurnRules) -> Mapping[str, Any]:
    """Return a turn in the form in which the chat template takes it, with its end.

    Args:
        turn: The turn.
        next_role: The role of the turn after it; empty if there is none.
        rules: The rules of the template.
    """
    role = turn["role"]
    parts = list(turn["content"])
    if rules.added_end and role == "assistant" and next_role != "user":
        parts.append({"type": "text", "text": rules.added_end})
    if role in rules.text_roles:
        return {**turn, "content": joined_text(parts)}
    return {**turn, "content": parts}
